//! What blocks keys, as of the snapshot in which their records are read.
//!
//! Records with an invalid partition (*misplaced* records) and dead records that block
//! (`relay.on_dead = "block"`) block their keys. There may be any number of either, so each read
//! has a limit. Beyond it a scan asks only about the keys that it is about to plan.

use std::collections::{HashMap, HashSet};

use bson::{Bson, Timestamp};
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::{
    DeadBlocker, DeadPage, MAX_QUERIES, OutboxSnapshot, ReadLimit, ScanRange, first_keys,
};
use postrider_store::StoreError;

use crate::partition;
use crate::scanner::Scanner;
use crate::scanner::snapshot_blockers::{Earliest, SnapshotBlockers};
use crate::sink::Sink;

/// Misplaced records that are corrected at a time, and that one scan reads if a batch is smaller.
/// Without their payloads they are small.
pub(crate) const MISPLACED_PAGE: usize = 100;

/// Keys blocked by dead records that a scan reads without asking for any. With more of them it asks
/// about those that it is about to plan.
const FEW_DEAD: usize = 100;

/// Keys blocked by dead records that one query returns. (MongoDB reads each record, with its
/// payload.)
const DEAD_PAGE: usize = 500;

/// Misplaced records that one query about some keys returns.
const MAX_ANSWERS: usize = 500;

impl<S: Sink> Scanner<'_, S> {
    /// Reads what blocks keys, and returns it with the misplaced records that were read. Records
    /// that MongoDB recently refused to correct block their keys, and make room for others.
    pub(super) async fn read_blockers(
        &self,
        snapshot: &mut OutboxSnapshot,
        limit: usize,
    ) -> Result<(SnapshotBlockers, Vec<Record>), StoreError> {
        let limit = limit.max(MISPLACED_PAGE);
        // Before the first read of the snapshot: a record that is removed later is corrected in the
        // snapshot.
        let brought = self.context.state.misplaced.holding();
        let refused = self.context.state.refused_changes.held();
        // A record without a `seq` blocks nothing: others of its key must be queried.
        let holding = refused.iter().filter(|(_, _, seq)| seq.is_some());
        let keys: Vec<Bson> = holding.filter_map(|(_, lane, _)| key_of(lane)).collect();
        let ids: Vec<Bson> = refused.iter().map(|(id, ..)| Bson::from(id)).collect();
        let records = snapshot.misplaced(&keys, &ids, limit).await?;
        let has_all_misplaced = records.len() < limit;
        let mut misplaced = Earliest::new();
        brought.into_iter().for_each(|(lane, seq)| note(&mut misplaced, lane, seq));
        refused.into_iter().for_each(|(_, lane, seq)| note(&mut misplaced, lane, seq));
        records.iter().for_each(|record| note(&mut misplaced, record.lane.clone(), record.seq));
        let (mut dead, mut has_all_dead) = (HashMap::new(), true);
        if self.context.settings.is_ordered() {
            // (If it is known that there are more, no read is wasted.)
            if self.context.state.key_table.dead_count() < FEW_DEAD {
                let found = snapshot.blocked(None, FEW_DEAD).await?;
                // (Several of them may block one key.)
                has_all_dead = !found.is_cut;
                dead.extend(found.found);
            } else {
                has_all_dead = false;
            }
        }
        Ok((SnapshotBlockers { misplaced, dead, has_all_misplaced, has_all_dead }, records))
    }

    /// Blocks the keys of the owned partitions that dead records block: all of them, page by page.
    /// The relay would not know a key that nothing is pending behind. Returns whether it knows all
    /// of which the stream does not report more.
    pub(crate) async fn block_all_dead(&self) -> Result<bool, StoreError> {
        let key_table = &self.context.state.key_table;
        if !self.context.settings.is_ordered() {
            return Ok(true);
        }
        if key_table.dead_overflows() {
            return Ok(false);
        }
        // Read before the snapshot.
        let (start, owned) = (key_table.scan_start(), key_table.owned());
        let mut snapshot = OutboxSnapshot::begin(&self.context.collections).await?;
        let mut behind: Option<LaneKey> = None;
        loop {
            let key = behind.as_ref().map(LaneKey::as_str);
            let page = snapshot.blocked_behind(key, DEAD_PAGE).await?.found;
            // (A page may be short because of records that cannot be decoded. A key that is not a text has no
            // place in this order.)
            let keyed = page.iter().rev().find(|(lane, _)| matches!(lane, LaneKey::Keyed(_)));
            let Some((last, _)) = keyed else { break };
            behind = Some(last.clone());
            let has_room = key_table.block_by_dead(dead_within(page, &owned));
            if !has_room || key_table.scan_start().period != start.period {
                return Ok(false);
            }
        }
        key_table.has_all_dead();
        // (A new primary may not know yet what the stream has shown.)
        Ok(start.handled_until <= snapshot.moment())
    }

    /// Reads what a plan requires: the records of a stretch, and what blocks their keys, and the
    /// key `about` that is scanned. Returns also the keys whose blockers are not known; their
    /// records are left out.
    ///
    /// On a standalone server, where reads share no snapshot, the stretch is read twice, and a run
    /// ends before a record that only the second read has shown. A record that existed before one
    /// that the first read returned is returned by the second read, which began later: among the
    /// records, among the misplaced ones that are read between the two, or among the blocked keys
    /// that are read before and after it.
    pub(super) async fn plan_basis(
        &self,
        mut records: Vec<Record>,
        mut blockers: SnapshotBlockers,
        stretch: &ScanRange<'_>,
        about: Option<&LaneKey>,
        room: ReadLimit,
        snapshot: &mut OutboxSnapshot,
    ) -> Result<(Vec<Record>, SnapshotBlockers, HashSet<LaneKey>), StoreError> {
        if records.is_empty() && about.is_none() {
            return Ok((records, blockers, HashSet::new()));
        }
        let is_twice = !snapshot.is_one_moment();
        if is_twice {
            (blockers, _) = self.read_blockers(snapshot, room.records).await?;
        }
        let asks_misplaced = self.context.settings.is_ordered() && !blockers.has_all_misplaced;
        let asks_blocked =
            self.context.settings.is_ordered() && (is_twice || !blockers.has_all_dead);
        let asks = asks_misplaced || asks_blocked;
        let keys = if asks { keys_of(&records, about) } else { Vec::new() };
        let mut unknown = HashSet::new();
        if asks_misplaced {
            unknown.extend(narrow(&mut blockers.misplaced, snapshot, &keys).await?);
        }
        if asks_blocked {
            unknown.extend(blocked_of(&mut blockers.dead, snapshot, &keys).await?);
        }
        if is_twice {
            let seqs = records.iter().map(|record| (record.id.clone(), record.seq));
            let first: HashMap<RecordId, Option<Timestamp>> = seqs.collect();
            records = seen_twice(snapshot.read(stretch, room).await?, &first);
            unknown.extend(blocked_of(&mut blockers.dead, snapshot, &keys).await?);
        }
        records.retain(|record| !unknown.contains(&record.lane));
        Ok((records, blockers, unknown))
    }
}

