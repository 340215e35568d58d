//! Reading what is pending, as of one point in time.
//!
//! A plain `find` is no snapshot: under load a scan that yields can return a record
//! without an earlier one of its key that had committed before it was inserted
//! (measured, with `local` and with `majority`). So every read of one take shares one
//! `atClusterTime`, on the primary, of what a majority has: guard 1. The filter names
//! status and partition and nothing else that could hide a record which must hold back
//! others: guard 2.
//!
//! Records that name no partition lie in a range of the index of their own, for all keys. A page is
//! read from there or from the partitions, and what its keys have in the other range is read in the
//! same snapshot and put among them by `seq`.
//!
//! A standalone server has no snapshot reads. There each read sees its own moment
//! ([`Snapshot::is_one_moment`]), and whoever plans by it reads twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{FindOptions, Hint, ReadConcern, SessionOptions};
use mongodb::{ClientSession, Collection};

use crate::ids::RecordId;
use crate::outbox::collections::Collections;
use crate::outbox::fields::{
    BLOCKS, DEAD, ID, KEY, PARTITION, PAYLOAD, PENDING, SEQ, STATUS, exactly,
};
use crate::outbox::merge::{Part, merged};
use crate::outbox::position::{KeyKind, Place, Position, Range, Segment, partitions_of};
use crate::outbox::record::{LaneKey, Placement, Record};
use crate::partition::{self, PARTITIONS};
use crate::store::connect::primary;
use crate::store::{StoreError, limits, within};

/// The index that serves every read here: `{partition, key, seq}` where pending.
pub const LANE_INDEX: &str = "lane_idx";
/// `{key}` where `blocks: true`.
pub const BLOCKS_INDEX: &str = "blocks_idx";

/// Bytes of the keys that one command may name: a command must stay below 16 MiB, and a key may be
/// long.
pub const KEYS_BYTES: usize = 4 * 1024 * 1024;

/// One consistent view of the outbox; all reads through it see the same moment.
pub struct Snapshot {
    /// What ties its reads to one moment; `None` on a standalone server.
    session: Option<ClientSession>,
    records: Collection<RawDocumentBuf>,
    /// Whether a page may end, and the next one begin, in the middle of a key.
    within_keys: bool,
}

/// Questions about what the keys of one page have elsewhere. Each answer settles at least one key with
/// a large backlog there; keys without an answer wait for another look.
pub(crate) const QUESTIONS: usize = 16;

/// Partitions of one key whose ranges one read merges: of more than 200 the server reads everything and
/// sorts it.
const MERGED: usize = 190;

/// A stretch of `lane_idx`, in its order.
#[derive(Debug)]
pub struct Page {
    /// What was read: of each key the earliest pending records, without a gap.
    pub records: Vec<Record>,
    /// Where the next page begins; `None` when the last partition's end was reached.
    pub next: Option<Position>,
    /// Whether it ended since it had no room for more.
    pub is_full: bool,
    /// Keys that are left out, since what they have in the other range was not to be had with a few
    /// reads.
    pub skipped: Vec<LaneKey>,
    /// Whether the pages before and after it show all that there is: a page that is full of what has
    /// no place to go on from hides what is behind.
    pub is_all: bool,
}

/// What a page need not show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassOver {
    /// The keys.
    pub keys: Vec<Bson>,
    /// The place, included, up to which these are all; `None` where they are all that there are.
    pub until: Option<Place>,
}

/// A stretch that is read once more where one read is not enough.
#[derive(Clone, Debug)]
pub enum Stretch<'a> {
    /// On from a place, through these partitions, passing over these keys.
    Page(&'a Position, &'a [u8], &'a PassOver),
    /// The beginning of one lane.
    Lane(u8, &'a str),
    /// The beginning of one key, in several partitions.
    Key(&'a [u8], &'a str),
    /// One record without a key.
    Record(u8, &'a RecordId),
}

/// A dead record that blocks its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Its `_id`.
    pub id: RecordId,
    /// The partition that it belongs to.
    pub partition: u8,
}

/// How much one read may bring.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Records at most.
    pub records: usize,
    /// Bytes after which no further record is read (the first always is).
    pub bytes: usize,
}

impl Room {
    /// Whether a read ended with these since there was no room for more.
    pub(crate) fn is_filled_by(&self, records: &[Record]) -> bool {
        records.len() >= self.records || size_of(records) >= self.bytes
    }
}

