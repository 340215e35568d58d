//! What the suite needs to be able to do with a sink and the broker behind it.

use std::fmt::Debug;
use std::time::Duration;

use postrider::sink::{Message, Sink};

/// A message as a consumer of the broker finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub id: String,
    pub payload: Vec<u8>,
}

/// A broker of the test's own, or one that nobody else notices being hurt.
pub trait Harness: Sized + Send + Sync {
    type Sink: Sink + Debug;

    /// Whether a new sink is down until its first probe.
    const CONNECTS: bool;

    async fn new() -> Self;

    /// A new sink to this broker.
    fn sink(&self, timeout: Duration) -> Self::Sink;

    /// One that the broker takes.
    fn message(&self, id: &str) -> Message;

    /// One that the broker itself refuses; `None` where it takes everything.
    fn undeliverable(&self, id: &str) -> Option<Message>;

    /// Each one breaks a limit that the sink knows by itself.
    fn impossible(&self) -> Vec<Message>;

    /// Everything that can be consumed up to now, in order, duplicates too.
    async fn arrived(&self) -> Vec<Arrived>;

    /// The broker takes and answers nothing, and its connections stay open.
    async fn freeze(&self);

    /// It goes on where it stood.
    async fn thaw(&self);

    /// The broker goes away, with its connections.
    async fn take_down(&self);

    async fn bring_back(&self);

    /// Every word takes this long, in each direction; false where there is no such thing.
    async fn slow_down(&self, by: Duration) -> bool;
}