/// Returns those of these keys that are in these partitions, by their hash or by their dead record.
fn dead_within(mut keys: Vec<(LaneKey, DeadBlocker)>, owned: &[u8]) -> Vec<(LaneKey, DeadBlocker)> {
    keys.retain(|(lane, dead)| match lane {
        LaneKey::Keyed(key) => {
            owned.contains(&partition::of_key(key)) || owned.contains(&dead.partition)
        }
        // It has no record behind it.
        LaneKey::Single(_) => false,
    });
    keys
}

/// Reads the earliest misplaced records of these keys, with a few reads of a limited size. Returns
/// the keys for which it is still not known whether they have any.
async fn narrow(
    earliest: &mut Earliest,
    snapshot: &mut OutboxSnapshot,
    keys: &[Bson],
) -> Result<HashSet<LaneKey>, StoreError> {
    let mut unknown = Unknown::of(keys);
    for _ in 0..MAX_QUERIES {
        let Some(keys) = unknown.keys() else { break };
        let found = snapshot.misplaced_of(&keys, MAX_ANSWERS).await?;
        unknown.answered(&keys, found.iter().map(|record| &record.lane), found.len() < MAX_ANSWERS);
        found.into_iter().for_each(|record| note(earliest, record.lane, record.seq));
    }
    Ok(unknown.0)
}

/// Reads which of these keys dead records block, and by which record. Returns the keys for which
/// that is still not known.
pub(crate) async fn blocked_of(
    blocked: &mut HashMap<LaneKey, DeadBlocker>,
    snapshot: &mut OutboxSnapshot,
    keys: &[Bson],
) -> Result<HashSet<LaneKey>, StoreError> {
    let mut unknown = Unknown::of(keys);
    for _ in 0..MAX_QUERIES {
        let Some(keys) = unknown.keys() else { break };
        let DeadPage { found, is_cut } = snapshot.blocked(Some(&keys), DEAD_PAGE).await?;
        unknown.answered(&keys, found.iter().map(|(lane, _)| lane), !is_cut);
        blocked.extend(found);
    }
    Ok(unknown.0)
}

/// Keys without an answer so far.
struct Unknown(HashSet<LaneKey>);

impl Unknown {
    fn of(keys: &[Bson]) -> Self {
        Self(keys.iter().filter_map(lane_of).collect())
    }

    /// Returns the keys to query next, as many as a command has room for; `None` if all are known.
    fn keys(&self) -> Option<Vec<Bson>> {
        let keys = first_keys(self.0.iter().filter_map(key_of));
        (!keys.is_empty()).then_some(keys)
    }

    /// Notes an answer about `asked` that names these keys. If it had room for more, it covers
    /// all of `asked`.
    fn answered<'a>(
        &mut self,
        asked: &[Bson],
        about: impl Iterator<Item = &'a LaneKey>,
        had_room: bool,
    ) {
        if had_room {
            asked.iter().filter_map(lane_of).for_each(|lane| _ = self.0.remove(&lane))
        } else {
            about.for_each(|lane| _ = self.0.remove(lane))
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

/// Returns the leading records of each lane that the first read showed as well, and not only a
/// document that they replaced.
fn seen_twice(again: Vec<Record>, first: &HashMap<RecordId, Option<Timestamp>>) -> Vec<Record> {
    let mut cut: Option<LaneKey> = None;
    let is_known = |record: &Record| {
        if cut.as_ref() == Some(&record.lane) {
            return false;
        }
        let known = first.get(&record.id) == Some(&record.seq);
        if !known {
            cut = Some(record.lane.clone());
        }
        known
    };
    again.into_iter().filter(is_known).collect()
}

fn keys_of(records: &[Record], about: Option<&LaneKey>) -> Vec<Bson> {
    let lanes = records.iter().map(|record| &record.lane);
    let keys: HashSet<&LaneKey> = lanes.chain(about).collect();
    keys.into_iter().filter_map(key_of).collect()
}

fn lane_of(key: &Bson) -> Option<LaneKey> {
    key.as_str().map(|key| LaneKey::Keyed(key.into()))
}

fn key_of(lane: &LaneKey) -> Option<Bson> {
    match lane {
        LaneKey::Keyed(key) => Some(Bson::String(key.to_string())),
        LaneKey::Single(_) => None,
    }
}
