//! One delivery: address, gate, publish, verdict.

use std::time::Instant;

use crate::failpoint;
use crate::outbox::content::Content;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::Record;
use crate::relay::held::Held;
use crate::relay::shared::Shared;
use crate::routing::Undeliverable;
use crate::sink::{HeaderValue, Message, Sink, SinkDown, Verdict};

/// What one delivery came to, and on which sink (empty: none was chosen).
#[derive(Debug)]
pub struct Delivered {
    /// The sink's name.
    pub sink: String,
    /// What it came to.
    pub outcome: Delivery,
}

/// What one delivery came to.
#[derive(Debug, PartialEq)]
pub enum Delivery {
    /// The broker has it.
    Confirmed,
    /// The record's fault or its destination's: charged.
    Failed(String),
    /// It can never be delivered.
    Undeliverable(DeadReason),
    /// Nothing to be held against the record: again later, uncharged.
    Interrupted,
}

impl<S: Sink> Shared<S> {
    /// Publishes one record, if it has an address, its sink is up and its lease has budget.
    pub async fn deliver(&self, held: &Held, alone: bool) -> Delivered {
        let (sink, message) = match self.message(&held.record) {
            Ok(addressed) => addressed,
            Err(reason) => {
                let outcome = Delivery::Undeliverable(reason);
                return Delivered { sink: String::new(), outcome };
            }
        };
        let outcome = self.publish(&sink, message, held, alone).await;
        Delivered { sink, outcome }
    }

    /// The name of the sink that a record goes to; `None` where it has none.
    pub fn sink_of(&self, record: &Record) -> Option<String> {
        self.message(record).ok().map(|(sink, _)| sink)
    }

    async fn publish(&self, sink: &str, message: Message, held: &Held, alone: bool) -> Delivery {
        let Some(outlet) = self.outlets.get(sink) else {
            let detail = format!("sink {sink:?} is not configured");
            return Delivery::Undeliverable(DeadReason::Unroutable(detail));
        };
        let Some(_pass) = outlet.gate.enter(alone).await else { return Delivery::Interrupted };
        // Judged as late as can be: no publish starts after the lease has ended.
        if !held.may_start() {
            return Delivery::Interrupted;
        }
        failpoint::hit("relay::before_publish");
        failpoint::hit_with("relay::publish", &message.id);
        let timestamp = message.timestamp;
        let started = Instant::now();
        let result = outlet.sink.publish(message).await;
        outlet.metrics.published(started.elapsed());
        let Err(error) = result else {
            failpoint::hit("relay::after_confirm");
            self.losses.forget(&held.record.id);
            outlet.metrics.delivered(timestamp, self.clock.now());
            return Delivery::Confirmed;
        };
        let detail = error.detail;
        match error.verdict {
            Verdict::Unknown if !alone => {
                self.losses.note(&held.record.id);
                outlet.gate.shut(SinkDown::new(detail));
                return Delivery::Interrupted;
            }
            Verdict::Down => {
                outlet.gate.shut(SinkDown::new(detail));
                return Delivery::Interrupted;
            }
            // It broke the connection by itself: it goes alone until its fate is known.
            Verdict::Unknown => {}
            Verdict::Charge | Verdict::TooLarge | Verdict::Refuse => {
                self.losses.forget(&held.record.id);
            }
        }
        match error.verdict {
            Verdict::TooLarge => Delivery::Undeliverable(DeadReason::TooLarge(detail)),
            Verdict::Refuse => Delivery::Undeliverable(DeadReason::Refused(detail)),
            Verdict::Unknown => {
                outlet.gate.shut(SinkDown::new(&detail));
                Delivery::Failed(detail)
            }
            Verdict::Charge | Verdict::Down => Delivery::Failed(detail),
        }
    }

    fn message(&self, record: &Record) -> Result<(String, Message), DeadReason> {
        let content = record.content().map_err(DeadReason::Malformed)?;
        let routed = self.router.address(&crate::routing::RouteInput::from(&content));
        let routed = routed.map_err(|undeliverable| match undeliverable {
            Undeliverable::Unroutable(detail) => DeadReason::Unroutable(detail),
            Undeliverable::Template(detail) => DeadReason::Template(detail),
            Undeliverable::Refused(detail) => DeadReason::Refused(detail),
        })?;
        let Content {
            id, key, kind, content_type, payload, mut headers, tenant_id, timestamp, ..
        } = content;
        for (name, value) in routed.headers {
            // A record's own header wins over its route's.
            if !headers.iter().any(|(own, _)| *own == name) {
                headers.push((name, HeaderValue::String(value)));
            }
        }
        let message = Message {
            id,
            key,
            kind,
            content_type,
            payload,
            headers,
            tenant_id,
            timestamp,
            source: routed.source,
            address: routed.address,
        };
        Ok((routed.sink.to_string(), message))
    }
}
