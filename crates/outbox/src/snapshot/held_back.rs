//! Reads what blocks keys: records with an invalid partition, dead ones, and the first records of
//! blocked keys.

use bson::{Bson, Document, Timestamp, doc};
use postrider_store::StoreError;

use crate::collections::{Find, ID_INDEX};
use crate::fields::{BLOCKS, DEAD, ID, KEY, PARTITION, PAYLOAD, PENDING, SEQ, STATUS, exactly};
use crate::ids::RecordId;
use crate::partition::PARTITIONS;
use crate::position::partitions_of;
use crate::record::{LaneKey, Record};
use crate::snapshot::{
    BLOCKS_INDEX, LANE_INDEX, MAX_KEYS_BYTES, OutboxSnapshot, ReadLimit, lane_order,
};

/// A dead record that blocks its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadBlocker {
    /// Its `_id`.
    pub id: RecordId,
    /// Its partition.
    pub partition: u8,
}

/// Keys that dead records block, as far as one read has shown.
#[derive(Clone, Debug, Default)]
pub struct DeadPage {
    /// The keys, each with every record that was read of it.
    pub found: Vec<(LaneKey, DeadBlocker)>,
    /// Whether there may be more: the read ended at its limit.
    pub is_cut: bool,
}

impl OutboxSnapshot {
    /// Returns what is pending in each of these lanes up to a `seq`, without payloads, unordered:
    /// usually one record per lane, at most twice as many as lanes.
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
        let find = Find::whole("read the heads of blocked keys", LANE_INDEX, filter);
        let room = ReadLimit { records: 2 * lanes.len(), bytes };
        self.find(Find { fields: doc! { PAYLOAD: 0 }, ..find }, room).await
    }

    /// Returns pending records with an invalid partition, of all instances. The relay must correct
    /// them before delivery, and they block later records of their keys. Records with one of `keys`
    /// or `ids` are left out.
    ///
    /// Finds a `partition` that is negative, above 255 or not a number. Fractions between 0 and 255
    /// and arrays take too many seeks for every scan: [`all_misplaced`](Self::all_misplaced) finds
    /// them.
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

    /// Returns the earliest records of some keys with an invalid partition, up to a limit.
    ///
    /// Each key in the result has its earliest such record. A key that is missing has none, unless
    /// the result reached the limit.
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

    /// Returns pending records with any kind of invalid `partition`, without those with one of
    /// `ids`. It seeks to each partition with pending records.
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

    /// Returns the fields that a correction needs, ordered by partition, key and `seq`.
    async fn unplaced(
        &mut self,
        action: &'static str,
        filter: Document,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let find = Find {
            fields: doc! { ID: 1, KEY: 1, SEQ: 1, PARTITION: 1 },
            order: lane_order(),
            ..Find::whole(action, LANE_INDEX, filter)
        };
        self.find(find, ReadLimit::of(limit)).await
    }

    /// Returns keys that a dead record blocks (`on_dead = "block"`), and that record; `keys`
    /// restricts them.
    pub async fn blocked(
        &mut self,
        keys: Option<&[Bson]>,
        limit: usize,
    ) -> Result<DeadPage, StoreError> {
        let keys = keys.map(|keys| doc! { "$in": keys });
        self.blocked_where(keys, Document::new(), limit).await
    }

    /// Returns the same in the order of keys, behind one key or from the first on. (A record that
    /// blocks has a key.)
    pub async fn blocked_behind(
        &mut self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<DeadPage, StoreError> {
        let keys = match key {
            Some(key) => doc! { "$gt": key },
            None => doc! { "$gte": "" },
        };
        self.blocked_where(Some(keys), doc! { KEY: 1 }, limit).await
    }

    async fn blocked_where(
        &mut self,
        keys: Option<Document>,
        order: Document,
        limit: usize,
    ) -> Result<DeadPage, StoreError> {
        let mut filter = doc! { BLOCKS: true, STATUS: DEAD };
        if let Some(keys) = keys {
            filter.insert(KEY, keys);
        }
        let find = Find {
            fields: doc! { ID: 1, KEY: 1, PARTITION: 1 },
            order,
            ..Find::whole("read blocked keys", BLOCKS_INDEX, filter)
        };
        let room = ReadLimit { records: limit, bytes: MAX_KEYS_BYTES };
        let dead = self.find(find, room).await?;
        let is_cut = room.is_filled_by(&dead);
        let dead = dead.into_iter().map(|record| {
            let Record { lane, id, partition, .. } = record;
            (lane, DeadBlocker { id, partition })
        });
        Ok(DeadPage { found: dead.collect(), is_cut })
    }

    /// Returns which of these records are pending, without payloads, up to a number of bytes.
    pub async fn waiting(&mut self, ids: &[Bson], bytes: usize) -> Result<Vec<Record>, StoreError> {
        let filter = doc! { ID: { "$in": ids }, STATUS: exactly(PENDING) };
        let find = Find::whole("read records that wait", ID_INDEX, filter);
        let room = ReadLimit { records: ids.len().max(1), bytes };
        self.find(Find { fields: doc! { PAYLOAD: 0 }, ..find }, room).await
    }
}

/// Matches everything below 0 and what is not a number, except absent values. The server makes one
/// scan of it and [`above`], with three intervals; `{$not: {$gte: 0, $lte: 255}}` would scan
/// everything.
fn below() -> Document {
    doc! { PARTITION: { "$not": { "$gte": 0 }, "$ne": Bson::Null } }
}

fn above() -> Document {
    doc! { PARTITION: { "$gt": i32::from(PARTITIONS) - 1 } }
}
