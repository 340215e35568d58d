//! Records with an invalid partition that the change stream has brought, until they are corrected.
//!
//! No scan of a key finds a fractional partition, which lies between two partitions, or an array,
//! which lies among the records of another one. So each scan asks here which keys have one. Records
//! behind it wait until a majority has acknowledged its correction.

use std::collections::HashMap;

use bson::Timestamp;
use bson::raw::RawDocumentBuf;
use parking_lot::Mutex;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};

/// Records at most; for more a rotation costs less.
const MAX_RECORDS: usize = 1_000;

/// The known misplaced records.
#[derive(Debug, Default)]
pub(crate) struct Misplaced {
    known: Mutex<HashMap<RecordId, Record>>,
}

impl Misplaced {
    /// Adds one record. Returns false if there are too many.
    pub(crate) fn note(&self, record: Record) -> bool {
        let mut known = self.known.lock();
        let has_room = known.len() < MAX_RECORDS || known.contains_key(&record.id);
        if has_room {
            // Only its partition is corrected.
            let record = Record { raw: RawDocumentBuf::new(), ..record };
            known.insert(record.id.clone(), record);
        }
        has_room
    }

    /// Returns the key and the `seq` of each record.
    pub(crate) fn holding(&self) -> Vec<(LaneKey, Option<Timestamp>)> {
        let known = self.known.lock();
        known.values().map(|record| (record.lane.clone(), record.seq)).collect()
    }

    /// Returns their keys, and the partitions that they belong to.
    pub(crate) fn keys(&self) -> Vec<(LaneKey, u8)> {
        let known = self.known.lock();
        known.values().map(|record| (record.lane.clone(), record.partition)).collect()
    }

    /// Returns the earliest record that is not left out.
    pub(crate) fn next(
        &self,
        count: usize,
        is_left_out: impl Fn(&RecordId) -> bool,
    ) -> Vec<Record> {
        let known = self.known.lock();
        let mut next: Vec<&Record> =
            known.values().filter(|record| !is_left_out(&record.id)).collect();
        next.sort_by_key(|record| (record.seq.is_none(), record.seq));
        next.into_iter().take(count).cloned().collect()
    }

    /// Removes a record: a majority has acknowledged its correction, or it is not pending any more.
    pub(crate) fn forget(&self, id: &RecordId) {
        let mut known = self.known.lock();
        if !known.is_empty() {
            known.remove(id);
        }
    }

    /// Removes the records of other partitions.
    pub(crate) fn keep_within(&self, partitions: &[u8]) {
        self.known.lock().retain(|_, record| partitions.contains(&record.partition));
    }
}
