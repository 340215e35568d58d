//! The sink that the configuration chose: several kinds side by side in one relay.

use std::time::Instant;

use postrider_relay::sink::{Address, Message, PublishError, Sink, SinkDown};

use crate::kafka::Kafka;
use crate::rabbitmq::RabbitMq;
use crate::stdout::Stdout;

/// One sink of any kind that this build has.
#[derive(Debug)]
pub enum AnySink {
    /// RabbitMQ.
    RabbitMq(RabbitMq),
    /// Kafka.
    Kafka(Kafka),
    /// Standard output.
    Stdout(Stdout),
}

impl AnySink {
    /// Whether there is such a destination, an exchange or topic, without making one; for
    /// `postrider check`, once the sink is reached.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`](postrider_relay::sink::PublishFailure::Retryable) where it is missing or hidden from us,
    /// another failure where the broker could not be asked.
    pub async fn look_up(&self, destination: &str) -> Result<(), PublishError> {
        match self {
            Self::RabbitMq(sink) => sink.look_up(destination).await,
            Self::Kafka(sink) => sink.look_up(destination).await,
            Self::Stdout(_) => Ok(()),
        }
    }
}

impl Sink for AnySink {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        match self {
            Self::RabbitMq(sink) => sink.publish(message).await,
            Self::Kafka(sink) => sink.publish(message).await,
            Self::Stdout(sink) => sink.publish(message).await,
        }
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        match self {
            Self::RabbitMq(sink) => sink.probe().await,
            Self::Kafka(sink) => sink.probe().await,
            Self::Stdout(sink) => sink.probe().await,
        }
    }

    async fn lost(&self) -> SinkDown {
        match self {
            Self::RabbitMq(sink) => sink.lost().await,
            Self::Kafka(sink) => sink.lost().await,
            Self::Stdout(sink) => sink.lost().await,
        }
    }

    async fn close(&self) {
        match self {
            Self::RabbitMq(sink) => sink.close().await,
            Self::Kafka(sink) => sink.close().await,
            Self::Stdout(sink) => sink.close().await,
        }
    }

    fn destination(&self, message: &Message) -> Address {
        match self {
            Self::RabbitMq(sink) => sink.destination(message),
            Self::Kafka(sink) => sink.destination(message),
            Self::Stdout(sink) => sink.destination(message),
        }
    }

    fn is_ready(&self, message: &Message) -> bool {
        match self {
            Self::RabbitMq(sink) => sink.is_ready(message),
            Self::Kafka(sink) => sink.is_ready(message),
            Self::Stdout(sink) => sink.is_ready(message),
        }
    }

    fn expect(&self, lanes: usize) {
        match self {
            Self::RabbitMq(sink) => sink.expect(lanes),
            Self::Kafka(sink) => sink.expect(lanes),
            Self::Stdout(sink) => sink.expect(lanes),
        }
    }

    fn replaced_at(&self) -> Option<Instant> {
        match self {
            Self::RabbitMq(sink) => sink.replaced_at(),
            Self::Kafka(sink) => sink.replaced_at(),
            Self::Stdout(sink) => sink.replaced_at(),
        }
    }

    fn isolated(&self) -> Self {
        match self {
            Self::RabbitMq(sink) => Self::RabbitMq(sink.isolated()),
            Self::Kafka(sink) => Self::Kafka(sink.isolated()),
            Self::Stdout(sink) => Self::Stdout(sink.isolated()),
        }
    }
}
