//! The interface of a sink, and the guarantees that the relay requires of it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`message`] | a record rendered for the wire |
//! | [`PublishError`], [`SinkDown`] | failures, and their meaning for the record |

mod error;
pub mod message;

use std::future::Future;
use std::time::Instant;

pub use error::{PublishError, PublishFailure, SinkDown};
pub use message::{Address, Message};
pub use postrider_outbox::header::HeaderValue;

/// Delivers messages to one broker.
///
/// # Contract
///
/// - **`Ok` means durable.** The broker has confirmed the message; nothing less
///   marks a record done. A message that the broker returned (`basic.return`)
///   is a failure, whatever confirm follows it.
/// - **Concurrency.** [`publish`](Sink::publish) is called for hundreds of messages at once, each
///   of another key: calls for one key never overlap (unless `key_window` > 1).
///   A sink pipelines them and keeps no order of its own. One message's failure
///   must not change the outcome of another, except where the connection is lost.
/// - **Duplicates.** The same message may come again, with the same id. A dropped
///   call, or one that ends with [`PublishFailure::Indeterminate`], [`PublishFailure::ConnectionEnded`],
///   [`PublishFailure::Unconfirmed`] or [`PublishFailure::Abandoned`], leaves delivery unknown, which is safe to
///   repeat.
/// - **Time.** A call ends within the sink's configured `timeout`, always. A message that was not
///   handed over ends with `SinkDown`. A message that was handed over ends with `Indeterminate` or `ConnectionEnded`
///   if its connection is lost, and with `Unconfirmed` if the connection is sound as far as the sink
///   knows. A sink that cannot know answers `Unconfirmed` and checks the connection: a connection
///   that does not answer resolves [`lost`](Sink::lost). A sink that opens another connection in
///   place of one that does not answer, or will not for long, ends unconfirmed publishes of the
///   old one with `Abandoned`; it does so only where `key_window` is 1, or where a key keeps the old
///   connection until its messages there have an outcome.
/// - **One destination's trouble stays its own.** A destination that does not confirm (a queue
///   without a majority, a topic below `min.insync.replicas`, a partition without a leader)
///   ends with `Unconfirmed`, and does not end the publishes to other destinations.
/// - **An outage counts no attempt.** A sink that is not connected answers
///   [`PublishFailure::SinkDown`] at once, without waiting for the connection; it reconnects
///   by itself, or in [`probe`](Sink::probe), which the relay calls until it succeeds.
/// - **Judge before sending.** What can never be delivered (a limit of the protocol
///   exceeded) is refused without touching the connection.
/// - Errors and `Debug` never show a payload, a password or a URI with one.
///
/// `tests/sinks/contract` holds every sink to this.
pub trait Sink: Send + Sync + 'static {
    /// Sends one message and waits for the broker's confirm.
    ///
    /// # Errors
    ///
    /// [`PublishError`], whose `failure` says what it means for the record.
    fn publish(&self, message: Message) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Checks whether publishes can work now; connects when needed.
    ///
    /// Called at start, by `postrider check`, and while the sink is down.
    ///
    /// # Errors
    ///
    /// [`SinkDown`], with the cause as text for the operator.
    fn probe(&self) -> impl Future<Output = Result<(), SinkDown>> + Send;

    /// Resolves when the sink has gone down by itself (a lost or blocked
    /// connection), so that an idle relay learns of it. Never resolves while it is up.
    fn lost(&self) -> impl Future<Output = SinkDown> + Send;

    /// Closes the connection gracefully; later publishes fail with `SinkDown`.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Returns the destination that confirms a message, as precisely as the sink knows it: the relay
    /// opens its circuit if it does not confirm. By default destination and key, such as the exchange and the
    /// routing key, which together decide the queue.
    fn destination(&self, message: &Message) -> Address {
        message.address.clone()
    }

    /// Returns whether a publish would send this message at once, without a query about its destination
    /// first. With `key_window` > 1 the relay sends no later message of the key until the outcome of one
    /// that is not ready is known.
    fn is_ready(&self, _message: &Message) -> bool {
        true
    }

    /// Receives the number of lanes with records for this sink, whenever it changes. With many lanes a
    /// sink may delay messages by some milliseconds to send several together. With few lanes a delay costs
    /// throughput: the next record of a key waits for the confirm of the previous one.
    fn expect(&self, _lanes: usize) {}

    /// Returns when the sink last replaced a connection that does not respond. Publishes that began before
    /// still wait on the old one; their wait is not evidence against their destination.
    fn replaced_at(&self) -> Option<Instant> {
        None
    }

    /// Replaces the connection in use by another one, if the sink's client keeps a state of destinations on it
    /// that may be wrong. Publishes under way keep the old one until they end. The relay calls this when a
    /// destination confirms on an isolated connection and not on the main one, and when it does not confirm on
    /// an isolated one. A sink limits how often it does so. By default nothing happens.
    fn renew(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Creates a second sink with the same settings and its own connection.
    ///
    /// The relay publishes messages on it that may close a connection. It connects at its first
    /// [`probe`](Sink::probe), and declares nothing.
    #[must_use]
    fn isolated(&self) -> Self
    where
        Self: Sized;
}
