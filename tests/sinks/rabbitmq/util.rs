//! Short helpers for these tests.

use std::sync::Arc;

use postrider::sink::Sink;
use postrider::sink::rabbitmq::RabbitMq;

use crate::support::rabbitmq;

pub use crate::support::publish::*;

/// A connected sink with an ample timeout.
pub async fn connected(uri: &str) -> Arc<RabbitMq> {
    let sink = Arc::new(rabbitmq::sink(uri, AMPLE_TIMEOUT));
    sink.probe().await.unwrap();
    sink
}
