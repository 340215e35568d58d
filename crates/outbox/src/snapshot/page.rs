//! Reads pages: a part of the index, and what its keys have in the other range.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bson::{Bson, Document, doc};
use postrider_store::StoreError;

use crate::collections::Find;
use crate::fields::{KEY, PARTITION, PENDING, SEQ, STATUS, exactly};
use crate::merge::{PartialRead, merged};
use crate::partition;
use crate::position::{IndexPlace, IndexRange, KeyKind, Position, Segment};
use crate::record::{LaneKey, Placement, Record};
use crate::snapshot::{
    LANE_INDEX, MAX_QUERIES, OutboxSnapshot, ReadLimit, first_keys, lane_order, size_of,
};

/// A page of `lane_idx`, in its order.
#[derive(Debug)]
pub struct SnapshotPage {
    /// The earliest pending records of each key, without a gap.
    pub records: Vec<Record>,
    /// Where the next page begins; `None` at the end of the last partition.
    pub next: Option<Position>,
    /// Whether it ended because it was full.
    pub is_full: bool,
    /// Keys that are left out, because the other range takes too many reads.
    pub skipped: Vec<LaneKey>,
    /// Whether this page and the others show everything: a full page of records without a valid
    /// position hides what follows.
    pub is_all: bool,
}

/// What a page leaves out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SkippedKeys {
    /// The keys.
    pub keys: Vec<Bson>,
    /// The last place (inclusive) that the keys cover; `None` if they cover all.
    pub until: Option<IndexPlace>,
}

impl OutboxSnapshot {
    /// Reads a page from `from` without `pass_over`: records without a partition that belong to one
    /// in `owned`, or records that name one of those. It includes what its keys have in the other
    /// range.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; a snapshot that is too old or unavailable is transient.
    pub async fn page(
        &mut self,
        from: &Position,
        owned: &[u8],
        pass_over: &SkippedKeys,
        room: ReadLimit,
    ) -> Result<SnapshotPage, StoreError> {
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let mut is_full = false;
        let mut skipped = Vec::new();
        for segment in from.segments(owned, pass_over.until.as_ref()) {
            let filter = pending(segment, &pass_over.keys);
            let left = room.records - records.len();
            let left = ReadLimit { records: left, bytes: room.bytes.saturating_sub(bytes) };
            let read = self.read_pending("read pending records", filter, left).await?;
            bytes += size_of(&read);
            records.extend(read);
            is_full = records.len() >= room.records || bytes >= room.bytes;
            if is_full {
                break;
            }
        }
        let is_unordered =
            |record: &Record| self.within_keys || matches!(record.lane, LaneKey::Single(_));
        let is_odd = |last: &Record| matches!(KeyKind::of(last), KeyKind::Number | KeyKind::Other);
        let hides = |last: &Record| {
            last.placement == Placement::Invalid
                || is_odd(last)
                || (is_unordered(last) && last.seq.is_none())
        };
        let is_all = !(is_full && records.last().is_some_and(hides));
        let next = match (is_full, &pass_over.until) {
            (true, _) => {
                // A record that is indexed here by an array element has no position to continue
                // from.
                let is_placed = |record: &&Record| record.placement != Placement::Invalid;
                let placed = records.iter().rev().find(is_placed);
                placed.and_then(|record| Position::after(record, self.within_keys))
            }
            (false, Some(until)) => Some(Position::behind(until)),
            (false, None) => from.next_side(),
        };
        if !self.within_keys {
            let left =
                ReadLimit { records: room.records, bytes: room.bytes.saturating_sub(bytes).max(1) };
            (records, skipped) =
                self.with_the_rest(records, is_full, owned, from.is_unstamped(), left).await?;
        } else if from.is_unstamped() {
            records.retain(|record| owned.contains(&record.partition));
        }
        Ok(SnapshotPage { records, next, is_full, skipped, is_all })
    }

    async fn read_pending(
        &mut self,
        action: &'static str,
        filter: Document,
        room: ReadLimit,
    ) -> Result<Vec<Record>, StoreError> {
        let find = Find { order: lane_order(), ..Find::whole(action, LANE_INDEX, filter) };
        self.find(find, room).await
    }

