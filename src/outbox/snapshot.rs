//! Reading what is pending, as of one point in time.
//!
//! A plain `find` is no snapshot: under load a scan that yields can return a record
//! without an earlier one of its key that had committed before it was inserted
//! (measured, with `local` and with `majority`). So every read of one take shares one
//! `atClusterTime`, on the primary, of what a majority has: guard 1. The filter names
//! status and partition and nothing else that could hide a record which must hold back
//! others: guard 2.
//!
//! A standalone server has no snapshot reads. There each read sees its own moment
//! ([`Snapshot::is_one_moment`]), and whoever plans by it reads twice.

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{FindOptions, Hint, ReadConcern, SessionOptions};
use mongodb::{ClientSession, Collection};

use crate::ids::RecordId;
use crate::outbox::collections::Collections;
use crate::outbox::fields::{
    BLOCKS, DEAD, ID, KEY, PARTITION, PAYLOAD, PENDING, SEQ, STATUS, exactly,
};
use crate::outbox::position::{Position, Segment};
use crate::outbox::record::{LaneKey, Record};
use crate::partition::PARTITIONS;
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

/// A stretch of `lane_idx`, in its order.
#[derive(Debug)]
pub struct Page {
    /// What was read: of each key the earliest pending records, without a gap.
    pub records: Vec<Record>,
    /// Where the next page begins; `None` when the last partition's end was reached.
    pub next: Option<Position>,
}

