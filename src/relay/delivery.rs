//! One delivery: address, gate, circuit, publish, verdict.

use std::time::{Duration, Instant};

use tracing::{instrument, trace};

use crate::failpoint;
use crate::ids::SinkName;
use crate::outbox::content::Content;
use crate::outbox::fields::TYPE;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::Record;
use crate::relay::circuits::Fault;
use crate::relay::held::Held;
use crate::relay::lane::Lane;
use crate::relay::quarantine::Place;
use crate::relay::shared::{Outlet, Shared};
use crate::routing::{Routed, Undeliverable};
use crate::sink::{Address, HeaderValue, Message, PublishError, Sink, SinkDown, Verdict};

/// A publish that takes longer is watched: a broker that is well confirms within milliseconds, or
/// some hundreds of them where it is far away.
const SLOW: Duration = Duration::from_millis(300);

const LEFT_BEHIND: &str = "no confirm on a connection on which the broker says nothing";

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
    /// The record's fault or its destination's: counted.
    Failed(String),
    /// It can never be delivered.
    Undeliverable(DeadReason),
    /// Its sink went down: not counted, and sent again as soon as the sink is up.
    SinkLost,
    /// Its destination does not confirm: not counted, and sent again then.
    DestinationPaused(Address, Instant),
    /// Not the record's fault: again later, not counted.
    Interrupted,
}

/// A record at the open gate of its sink.
pub(super) struct Admitted<'a, S> {
    sink: String,
    outlet: &'a Outlet<S>,
    message: Message,
    destination: Address,
    /// On the isolated connection; `None` on the main one.
    place: Option<Place>,
}

impl<S> Admitted<'_, S> {
    /// Sink and address: within both a broker keeps what it is given in order.
    pub(super) fn way(&self) -> (String, String) {
        (self.sink.clone(), self.message.address.destination.clone())
    }

    /// Whether it would be handed over at once.
    pub(super) fn is_ready(&self) -> bool
    where
        S: Sink,
    {
        self.outlet.sink.is_ready(&self.message)
    }
}

impl<S: Sink> Shared<S> {
    /// Publishes one record, if it has an address, its sink and destination take records and its
    /// lease has budget.
    pub(super) async fn deliver(&self, held: &Held, lane: &Lane) -> Delivered {
        match self.admit(held, lane, true).await {
            Ok(admitted) => self.send(admitted, held, lane).await,
            Err(delivered) => delivered,
        }
    }

