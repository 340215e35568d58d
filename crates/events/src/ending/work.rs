//! The work documents: one for each erasure that is not complete.

use bson::{DateTime, Document, doc};
use postrider_outbox::erase::PendingRecords;

use super::answer::ErasureCounts;
use crate::integer::integral;
use crate::names::{AggregateId, AggregateKey, AggregateName};
use crate::stream::fields::{AGGREGATE_ID, ID, VERSION};

/// How long a process has the right to work on an erasure after its last step, in milliseconds. Two at
/// the same time would do the work twice, and harm nothing.
pub(super) const CLAIM_MILLIS: i64 = 10_000;

pub(super) const AGGREGATE_NAME: &str = "aggregateName";
pub(super) const STREAM_ID: &str = "streamId";
/// The number of attempts that have ended without completion.
pub(super) const ATTEMPTS: &str = "attempts";
/// When the next attempt may begin.
pub(super) const DUE_AT: &str = "dueAt";
/// The version up to which bodies and headers are empty.
pub(super) const EMPTIED_TO: &str = "emptiedTo";
/// The version up to which all records are settled and empty.
pub(super) const RECORDS_TO: &str = "recordsTo";
pub(super) const DISCARD_PENDING: &str = "discardPending";
pub(super) const SNAPSHOT: &str = "snapshot";
pub(super) const VERSIONS: &str = "versions";
pub(super) const EVENTS: &str = "events";
pub(super) const RECORDS: &str = "records";
pub(super) const DISCARDED: &str = "discarded";

/// The intent of an erasure, as its transaction writes it.
#[derive(Clone, Debug)]
pub(crate) struct NewWork<'a> {
    pub(crate) name: &'a AggregateName,
    pub(crate) id: &'a AggregateId,
    /// The id of the event stream document of the erasure.
    pub(crate) stream_id: String,
    /// Its version: all below are erased.
    pub(crate) version: i64,
    pub(crate) pending: PendingRecords,
    /// Whether the transaction has emptied a snapshot.
    pub(crate) snapshot: bool,
    /// The time of the transaction, in milliseconds since 1970.
    pub(crate) time: i64,
}

/// An erasure that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) aggregate: AggregateKey,
    pub(super) stream_id: String,
    pub(super) version: i64,
    pub(super) pending: PendingRecords,
    pub(super) emptied_to: i64,
    pub(super) records_to: i64,
    pub(super) counts: ErasureCounts,
}

/// The id of the work document of an aggregate. No name has a slash.
pub(crate) fn work_id(name: &AggregateName, id: &AggregateId) -> String {
    format!("{name}/{id}")
}

impl NewWork<'_> {
    /// The document; its id included.
    pub(crate) fn document(&self) -> Document {
        doc! {
            ID: work_id(self.name, self.id),
            AGGREGATE_NAME: self.name.as_str(),
            AGGREGATE_ID: self.id.as_str(),
            STREAM_ID: &self.stream_id,
            VERSION: self.version,
            DISCARD_PENDING: self.pending == PendingRecords::Discard,
            SNAPSHOT: self.snapshot,
            // The process of the transaction makes the first attempt.
            DUE_AT: DateTime::from_millis(self.time.saturating_add(CLAIM_MILLIS)),
            ATTEMPTS: 0,
            EMPTIED_TO: 0_i64,
            RECORDS_TO: 0_i64,
            VERSIONS: 0_i64,
            EVENTS: 0_i64,
            RECORDS: 0_i64,
            DISCARDED: 0_i64,
        }
    }
}

impl Work {
    /// Decodes a work document; `None` if it is not one.
    pub(super) fn read(stored: &Document) -> Option<Self> {
        let name = AggregateName::new(stored.get_str(AGGREGATE_NAME).ok()?).ok()?;
        let id = AggregateId::new(stored.get_str(AGGREGATE_ID).ok()?).ok()?;
        Some(Self {
            aggregate: (name, id),
            stream_id: stored.get_str(STREAM_ID).ok()?.to_owned(),
            version: stored.get(VERSION).and_then(integral)?,
            pending: pending_records(stored),
            emptied_to: stored.get(EMPTIED_TO).and_then(integral).unwrap_or(0),
            records_to: stored.get(RECORDS_TO).and_then(integral).unwrap_or(0),
            counts: counts(stored),
        })
    }

    /// The filter of its document.
    pub(super) fn filter(&self) -> Document {
        doc! { ID: work_id(&self.aggregate.0, &self.aggregate.1), STREAM_ID: &self.stream_id }
    }
}

/// Whether pending records are discarded, by a work document or a stored erasure.
pub(super) fn pending_records(stored: &Document) -> PendingRecords {
    match stored.get_bool(DISCARD_PENDING) {
        Ok(true) => PendingRecords::Discard,
        _ => PendingRecords::Deliver,
    }
}

/// The counts of a work document or of a stored erasure.
pub(super) fn counts(stored: &Document) -> ErasureCounts {
    let count = |field| {
        let number = stored.get(field).and_then(integral).unwrap_or(0);
        u64::try_from(number).unwrap_or(0)
    };
    ErasureCounts {
        versions: count(VERSIONS),
        events: count(EVENTS),
        snapshot: stored.get_bool(SNAPSHOT).unwrap_or(false),
        records: count(RECORDS),
        discarded: count(DISCARDED),
    }
}