    /// Merges what the keys of a page have in the other range: the leading records of both. Keys
    /// that take too many reads are left out.
    async fn with_the_rest(
        &mut self,
        page: Vec<Record>,
        is_full: bool,
        owned: &[u8],
        is_unstamped: bool,
        room: ReadLimit,
    ) -> Result<(Vec<Record>, Vec<LaneKey>), StoreError> {
        let last = page.last().map(|record| (record.lane.clone(), IndexRange::of(record)));
        let mut lanes: Vec<((LaneKey, IndexRange), PartialRead)> = Vec::new();
        for record in page {
            if is_unstamped && !owned.contains(&record.partition) {
                continue;
            }
            // A key can be in two adjacent partitions.
            let place = (record.lane.clone(), IndexRange::of(&record));
            match lanes.last_mut().filter(|(before, _)| *before == place) {
                Some((_, part)) => part.records.push(record),
                None => {
                    let is_cut = is_full && last.as_ref() == Some(&place);
                    lanes.push((place, PartialRead { records: vec![record], is_cut }));
                }
            }
        }
        // A key in a foreign partition has nothing in the other range.
        let is_mixed = |part: &PartialRead| match part.records.first() {
            Some(first) => first.partition == first.hashed_partition(),
            None => false,
        };
        let keys = lanes.iter().filter(|(_, part)| is_mixed(part));
        let keys = keys.filter_map(|((lane, _), _)| match lane {
            LaneKey::Keyed(key) => Some(key.clone()),
            LaneKey::Single(_) => None,
        });
        let (mut rest, unknown) = self.other_range(keys.collect(), is_unstamped, room).await?;
        let (mut records, mut skipped) = (Vec::new(), Vec::new());
        for ((lane, _), part) in lanes {
            let other = match &lane {
                LaneKey::Keyed(key) if unknown.contains(key) && is_mixed(&part) => {
                    skipped.push(lane);
                    continue;
                }
                LaneKey::Keyed(key) if is_mixed(&part) => rest.remove(key),
                _ => None,
            };
            records.extend(merged(part, other.unwrap_or_default()));
        }
        Ok((records, skipped))
    }

    /// Reads what these keys have in the other range, and returns the keys that stay unknown.
    async fn other_range(
        &mut self,
        keys: BTreeSet<Arc<str>>,
        is_unstamped: bool,
        room: ReadLimit,
    ) -> Result<(HashMap<Arc<str>, PartialRead>, BTreeSet<Arc<str>>), StoreError> {
        let mut parts: HashMap<Arc<str>, PartialRead> = HashMap::new();
        // In the order of the index.
        let place = |key: &Arc<str>| {
            if is_unstamped {
                (IndexRange::Partition(partition::of_key(key)), key.clone())
            } else {
                (IndexRange::Unstamped, key.clone())
            }
        };
        let mut unknown: BTreeMap<IndexPlace, Arc<str>> =
            keys.into_iter().map(|key| (place(&key), key)).collect();
        let mut left = room;
        for _ in 0..MAX_QUERIES {
            let asked = first_keys(unknown.values().map(|key| Bson::String(key.to_string())));
            let Some(last_asked) = unknown.keys().nth(asked.len().saturating_sub(1)).cloned()
            else {
                break;
            };
            if left.records == 0 || left.bytes == 0 {
                break;
            }
            let partitions = if is_unstamped {
                let partitions: BTreeSet<i32> = unknown
                    .values()
                    .take(asked.len())
                    .map(|key| i32::from(partition::of_key(key)))
                    .collect();
                Bson::Document(doc! { "$in": Vec::from_iter(partitions) })
            } else {
                Bson::Null
            };
            let filter = doc! {
                STATUS: exactly(PENDING),
                PARTITION: partitions,
                KEY: { "$in": asked },
            };
            let action = "read pending records of some keys";
            let read = self.read_pending(action, filter, left).await?;
            let is_full = left.is_filled_by(&read);
            left.records = left.records.saturating_sub(read.len());
            left.bytes = left.bytes.saturating_sub(size_of(&read));
            let last = read.iter().rev().find_map(|record| match &record.lane {
                LaneKey::Keyed(key) if record.placement != Placement::Invalid => {
                    Some((IndexRange::of(record), key.clone()))
                }
                _ => None,
            });
            let reached = match (is_full, last) {
                (false, _) => last_asked,
                (true, Some(last)) => last,
                (true, None) => break,
            };
            let beyond = unknown.split_off(&reached);
            unknown = beyond.into_iter().filter(|(place, _)| *place != reached).collect();
            for record in read {
                let LaneKey::Keyed(key) = &record.lane else { continue };
                // This partition was read for another key.
                if record.placement == Placement::Invalid
                    || record.partition != record.hashed_partition()
                {
                    continue;
                }
                let part = parts.entry(key.clone()).or_default();
                part.is_cut = is_full && place(key) == reached;
                part.records.push(record);
            }
        }
        Ok((parts, unknown.into_values().collect()))
    }
}

fn pending(segment: Segment, pass_over: &[Bson]) -> Document {
    let mut filter = doc! { STATUS: exactly(PENDING), PARTITION: segment.partitions };
    let mut key = segment.key.unwrap_or_default();
    // A read of one key never has a key to skip.
    if !key.contains_key("$eq") && !segment.is_behind_text {
        let mut nin = key.get_array("$nin").cloned().unwrap_or_default();
        nin.extend_from_slice(pass_over);
        if nin.is_empty() {
            key.remove("$nin");
        } else {
            key.insert("$nin", nin);
        }
    }
    if !key.is_empty() {
        filter.insert(KEY, key);
    }
    if segment.is_behind_text {
        // Only this form compares across types and uses the index.
        filter.insert("$expr", doc! { "$gte": [format!("${KEY}"), { "$literal": {} }] });
    }
    if let Some(after) = segment.seq_after {
        filter.insert(SEQ, doc! { "$gt": Bson::Timestamp(after) });
    }
    filter
}
