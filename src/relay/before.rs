//! What must be known before lanes are planned, and how it is read with them.
//!
//! Records with an invalid partition, in short *misplaced* ones, and dead ones that block hold back
//! the lanes of their keys. There may be any number of either, so no read here is for all of them:
//! each has a limit, and of what lies beyond it a look asks by the keys that it is about to plan.

use std::collections::{HashMap, HashSet};

use bson::{Bson, Timestamp};

use crate::ids::RecordId;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Dead, QUESTIONS, Room, Snapshot, Stretch, first_keys};
use crate::partition;
use crate::relay::blocker::Blocker;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// Misplaced records that are corrected at a time; as many one look reads where a batch is smaller:
/// without their payloads they are small, and records keep coming.
pub(super) const CORRECTED: usize = 100;

/// Blocked keys that one look reads; of more it asks by its candidates' keys.
const BLOCKED: usize = 2_000;

/// Records that one question about some keys brings.
const ANSWERS: usize = 500;

/// The earliest `seq` of misplaced records by key; `None` where they have no `seq` either.
type Earliest = HashMap<LaneKey, Option<Timestamp>>;

/// What holds lanes back, of the same snapshot.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) misplaced: Earliest,
    /// Keys that the dead block, and by which record.
    pub(super) blocked: HashMap<LaneKey, Dead>,
    /// Whether these are all misplaced records.
    pub(super) all_misplaced: bool,
    /// Whether these are all blocked keys.
    pub(super) all_blocked: bool,
}

impl Before {
    /// Where nothing holds any lane back.
    pub(super) fn nothing() -> Self {
        let (misplaced, blocked) = (Earliest::new(), HashMap::new());
        Self { misplaced, blocked, all_misplaced: true, all_blocked: true }
    }

    /// Which keys of these partitions have a record with an invalid partition, as far as was read.
    pub(super) fn misplaced_within(&self, owned: &[u8]) -> Vec<(LaneKey, Blocker)> {
        let keys = self.misplaced.keys().filter_map(|lane| match lane {
            LaneKey::Keyed(key) => Some((lane, partition::of_key(key))),
            // Read by its id, wherever it lies.
            LaneKey::Single(_) => None,
        });
        let ours = keys.filter(|(_, partition)| owned.contains(partition));
        ours.map(|(lane, partition)| (lane.clone(), Blocker::unseen(partition))).collect()
    }

    /// Which keys of these partitions the dead block; beyond [`BLOCKED`], of those read.
    pub(super) fn blocked_within(&self, owned: &[u8]) -> Vec<(LaneKey, Dead)> {
        let is_ours = |(lane, dead): &(&LaneKey, &Dead)| match lane {
            LaneKey::Keyed(key) => {
                owned.contains(&partition::of_key(key)) || owned.contains(&dead.partition)
            }
            // Nothing is ever behind it.
            LaneKey::Single(_) => false,
        };
        let blocked = self.blocked.iter().filter(is_ours);
        blocked.map(|(lane, dead)| (lane.clone(), dead.clone())).collect()
    }
}

impl<S: Sink> Shared<S> {
    /// What must be known before any lane is planned, and the misplaced records that were read:
    /// those that MongoDB refused to have corrected a moment ago hold back their keys, and make
    /// room for others.
    pub(super) async fn before_lanes(
        &self,
        snapshot: &mut Snapshot,
        limit: usize,
    ) -> Result<(Before, Vec<Record>), StoreError> {
        let limit = limit.max(CORRECTED);
        // Before the first read of the snapshot: that shows the correction of what is forgotten here.
        let brought = self.misplaced.holding();
        let refused = self.refusals.resting();
        // One without a `seq` holds back nothing: others of its key must be asked for.
        let holding = refused.iter().filter(|(_, _, seq)| seq.is_some());
        let keys: Vec<Bson> = holding.filter_map(|(_, lane, _)| key_of(lane)).collect();
        let ids: Vec<Bson> = refused.iter().map(|(id, ..)| Bson::from(id)).collect();
        let records = snapshot.misplaced(&keys, &ids, limit).await?;
        let all_misplaced = records.len() < limit;
        let mut misplaced = Earliest::new();
        brought.into_iter().for_each(|(lane, seq)| note(&mut misplaced, lane, seq));
        refused.into_iter().for_each(|(_, lane, seq)| note(&mut misplaced, lane, seq));
        records.iter().for_each(|record| note(&mut misplaced, record.lane.clone(), record.seq));
        let blocked = match self.settings.ordered {
            true => snapshot.blocked(None, BLOCKED).await?,
            false => Vec::new(),
        };
        let all_blocked = blocked.len() < BLOCKED;
        let blocked = blocked.into_iter().collect();
        Ok((Before { misplaced, blocked, all_misplaced, all_blocked }, records))
    }

