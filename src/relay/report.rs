//! What a relay knows beyond MongoDB, for operators: which keys are blocked, and its own state.
//!
//! Neither holds payloads or secrets, and both are bounded.

use std::time::Instant;

use bson::{Document, doc};
use serde_json::{Map, Value, json};

use crate::dates::rfc3339;
use crate::ids::RecordId;
use crate::outbox::record::LaneKey;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::hands::BlockedKey;
use crate::relay::shared::Shared;
use crate::sink::{Address, Sink};

/// Characters of a key or an id that are shown.
const SHOWN: usize = 1_024;

/// Fields of the state that an instance writes with its heartbeat.
pub mod fields {
    /// Sinks that are down: `sink`, `cause`.
    pub const SINKS_DOWN: &str = "sinksDown";
    /// Blocked keys, counted by reason.
    pub const BLOCKED_KEYS: &str = "blockedKeys";
    /// Ids of some records that wait for their turn to go alone.
    pub const ALONE: &str = "alone";
    /// Ids of some records that MongoDB refused to let the relay lease.
    pub const REFUSED: &str = "refused";
    /// Ids of some records whose dead letters wait for their sink.
    pub const DEAD_LETTER: &str = "deadLetter";
    /// Ids of some records whose destinations do not confirm.
    pub const UNCONFIRMED: &str = "unconfirmed";
    /// What MongoDB refuses or does not do for the relay, in words, while it lasts.
    pub const STORE_TROUBLE: &str = "storeTrouble";
    /// Some destinations that do not confirm: `sink`, `destination`, `key`, `cause`.
    pub const DESTINATIONS_PAUSED: &str = "destinationsPaused";
    /// An exchange or a topic.
    pub const DESTINATION: &str = "destination";
    /// A routing key, or a partition.
    pub const KEY: &str = "key";
    /// A sink's name.
    pub const SINK: &str = "sink";
    /// Why it is down.
    pub const CAUSE: &str = "cause";
}

/// Ids of each kind that the state names at most.
pub(crate) const NAMED: usize = 32;

/// Sinks and destinations that it names at most.
const PLACES: usize = 8;

/// Characters of an id, a name and a cause in the state: all in all it stays below 16 KB.
const ID: usize = 64;
const CAUSE: usize = 200;

impl<S: Sink> Shared<S> {
    /// The table of blocked keys as JSON, up to `limit`; one key where one is named.
    pub fn blocked_keys(&self, key: Option<&str>, limit: usize) -> Value {
        let mut found = self.hands.blocked_keys(key, limit + 1);
        found.extend(self.unsettled_keys(key));
        let truncated = found.len() > limit;
        found.truncate(limit);
        let mut keys: Vec<Value> = found.iter().map(|blocked| self.shown(blocked)).collect();
        keys.sort_by_cached_key(|key| key["since"].to_string());
        json!({ "counts": self.counts(), "keys": keys, "truncated": truncated })
    }

    /// The keys in hand whose record's outcome MongoDB refuses.
    fn unsettled_keys(&self, key: Option<&str>) -> impl Iterator<Item = BlockedKey> {
        let all = self.outcomes.some(usize::MAX).into_iter();
        let asked = key.map(str::to_owned);
        let all = all.filter(move |(_, unsettled)| {
            asked.as_ref().is_none_or(|key| unsettled.lane.as_str() == key)
        });
        all.map(|(id, unsettled)| {
            // Where it lies does not matter here.
            let blocker = Blocker::dead(id.clone(), 0);
            let mut wait = Wait::new(HoldReason::Refused, blocker, None);
            wait.since = unsettled.since;
            let (lane, reason) = (unsettled.lane, HoldReason::Refused);
            BlockedKey { lane, reason, blocker: id, wait: Some(wait) }
        })
    }

