//! Reads pending records as of one point in time.
//!
//! A plain `find` is not a snapshot: under load, a scan that yields can return a record without an
//! earlier one of its key that had committed before (measured with `local` and `majority`). All
//! reads of one scan therefore share one `atClusterTime`, on the primary, with majority read
//! concern. The filter names status and partition, and nothing that could hide a record that blocks
//! others.
//!
//! Records without a partition have a range of the index of their own, for all keys. A page is read
//! from that range or from the partitions. What its keys have in the other range is read in the
//! same snapshot and merged by `seq`.
//!
//! Pages: `page`. What blocks keys: `held_back`.
//!
//! A standalone server has no snapshot reads: each read sees its own moment
//! ([`OutboxSnapshot::is_one_moment`]), and the planner must read twice.

mod held_back;
mod page;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{FindOptions, Hint, ReadConcern, SessionOptions};
use mongodb::{ClientSession, Collection};
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use crate::collections::{Collections, Find, ID_INDEX};
use crate::fields::{ID, KEY, PARTITION, PENDING, SEQ, STATUS, exactly};
use crate::ids::RecordId;
use crate::merge::{PartialRead, merged};
use crate::position::{Position, partitions_of};
use crate::record::Record;

pub use held_back::{DeadBlocker, DeadPage};
pub use page::{SkippedKeys, SnapshotPage};

/// Index of all reads here: `{partition, key, seq}` where pending.
pub const LANE_INDEX: &str = "lane_idx";
/// Index of blocked keys: `{key}` where `blocks: true`.
pub const BLOCKS_INDEX: &str = "blocks_idx";

/// Maximum bytes of the keys in one command, and of the keys and ids in the answer: a command must
/// stay below 16 MiB, and a key can be long.
pub const MAX_KEYS_BYTES: usize = 4 * 1024 * 1024;

/// A consistent view of the outbox; all its reads see the same moment.
pub struct OutboxSnapshot {
    /// Session of the snapshot; `None` on a standalone server.
    session: Option<ClientSession>,
    records: Collection<RawDocumentBuf>,
    /// Whether a page can end in the middle of a key.
    within_keys: bool,
}

/// Maximum reads per page of the other range. Each read resolves at least one key with a large
/// backlog there; the other keys wait for the next scan.
pub const MAX_QUERIES: usize = 16;

/// Maximum partitions of one key in one read: with more than 200 ranges, the server reads and sorts
/// everything instead of merging.
const MAX_MERGED_PARTITIONS: usize = 190;

