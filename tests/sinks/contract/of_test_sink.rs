//! The sink of the relay's own tests must satisfy the contract too.

use std::time::Duration;

use postrider::sink::{Message, PublishFailure};

use crate::contract::harness::{Arrived, Harness};
use crate::support::message::message;
use crate::support::sink::{Fault, TestSink};

/// The broker that all its sinks share.
pub struct Scripted(TestSink);

impl Harness for Scripted {
    type Sink = TestSink;

    const CONNECTS: bool = false;

    async fn new() -> Self {
        Self(TestSink::default())
    }

    fn sink(&self, timeout: Duration) -> TestSink {
        self.0.clone().with_timeout(timeout)
    }

    fn message(&self, id: &str) -> Message {
        message(id, "somewhere", "key")
    }

    fn undeliverable(&self, id: &str) -> Option<Message> {
        self.0.script(id, [Fault::Answer(PublishFailure::Retryable)]);
        Some(self.message(id))
    }

    fn impossible(&self) -> Vec<Message> {
        self.0.script("impossible", [Fault::Answer(PublishFailure::Rejected)]);
        vec![self.message("impossible")]
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let arrived = self.0.arrived().into_iter();
        arrived
            .map(|message| Arrived { id: message.id, payload: message.payload.unwrap() })
            .collect()
    }

    async fn freeze(&self) {
        self.0.set_frozen(true);
    }

    async fn thaw(&self) {
        self.0.set_frozen(false);
    }

    async fn take_down(&self) {
        self.0.set_down(true);
    }

    async fn bring_back(&self) {
        self.0.set_down(false);
    }

    async fn slow_down(&self, _: Duration) -> bool {
        false
    }
}