    /// The state that an instance writes with its heartbeat.
    pub fn state(&self) -> Document {
        let down = self.outlets.iter().filter_map(|(name, outlet)| {
            let cause = shortened(&outlet.gate.trouble()?.detail, CAUSE);
            Some(doc! { fields::SINK: shortened(name, ID), fields::CAUSE: cause })
        });
        let paused = self.destinations().into_iter().take(PLACES).map(|paused| {
            let Address { destination, key } = &paused.destination;
            doc! {
                fields::SINK: shortened(&paused.sink, ID),
                fields::DESTINATION: shortened(destination, ID),
                fields::KEY: key.as_deref().map(|key| shortened(key, ID)),
                fields::CAUSE: shortened(&paused.cause, CAUSE),
            }
        });
        let ids = |reason: HoldReason| -> Vec<String> {
            let ids = self.hands.blockers(reason, NAMED);
            ids.iter().map(state_id).collect()
        };
        // What cannot be leased, and what cannot be corrected or settled.
        let resting = self.refusals.resting().into_iter().map(|(id, ..)| state_id(&id));
        let unsettled = self.outcomes.some(NAMED).into_iter().map(|(id, _)| state_id(&id));
        let refused = ids(HoldReason::Refused).into_iter().chain(resting).chain(unsettled);
        let counts = self.waits().into_iter().filter(|(_, count)| *count > 0);
        let counts = counts.map(|(reason, count)| {
            (reason.as_str().to_owned(), i64::try_from(count).unwrap_or(i64::MAX).into())
        });
        doc! {
            fields::SINKS_DOWN: down.take(PLACES).collect::<Vec<_>>(),
            fields::DESTINATIONS_PAUSED: paused.collect::<Vec<_>>(),
            fields::BLOCKED_KEYS: counts.collect::<Document>(),
            fields::ALONE: ids(HoldReason::Suspect),
            fields::REFUSED: refused.take(NAMED).collect::<Vec<_>>(),
            fields::DEAD_LETTER: ids(HoldReason::DeadLetter),
            fields::UNCONFIRMED: ids(HoldReason::DestinationPaused),
            fields::STORE_TROUBLE: self.store_trouble().map(|words| shortened(&words, CAUSE)),
        }
    }

    /// How many keys wait for each reason; those whose record's outcome MongoDB refuses are in the
    /// book as busy.
    pub(super) fn waits(&self) -> Vec<(HoldReason, usize)> {
        let mut counts = self.hands.held();
        for (reason, count) in &mut counts {
            if *reason == HoldReason::Refused {
                *count += self.outcomes.count();
            }
        }
        counts
    }

    fn counts(&self) -> Map<String, Value> {
        let counts = self.waits().into_iter();
        counts.map(|(reason, count)| (reason.as_str().to_owned(), json!(count))).collect()
    }

    fn shown(&self, blocked: &BlockedKey) -> Value {
        let key = match &blocked.lane {
            LaneKey::Keyed(key) => Some(shortened(key, SHOWN)),
            LaneKey::Single(_) => None,
        };
        let at = |moment: Instant| {
            let now = (Instant::now(), self.clock.now().timestamp_millis());
            let millis = |span: std::time::Duration| i64::try_from(span.as_millis()).unwrap_or(0);
            let date = now.1 + millis(moment.saturating_duration_since(now.0))
                - millis(now.0.saturating_duration_since(moment));
            rfc3339(bson::DateTime::from_millis(date))
        };
        let wait = blocked.wait.as_ref();
        json!({
            "key": key,
            "reason": blocked.reason.as_str(),
            "blocker": shortened(&blocked.blocker.to_string(), SHOWN),
            "since": wait.and_then(|wait| at(wait.since)),
            "until": wait.and_then(|wait| at(wait.until?)),
            "sink": wait.and_then(|wait| wait.sink.as_deref()),
            "destination": wait.and_then(|wait| Some(destination(wait.destination.as_ref()?))),
        })
    }
}

/// A destination in words: where it goes, and by which key.
fn destination(address: &Address) -> String {
    let Address { destination, key } = address;
    let words = [destination.as_str(), key.as_deref().unwrap_or_default()];
    let words = words.into_iter().filter(|word| !word.is_empty());
    shortened(&words.collect::<Vec<_>>().join(" "), SHOWN)
}

/// An id as the state names it.
pub(crate) fn state_id(id: &RecordId) -> String {
    state_name(&id.to_string())
}

/// A name as the state has it.
pub(crate) fn state_name(name: &str) -> String {
    shortened(name, ID)
}

/// At most so many characters of a text.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
