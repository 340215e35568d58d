//! Dead letters: a copy for people and programs that watch a broker rather than the outbox
//! (contract, section 4.9).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::warn;

use crate::ids::{RecordId, SinkName};
use crate::outbox::fields::{
    ATTEMPT, DEAD, LAST_ERROR, LAST_ERROR_AT, LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PARTITION, SEQ,
    VISIBLE_AT,
};
use crate::outbox::reason::{DeadReason, shortened};
use crate::outbox::record::Record;
use crate::relay::blocker::hash_without;
use crate::relay::shared::Shared;
use crate::routing::{RouteInput, Template};
use crate::sink::{Address, HeaderValue, Message, Sink, Verdict};
use crate::telemetry::chain;

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

/// The dead letter could not be sent now: it may be sent later.
#[derive(Debug)]
pub(crate) struct Later;

/// How often a dead letter is sent that takes its own connection down, or that alone is not confirmed
/// where others are, before its record dies without it.
const ROUNDS: u32 = 3;

/// Destinations of dead letters of which is known when they confirmed.
const DESTINATIONS: usize = 1_000;

/// Records that are remembered at most while their dead letters wait.
const MOST: usize = 10_000;

/// Where there is no room for more, those are forgotten whose dead letters were last tried so long
/// ago: a peer may have taken them meanwhile.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The fields that the relay writes itself: what a record would die of does not rest on them.
const OURS: [&str; 9] = [
    ATTEMPT,
    LAST_ERROR,
    LAST_ERROR_AT,
    LEASE_ID,
    LEASE_OWNER,
    LEASE_UNTIL,
    PARTITION,
    SEQ,
    VISIBLE_AT,
];

/// Records that will be dead once their dead letters are sent. They are not delivered again.
#[derive(Debug, Default)]
pub(crate) struct Dying {
    fates: Mutex<HashMap<RecordId, Fate>>,
    /// When the latest dead letter was handed over that was confirmed, by destination.
    confirmed: Mutex<HashMap<Address, Instant>>,
}

#[derive(Debug)]
struct Fate {
    reason: DeadReason,
    /// The record's attempts when its dead letter was first tried: fewer if it was requeued.
    attempts: u32,
    /// A hash of what it would die of: another one if it was mended.
    content: u64,
    rounds: u32,
    tried: Instant,
}

impl Dying {
    /// Why the record will be dead.
    pub(crate) fn reason(&self, record: &Record) -> Option<DeadReason> {
        let mut dying = self.book();
        if dying.is_empty() {
            return None;
        }
        let fate = dying.get(&record.id)?;
        if record.attempt >= fate.attempts && fate.content == content(record) {
            return Some(fate.reason.clone());
        }
        dying.remove(&record.id);
        None
    }

    /// Remembers a record whose dead letter waits, for `pause` and some time.
    pub(crate) fn remember(&self, record: &Record, reason: &DeadReason, pause: Duration) {
        let mut dying = self.book();
        if dying.len() >= MOST {
            dying.retain(|_, fate| fate.tried.elapsed() < REMEMBERED);
        }
        if dying.len() < MOST {
            let fate = dying.entry(record.id.clone()).or_insert_with(|| Fate {
                reason: reason.clone(),
                attempts: record.attempt,
                content: content(record),
                rounds: 0,
                tried: Instant::now(),
            });
            fate.tried = Instant::now() + pause;
        }
    }

    /// Forgets a record that is dead.
    pub(crate) fn forget(&self, id: &RecordId) {
        let mut dying = self.book();
        if !dying.is_empty() {
            dying.remove(id);
        }
    }

    /// Notes that a dead letter was confirmed which was handed over at this time.
    fn confirmed(&self, destination: Address, handed_over: Instant) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if confirmed.len() >= DESTINATIONS && !confirmed.contains_key(&destination) {
            let oldest = confirmed.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(destination, _)| destination.clone());
            oldest.and_then(|oldest| confirmed.remove(&oldest));
        }
        let latest = confirmed.entry(destination).or_insert(handed_over);
        *latest = (*latest).max(handed_over);
    }

    /// Whether this destination has confirmed what was handed over later: that another was not
    /// confirmed is no fault of the destination.
    fn has_confirmed_since(&self, destination: &Address, handed_over: Instant) -> bool {
        let confirmed = self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        confirmed.get(destination).is_some_and(|latest| *latest > handed_over)
    }

    /// Counts one more dead letter that was handed over in vain; true if there may be another.
    fn again(&self, record: &Record, reason: &DeadReason) -> bool {
        self.remember(record, reason, Duration::ZERO);
        let mut dying = self.book();
        // (Where there is no room to count it waits.)
        let Some(fate) = dying.get_mut(&record.id) else { return true };
        fate.rounds += 1;
        fate.rounds < ROUNDS
    }

    fn book(&self) -> MutexGuard<'_, HashMap<RecordId, Fate>> {
        self.fates.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn content(record: &Record) -> u64 {
    hash_without(&record.raw, &OURS)
}

/// A record that died where it lay, without a lane that could wait for its dead letter. It is read
/// again when its turn comes: any payloads that waited here would add up.
#[derive(Debug)]
pub(crate) struct Buried {
    id: RecordId,
    reason: DeadReason,
}

/// As many wait to be sent at most; beyond it the outbox alone tells of the dead.
pub(crate) const WAITING: usize = 10_000;

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