/// A part of the outbox to read again if one read is not enough.
#[derive(Clone, Debug)]
pub enum ScanRange<'a> {
    /// From a position, through these partitions, without these keys.
    Page(&'a Position, &'a [u8], &'a SkippedKeys),
    /// The beginning of one lane.
    Lane(u8, &'a str),
    /// The beginning of one key, in several partitions.
    Key(&'a [u8], &'a str),
    /// One record without a key.
    Record(u8, &'a RecordId),
}

/// Limits of one read.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    /// Maximum number of records.
    pub records: usize,
    /// Maximum bytes; the first record is always read.
    pub bytes: usize,
}

impl ReadLimit {
    /// Limits the number of records alone.
    fn of(records: usize) -> Self {
        Self { records, bytes: usize::MAX }
    }

    /// Returns whether a read ended because these records reached the limits.
    pub fn is_filled_by(&self, records: &[Record]) -> bool {
        records.len() >= self.records || size_of(records) >= self.bytes
    }
}

impl OutboxSnapshot {
    /// Begins a snapshot; its moment is that of the first read.
    ///
    /// # Errors
    ///
    /// No server is available.
    pub async fn begin(collections: &Collections) -> Result<Self, StoreError> {
        let session = if collections.is_standalone() {
            None
        } else {
            let options = SessionOptions::builder().snapshot(true).build();
            let session = collections.client().start_session().with_options(options);
            Some(within("start a snapshot", limits::BATCH_TIMEOUT, session).await?)
        };
        Ok(Self { session, records: collections.records(), within_keys: false })
    }

    /// Lets a page begin after any record, even within a key: for records that are not ordered by
    /// key.
    pub fn split_keys(&mut self) {
        self.within_keys = true;
    }

    /// Returns the moment that its reads see, after the first one; `None` without snapshot reads.
    pub fn moment(&self) -> Option<Timestamp> {
        self.session.as_ref().and_then(ClientSession::snapshot_time)
    }

    /// Returns whether all reads see the same moment.
    pub fn is_one_moment(&self) -> bool {
        self.session.is_some()
    }

    /// Reads a part of the outbox.
    pub async fn read(
        &mut self,
        stretch: &ScanRange<'_>,
        room: ReadLimit,
    ) -> Result<Vec<Record>, StoreError> {
        match stretch {
            ScanRange::Page(from, owned, pass_over) => {
                Ok(self.page(from, owned, pass_over, room).await?.records)
            }
            ScanRange::Lane(partition, key) => self.lane(&[*partition], key, room).await,
            ScanRange::Key(partitions, key) => self.lane(partitions, key, room).await,
            ScanRange::Record(partition, id) => self.record(*partition, id).await,
        }
    }

    /// Returns the earliest pending records of one key in these partitions.
    ///
    /// Reads from the beginning of the key, never from a remembered `seq`: a transaction that
    /// committed late has an earlier one.
    pub async fn lane(
        &mut self,
        partitions: &[u8],
        key: &str,
        room: ReadLimit,
    ) -> Result<Vec<Record>, StoreError> {
        let mut parts = Vec::new();
        for some in partitions.chunks(MAX_MERGED_PARTITIONS) {
            let filter = doc! {
                STATUS: exactly(PENDING),
                PARTITION: partitions_of(some, key),
                KEY: key,
            };
            // The server merges the ranges in this order, by the index.
            let order = doc! { SEQ: 1 };
            let find = Find { order, ..Find::whole("read a lane", LANE_INDEX, filter) };
            let records = self.find(find, room).await?;
            let is_cut = room.is_filled_by(&records);
            parts.push(PartialRead { records, is_cut });
        }
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        // At most two.
        Ok(match parts.next() {
            Some(second) => merged(first, second),
            None => first.records,
        })
    }

    /// Returns a record if it is pending, belongs to this partition, and is not ordered by key.
    async fn record(&mut self, partition: u8, id: &RecordId) -> Result<Vec<Record>, StoreError> {
        let mut filter = doc! { ID: id.condition(), STATUS: exactly(PENDING) };
        if !self.within_keys {
            // It may have been replaced by a record with a key.
            filter.insert(KEY, doc! { "$not": { "$type": "string" } });
        }
        let find = Find::whole("read a record", ID_INDEX, filter);
        let mut found = self.find(find, ReadLimit::of(1)).await?;
        found.retain(|record| record.partition == partition);
        Ok(found)
    }

    /// Returns the record with this id and status.
    pub async fn by_id(
        &mut self,
        id: &RecordId,
        status: &str,
    ) -> Result<Option<Record>, StoreError> {
        let filter = doc! { ID: id.condition(), STATUS: exactly(status) };
        let find = Find::whole("read a record", ID_INDEX, filter);
        Ok(self.find(find, ReadLimit::of(1)).await?.pop())
    }

    /// Reads up to `room`, which replaces the limits of `find`.
    async fn find(&mut self, find: Find, room: ReadLimit) -> Result<Vec<Record>, StoreError> {
        let Find { action, index, filter, fields, order, timeout, .. } = find;
        let mut options = FindOptions::builder()
            .projection(fields)
            .sort(order)
            .hint(Hint::Name(index.to_owned()))
            .limit(i64::try_from(room.records).unwrap_or(i64::MAX))
            // One above the limit, or the server keeps the cursor open.
            .batch_size(u32::try_from(room.records + 1).unwrap_or(u32::MAX))
            .selection_criteria(primary())
            .build();
        let mut gathered = Gathered { records: Vec::new(), bytes: 0, room };
        let reading = async {
            match &mut self.session {
                Some(session) => {
                    // Set here too: the session sets it only on reads without a read concern, and
                    // the one inherited from the collection is not a snapshot.
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
        let read = within(action, timeout, reading).await;
        read.map_err(|error| error.of_index(self.records.name(), index))
    }
}

/// Records that a cursor has returned so far.
struct Gathered {
    records: Vec<Record>,
    bytes: usize,
    room: ReadLimit,
}

impl Gathered {
    /// Adds a record; returns whether there is room for another.
    fn has_room(&mut self, raw: &RawDocument) -> bool {
        self.bytes += raw.as_bytes().len();
        self.records.push(Record::read(raw));
        self.bytes < self.room.bytes
    }
}

/// Returns the size of these records in bytes.
pub fn size_of(records: &[Record]) -> usize {
    records.iter().map(Record::size).sum()
}

/// Returns the first of these keys, as many as fit in one command, but at least one.
pub fn first_keys(keys: impl Iterator<Item = Bson>) -> Vec<Bson> {
    let mut left = MAX_KEYS_BYTES;
    let fits = |key: &Bson| {
        let size = key.as_str().map_or(0, str::len);
        let fits = size <= left || left == MAX_KEYS_BYTES;
        left = left.saturating_sub(size);
        fits
    };
    keys.take_while(fits).collect()
}

fn lane_order() -> Document {
    doc! { PARTITION: 1, KEY: 1, SEQ: 1 }
}
