//! The field names of an outbox record.

#![expect(
    missing_docs,
    reason = "each constant is the name that it holds; section 1 explains them"
)]

use bson::{Document, doc};

pub const ID: &str = "_id";
pub const KEY: &str = "key";
pub const TYPE: &str = "type";
pub const PAYLOAD: &str = "payload";
pub const CONTENT_TYPE: &str = "contentType";
pub const HEADERS: &str = "headers";
pub const DESTINATION: &str = "destination";
pub const TENANT_ID: &str = "tenantId";
pub const STATUS: &str = "status";
pub const SEQ: &str = "seq";
pub const PARTITION: &str = "partition";
pub const CREATED_AT: &str = "createdAt";
pub const VISIBLE_AT: &str = "visibleAt";
pub const DEDUP_KEY: &str = "dedupKey";
pub const ATTEMPT: &str = "attempt";
pub const LEASE_ID: &str = "leaseId";
pub const LEASE_UNTIL: &str = "leaseUntil";
pub const LEASE_OWNER: &str = "leaseOwner";
pub const LEASE_CRASHES: &str = "leaseCrashes";
pub const LAST_ERROR: &str = "lastError";
pub const LAST_ERROR_AT: &str = "lastErrorAt";
pub const DONE_AT: &str = "doneAt";
pub const DEAD_AT: &str = "deadAt";
pub const DEAD_REASON: &str = "deadReason";
pub const BLOCKS: &str = "blocks";

/// All of these.
pub const ALL: [&str; 25] = [
    ID,
    KEY,
    TYPE,
    PAYLOAD,
    CONTENT_TYPE,
    HEADERS,
    DESTINATION,
    TENANT_ID,
    STATUS,
    SEQ,
    PARTITION,
    CREATED_AT,
    VISIBLE_AT,
    DEDUP_KEY,
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

pub const PENDING: &str = "pending";
pub const SCHEDULED: &str = "scheduled";
pub const DONE: &str = "done";
pub const DEAD: &str = "dead";

/// Maximum of counted attempts.
pub const ATTEMPT_LIMIT: i32 = 1_000_000;

/// Matches this text; a plain equality also matches an array that contains it.
pub fn exactly(text: &str) -> Document {
    doc! { "$eq": text, "$not": { "$type": "array" } }
}

/// Fields that a lease depends on. A record that was never leased has none of them, unless its
/// producer wrote one.
pub const UNTOUCHED: [&str; 4] = [ATTEMPT, LEASE_ID, LEASE_UNTIL, VISIBLE_AT];
