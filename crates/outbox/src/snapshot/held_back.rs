//! What holds keys back: records with an invalid partition, dead ones, and the heads of blocked keys.

use std::collections::HashMap;

use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{FindOptions, Hint};
use postrider_store::StoreError;

use crate::fields::{BLOCKS, DEAD, ID, KEY, PARTITION, PAYLOAD, PENDING, SEQ, STATUS, exactly};
use crate::ids::RecordId;
use crate::partition::PARTITIONS;
use crate::position::partitions_of;
use crate::record::{LaneKey, Record};
use crate::snapshot::{BLOCKS_INDEX, LANE_INDEX, Room, Snapshot, lane_order};

/// A dead record that blocks its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Its `_id`.
    pub id: RecordId,
    /// The partition that it belongs to.
    pub partition: u8,
}

impl Snapshot {
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
