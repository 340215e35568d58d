//! Sends dead letters: copies of dead records for consumers of a broker.

use std::sync::Arc;

use postrider_outbox::fields::DEAD;
use postrider_outbox::ids::RecordId;
use postrider_outbox::reason::{DeadReason, shortened};
use postrider_outbox::record::Record;
use postrider_store::text::chain;
use tokio::sync::mpsc;
use tracing::warn;

use crate::addressing;
use crate::context::RelayContext;
use crate::pending_deaths::DeadRecord;
use crate::routing::RouteInput;
use crate::settings::DeadLetters;
use crate::sink::{HeaderValue, Message, PublishFailure, Sink};

/// Why the record is dead.
const REASON: &str = "x-dead-reason";
/// Counted deliveries.
const ATTEMPTS: &str = "x-attempts";
/// The record's destination; absent if it had none.
const DESTINATION: &str = "x-destination";

/// The dead letter cannot be sent now and is sent later.
#[derive(Debug)]
pub(crate) struct DeadLetterDelayed;

/// Sends the dead letters of records that died without a lane, until the relay ends. Scans and
/// leases run apart from it, so that they do not wait for a slow broker.
pub(crate) async fn run<S: Sink>(
    context: Arc<RelayContext<S>>,
    mut dead: mpsc::Receiver<DeadRecord>,
) {
    let sender = DeadLetterSender::new(&context);
    while let Some(DeadRecord { id, reason }) = dead.recv().await {
        sender.send_late(&id, &reason).await;
        context.state.pending_deaths.forget(&id);
    }
    // This task must not end before the process does.
    std::future::pending::<()>().await;
}

/// Queues the dead letter of a record that died without a lane. It is sent after the write of the
/// death, and once: a record that crashed its instances must not be able to crash them again before
/// it is dead.
pub(super) fn queue<S>(context: &RelayContext<S>, record: &Record, reason: &DeadReason) {
    if context.settings.dead_letter.is_none() {
        return;
    }
    let dead = DeadRecord { id: record.id.clone(), reason: reason.clone() };
    if context.queues.dead_letters.try_send(dead).is_err() {
        warn!(id = %record.id, "dropped a dead-letter copy, since too many are waiting");
    }
}

/// Sends dead letters.
pub(super) struct DeadLetterSender<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> DeadLetterSender<'a, S> {
    /// Creates a sender of this relay's dead letters.
    pub(super) fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Sends the dead letter of a dead record as soon as MongoDB and the sink answer.
    async fn send_late(&self, id: &RecordId, reason: &DeadReason) {
        let mut is_reported = false;
        loop {
            let why = match self.context.read(id, DEAD).await {
                // Requeued, discarded or pruned meanwhile.
                Ok(None) => return,
                Ok(Some(record)) => {
                    // The dead letter may break the connection: no other record shares it.
                    let sent = self.send(&record, record.attempt, reason, true).await;
                    let Err(DeadLetterDelayed) = sent else { return };
                    "its sink is down".to_owned()
                }
                Err(error) => chain(&error),
            };
            if !std::mem::replace(&mut is_reported, true) {
                warn!(%id, why, "failed to send a dead-letter copy; retrying");
            }
            tokio::time::sleep(self.context.settings.sink_probe_interval_max).await;
        }
    }

    /// Sends the dead letter of a record on the isolated connection of its sink, if dead letters
    /// are configured and the record makes a message; a malformed record makes none. `exclusive`:
    /// it may break the connection, as the record did. A dead letter that the broker rejects is
    /// logged.
    ///
    /// # Errors
    ///
    /// [`DeadLetterDelayed`].
    pub(super) async fn send(
        &self,
        record: &Record,
        attempts: u32,
        reason: &DeadReason,
        exclusive: bool,
    ) -> Result<(), DeadLetterDelayed> {
        let Some(wanted) = &self.context.settings.dead_letter else { return Ok(()) };
        if matches!(reason, DeadReason::Malformed(_)) {
            return Ok(());
        }
        let id = &record.id;
        let never = |why: &str| {
            warn!(%id, why, "failed to send a dead-letter copy");
            Ok(())
        };
        let message = match self.message(wanted, record, attempts, reason) {
            Ok(message) => message,
            Err(why) => return never(&why),
        };
        let Some(handle) = self.context.sinks.get(wanted.sink.as_str()) else {
            return never(&format!("sink {:?} is not configured", wanted.sink.as_str()));
        };
        let destination = handle.sink.destination(&message);
        let mut exclusive = exclusive;
        loop {
            let Ok(place) = handle.isolated.enter(exclusive).await else {
                return Err(DeadLetterDelayed);
            };
            let (handed_over, result) = handle.isolated.publish(&place, message.clone()).await;
            let Err(error) = result else {
                self.context.state.pending_deaths.confirmed(destination, handed_over);
                handle.metrics.dead_letter(true);
                return Ok(());
            };
            let deaths = &self.context.state.pending_deaths;
            let is_final = match error.failure {
                // Another message may have broken the connection.
                PublishFailure::Indeterminate if !exclusive => {
                    exclusive = true;
                    continue;
                }
                PublishFailure::Indeterminate => !deaths.may_retry(record, reason),
                // While the destination confirms nothing, its dead letters wait as for a sink that is down.
                PublishFailure::Unconfirmed => {
                    deaths.has_confirmed_since(&destination, handed_over)
                        && !deaths.may_retry(record, reason)
                }
                failure => failure.is_answer(),
            };
            if !is_final {
                return Err(DeadLetterDelayed);
            }
            handle.metrics.dead_letter(false);
            return never(&error.detail);
        }
    }

    fn message(
        &self,
        wanted: &DeadLetters,
        record: &Record,
        attempts: u32,
        reason: &DeadReason,
    ) -> Result<Message, String> {
        let content = record.content().map_err(|malformed| malformed.to_string())?;
        let input = RouteInput::from(&content);
        let destination =
            wanted.destination.render(&input).map_err(|missing| missing.to_string())?;
        let had = self.context.router.address(&input).ok().map(|routed| routed.address.destination);
        let mut routed = self
            .context
            .router
            .within(&wanted.sink, &input)
            .map_err(|missing| missing.to_string())?;
        routed.address.destination = destination;
        let mut message = addressing::message(content, routed);
        let ours = [
            (REASON, Some(HeaderValue::String(shortened(&reason.to_string())))),
            (ATTEMPTS, Some(HeaderValue::Int32(i32::try_from(attempts).unwrap_or(i32::MAX)))),
            (DESTINATION, had.map(HeaderValue::String)),
        ];
        message.headers.retain(|(name, _)| !ours.iter().any(|(own, _)| own == name));
        let ours = ours.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        message.headers.extend(ours);
        Ok(message)
    }
}
