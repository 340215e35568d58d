//! Dead letters: a copy for people and programs that watch a broker rather than the outbox
//! (contract, section 4.9).

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use crate::ids::SinkName;
use crate::outbox::reason::{DeadReason, shortened};
use crate::outbox::record::Record;
use crate::relay::shared::Shared;
use crate::routing::{RouteInput, Template};
use crate::sink::{HeaderValue, Message, Sink, SinkDown, Verdict};

/// Why the record is dead.
const REASON: &str = "x-dead-reason";
/// Deliveries that were charged.
const ATTEMPTS: &str = "x-attempts";
/// Where the record should have gone; absent where it had no way.
const DESTINATION: &str = "x-destination";

/// Where dead letters go.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// The sink.
    pub sink: SinkName,
    /// Exchange or topic.
    pub destination: Template,
}

/// The sink of dead letters is down: this one may be sent later.
#[derive(Debug)]
pub(crate) struct Later;

/// A record that died where it lay, without a lane that could wait for its dead letter.
#[derive(Debug)]
pub(crate) struct Buried {
    record: Record,
    reason: DeadReason,
}

/// As many wait to be sent at most; beyond it the outbox alone tells of the dead.
pub(crate) const WAITING: usize = 100;

/// Sends the dead letters of those who died where they lay, until the relay ends: beside the
/// takes, which must not wait for a slow broker.
pub(crate) async fn run<S: Sink>(shared: Arc<Shared<S>>, mut buried: mpsc::Receiver<Buried>) {
    while let Some(Buried { record, reason }) = buried.recv().await {
        let id = &record.id;
        let sent = shared.send_dead_letter(&record, record.attempt, &reason).await;
        if let Err(Later) = sent {
            warn!(%id, "the dead letter was not sent: its sink is down");
        }
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
        let buried = Buried { record: record.clone(), reason: reason.clone() };
        if self.buried.try_send(buried).is_err() {
            warn!(id = %record.id, "the dead letter was not sent: too many wait");
        }
    }

    /// Sends the dead letter of a record, if dead letters are wanted and the record makes a
    /// message: a malformed one does not. One that no broker will ever take is told to the log.
    ///
    /// # Errors
    ///
    /// [`Later`].
    pub(crate) async fn send_dead_letter(
        &self,
        record: &Record,
        attempts: u32,
        reason: &DeadReason,
    ) -> Result<(), Later> {
        let Some(wanted) = &self.settings.dead_letter else { return Ok(()) };
        if matches!(reason, DeadReason::Malformed(_)) {
            return Ok(());
        }
        let never = |why: &str| {
            warn!(id = %record.id, why, "the dead letter could not be sent");
            Ok(())
        };
        let message = match self.dead_letter(wanted, record, attempts, reason) {
            Ok(message) => message,
            Err(why) => return never(&why),
        };
        let Some(outlet) = self.outlets.get(wanted.sink.as_str()) else {
            return never(&format!("sink {:?} is not configured", wanted.sink.as_str()));
        };
        let Some(_pass) = outlet.gate.enter(false).await else { return Err(Later) };
        let Err(error) = outlet.sink.publish(message).await else {
            outlet.metrics.dead_letter(true);
            return Ok(());
        };
        match error.verdict {
            Verdict::Charge | Verdict::TooLarge | Verdict::Refuse => {
                outlet.metrics.dead_letter(false);
                never(&error.detail)
            }
            Verdict::Unknown | Verdict::Down => {
                outlet.gate.shut(SinkDown::new(error.detail));
                Err(Later)
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
