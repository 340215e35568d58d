//! What must be known before lanes are planned, and how it is read beside them.

use std::collections::{HashMap, HashSet};

use bson::{Bson, Timestamp};

use crate::ids::RecordId;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Room, Snapshot, Stretch};
use crate::partition;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// Blocked keys that one take reads; beyond, it asks for those of its candidates alone.
const BLOCKED: usize = 2_000;

/// A limit for what is few by its nature: the records of one page's keys. (A batch size is
/// an int32, and one more is asked for.)
const EVERY: usize = i32::MAX as usize - 1;

/// What holds lanes back, of the same snapshot.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) unstamped: HashMap<LaneKey, Option<Timestamp>>,
    pub(super) blocked: HashSet<LaneKey>,
    complete: bool,
}

impl Before {
    /// How many keys of these partitions the dead block; beyond [`BLOCKED`], of those read.
    pub(super) fn blocked_within(&self, owned: &[u8]) -> usize {
        let is_ours = |lane: &&LaneKey| match lane {
            LaneKey::Keyed(key) => owned.contains(&partition::of_key(key)),
            // Nothing is ever behind it.
            LaneKey::Single(_) => false,
        };
        self.blocked.iter().filter(is_ours).count()
    }
}

impl<S: Sink> Shared<S> {
    /// What must be known before any lane is planned: unstamped records and blocked keys.
    pub(super) async fn before_lanes(
        &self,
        snapshot: &mut Snapshot,
        keys: Option<&[Bson]>,
        limit: usize,
    ) -> Result<(Before, Vec<Record>), StoreError> {
        let unstamped = snapshot.unstamped(keys, limit).await?;
        let blocked = match self.settings.ordered {
            true => snapshot.blocked(keys, limit.max(BLOCKED)).await?,
            false => Vec::new(),
        };
        let complete = unstamped.len() < limit && blocked.len() < BLOCKED;
        let mut earliest: HashMap<LaneKey, Option<Timestamp>> = HashMap::new();
        for record in &unstamped {
            let seq = earliest.entry(record.lane.clone()).or_insert(record.seq);
            *seq = match (*seq, record.seq) {
                (Some(known), Some(new)) => Some(known.min(new)),
                (known, new) => known.or(new),
            };
        }
        let blocked = blocked.into_iter().collect();
        Ok((Before { unstamped: earliest, blocked, complete }, unstamped))
    }

    /// Where there were too many to read all: those of the keys at hand.
    async fn narrowed(
        &self,
        before: Before,
        records: &[Record],
        snapshot: &mut Snapshot,
    ) -> Result<Before, StoreError> {
        if before.complete || records.is_empty() {
            return Ok(before);
        }
        let keys = keys_of(records);
        let (narrow, _) = self.before_lanes(snapshot, Some(&keys), EVERY).await?;
        Ok(narrow)
    }

    /// What a plan may go by: the records of a stretch, and what holds their lanes back.
    ///
    /// On a standalone server, where reads share no moment, the stretch is read twice, and a
    /// lane's run ends before what only the second read has shown. Whatever was there before a
    /// record that the first one saw, is seen by the second, which began later: among the records,
    /// among the unstamped ones that are probed between the two, or among the blocked keys, that
    /// are probed before and after it.
    pub(super) async fn view(
        &self,
        records: Vec<Record>,
        before: Before,
        stretch: &Stretch<'_>,
        room: Room,
        snapshot: &mut Snapshot,
    ) -> Result<(Vec<Record>, Before), StoreError> {
        if snapshot.is_one_moment() || records.is_empty() {
            let before = self.narrowed(before, &records, snapshot).await?;
            return Ok((records, before));
        }
        let first: HashSet<RecordId> = records.iter().map(|record| record.id.clone()).collect();
        let keys = keys_of(&records);
        let (mut before, _) = self.before_lanes(snapshot, Some(&keys), EVERY).await?;
        let again = snapshot.read(stretch, room).await?;
        if self.settings.ordered {
            before.blocked.extend(snapshot.blocked(Some(&keys), EVERY).await?);
        }
        Ok((seen_twice(again, &first), before))
    }
}

/// Of each lane the leading part that the first read showed as well.
fn seen_twice(again: Vec<Record>, first: &HashSet<RecordId>) -> Vec<Record> {
    let mut cut: Option<LaneKey> = None;
    let is_known = |record: &Record| {
        if cut.as_ref() == Some(&record.lane) {
            return false;
        }
        let known = first.contains(&record.id);
        if !known {
            cut = Some(record.lane.clone());
        }
        known
    };
    again.into_iter().filter(is_known).collect()
}

fn keys_of(records: &[Record]) -> Vec<Bson> {
    let keys: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
    keys.into_iter().filter_map(key_of).collect()
}

pub(super) fn key_of(lane: &LaneKey) -> Option<Bson> {
    match lane {
        LaneKey::Keyed(key) => Some(Bson::String(key.to_string())),
        LaneKey::Single(_) => None,
    }
}
