//! Delivers one record: destination, circuits, publish, and the meaning of the broker's answer.

use std::time::{Duration, Instant};

use postrider_outbox::reason::DeadReason;
use postrider_store::boot_instant::BootInstant;
use postrider_store::failpoint;
use tracing::{debug, instrument};

use crate::addressing;
use crate::context::{RelayContext, SinkHandle};
use crate::destination_circuits::Fault;
use crate::isolation::IsolatedSlot;
use crate::lane::{Lane, Parked};
use crate::lease::LeasedRecord;
use crate::sink::{Address, Message, PublishError, PublishFailure, Sink, SinkDown};

/// Age from which a publish is watched. A healthy broker confirms within milliseconds, or within
/// some hundreds of them if it is far away.
const SLOW_PUBLISH: Duration = Duration::from_millis(300);

/// A lane is urgent if it has this many times as many waiting records as the average lane.
const URGENT_FACTOR: usize = 4;

const SILENT_CONNECTION: &str = "no confirm on a connection on which the broker does not respond";

/// The result of one delivery, and its sink.
#[derive(Debug)]
pub struct DeliveryResult {
    /// The sink's name; empty if none was chosen.
    pub sink: String,
    /// The result.
    pub delivery: Delivery,
}

impl DeliveryResult {
    fn without_sink(delivery: Delivery) -> Self {
        Self { sink: String::new(), delivery }
    }
}

/// The result of one delivery.
#[derive(Debug, PartialEq)]
pub enum Delivery {
    /// The broker has confirmed it.
    Confirmed,
    /// The record or its destination is at fault: the attempt counts.
    Failed(String),
    /// The record can never be delivered.
    Undeliverable(DeadReason),
    /// Its sink went down: not counted, and published again as soon as the sink is up.
    SinkLost,
    /// Its destination does not confirm until then: not counted, and published again afterwards.
    DestinationDown(Address, Instant),
    /// Neither is at fault: not counted, and published again later.
    Interrupted,
}

/// A record whose sink and destination are available.
pub(super) struct Admitted<'a, S> {
    sink: String,
    handle: &'a SinkHandle<S>,
    message: Message,
    destination: Address,
    /// The isolated connection; `None` for the main one.
    slot: Option<IsolatedSlot>,
}

impl<S> Admitted<'_, S> {
    /// Returns sink and destination: within both a broker keeps the order of what is published.
    pub(super) fn route(&self) -> (String, String) {
        (self.sink.clone(), self.message.address.destination.clone())
    }

    /// Returns whether the sink would send the message at once.
    pub(super) fn is_ready(&self) -> bool
    where
        S: Sink,
    {
        self.handle.sink.is_ready(&self.message)
    }
}