    /// The first half: address, gate, circuit. With `waits` it waits for a gate that was shut a
    /// short time ago, until a stop comes or the lane is revoked.
    ///
    /// # Errors
    ///
    /// What the delivery came to, where it is not published.
    pub(super) async fn admit(
        &self,
        held: &Held,
        lane: &Lane,
        waits: bool,
    ) -> Result<Admitted<'_, S>, Delivered> {
        if let Some(reason) = self.dying.reason(&held.record) {
            let outcome = Delivery::Undeliverable(reason);
            return Err(Delivered { sink: String::new(), outcome });
        }
        let (sink, message) = self.message(&held.record).map_err(|reason| Delivered {
            sink: String::new(),
            outcome: Delivery::Undeliverable(reason),
        })?;
        let Some(outlet) = self.outlets.get(&sink) else {
            let detail = format!("sink {sink:?} is not configured");
            let outcome = Delivery::Undeliverable(DeadReason::Unroutable(detail));
            return Err(Delivered { sink, outcome });
        };
        let destination = outlet.sink.destination(&message);
        match self.enter(outlet, &destination, held, lane, waits).await {
            Ok(place) => Ok(Admitted { sink, outlet, message, destination, place }),
            Err(outcome) => Err(Delivered { sink, outcome }),
        }
    }

    async fn enter(
        &self,
        outlet: &Outlet<S>,
        destination: &Address,
        held: &Held,
        lane: &Lane,
        waits: bool,
    ) -> Result<Option<Place>, Delivery> {
        if !waits && !outlet.gate.is_open() {
            return Err(Delivery::SinkLost);
        }
        let opens = tokio::select! {
            biased;
            opens = outlet.gate.opens_within(self.settings.grace()) => opens,
            () = lane.over(&self.stop) => false,
        };
        if !opens {
            return Err(Delivery::Interrupted);
        }
        if lane.alone {
            // What may have lost connections does not share one with probes.
            let exclusive = outlet.circuits.is_exclusive(destination)
                || self.losses.goes_alone(&held.record.id);
            let place = tokio::select! {
                place = outlet.quarantine.enter(exclusive) => place,
                () = lane.over(&self.stop) => return Err(Delivery::Interrupted),
            };
            return place.map(Some).map_err(|down| self.not_isolated(outlet, destination, down));
        }
        if self.losses.goes_alone(&held.record.id) {
            return Err(Delivery::Interrupted);
        }
        match outlet.circuits.waits(destination) {
            Some(until) => Err(Delivery::DestinationPaused(destination.clone(), until)),
            None => Ok(None),
        }
    }

    /// There is no isolated connection, while the main one is up or not yet known to be down.
    fn not_isolated(
        &self,
        outlet: &Outlet<S>,
        destination: &Address,
        down: impl std::fmt::Display,
    ) -> Delivery {
        if outlet.gate.is_open() {
            outlet.quarantine.lacks(down);
            let is_closed = outlet.circuits.close_guess(destination);
            self.free_if(is_closed, outlet, destination);
            if is_closed {
                // The main connection finds out.
                return Delivery::Interrupted;
            }
        }
        Delivery::DestinationPaused(destination.clone(), Instant::now() + self.settings.probe_max)
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

    /// The destination by which the record's sink may be paused; `None` if the record has none.
    pub(super) fn destination_of(&self, outlet: &Outlet<S>, record: &Record) -> Option<Address> {
        let (_, message) = self.message(record).ok()?;
        Some(outlet.sink.destination(&message))
    }

    /// The second half: publish, and what became of it.
    #[instrument(
        name = "publish",
        level = "debug",
        skip_all,
        fields(
            record_id = %held.record.id,
            key = lane.key.as_str(),
            attempt = held.attempt(),
            sink = admitted.sink,
        )
    )]
    pub(super) async fn send(
        &self,
        admitted: Admitted<'_, S>,
        held: &Held,
        lane: &Lane,
    ) -> Delivered {
        let Admitted { sink, outlet, message, destination, place } = admitted;
        // Judged as late as can be: no publish starts after the lease has ended.
        if !held.may_start() {
            return Delivered { sink, outcome: Delivery::Interrupted };
        }
        failpoint::hit("relay::before_publish");
        failpoint::hit_with("relay::publish", &message.id);
        let timestamp = message.timestamp;
        let (handed_over, result) = match &place {
            Some(place) => {
                // It may take as long as a publish may, and takes no room from others.
                let _parked = if place.is_exclusive() { None } else { lane.park(&self.in_hand) };
                outlet.quarantine.publish(place, message).await
            }
            None => {
                let handed_over = Instant::now();
                (handed_over, self.publish(outlet, &destination, message, handed_over, lane).await)
            }
        };
        outlet.metrics.published(handed_over.elapsed());
        let outcome = match result {
            Ok(()) => {
                failpoint::hit("relay::after_confirm");
                trace!("confirmed");
                self.losses.forget(&held.record.id);
                let confirms_again = outlet.circuits.confirmed(&destination, handed_over);
                self.free_if(confirms_again, outlet, &destination);
                outlet.metrics.delivered(timestamp, self.clock.now());
                Delivery::Confirmed
            }
            Err(error) => self.judge(outlet, &destination, held, place, handed_over, error),
        };
        Delivered { sink, outcome }
    }

    /// Publishes on the main connection. Where that takes long, and its destination has answered
    /// nothing else meanwhile, it is given nothing more, and this lane takes no room from others.
    /// Where the sink has opened another connection since, another record finds out whether the
    /// destination confirms.
    async fn publish(
        &self,
        outlet: &Outlet<S>,
        destination: &Address,
        message: Message,
        handed_over: Instant,
        lane: &Lane,
    ) -> Result<(), PublishError> {
        let mut publishing = std::pin::pin!(outlet.sink.publish(message));
        if let Ok(result) = tokio::time::timeout(SLOW, &mut publishing).await {
            return result;
        }
        let doubt = outlet.circuits.doubt(destination);
        let mut parked = None;
        loop {
            if let Ok(result) = tokio::time::timeout(SLOW, &mut publishing).await {
                self.free_if(doubt.end(), outlet, destination);
                return result;
            }
            if doubt.is_silent(SLOW) {
                parked = parked.or_else(|| lane.park(&self.in_hand));
            }
            if outlet.sink.replaced_at() > Some(handed_over) {
                break;
            }
        }
        let is_open = outlet.circuits.left_behind(destination, handed_over, LEFT_BEHIND).is_some();
        self.free_if(!is_open && outlet.circuits.heard(destination), outlet, destination);
        let _parked = parked.or_else(|| lane.park(&self.in_hand));
        let result = publishing.await;
        self.free_if(doubt.end(), outlet, destination);
        result
    }

    /// Frees the keys that wait for this destination, where it takes records again.
    fn free_if(&self, takes_again: bool, outlet: &Outlet<S>, destination: &Address) {
        if takes_again {
            self.hands.free_destination(outlet.gate.name().as_str(), destination);
        }
    }

    fn judge(
        &self,
        outlet: &Outlet<S>,
        destination: &Address,
        held: &Held,
        place: Option<Place>,
        handed_over: Instant,
        error: PublishError,
    ) -> Delivery {
        let PublishError { verdict, detail } = error;
        let id = &held.record.id;
        let is_answer = matches!(verdict, Verdict::Charge | Verdict::TooLarge | Verdict::Refuse);
        self.free_if(is_answer && outlet.circuits.heard(destination), outlet, destination);
        match (verdict, place) {
            (Verdict::Charge, place) => {
                self.losses.forget(id);
                // It does not confirm, but it answers: nobody need probe it.
                let answers = place.is_some() && outlet.circuits.answered(destination, handed_over);
                self.free_if(answers, outlet, destination);
                Delivery::Failed(detail)
            }
            (Verdict::TooLarge, _) => {
                self.losses.forget(id);
                Delivery::Undeliverable(DeadReason::TooLarge(detail))
            }
            (Verdict::Refuse, _) => {
                self.losses.forget(id);
                Delivery::Undeliverable(DeadReason::Refused(detail))
            }
            (Verdict::Unconfirmed, place) => {
                let isolated = place.is_some();
                match outlet.circuits.unconfirmed(destination, handed_over, &detail, isolated) {
                    Fault::Record => Delivery::Failed(detail),
                    Fault::Destination(until) => {
                        Delivery::DestinationPaused(destination.clone(), until)
                    }
                }
            }
            (Verdict::LeftBehind, _) => {
                match outlet.circuits.left_behind(destination, handed_over, &detail) {
                    Some(until) => Delivery::DestinationPaused(destination.clone(), until),
                    // Its destination confirms others. A record that silences its connection does so
                    // again.
                    None => {
                        self.losses.note(id);
                        Delivery::SinkLost
                    }
                }
            }
            (Verdict::Unknown, Some(place)) if place.is_exclusive() => {
                // It took the connection down by itself. What a guilty one does says nothing of its
                // destination.
                let is_guilty = self.losses.is_guilty(id)
                    || outlet.circuits.broke(destination, handed_over, &detail) == Fault::Record;
                self.losses.isolate(id, is_guilty);
                Delivery::Failed(detail)
            }
            (Verdict::Unknown, Some(_)) => {
                let until = match outlet.circuits.broke(destination, handed_over, &detail) {
                    Fault::Destination(until) => until,
                    Fault::Record => Instant::now(),
                };
                Delivery::DestinationPaused(destination.clone(), until)
            }
            (Verdict::Down | Verdict::Ended, Some(_)) => {
                self.not_isolated(outlet, destination, detail)
            }
            (Verdict::Unknown, None) => {
                self.losses.note(id);
                if self.losses.goes_alone(id) {
                    outlet.circuits.suspected(destination, handed_over, &detail);
                }
                outlet.gate.shut(SinkDown::new(detail));
                Delivery::SinkLost
            }
            (Verdict::Down | Verdict::Ended, None) => {
                outlet.gate.shut(SinkDown::new(detail));
                Delivery::SinkLost
            }
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
