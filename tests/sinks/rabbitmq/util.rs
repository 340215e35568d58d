//! Short words for what most tests here do.

use std::sync::Arc;

use postrider::sink::Sink;
use postrider::sink::rabbitmq::RabbitMq;

use crate::support::rabbitmq;

pub use crate::support::publish::*;

/// A connected sink with ample time.
pub async fn connected(uri: &str) -> Arc<RabbitMq> {
    let sink = Arc::new(rabbitmq::sink(uri, AMPLE));
    sink.probe().await.unwrap();
    sink
}
