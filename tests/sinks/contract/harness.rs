//! What the suite must be able to do with a sink and the broker behind it.

use std::fmt::Debug;
use std::time::Duration;

use postrider::sink::{Message, Sink};

/// A message as a consumer of the broker receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub id: String,
    pub payload: Vec<u8>,
}

impl Arrived {
    /// The messages in lines of JSON. A line that is not JSON was cut off by a failure.
    pub fn in_lines(text: &[u8]) -> Vec<Self> {
        text.split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
            .map(|line| {
                let id = line["id"].as_str().unwrap().to_owned();
                Self { id, payload: line["payload"].to_string().into_bytes() }
            })
            .collect()
    }
}

/// A broker for one test, or a shared one whose faults affect no other test.
pub trait Harness: Sized + Send + Sync {
    type Sink: Sink + Debug;

    /// Whether a new sink is down until its first probe.
    const CONNECTS: bool;

    async fn new() -> Self;

    /// A new sink to this broker.
    fn sink(&self, timeout: Duration) -> Self::Sink;

    /// A message that the broker accepts.
    fn message(&self, id: &str) -> Message;

    /// A message that the broker itself refuses; `None` where it accepts everything.
    fn undeliverable(&self, id: &str) -> Option<Message>;

    /// Each exceeds a limit that the sink itself checks.
    fn impossible(&self) -> Vec<Message>;

    /// Everything that can be consumed up to now, in order, with duplicates.
    async fn arrived(&self) -> Vec<Arrived>;

    /// Freezes the broker: it receives and answers nothing, and its connections stay open.
    async fn freeze(&self);

    /// Continues the frozen broker.
    async fn thaw(&self);

    /// Stops the broker, and closes its connections.
    async fn take_down(&self);

    async fn bring_back(&self);

    /// Delays all bytes by this time, in each direction; false where that is impossible.
    async fn slow_down(&self, by: Duration) -> bool;
}