impl Snapshot {
    /// Begins a view; the moment is that of the first read.
    ///
    /// # Errors
    ///
    /// No server to be had.
    pub async fn begin(collections: &Collections) -> Result<Self, StoreError> {
        let session = if collections.is_standalone() {
            None
        } else {
            let options = SessionOptions::builder().snapshot(true).build();
            let session = collections.client().start_session().with_options(options);
            Some(within("begin a snapshot", limits::BATCH, session.into_future()).await?)
        };
        Ok(Self { session, records: collections.records(), within_keys: false })
    }

    /// Lets the next page begin behind the last record of a page, be it in the middle of a key: for
    /// records whose keys order nothing.
    pub fn go_on_within_keys(&mut self) {
        self.within_keys = true;
    }

    /// The moment that its reads see, once there was one; `None` where they share none.
    pub fn moment(&self) -> Option<Timestamp> {
        self.session.as_ref().and_then(ClientSession::snapshot_time)
    }

    /// Whether all reads see the same moment.
    pub fn is_one_moment(&self) -> bool {
        self.session.is_some()
    }

    /// Reads a stretch.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn read(
        &mut self,
        stretch: &Stretch<'_>,
        room: Room,
    ) -> Result<Vec<Record>, StoreError> {
        match stretch {
            Stretch::Page(from, owned, pass_over) => {
                Ok(self.page(from, owned, pass_over, room).await?.records)
            }
            Stretch::Lane(partition, key) => self.lane(&[*partition], key, room).await,
            Stretch::Key(partitions, key) => self.lane(partitions, key, room).await,
            Stretch::Record(partition, id) => self.record(*partition, id).await,
        }
    }

    /// Reads on from `from`, passing over what is said: records without a partition that belong to
    /// one in `owned`, or those that name one of them. What the keys have in the other range is
    /// among them.
    ///
    /// # Errors
    ///
    /// Those of the store; a snapshot that is too old or unavailable is transient.
    pub async fn page(
        &mut self,
        from: &Position,
        owned: &[u8],
        pass_over: &PassOver,
        room: Room,
    ) -> Result<Page, StoreError> {
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let mut is_full = false;
        let mut skipped = Vec::new();
        for segment in from.segments(owned, pass_over.until.as_ref()) {
            let filter = pending(segment, &pass_over.keys);
            let left = room.records - records.len();
            let left = Room { records: left, bytes: room.bytes.saturating_sub(bytes) };
            let read = self.find("read pending records", filter, lane_order(), left).await?;
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
                // One that is in this place by an element of an array names no place to go on from.
                let is_placed = |record: &&Record| record.placement != Placement::Invalid;
                let placed = records.iter().rev().find(is_placed);
                placed.and_then(|record| Position::after(record, self.within_keys))
            }
            (false, Some(until)) => Some(Position::behind(until)),
            (false, None) => from.next_side(),
        };
        if !self.within_keys {
            let left =
                Room { records: room.records, bytes: room.bytes.saturating_sub(bytes).max(1) };
            (records, skipped) =
                self.with_the_rest(records, is_full, owned, from.is_unstamped(), left).await?;
        } else if from.is_unstamped() {
            records.retain(|record| owned.contains(&record.partition));
        }
        Ok(Page { records, next, is_full, skipped, is_all })
    }

    /// Adds to a page what its keys have in the other range: of each key the leading records of
    /// both. Keys of which that is not to be had with a few reads are left out.
    async fn with_the_rest(
        &mut self,
        page: Vec<Record>,
        is_full: bool,
        owned: &[u8],
        is_unstamped: bool,
        room: Room,
    ) -> Result<(Vec<Record>, Vec<LaneKey>), StoreError> {
        let last = page.last().map(|record| (record.lane.clone(), Range::of(record)));
        let mut lanes: Vec<((LaneKey, Range), Part)> = Vec::new();
        for record in page {
            if is_unstamped && !owned.contains(&record.partition) {
                continue;
            }
            // A key may lie in two partitions, one right behind the other.
            let place = (record.lane.clone(), Range::of(&record));
            match lanes.last_mut().filter(|(before, _)| *before == place) {
                Some((_, part)) => part.records.push(record),
                None => {
                    let is_cut = is_full && last.as_ref() == Some(&place);
                    lanes.push((place, Part { records: vec![record], is_cut }));
                }
            }
        }
        // A key that its producer has put into another partition has nothing in the other range.
        let is_mixed = |part: &Part| match part.records.first() {
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

    /// What these keys have where a page did not look, and the keys of which that is not known.
    async fn other_range(
        &mut self,
        keys: BTreeSet<Arc<str>>,
        is_unstamped: bool,
        room: Room,
    ) -> Result<(HashMap<Arc<str>, Part>, BTreeSet<Arc<str>>), StoreError> {
        let mut parts: HashMap<Arc<str>, Part> = HashMap::new();
        // In the order of the read.
        let place = |key: &Arc<str>| match is_unstamped {
            true => (Range::Partition(partition::of_key(key)), key.clone()),
            false => (Range::Unstamped, key.clone()),
        };
        let mut unknown: BTreeMap<Place, Arc<str>> =
            keys.into_iter().map(|key| (place(&key), key)).collect();
        let mut left = room;
        for _ in 0..QUESTIONS {
            let asked = first_keys(unknown.values().map(|key| Bson::String(key.to_string())));
            let Some(last_asked) = unknown.keys().nth(asked.len().saturating_sub(1)).cloned()
            else {
                break;
            };
            if left.records == 0 || left.bytes == 0 {
                break;
            }
            let partitions = match is_unstamped {
                true => {
                    let partitions: BTreeSet<i32> = unknown
                        .values()
                        .take(asked.len())
                        .map(|key| i32::from(partition::of_key(key)))
                        .collect();
                    Bson::Document(doc! { "$in": Vec::from_iter(partitions) })
                }
                false => Bson::Null,
            };
            let filter = doc! {
                STATUS: exactly(PENDING),
                PARTITION: partitions,
                KEY: { "$in": asked },
            };
            let action = "read pending records of some keys";
            let read = self.find(action, filter, lane_order(), left).await?;
            let is_full = left.is_filled_by(&read);
            left.records = left.records.saturating_sub(read.len());
            left.bytes = left.bytes.saturating_sub(size_of(&read));
            let last = read.iter().rev().find_map(|record| match &record.lane {
                LaneKey::Keyed(key) if record.placement != Placement::Invalid => {
                    Some((Range::of(record), key.clone()))
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
                // What another key's partition was asked for.
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

    /// The earliest pending records of one key in these partitions.
    ///
    /// From its very beginning, never from a remembered `seq`: a transaction that
    /// was slow to commit has an earlier one.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn lane(
        &mut self,
        partitions: &[u8],
        key: &str,
        room: Room,
    ) -> Result<Vec<Record>, StoreError> {
        let mut parts = Vec::new();
        for some in partitions.chunks(MERGED) {
            let filter = doc! {
                STATUS: exactly(PENDING),
                PARTITION: partitions_of(some, key),
                KEY: key,
            };
            // The server merges the ranges in this order, by the index.
            let records = self.find("read a lane", filter, doc! { SEQ: 1 }, room).await?;
            let is_cut = room.is_filled_by(&records);
            parts.push(Part { records, is_cut });
        }
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        // There are two at most.
        Ok(match parts.next() {
            Some(second) => merged(first, second),
            None => first.records,
        })
    }

    /// Of each of these lanes what is pending up to a `seq`, without payloads, in no order: as a
    /// rule one record a lane, by one key of the index. Twice as many as lanes at most.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn fronts(
        &mut self,
        lanes: &[(u8, &str, Timestamp)],
        bytes: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let lane = |(partition, key, seq): &(u8, &str, Timestamp)| {
            let up_to = doc! { "$lte": Bson::Timestamp(*seq) };
            doc! { PARTITION: partitions_of(&[*partition], key), KEY: *key, SEQ: up_to }
        };
        let any: Vec<Document> = lanes.iter().map(lane).collect();
        let filter = doc! { STATUS: exactly(PENDING), "$or": any };
        let options = FindOptions::builder()
            .projection(doc! { PAYLOAD: 0 })
            .hint(Hint::Name(LANE_INDEX.into()))
            .build();
        let room = Room { records: 2 * lanes.len(), bytes };
        self.find_with("read the heads of blocked keys", filter, options, room).await
    }

    /// One record, if it is pending, belongs to this partition and has no key, or keys order
    /// nothing: nothing is before it.
    async fn record(&mut self, partition: u8, id: &RecordId) -> Result<Vec<Record>, StoreError> {
        let mut filter = doc! { ID: Bson::from(id), STATUS: exactly(PENDING) };
        if !self.within_keys {
            // It may have been replaced since somebody saw it without one.
            filter.insert(KEY, doc! { "$not": { "$type": "string" } });
        }
        let room = Room { records: 1, bytes: usize::MAX };
        let options = FindOptions::builder().hint(Hint::Keys(doc! { ID: 1 })).build();
        let mut found = self.find_with("read a record", filter, options, room).await?;
        found.retain(|record| record.partition == partition);
        Ok(found)
    }

    /// The record with this id, where it has this status.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn by_id(
        &mut self,
        id: &RecordId,
        status: &str,
    ) -> Result<Option<Record>, StoreError> {
        let filter = doc! { ID: Bson::from(id), STATUS: exactly(status) };
        let room = Room { records: 1, bytes: usize::MAX };
        let options = FindOptions::builder().hint(Hint::Keys(doc! { ID: 1 })).build();
        Ok(self.find_with("read a record", filter, options, room).await?.pop())
    }

    /// Pending records with an invalid partition: those of everybody, which the relay must correct
    /// before it delivers them, and which hold back what is behind them in their keys. Those with
    /// one of `keys` or `ids` are left out.
    ///
    /// That is `partition` negative, above 255 or not a number. Two kinds take too many seeks to be
    /// asked for in every look, and are left to [`all_misplaced`](Self::all_misplaced): fractions
    /// between 0 and 255, and arrays.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn misplaced(
        &mut self,
        keys: &[Bson],
        ids: &[Bson],
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut filter = doc! { STATUS: exactly(PENDING), "$or": [below(), above()] };
        for (field, left_out) in [(KEY, keys), (ID, ids)] {
            if !left_out.is_empty() {
                filter.insert(field, doc! { "$nin": left_out });
            }
        }
        self.unplaced("read records with an invalid partition", filter, limit).await
    }

    /// Of some keys the earliest records with an invalid partition, as many as the limit permits.
    ///
    /// A key that is in the answer is there with its earliest record. One that is not has none,
    /// unless the answer is as long as the limit.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn misplaced_of(
        &mut self,
        keys: &[Bson],
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let filter = doc! {
            STATUS: exactly(PENDING),
            KEY: { "$in": keys },
            "$or": [below(), above()],
        };
        self.unplaced("read records of some keys with an invalid partition", filter, limit).await
    }

    /// Pending records whose `partition` is neither absent nor an integral number from 0 to 255,
    /// all kinds of them, but for those with one of `ids`. It visits each partition that has
    /// anything pending.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn all_misplaced(
        &mut self,
        ids: &[Bson],
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let valid = std::iter::once(Bson::Null).chain((0..i32::from(PARTITIONS)).map(Bson::Int32));
        let valid: Vec<Bson> = valid.collect();
        let mut filter = doc! { STATUS: exactly(PENDING), PARTITION: { "$nin": valid } };
        if !ids.is_empty() {
            filter.insert(ID, doc! { "$nin": ids });
        }
        self.unplaced("read all records with an invalid partition", filter, limit).await
    }

    /// What a correction needs to know of records, in the order of their partition, key and `seq`.
    async fn unplaced(
        &mut self,
        action: &'static str,
        filter: Document,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let room = Room { records: limit, bytes: usize::MAX };
        let options = FindOptions::builder()
            .projection(doc! { ID: 1, KEY: 1, SEQ: 1, PARTITION: 1 })
            .sort(lane_order())
            .hint(Hint::Name(LANE_INDEX.into()))
            .build();
        self.find_with(action, filter, options, room).await
    }

    /// Keys that a dead record blocks (`on_dead = "block"`), and which; `keys` narrows it to those.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn blocked(
        &mut self,
        keys: Option<&[Bson]>,
        limit: usize,
    ) -> Result<Vec<(LaneKey, Dead)>, StoreError> {
        let mut filter = doc! { BLOCKS: true, STATUS: DEAD };
        if let Some(keys) = keys {
            filter.insert(KEY, doc! { "$in": keys });
        }
        let room = Room { records: limit, bytes: usize::MAX };
        let options = FindOptions::builder()
            .projection(doc! { ID: 1, KEY: 1, PARTITION: 1 })
            .hint(Hint::Name(BLOCKS_INDEX.into()))
            .build();
        let dead = self.find_with("read blocked keys", filter, options, room).await?;
        let dead = dead.into_iter().map(|record| {
            let Record { lane, id, partition, .. } = record;
            (lane, Dead { id, partition })
        });
        Ok(dead.collect())
    }

    /// Those of these records that are pending, without payloads; of some bytes at most.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn waiting(&mut self, ids: &[Bson], bytes: usize) -> Result<Vec<Record>, StoreError> {
        let filter = doc! { ID: { "$in": ids }, STATUS: exactly(PENDING) };
        let room = Room { records: ids.len().max(1), bytes };
        let options = FindOptions::builder()
            .projection(doc! { PAYLOAD: 0 })
            .hint(Hint::Keys(doc! { ID: 1 }))
            .build();
        self.find_with("read records that wait", filter, options, room).await
    }

    /// Which of these dead records block a key, and which key.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn still_blocking(
        &mut self,
        ids: &[Bson],
    ) -> Result<HashMap<RecordId, LaneKey>, StoreError> {
        let filter = doc! { ID: { "$in": ids }, BLOCKS: true, STATUS: DEAD };
        let room = Room { records: ids.len().max(1), bytes: usize::MAX };
        let options = FindOptions::builder()
            .projection(doc! { ID: 1, KEY: 1 })
            .hint(Hint::Keys(doc! { ID: 1 }))
            .build();
        let found = self.find_with("read dead records that block", filter, options, room).await?;
        Ok(found.into_iter().map(|record| (record.id, record.lane)).collect())
    }

    async fn find(
        &mut self,
        action: &'static str,
        filter: Document,
        order: Document,
        room: Room,
    ) -> Result<Vec<Record>, StoreError> {
        let options =
            FindOptions::builder().sort(order).hint(Hint::Name(LANE_INDEX.into())).build();
        self.find_with(action, filter, options, room).await
    }

    async fn find_with(
        &mut self,
        action: &'static str,
        filter: Document,
        mut options: FindOptions,
        room: Room,
    ) -> Result<Vec<Record>, StoreError> {
        options.limit = Some(i64::try_from(room.records).unwrap_or(i64::MAX));
        // One more than the limit, or the server keeps the cursor open.
        options.batch_size = Some(u32::try_from(room.records + 1).unwrap_or(u32::MAX));
        options.selection_criteria = Some(primary());
        let mut gathered = Gathered { records: Vec::new(), bytes: 0, room };
        let reading = async {
            match &mut self.session {
                Some(session) => {
                    // Named here too: the session gives it only to a read that has no concern of
                    // its own, and one that has inherited the collection's would be no snapshot.
                    options.read_concern = Some(ReadConcern::snapshot());
                    let find = self.records.find(filter).with_options(options);
                    let mut cursor = find.session(&mut *session).await?;
                    while cursor.advance(session).await? && gathered.has_room(cursor.current()) {}
                }
                None => {
                    options.read_concern = Some(ReadConcern::local());
                    let mut cursor = self.records.find(filter).with_options(options).await?;
                    while cursor.advance().await? && gathered.has_room(cursor.current()) {}
                }
            }
            Ok(gathered.records)
        };
        within(action, limits::BATCH, reading).await
    }
}

