//! The reasons that librdkafka gives for a failed connection; it gives them nowhere else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, Producer};

/// Records every error of a client.
#[derive(Clone, Default)]
struct ErrorRecorder(Arc<Mutex<Vec<ReportedError>>>);

/// An error, and the text that librdkafka adds to it.
#[derive(Clone, Debug)]
pub struct ReportedError {
    pub code: Option<RDKafkaErrorCode>,
    pub reason: String,
}

impl ClientContext for ErrorRecorder {
    fn error(&self, error: KafkaError, reason: &str) {
        let error = ReportedError { code: error.rdkafka_error_code(), reason: reason.to_owned() };
        self.0.lock().unwrap().push(error);
    }
}

/// Whether a client with these settings reaches the broker, and the errors on the way.
pub async fn look(
    brokers: &str,
    settings: &[(&str, &str)],
) -> (KafkaResult<()>, Vec<ReportedError>) {
    let recorder = ErrorRecorder::default();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    for (name, value) in settings {
        config.set(*name, *value);
    }
    let producer: FutureProducer<ErrorRecorder> =
        config.create_with_context(recorder.clone()).unwrap();
    let looking = move || producer.client().fetch_metadata(None, Duration::from_secs(3)).map(drop);
    let found = tokio::task::spawn_blocking(looking).await.unwrap();
    let errors = recorder.0.lock().unwrap().clone();
    (found, errors)
}