    /// What a plan may go by: the records of a stretch, and what holds their lanes back. Answers also
    /// the lanes of which that could not be said; their records are left out.
    ///
    /// On a standalone server, where reads share no moment, the stretch is read twice, and a
    /// lane's run ends before what only the second read has shown. Whatever was there before a
    /// record that the first one saw, is seen by the second, which began later: among the records,
    /// among the misplaced ones that are probed between the two, or among the blocked keys, that
    /// are probed before and after it.
    pub(super) async fn view(
        &self,
        mut records: Vec<Record>,
        mut before: Before,
        stretch: &Stretch<'_>,
        room: Room,
        snapshot: &mut Snapshot,
    ) -> Result<(Vec<Record>, Before, HashSet<LaneKey>), StoreError> {
        if records.is_empty() {
            return Ok((records, before, HashSet::new()));
        }
        let is_twice = !snapshot.is_one_moment();
        if is_twice {
            (before, _) = self.before_lanes(snapshot, room.records).await?;
        }
        let asks_misplaced = self.settings.ordered && !before.all_misplaced;
        let asks_blocked = self.settings.ordered && (is_twice || !before.all_blocked);
        let asks = asks_misplaced || asks_blocked;
        let keys = if asks { keys_of(&records) } else { Vec::new() };
        let mut unknown = HashSet::new();
        if asks_misplaced {
            unknown.extend(narrow(&mut before.misplaced, snapshot, &keys).await?);
        }
        if is_twice {
            let first: HashSet<RecordId> = records.iter().map(|record| record.id.clone()).collect();
            records = seen_twice(snapshot.read(stretch, room).await?, &first);
        }
        if asks_blocked {
            unknown.extend(blocked_of(&mut before.blocked, snapshot, &keys).await?);
        }
        records.retain(|record| !unknown.contains(&record.lane));
        Ok((records, before, unknown))
    }
}

/// Learns of these keys the earliest misplaced records, with a few reads of a limited size.
/// Answers the keys of which it is still not known whether they have any.
async fn narrow(
    earliest: &mut Earliest,
    snapshot: &mut Snapshot,
    keys: &[Bson],
) -> Result<HashSet<LaneKey>, StoreError> {
    let mut unknown = Unknown::of(keys);
    for _ in 0..QUESTIONS {
        let Some(keys) = unknown.keys() else { break };
        let found = snapshot.misplaced_of(&keys, ANSWERS).await?;
        unknown.answered(&keys, found.iter().map(|record| &record.lane), found.len() < ANSWERS);
        found.into_iter().for_each(|record| note(earliest, record.lane, record.seq));
    }
    Ok(unknown.0)
}

/// Learns which of these keys the dead block, and by which record. Answers the keys of which it is
/// still not known.
async fn blocked_of(
    blocked: &mut HashMap<LaneKey, Dead>,
    snapshot: &mut Snapshot,
    keys: &[Bson],
) -> Result<HashSet<LaneKey>, StoreError> {
    let mut unknown = Unknown::of(keys);
    for _ in 0..QUESTIONS {
        let Some(keys) = unknown.keys() else { break };
        let found = snapshot.blocked(Some(&keys), BLOCKED).await?;
        unknown.answered(&keys, found.iter().map(|(lane, _)| lane), found.len() < BLOCKED);
        blocked.extend(found);
    }
    Ok(unknown.0)
}

/// Keys about which no answer has come yet.
struct Unknown(HashSet<LaneKey>);

impl Unknown {
    fn of(keys: &[Bson]) -> Self {
        Self(keys.iter().filter_map(lane_of).collect())
    }

    /// The keys to ask about next, as many as a command has room for; `None` where all are known.
    fn keys(&self) -> Option<Vec<Bson>> {
        let keys = first_keys(self.0.iter().filter_map(key_of));
        (!keys.is_empty()).then_some(keys)
    }

    /// The answer to a question about `asked` names these keys. If it had room for more, it is about
    /// all of them.
    fn answered<'a>(
        &mut self,
        asked: &[Bson],
        about: impl Iterator<Item = &'a LaneKey>,
        had_room: bool,
    ) {
        match had_room {
            true => asked.iter().filter_map(lane_of).for_each(|lane| _ = self.0.remove(&lane)),
            false => about.for_each(|lane| _ = self.0.remove(lane)),
        }
    }
}

fn note(earliest: &mut Earliest, lane: LaneKey, seq: Option<Timestamp>) {
    let known = earliest.entry(lane).or_insert(seq);
    *known = match (*known, seq) {
        (Some(known), Some(new)) => Some(known.min(new)),
        (known, new) => known.or(new),
    };
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

fn lane_of(key: &Bson) -> Option<LaneKey> {
    key.as_str().map(|key| LaneKey::Keyed(key.into()))
}

pub(super) fn key_of(lane: &LaneKey) -> Option<Bson> {
    match lane {
        LaneKey::Keyed(key) => Some(Bson::String(key.to_string())),
        LaneKey::Single(_) => None,
    }
}
