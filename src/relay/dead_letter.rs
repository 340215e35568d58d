//! Dead letters: a copy for people and programs that watch a broker rather than the outbox.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use crate::ids::RecordId;
use crate::outbox::fields::DEAD;
use crate::outbox::reason::{DeadReason, shortened};
use crate::outbox::record::Record;
use crate::relay::dying::Buried;
use crate::relay::settings::DeadLetters;
use crate::relay::shared::Shared;
use crate::routing::RouteInput;
use crate::sink::{HeaderValue, Message, Sink, Verdict};
use crate::telemetry::chain;

/// Why the record is dead.
const REASON: &str = "x-dead-reason";
/// Deliveries that were charged.
const ATTEMPTS: &str = "x-attempts";
/// Where the record should have gone; absent where it had no way.
const DESTINATION: &str = "x-destination";

/// The dead letter could not be sent now: it may be sent later.
#[derive(Debug)]
pub(crate) struct Later;

/// Sends the dead letters of those who died where they lay, until the relay ends: beside the
/// takes, which must not wait for a slow broker.
pub(crate) async fn run<S: Sink>(shared: Arc<Shared<S>>, mut buried: mpsc::Receiver<Buried>) {
    while let Some(Buried { id, reason }) = buried.recv().await {
        shared.send_late(&id, &reason).await;
        shared.dying.forget(&id);
    }
    // Kept as a part until the process ends.
    std::future::pending::<()>().await;
}

impl<S: Sink> Shared<S> {
    /// A record died where it lay. Its dead letter goes after its death, and once: what crashed
    /// its deliverers time and again must not be published before it can do so no more.
    pub(crate) fn announce_death(&self, record: &Record, reason: &DeadReason) {
        if self.settings.dead_letter.is_none() {
            return;
        }
        let buried = Buried { id: record.id.clone(), reason: reason.clone() };
        if self.buried.try_send(buried).is_err() {
            warn!(id = %record.id, "the dead letter was not sent: too many wait");
        }
    }

    /// Sends the dead letter of a record that is dead, as soon as MongoDB and the sink answer.
    async fn send_late(&self, id: &RecordId, reason: &DeadReason) {
        let mut is_reported = false;
        loop {
            let why = match self.read_again(id, DEAD).await {
                // Requeued, discarded or pruned meanwhile.
                Ok(None) => return,
                Ok(Some(record)) => {
                    // What crashed its deliverers must not take others along.
                    let sent = self.send_dead_letter(&record, record.attempt, reason, true).await;
                    let Err(Later) = sent else { return };
                    "its sink is down".to_owned()
                }
                Err(error) => chain(&error),
            };
            if !std::mem::replace(&mut is_reported, true) {
                warn!(%id, why, "failed to send a dead letter; it is tried again");
            }
            tokio::time::sleep(self.settings.probe_max).await;
        }
    }

    /// Sends the dead letter of a record on the isolated connection of its sink, if dead letters
    /// are wanted and the record makes a message: a malformed one does not. `exclusive`: it may
    /// take the connection down, like the record. A dead letter that the broker will never take is
    /// logged.
    ///
    /// # Errors
    ///
    /// [`Later`].
    pub(crate) async fn send_dead_letter(
        &self,
        record: &Record,
        attempts: u32,
        reason: &DeadReason,
        exclusive: bool,
    ) -> Result<(), Later> {
        let Some(wanted) = &self.settings.dead_letter else { return Ok(()) };
        if matches!(reason, DeadReason::Malformed(_)) {
            return Ok(());
        }
        let id = &record.id;
        let never = |why: &str| {
            warn!(%id, why, "the dead letter could not be sent");
            Ok(())
        };
        let message = match self.dead_letter(wanted, record, attempts, reason) {
            Ok(message) => message,
            Err(why) => return never(&why),
        };
        let Some(outlet) = self.outlets.get(wanted.sink.as_str()) else {
            return never(&format!("sink {:?} is not configured", wanted.sink.as_str()));
        };
        let destination = outlet.sink.destination(&message);
        let mut exclusive = exclusive;
        loop {
            let Ok(place) = outlet.quarantine.enter(exclusive).await else { return Err(Later) };
            let (handed_over, result) = outlet.quarantine.publish(&place, message.clone()).await;
            let Err(error) = result else {
                self.dying.confirmed(destination, handed_over);
                outlet.metrics.dead_letter(true);
                return Ok(());
            };
            match error.verdict {
                Verdict::Down | Verdict::Ended => return Err(Later),
                // Another one may have taken the connection down.
                Verdict::Unknown if !exclusive => exclusive = true,
                // It confirms nothing: its letters wait, as they do for a sink that is down.
                Verdict::Unconfirmed
                    if !self.dying.has_confirmed_since(&destination, handed_over) =>
                {
                    return Err(Later);
                }
                Verdict::LeftBehind => return Err(Later),
                Verdict::Unknown | Verdict::Unconfirmed if self.dying.again(record, reason) => {
                    return Err(Later);
                }
                _ => {
                    outlet.metrics.dead_letter(false);
                    return never(&error.detail);
                }
            }
        }
    }

    fn dead_letter(
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
        let had = self.router.address(&input).ok().map(|routed| routed.address.destination);
        let mut routed =
            self.router.within(&wanted.sink, &input).map_err(|missing| missing.to_string())?;
        routed.address.destination = destination;
        let mut message = crate::relay::delivery::message(content, routed);
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
