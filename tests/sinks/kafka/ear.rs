//! What librdkafka says of its connections: the only place where it gives a reason.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, Producer};

/// Remembers every error of a client.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Said>>>);

/// One error, and what librdkafka adds to it.
#[derive(Clone, Debug)]
pub struct Said {
    pub code: Option<RDKafkaErrorCode>,
    pub reason: String,
}

impl ClientContext for Ear {
    fn error(&self, error: KafkaError, reason: &str) {
        let said = Said { code: error.rdkafka_error_code(), reason: reason.to_owned() };
        self.0.lock().unwrap().push(said);
    }
}

/// Whether a client with these settings reaches the broker, and what it said on the way.
pub async fn look(brokers: &str, settings: &[(&str, &str)]) -> (KafkaResult<()>, Vec<Said>) {
    let ear = Ear::default();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    for (name, value) in settings {
        config.set(*name, *value);
    }
    let producer: FutureProducer<Ear> = config.create_with_context(ear.clone()).unwrap();
    let looking = move || producer.client().fetch_metadata(None, Duration::from_secs(3)).map(drop);
    let found = tokio::task::spawn_blocking(looking).await.unwrap();
    let said = ear.0.lock().unwrap().clone();
    (found, said)
}