/// Delivers records to their sinks.
pub(super) struct Publisher<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> Publisher<'a, S> {
    /// Creates a publisher of this relay.
    pub(super) fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Publishes one record, if it can be delivered, its sink and destination are available, and
    /// its lease is not spent.
    pub(super) async fn deliver(&self, leased: &LeasedRecord, lane: &Lane) -> DeliveryResult {
        match self.admit(leased, lane, true).await {
            Ok(admitted) => self.send(admitted, leased, lane).await,
            Err(result) => result,
        }
    }

    /// Checks that a record can be delivered, and that its sink and destination are available. With
    /// `waits` it waits for a sink that went down a short time ago, until a stop or until the lane
    /// is revoked.
    ///
    /// # Errors
    ///
    /// The result of the delivery, if the record is not published.
    pub(super) async fn admit(
        &self,
        leased: &LeasedRecord,
        lane: &Lane,
        waits: bool,
    ) -> Result<Admitted<'a, S>, DeliveryResult> {
        let undeliverable = |reason| DeliveryResult::without_sink(Delivery::Undeliverable(reason));
        if let Some(reason) = self.context.state.pending_deaths.reason(&leased.record) {
            return Err(undeliverable(reason));
        }
        let (sink, message) =
            addressing::message_of(self.context, &leased.record).map_err(undeliverable)?;
        let Some(handle) = self.context.sinks.get(&sink) else {
            let detail = format!("sink {sink:?} is not configured");
            let delivery = Delivery::Undeliverable(DeadReason::Unroutable(detail));
            return Err(DeliveryResult { sink, delivery });
        };
        let destination = handle.sink.destination(&message);
        match self.enter(handle, &destination, leased, lane, waits).await {
            Ok(slot) => Ok(Admitted { sink, handle, message, destination, slot }),
            Err(delivery) => Err(DeliveryResult { sink, delivery }),
        }
    }

    async fn enter(
        &self,
        handle: &SinkHandle<S>,
        destination: &Address,
        leased: &LeasedRecord,
        lane: &Lane,
        waits: bool,
    ) -> Result<Option<IsolatedSlot>, Delivery> {
        if !waits && !handle.circuit.is_closed() {
            return Err(Delivery::SinkLost);
        }
        let is_up = tokio::select! {
            biased;
            is_up = handle.circuit.closes_within(self.context.settings.grace()) => is_up,
            () = lane.over(&self.context.stop) => false,
        };
        if !is_up {
            return Err(Delivery::Interrupted);
        }
        let must_be_isolated =
            self.context.state.connection_losses.must_be_isolated(&leased.record.id);
        if lane.is_quarantined {
            // A record that may have lost connections shares none with probes.
            let exclusive = handle.destinations.is_exclusive(destination) || must_be_isolated;
            let slot = tokio::select! {
                slot = handle.isolated.enter(exclusive) => slot,
                () = lane.over(&self.context.stop) => return Err(Delivery::Interrupted),
            };
            return slot.map(Some).map_err(|down| self.not_isolated(handle, destination, down));
        }
        if must_be_isolated {
            return Err(Delivery::Interrupted);
        }
        match handle.destinations.open_until(destination) {
            Some(until) => Err(Delivery::DestinationDown(destination.clone(), until)),
            None => Ok(None),
        }
    }

    /// Returns the result if no isolated connection could be opened, while the main one is up or
    /// not yet known to be down.
    fn not_isolated(
        &self,
        handle: &SinkHandle<S>,
        destination: &Address,
        down: impl std::fmt::Display,
    ) -> Delivery {
        if handle.circuit.is_closed() {
            handle.isolated.lacks(down);
            let is_closed = handle.destinations.close_guess(destination);
            self.unblock_if(is_closed, handle, destination);
            if is_closed {
                // The main connection shows whether the destination confirms.
                return Delivery::Interrupted;
            }
        }
        let until = Instant::now() + self.context.settings.sink_probe_interval_max;
        Delivery::DestinationDown(destination.clone(), until)
    }

    /// Publishes an admitted record and waits for the confirm.
    #[instrument(
        name = "publish",
        level = "debug",
        skip_all,
        fields(
            record.id = %leased.record.id,
            key = lane.key.as_str(),
            attempt = leased.attempt(),
            sink = admitted.sink,
            destination = admitted.destination.destination,
        )
    )]
    pub(super) async fn send(
        &self,
        admitted: Admitted<'_, S>,
        leased: &LeasedRecord,
        lane: &Lane,
    ) -> DeliveryResult {
        let Admitted { sink, handle, mut message, destination, slot } = admitted;
        // Checked as late as possible: no publish starts after the lease has ended.
        if !leased.may_start() || !self.context.state.suspension.may_publish(BootInstant::now()) {
            return DeliveryResult { sink, delivery: Delivery::Interrupted };
        }
        let in_flight = &self.context.state.in_flight;
        debug!(isolated = slot.is_some(), "publishing");
        failpoint::hit("relay::before_publish");
        failpoint::hit_with("relay::publish", &message.id);
        let timestamp = message.timestamp;
        message.is_urgent = lane.waiting_count() > URGENT_FACTOR * in_flight.per_lane();
        let (handed_over, result) = match &slot {
            Some(slot) => {
                // A probe may take as long as a publish, and takes no room from others.
                let _parked = if slot.is_exclusive() { None } else { self.park(lane) };
                handle.isolated.publish(slot, message).await
            }
            None => {
                let handed_over = Instant::now();
                (handed_over, self.publish(handle, &destination, message, handed_over, lane).await)
            }
        };
        handle.metrics.published(handed_over.elapsed());
        let delivery = match result {
            Ok(()) => {
                failpoint::hit("relay::after_confirm");
                debug!("confirmed");
                self.context.state.connection_losses.forget(&leased.record.id);
                let isolated = slot.is_some();
                let confirms_again =
                    handle.destinations.confirmed(&destination, handed_over, isolated);
                self.unblock_if(confirms_again, handle, &destination);
                handle.metrics.delivered(timestamp, self.context.clock.now());
                Delivery::Confirmed
            }
            Err(error) => {
                debug!(failure = ?error.failure, cause = error.detail, "not confirmed");
                let is_bypassed = slot.is_none()
                    && error.failure == PublishFailure::Unconfirmed
                    && handle.destinations.is_bypassed(&destination, handed_over);
                let delivery = self.judge(handle, &destination, leased, slot, handed_over, error);
                if is_bypassed {
                    handle.sink.renew().await;
                }
                delivery
            }
        };
        DeliveryResult { sink, delivery }
    }

    /// Publishes on the main connection. If that takes long, and the destination has answered
    /// nothing else meanwhile, nothing more is published to it, and this lane takes no room from
    /// others. If the sink has opened another connection since, another record probes whether the
    /// destination confirms.
    async fn publish(
        &self,
        handle: &SinkHandle<S>,
        destination: &Address,
        message: Message,
        handed_over: Instant,
        lane: &Lane,
    ) -> Result<(), PublishError> {
        let mut publishing = std::pin::pin!(handle.sink.publish(message));
        if let Ok(result) = tokio::time::timeout(SLOW_PUBLISH, &mut publishing).await {
            return result;
        }
        let slow = handle.destinations.begin_slow_publish(destination);
        let mut parked = None;
        loop {
            if let Ok(result) = tokio::time::timeout(SLOW_PUBLISH, &mut publishing).await {
                self.unblock_if(slow.end(), handle, destination);
                return result;
            }
            if slow.is_silent(SLOW_PUBLISH) {
                parked = parked.or_else(|| self.park(lane));
            }
            if handle.sink.replaced_at() > Some(handed_over) {
                break;
            }
        }
        let waits = handle.destinations.left_behind(destination, handed_over, SILENT_CONNECTION);
        let confirms = waits.is_none() && handle.destinations.note_answer(destination);
        self.unblock_if(confirms, handle, destination);
        let _parked = parked.or_else(|| self.park(lane));
        let result = publishing.await;
        self.unblock_if(slow.end(), handle, destination);
        result
    }

    fn park<'l>(&'l self, lane: &'l Lane) -> Option<Parked<'l>> {
        lane.park(&self.context.state.in_flight)
    }

    /// Unblocks the keys that wait for this destination, if it takes records again.
    fn unblock_if(&self, takes_again: bool, handle: &SinkHandle<S>, destination: &Address) {
        if takes_again {
            let sink = handle.circuit.name().as_str();
            self.context.state.key_table.unblock_destination(sink, destination);
        }
    }

    /// Decides what a failure means for the record, by the other results of its sink and
    /// destination.
    fn judge(
        &self,
        handle: &SinkHandle<S>,
        destination: &Address,
        leased: &LeasedRecord,
        slot: Option<IsolatedSlot>,
        handed_over: Instant,
        error: PublishError,
    ) -> Delivery {
        use PublishFailure::{
            Abandoned, ConnectionEnded, Indeterminate, Rejected, Retryable, TooLarge, Unconfirmed,
        };
        let PublishError { failure, detail } = error;
        let (id, losses) = (&leased.record.id, &self.context.state.connection_losses);
        let ends_silence = failure.is_answer() && handle.destinations.note_answer(destination);
        self.unblock_if(ends_silence, handle, destination);
        match (failure, slot) {
            (Retryable, slot) => {
                losses.forget(id);
                // It does not confirm, but it answers: no probe is required.
                let answers =
                    slot.is_some() && handle.destinations.answered(destination, handed_over);
                self.unblock_if(answers, handle, destination);
                Delivery::Failed(detail)
            }
            (TooLarge, _) => {
                losses.forget(id);
                Delivery::Undeliverable(DeadReason::TooLarge(detail))
            }
            (Rejected, _) => {
                losses.forget(id);
                Delivery::Undeliverable(DeadReason::Refused(detail))
            }
            (Unconfirmed, slot) => {
                let isolated = slot.is_some();
                match handle.destinations.unconfirmed(destination, handed_over, &detail, isolated) {
                    Fault::Record => Delivery::Failed(detail),
                    Fault::Destination(until) => {
                        Delivery::DestinationDown(destination.clone(), until)
                    }
                }
            }
            (Abandoned, _) => {
                match handle.destinations.left_behind(destination, handed_over, &detail) {
                    Some(until) => Delivery::DestinationDown(destination.clone(), until),
                    // Its destination confirms others: the record itself may silence connections.
                    None => {
                        losses.note(id);
                        Delivery::SinkLost
                    }
                }
            }
            (Indeterminate, Some(slot)) if slot.is_exclusive() => {
                // It was alone on the lost connection. If the record is known to break connections,
                // the loss says nothing about its destination.
                let is_guilty = losses.is_guilty(id)
                    || handle.destinations.broke(destination, handed_over, &detail)
                        == Fault::Record;
                losses.isolate(id, is_guilty);
                Delivery::Failed(detail)
            }
            (Indeterminate, Some(_)) => {
                let until = match handle.destinations.broke(destination, handed_over, &detail) {
                    Fault::Destination(until) => until,
                    Fault::Record => Instant::now(),
                };
                Delivery::DestinationDown(destination.clone(), until)
            }
            (PublishFailure::SinkDown | ConnectionEnded, Some(_)) => {
                self.not_isolated(handle, destination, detail)
            }
            (Indeterminate, None) => {
                losses.note(id);
                if losses.must_be_isolated(id) {
                    handle.destinations.suspected(destination, handed_over, &detail);
                }
                handle.circuit.open(SinkDown::new(detail));
                Delivery::SinkLost
            }
            (PublishFailure::SinkDown | ConnectionEnded, None) => {
                handle.circuit.open(SinkDown::new(detail));
                Delivery::SinkLost
            }
        }
    }
}
