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
//! What such a page is: `page`. What else a plan must know of it: `held_back`.
//!
//! A standalone server has no snapshot reads. There each read sees its own moment
//! ([`Snapshot::is_one_moment`]), and whoever plans by it reads twice.

mod held_back;
mod page;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{FindOptions, Hint, ReadConcern, SessionOptions};
use mongodb::{ClientSession, Collection};
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use crate::collections::Collections;
use crate::fields::{ID, KEY, PARTITION, PENDING, SEQ, STATUS, exactly};
use crate::ids::RecordId;
use crate::inspect::ID_INDEX;
use crate::merge::{Part, merged};
use crate::position::{Position, partitions_of};
use crate::record::Record;

pub use held_back::Dead;
pub use page::{Page, PassOver};

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
pub const QUESTIONS: usize = 16;

/// Partitions of one key whose ranges one read merges: of more than 200 the server reads everything and
/// sorts it.
const MERGED: usize = 190;

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
    pub fn is_filled_by(&self, records: &[Record]) -> bool {
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
        let index = match &options.hint {
            Some(Hint::Name(index)) => index.clone(),
            _ => ID_INDEX.to_owned(),
        };
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
        let read = within(action, limits::BATCH, reading).await;
        read.map_err(|error| error.of_index(self.records.name(), &index))
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

/// The bytes of these records.
pub fn size_of(records: &[Record]) -> usize {
    records.iter().map(Record::size).sum()
}

/// The first of these keys, as many as one command may name; one at least.
pub fn first_keys(keys: impl Iterator<Item = Bson>) -> Vec<Bson> {
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
