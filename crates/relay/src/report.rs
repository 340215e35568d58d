//! Reports the state of a relay to operators: the blocked keys, and its own state.
//!
//! Neither contains payloads or secrets, and both are bounded.

use std::time::Instant;

use bson::{Document, doc};
use postrider_outbox::record::LaneKey;
use postrider_store::dates::rfc3339;
use serde_json::{Map, Value, json};

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::context::RelayContext;
use crate::instance_state::{
    MAX_CAUSE_CHARS, MAX_ID_CHARS, MAX_NAMED, fields, shortened, state_id,
};
use crate::key_table::BlockedKey;
use crate::sink::{Address, Sink};

/// Characters of a key or an id in a report.
const MAX_CHARS: usize = 1_024;

/// Sinks and destinations that the state names at most.
const MAX_PLACES: usize = 8;

/// Reports the state of one relay.
#[derive(Debug)]
pub struct RelayReport<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> RelayReport<'a, S> {
    /// Creates the report of this relay.
    pub fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Returns the blocked keys as JSON, up to `limit`, or one key.
    pub fn blocked_keys(&self, key: Option<&str>, limit: usize) -> Value {
        let blocked = self.context.state.key_table.blocked_keys(key, limit + 1);
        let mut found: Vec<BlockedKey> = self.unsettled_keys(key).chain(blocked).collect();
        let truncated = found.len() > limit;
        found.truncate(limit);
        let mut keys: Vec<Value> = found.iter().map(|blocked| self.shown(blocked)).collect();
        keys.sort_by_cached_key(|key| key["since"].to_string());
        json!({
            "counts": self.counts(),
            "countsAtLeast": self.context.state.key_table.counts_are_at_least(),
            "keys": keys,
            "truncated": truncated,
        })
    }

    /// Returns the keys in flight whose outcome MongoDB refuses.
    fn unsettled_keys(&self, key: Option<&str>) -> impl Iterator<Item = BlockedKey> {
        let all = self.context.state.refused_outcomes.some(usize::MAX).into_iter();
        let asked = key.map(str::to_owned);
        let all = all.filter(move |(_, unsettled)| {
            asked.as_ref().is_none_or(|key| unsettled.lane.as_str() == key)
        });
        all.map(|(id, unsettled)| {
            // Its partition does not matter here.
            let blocker = Blocker::dead(id.clone(), 0);
            let mut wait = KeyBlock::new(BlockReason::Refused, blocker, None);
            wait.since = unsettled.since;
            let (lane, reason) = (unsettled.lane, BlockReason::Refused);
            BlockedKey { lane, reason, blocker: id, wait }
        })
    }

    /// Returns the state that an instance writes with its heartbeat.
    pub fn state(&self) -> Document {
        let down = self.context.sinks.iter().filter_map(|(name, handle)| {
            let cause = shortened(&handle.circuit.trouble()?.detail, MAX_CAUSE_CHARS);
            Some(doc! { fields::SINK: shortened(name, MAX_ID_CHARS), fields::CAUSE: cause })
        });
        let paused = self.context.open_destinations().into_iter().take(MAX_PLACES).map(|paused| {
            let Address { destination, key } = &paused.destination;
            doc! {
                fields::SINK: shortened(&paused.sink, MAX_ID_CHARS),
                fields::DESTINATION: shortened(destination, MAX_ID_CHARS),
                fields::KEY: key.as_deref().map(|key| shortened(key, MAX_ID_CHARS)),
                fields::CAUSE: shortened(&paused.cause, MAX_CAUSE_CHARS),
            }
        });
        let ids = |reason: BlockReason| -> Vec<String> {
            let ids = self.context.state.key_table.blockers(reason, MAX_NAMED);
            ids.iter().map(state_id).collect()
        };
        // Records that cannot be leased, corrected or settled.
        let resting =
            self.context.state.refused_changes.held().into_iter().map(|(id, ..)| state_id(&id));
        let unsettled = self
            .context
            .state
            .refused_outcomes
            .some(MAX_NAMED)
            .into_iter()
            .map(|(id, _)| state_id(&id));
        let refused = ids(BlockReason::Refused).into_iter().chain(resting).chain(unsettled);
        let counts = self.block_counts().into_iter().filter(|(_, count)| *count > 0);
        let counts = counts.map(|(reason, count)| {
            (reason.as_str().to_owned(), i64::try_from(count).unwrap_or(i64::MAX).into())
        });
        doc! {
            fields::SINKS_DOWN: down.take(MAX_PLACES).collect::<Vec<_>>(),
            fields::DESTINATIONS_PAUSED: paused.collect::<Vec<_>>(),
            fields::BLOCKED_KEYS: counts.collect::<Document>(),
            fields::BLOCKED_KEYS_AT_LEAST: self.context.state.key_table.counts_are_at_least(),
            fields::ALONE: ids(BlockReason::Quarantined),
            fields::REFUSED: refused.take(MAX_NAMED).collect::<Vec<_>>(),
            fields::DEAD_LETTER: ids(BlockReason::DeadLetter),
            fields::UNCONFIRMED: ids(BlockReason::DestinationDown),
            fields::STORE_TROUBLE: self.context.store_trouble().map(|words| shortened(&words, MAX_CAUSE_CHARS)),
        }
    }

    /// Returns how many keys are blocked for each reason, including those in flight whose outcome
    /// MongoDB refuses.
    pub(super) fn block_counts(&self) -> Vec<(BlockReason, usize)> {
        let mut counts = self.context.state.key_table.counts_by_reason();
        for (reason, count) in &mut counts {
            if *reason == BlockReason::Refused {
                *count += self.context.state.refused_outcomes.count();
            }
        }
        counts
    }

    fn counts(&self) -> Map<String, Value> {
        let counts = self.block_counts().into_iter();
        counts.map(|(reason, count)| (reason.as_str().to_owned(), json!(count))).collect()
    }

    fn shown(&self, blocked: &BlockedKey) -> Value {
        let key = match &blocked.lane {
            LaneKey::Keyed(key) => Some(shortened(key, MAX_CHARS)),
            LaneKey::Single(_) => None,
        };
        let at = |moment: Instant| {
            let now = (Instant::now(), self.context.clock.now().timestamp_millis());
            let millis = |span: std::time::Duration| i64::try_from(span.as_millis()).unwrap_or(0);
            let date = now.1 + millis(moment.saturating_duration_since(now.0))
                - millis(now.0.saturating_duration_since(moment));
            rfc3339(bson::DateTime::from_millis(date))
        };
        let wait = &blocked.wait;
        json!({
            "key": key,
            "reason": blocked.reason.as_str(),
            "blocker": shortened(&blocked.blocker.to_string(), MAX_CHARS),
            "since": at(wait.since),
            "until": wait.until.and_then(at),
            "sink": wait.sink.as_deref(),
            "destination": wait.destination.as_ref().map(destination),
        })
    }
}

/// Formats a destination with its key.
fn destination(address: &Address) -> String {
    let Address { destination, key } = address;
    let words = [destination.as_str(), key.as_deref().unwrap_or_default()];
    let words = words.into_iter().filter(|word| !word.is_empty());
    shortened(&words.collect::<Vec<_>>().join(" "), MAX_CHARS)
}
