//! The way out: what a broker must promise so that the relay can keep its own promise.
//!
//! | module | what it holds |
//! |---|---|
//! | [`message`] | a record rendered for the wire |
//! | [`rabbitmq`] | RabbitMQ by `lapin`: confirms, returns, supervised reconnect |
//! | [`kafka`] | Kafka by librdkafka: an idempotent producer, its delivery reports |
//! | [`stdout`] | one JSON object per line |
//! | [`cloud_events`] | CloudEvents attributes, for either broker |
//! | [`any`] | the sink that the configuration chose |

pub mod any;
#[cfg(test)]
pub(crate) mod arbitrary;
pub mod cloud_events;
mod error;
pub mod kafka;
pub mod message;
pub mod rabbitmq;
mod slot;
pub mod stdout;

use std::future::Future;

pub use error::{PublishError, SinkDown, Verdict};
pub use message::{Address, HeaderValue, Message};

/// Delivers messages to one broker.
///
/// # Contract
///
/// - **`Ok` means durable.** The broker has confirmed the message; nothing less
///   marks a record done. A message that the broker gave back (`basic.return`)
///   is a failure, whatever confirm follows it.
/// - **Concurrency.** [`publish`](Sink::publish) is called for hundreds of messages at once, each
///   of another key: calls for one key never overlap (unless `key_window` > 1).
///   A sink pipelines them and keeps no order of its own. One message's failure
///   must not change the outcome of another, except where the connection is lost.
/// - **Duplicates.** The same message may come again, with the same id. A dropped
///   call, or one that ends with [`Verdict::Unknown`], leaves delivery unknown, which
///   is safe to repeat.
/// - **Time.** A call ends within the sink's configured `timeout`, always: with
///   `Unknown` where the message was handed over, with `Down` where it was not.
/// - **Nothing is charged for an outage.** A sink that is not connected answers
///   [`Verdict::Down`] at once, without waiting for the connection; it reconnects
///   by itself, or in [`probe`](Sink::probe), which the relay calls until it succeeds.
/// - **Judge before sending.** What can never be delivered (a limit of the protocol
///   exceeded) is refused without touching the connection.
/// - Errors and `Debug` never show a payload, a password or a URI with one.
///
/// `tests/sink_contract` holds every sink to this.
pub trait Sink: Send + Sync + 'static {
    /// Hands one message over and waits for the broker's confirm.
    ///
    /// # Errors
    ///
    /// [`PublishError`], whose verdict says what the failure means for the record.
    fn publish(&self, message: Message) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Whether publishes can be expected to work now; connects when needed.
    ///
    /// Called at start, by `postrider check`, and while the sink is paused.
    ///
    /// # Errors
    ///
    /// [`SinkDown`], with the cause in words for the operator.
    fn probe(&self) -> impl Future<Output = Result<(), SinkDown>> + Send;

    /// Resolves when the sink has gone down by itself (a lost or blocked
    /// connection), so that an idle relay learns of it. Never resolves while it is up.
    fn lost(&self) -> impl Future<Output = SinkDown> + Send;

    /// Closes the connection in good order; publishes that follow find it down.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
