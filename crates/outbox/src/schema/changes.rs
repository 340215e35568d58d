//! What Postrider changes in a record, for the search for settings of others that refuse it.

use bson::{Bson, DateTime, Document, Timestamp, Uuid, doc};
use postrider_store::schema::index::PartialFilter;
use postrider_store::schema::layout::Protection;

use crate::fields::{
    ATTEMPT, BLOCKS, DEAD, DEAD_AT, DEAD_REASON, DONE, DONE_AT, ID, KEY, LAST_ERROR, LAST_ERROR_AT,
    LEASE_CRASHES, LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PARTITION, PAYLOAD, PENDING, SEQ, STATUS,
    TYPE, VISIBLE_AT,
};

/// Delivered records may be removed; all others stay.
pub(super) const PROTECTION: Protection = Protection::Except {
    removable: PartialFilter::Status(DONE),
    changed: &CHANGED,
    example,
    changes,
};

/// The fields that are changed after the insertion.
const CHANGED: [&str; 15] = [
    STATUS,
    SEQ,
    PARTITION,
    VISIBLE_AT,
    ATTEMPT,
    LEASE_ID,
    LEASE_UNTIL,
    LEASE_OWNER,
    LEASE_CRASHES,
    LAST_ERROR,
    LAST_ERROR_AT,
    DONE_AT,
    DEAD_AT,
    DEAD_REASON,
    BLOCKS,
];

/// A record as a producer inserts it.
fn example() -> Document {
    doc! {
        ID: Uuid::new(), KEY: "order-1", TYPE: "OrderPlaced", PAYLOAD: {}, STATUS: PENDING,
        SEQ: Timestamp { time: 1, increment: 1 },
    }
}

/// What happens to a record.
fn changes() -> Vec<(&'static str, Document)> {
    let (now, some) = (DateTime::now(), Uuid::new());
    let leased = doc! {
        PARTITION: 0, ATTEMPT: 1, LEASE_ID: some, LEASE_OWNER: some, LEASE_UNTIL: now,
        LEASE_CRASHES: 1,
    };
    let with = |more: Document| -> Document {
        [(ATTEMPT.to_owned(), Bson::Int32(1)), (PARTITION.to_owned(), Bson::Int32(0))]
            .into_iter()
            .chain(more)
            .collect()
    };
    let failed = doc! { LAST_ERROR: "refused", LAST_ERROR_AT: now };
    let retried = [failed.clone(), doc! { VISIBLE_AT: now }].into_iter().flatten().collect();
    let dead = doc! { STATUS: DEAD, DEAD_AT: now, DEAD_REASON: "refused", BLOCKS: true };
    vec![
        ("is leased", leased),
        ("is retried", with(retried)),
        ("is delivered", with(doc! { STATUS: DONE, DONE_AT: now })),
        ("becomes dead", with([failed, dead].into_iter().flatten().collect())),
        ("is requeued", with(doc! { STATUS: PENDING, ATTEMPT: 0 })),
    ]
}