/// A stretch that is read once more where one read is not enough.
#[derive(Clone, Debug)]
pub enum Stretch<'a> {
    /// On from a place, through these partitions, passing over these keys.
    Page(&'a Position, &'a [u8], &'a [Bson]),
    /// The beginning of one lane.
    Lane(u8, &'a str),
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
            Stretch::Lane(partition, key) => self.lane(*partition, key, room).await,
            Stretch::Record(partition, id) => self.record(*partition, id).await,
        }
    }

    /// Reads on from `from` through the partitions in `owned`, passing over `pass_over`.
    ///
    /// # Errors
    ///
    /// Those of the store; a snapshot that is too old or unavailable is transient.
    pub async fn page(
        &mut self,
        from: &Position,
        owned: &[u8],
        pass_over: &[Bson],
        room: Room,
    ) -> Result<Page, StoreError> {
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        for segment in from.segments(owned) {
            let filter = pending(segment, pass_over);
            let left = room.records - records.len();
            let left = Room { records: left, bytes: room.bytes.saturating_sub(bytes) };
            let read = self.find("read pending records", filter, lane_order(), left).await?;
            bytes += read.iter().map(Record::size).sum::<usize>();
            records.extend(read);
            if records.len() >= room.records || bytes >= room.bytes {
                // One that is in this place by an element of an array names no place to go on from.
                let placed = records.iter().rev().find(|record| record.partition.is_some());
                let next = placed.map(|record| Position::after(record, self.within_keys));
                return Ok(Page { records, next });
            }
        }
        Ok(Page { records, next: None })
    }

    /// The earliest pending records of one lane.
    ///
    /// From its very beginning, never from a remembered `seq`: a transaction that
    /// was slow to commit has an earlier one.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn lane(
        &mut self,
        partition: u8,
        key: &str,
        room: Room,
    ) -> Result<Vec<Record>, StoreError> {
        let filter = doc! { STATUS: exactly(PENDING), PARTITION: i32::from(partition), KEY: key };
        self.find("read a lane", filter, lane_order(), room).await
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
            doc! { PARTITION: i32::from(*partition), KEY: *key, SEQ: up_to }
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

    /// One record, if it is pending and has no key: nothing is before it.
    async fn record(&mut self, partition: u8, id: &RecordId) -> Result<Vec<Record>, StoreError> {
        let filter = doc! {
            ID: Bson::from(id),
            STATUS: exactly(PENDING),
            PARTITION: i32::from(partition),
            // It may have been replaced since somebody saw it without one.
            KEY: { "$not": { "$type": "string" } },
        };
        let room = Room { records: 1, bytes: usize::MAX };
        let options = FindOptions::builder().hint(Hint::Keys(doc! { ID: 1 })).build();
        self.find_with("read a record", filter, options, room).await
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

    /// Pending records without a usable partition: those of everybody, which the relay must stamp
    /// before it delivers them, and which hold back what is behind them in their keys. Those with
    /// one of `keys` or `ids` are left out.
    ///
    /// That is `partition` absent, null, negative, above 255 or not a number. Two kinds take too
    /// many seeks to be asked for in every look, and are left to [`misstamped`](Self::misstamped):
    /// fractions between 0 and 255, and arrays.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn unstamped(
        &mut self,
        keys: &[Bson],
        ids: &[Bson],
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut filter = doc! { STATUS: exactly(PENDING), "$or": [absent_or_below(), above()] };
        for (field, left_out) in [(KEY, keys), (ID, ids)] {
            if !left_out.is_empty() {
                filter.insert(field, doc! { "$nin": left_out });
            }
        }
        self.unplaced("read unstamped records", filter, limit).await
    }

    /// Of some keys the earliest unstamped records, as many as the limit permits: `absent` those
    /// without a partition, else those with an invalid one.
    ///
    /// A key that is in the answer is there with its earliest record. One that is not has none,
    /// unless the answer is as long as the limit.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn unstamped_of(
        &mut self,
        keys: &[Bson],
        absent: bool,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut filter = doc! { STATUS: exactly(PENDING), KEY: { "$in": keys } };
        match absent {
            true => filter.insert(PARTITION, Bson::Null),
            false => filter.insert("$or", [invalid_or_below(), above()].to_vec()),
        };
        self.unplaced("read unstamped records of some keys", filter, limit).await
    }

    /// Pending records whose `partition` is neither absent nor an integral number from 0 to 255,
    /// all kinds of them. It visits each partition that has anything pending.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn misstamped(&mut self, limit: usize) -> Result<Vec<Record>, StoreError> {
        let valid = std::iter::once(Bson::Null).chain((0..i32::from(PARTITIONS)).map(Bson::Int32));
        let valid: Vec<Bson> = valid.collect();
        let filter = doc! { STATUS: exactly(PENDING), PARTITION: { "$nin": valid } };
        self.unplaced("read records with an invalid partition", filter, limit).await
    }

    /// What a stamp needs to know of records, in the order of their partition, key and `seq`.
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

    /// Keys that a dead record blocks (`on_dead = "block"`), and that record; `keys` narrows it to
    /// those.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn blocked(
        &mut self,
        keys: Option<&[Bson]>,
        limit: usize,
    ) -> Result<Vec<(LaneKey, RecordId)>, StoreError> {
        let mut filter = doc! { BLOCKS: true, STATUS: DEAD };
        if let Some(keys) = keys {
            filter.insert(KEY, doc! { "$in": keys });
        }
        let room = Room { records: limit, bytes: usize::MAX };
        let options = FindOptions::builder()
            .projection(doc! { ID: 1, KEY: 1 })
            .hint(Hint::Name(BLOCKS_INDEX.into()))
            .build();
        let dead = self.find_with("read blocked keys", filter, options, room).await?;
        Ok(dead.into_iter().map(|record| (record.lane, record.id)).collect())
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

/// Everything that sorts before 0, and what is not a number. The server makes one scan of it and
/// of [`above`], with two intervals: `{$not: {$gte: 0, $lte: 255}}` would be a scan of everything.
fn absent_or_below() -> Document {
    doc! { PARTITION: { "$not": { "$gte": 0 } } }
}

/// The same without what is absent.
fn invalid_or_below() -> Document {
    doc! { PARTITION: { "$not": { "$gte": 0 }, "$ne": Bson::Null } }
}

fn above() -> Document {
    doc! { PARTITION: { "$gt": i32::from(PARTITIONS) - 1 } }
}

fn lane_order() -> Document {
    doc! { PARTITION: 1, KEY: 1, SEQ: 1 }
}

fn pending(segment: Segment, pass_over: &[Bson]) -> Document {
    let mut filter = doc! { STATUS: exactly(PENDING), PARTITION: segment.partitions };
    let mut key = segment.key.unwrap_or_default();
    // An equality on key needs no list: it is never a key to be passed over.
    if !key.contains_key("$eq") {
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
    if let Some(after) = segment.seq_after {
        filter.insert(SEQ, doc! { "$gt": Bson::Timestamp(after) });
    }
    filter
}
