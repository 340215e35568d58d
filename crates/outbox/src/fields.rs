//! The field names of an outbox record.

#![expect(
    missing_docs,
    reason = "each constant is the name that it holds; section 1 explains them"
)]

use bson::{Document, doc};

/// Defines texts, and the list of all of them.
macro_rules! texts {
    ($(#[$doc:meta])* $all:ident: $($name:ident = $text:literal,)+) => {
        $(pub const $name: &str = $text;)+
        $(#[$doc])*
        pub const $all: [&str; [$($text),+].len()] = [$($name),+];
    };
}

texts! {
    /// All fields.
    ALL:
    ID = "_id",
    KEY = "key",
    TYPE = "type",
    PAYLOAD = "payload",
    CONTENT_TYPE = "contentType",
    HEADERS = "headers",
    DESTINATION = "destination",
    TENANT_ID = "tenantId",
    STATUS = "status",
    SEQ = "seq",
    PARTITION = "partition",
    CREATED_AT = "createdAt",
    VISIBLE_AT = "visibleAt",
    DEDUP_KEY = "dedupKey",
    ATTEMPT = "attempt",
    LEASE_ID = "leaseId",
    LEASE_UNTIL = "leaseUntil",
    LEASE_OWNER = "leaseOwner",
    LEASE_CRASHES = "leaseCrashes",
    LAST_ERROR = "lastError",
    LAST_ERROR_AT = "lastErrorAt",
    DONE_AT = "doneAt",
    DEAD_AT = "deadAt",
    DEAD_REASON = "deadReason",
    BLOCKS = "blocks",
}

/// Marks a record whose content an erasure has removed. No relay reads it.
pub const ERASED: &str = "erased";

texts! {
    /// All statuses.
    STATUSES:
    PENDING = "pending",
    SCHEDULED = "scheduled",
    DONE = "done",
    DEAD = "dead",
}

/// Maximum of counted attempts.
pub const ATTEMPT_LIMIT: i32 = 1_000_000;

/// Matches this text; a plain equality also matches an array that contains it.
pub fn exactly(text: &str) -> Document {
    doc! { "$eq": text, "$not": { "$type": "array" } }
}

/// Fields that a lease depends on. A record that was never leased has none of them, unless its
/// producer wrote one.
pub const UNTOUCHED: [&str; 4] = [ATTEMPT, LEASE_ID, LEASE_UNTIL, VISIBLE_AT];
