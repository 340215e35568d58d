//! One delivery: address, gate, publish, verdict.

use std::time::Instant;

use crate::failpoint;
use crate::ids::SinkName;
use crate::outbox::content::Content;
use crate::outbox::fields::TYPE;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::Record;
use crate::relay::gate::Pass;
use crate::relay::held::Held;
use crate::relay::shared::{Outlet, Shared};
use crate::routing::{Routed, Undeliverable};
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

/// A record at the open door of its sink.
pub(super) struct Admitted<'a, S> {
    sink: String,
    outlet: &'a Outlet<S>,
    message: Message,
    _pass: Pass,
}

impl<S> Admitted<'_, S> {
    /// Sink and destination: within both a broker keeps what it is given in order.
    pub(super) fn way(&self) -> (String, String) {
        (self.sink.clone(), self.message.address.destination.clone())
    }
}

impl<S: Sink> Shared<S> {
    /// Publishes one record, if it has an address, its sink is up and its lease has budget.
    pub async fn deliver(&self, held: &Held, alone: bool) -> Delivered {
        match self.admit(held, alone).await {
            Ok(admitted) => self.send(admitted, held, alone).await,
            Err(delivered) => delivered,
        }
    }

    /// The first half: address and gate.
    ///
    /// # Errors
    ///
    /// What the delivery came to, where it is not published.
    pub(super) async fn admit(
        &self,
        held: &Held,
        alone: bool,
    ) -> Result<Admitted<'_, S>, Delivered> {
        let (sink, message) = self.message(&held.record).map_err(|reason| Delivered {
            sink: String::new(),
            outcome: Delivery::Undeliverable(reason),
        })?;
        let Some(outlet) = self.outlets.get(&sink) else {
            let detail = format!("sink {sink:?} is not configured");
            let outcome = Delivery::Undeliverable(DeadReason::Unroutable(detail));
            return Err(Delivered { sink, outcome });
        };
        match outlet.gate.enter(alone).await {
            Some(pass) => Ok(Admitted { sink, outlet, message, _pass: pass }),
            None => Err(Delivered { sink, outcome: Delivery::Interrupted }),
        }
    }

    /// The name of the sink that a record goes to, should it go anywhere.
    pub(super) fn sink_of(&self, record: &Record) -> Option<&str> {
        let kind = record.raw.get_str(TYPE).ok()?;
        self.router.sink(kind).map(SinkName::as_str)
    }

    /// Whether it goes anywhere: to its sink, and not to its death.
    pub(super) fn has_way(&self, record: &Record) -> bool {
        self.message(record).is_ok()
    }

    /// The second half: publish, and what became of it.
    pub(super) async fn send(
        &self,
        admitted: Admitted<'_, S>,
        held: &Held,
        alone: bool,
    ) -> Delivered {
        let Admitted { sink, outlet, message, _pass } = admitted;
        let outcome = self.publish(outlet, message, held, alone).await;
        Delivered { sink, outcome }
    }

    async fn publish(
        &self,
        outlet: &Outlet<S>,
        message: Message,
        held: &Held,
        alone: bool,
    ) -> Delivery {
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
        let sink = routed.sink.to_string();
        Ok((sink, message(content, routed)))
    }
}

/// A record's content on its way.
pub(super) fn message(content: Content, routed: Routed) -> Message {
    let Content { id, key, kind, content_type, payload, mut headers, tenant_id, timestamp, .. } =
        content;
    for (name, value) in routed.headers {
        // A record's own header wins over its route's.
        if !headers.iter().any(|(own, _)| *own == name) {
            headers.push((name, HeaderValue::String(value)));
        }
    }
    Message {
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
    }
}
