//! A plain librdkafka producer, as the sink has one, with settings of the test.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

/// How a send ended, and after how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Partition and offset, or the error.
    pub outcome: Result<(i32, i64), RDKafkaErrorCode>,
    pub took: Duration,
}

/// An idempotent producer with a timeout of ten seconds.
pub fn producer(brokers: &str, settings: &[(&str, &str)]) -> FutureProducer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config.set("enable.idempotence", "true").set("message.timeout.ms", "10000");
    // Otherwise up to ten seconds pass until it reconnects to a broker that is back, and until an
    // expired message is reported.
    config.set("reconnect.backoff.max.ms", "500");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    config.create().unwrap()
}

/// A record with a header that identifies it.
pub fn record<'a>(topic: &'a str, id: &'a str, payload: &'a [u8]) -> FutureRecord<'a, str, [u8]> {
    let headers = OwnedHeaders::new().insert(Header { key: "message-id", value: Some(id) });
    FutureRecord::to(topic).key(id).payload(payload).headers(headers)
}

/// Sends all of them at once; returns the outcomes in their order.
pub async fn send_all<'a>(
    producer: &FutureProducer,
    records: impl IntoIterator<Item = FutureRecord<'a, str, [u8]>>,
) -> Vec<Sent> {
    let begin = Instant::now();
    let sending = records.into_iter().map(|record| {
        let handed_over = producer.send_result(record);
        async move {
            let outcome = match handed_over {
                Err((error, _)) => Err(code(&error)),
                Ok(delivery) => match delivery.await.expect("the producer lives") {
                    Ok(delivery) => Ok((delivery.partition, delivery.offset)),
                    Err((error, _)) => Err(code(&error)),
                },
            };
            Sent { outcome, took: begin.elapsed() }
        }
    });
    futures_util::future::join_all(sending).await
}

/// Sends one.
pub async fn send(producer: &FutureProducer, record: FutureRecord<'_, str, [u8]>) -> Sent {
    send_all(producer, [record]).await.pop().unwrap()
}

/// The outcomes without their times.
pub fn outcomes(sent: &[Sent]) -> Vec<Result<(i32, i64), RDKafkaErrorCode>> {
    sent.iter().map(|sent| sent.outcome).collect()
}

fn code(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or_else(|| panic!("no code: {error:?}"))
}