/// What a cursor has brought so far.
struct Gathered {
    records: Vec<Record>,
    bytes: usize,
    room: Room,
}

impl Gathered {
    /// Takes one more; answers whether there is room for another.
    fn has_room(&mut self, raw: &RawDocument) -> bool {
        self.bytes += raw.as_bytes().len();
        self.records.push(Record::read(raw));
        self.bytes < self.room.bytes
    }
}

/// Everything that sorts before 0, and what is not a number, but for what is absent. The server
/// makes one scan of it and of [`above`], with three intervals: `{$not: {$gte: 0, $lte: 255}}` would
/// be a scan of everything.
fn below() -> Document {
    doc! { PARTITION: { "$not": { "$gte": 0 }, "$ne": Bson::Null } }
}

fn above() -> Document {
    doc! { PARTITION: { "$gt": i32::from(PARTITIONS) - 1 } }
}

/// The bytes of these records.
pub(crate) fn size_of(records: &[Record]) -> usize {
    records.iter().map(Record::size).sum()
}

/// The first of these keys, as many as one command may name; one at least.
pub(crate) fn first_keys(keys: impl Iterator<Item = Bson>) -> Vec<Bson> {
    let mut left = KEYS_BYTES;
    let fits = |key: &Bson| {
        let size = key.as_str().map_or(0, str::len);
        let fits = size <= left || left == KEYS_BYTES;
        left = left.saturating_sub(size);
        fits
    };
    keys.take_while(fits).collect()
}

fn lane_order() -> Document {
    doc! { PARTITION: 1, KEY: 1, SEQ: 1 }
}

fn pending(segment: Segment, pass_over: &[Bson]) -> Document {
    let mut filter = doc! { STATUS: exactly(PENDING), PARTITION: segment.partitions };
    let mut key = segment.key.unwrap_or_default();
    // An equality on key needs no list: it is never a key to be passed over.
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
        // Nothing else compares across types, and by the index.
        filter.insert("$expr", doc! { "$gte": [format!("${KEY}"), { "$literal": {} }] });
    }
    if let Some(after) = segment.seq_after {
        filter.insert(SEQ, doc! { "$gt": Bson::Timestamp(after) });
    }
    filter
}
