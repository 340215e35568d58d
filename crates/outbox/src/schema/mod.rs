//! Collections of the outbox, and their indexes, each next to the query that it serves.

mod changes;
pub mod options;
pub mod validator;

use bson::Document;

pub use options::{SchemaOptions, Validator};

use postrider_store::StoreError;
use postrider_store::schema::apply::Applied;
use postrider_store::schema::error::SchemaError;
use postrider_store::schema::hazard::Hazards;
use postrider_store::schema::index::IndexKey::Ascending;
use postrider_store::schema::index::{Expiry, Index, PartialFilter};
use postrider_store::schema::layout::{CollectionLayout, Layout, Protection};
use postrider_store::schema::verify::Difference;

use crate::collections::{Collections, names};
use crate::fields::{
    BLOCKS, DEAD, DEAD_AT, DEDUP_KEY, DONE, DONE_AT, KEY, PARTITION, PENDING, SCHEDULED, SEQ,
    VISIBLE_AT,
};
use crate::inspect::{DEAD_INDEX, DONE_TTL_INDEX};
use crate::repair::SCHEDULED_INDEX;
use crate::snapshot::{BLOCKS_INDEX, LANE_INDEX};

/// Rejects a second record with the same `dedupKey`.
pub const DEDUP_INDEX: &str = "dedup_idx";

/// All indexes, in the order of their creation.
pub const INDEXES: [Index; 6] = [
    Index {
        name: LANE_INDEX,
        keys: &[Ascending(PARTITION), Ascending(KEY), Ascending(SEQ)],
        partial: Some(PartialFilter::Status(PENDING)),
        serves: &[
            "Every scan: the pending records of the owned partitions by key and seq, those without a",
            "partition, and one key from its first record.",
        ],
        ..Index::PLAIN
    },
    Index {
        name: BLOCKS_INDEX,
        keys: &[Ascending(KEY)],
        partial: Some(PartialFilter::True(BLOCKS)),
        serves: &[
            "Keys that a dead record blocks (relay.on_dead = \"block\"): all, or some by name.",
        ],
        ..Index::PLAIN
    },
    Index {
        name: SCHEDULED_INDEX,
        keys: &[Ascending(VISIBLE_AT)],
        partial: Some(PartialFilter::Status(SCHEDULED)),
        serves: &["Scheduled records that are due, earliest first, and the time of the next one."],
        ..Index::PLAIN
    },
    Index {
        name: DONE_TTL_INDEX,
        keys: &[Ascending(DONE_AT)],
        partial: Some(PartialFilter::Status(DONE)),
        expiry: Some(Expiry::Retention),
        serves: &[
            "MongoDB's TTL monitor: deletes delivered records after the retention. A changed retention",
            "is adjusted in place. Also done records by date, for operators.",
        ],
        ..Index::PLAIN
    },
    Index {
        name: DEDUP_INDEX,
        keys: &[Ascending(DEDUP_KEY)],
        partial: Some(PartialFilter::Text(DEDUP_KEY)),
        unique: true,
        serves: &[
            "Insertions: refuses a second record with the same dedupKey (error 11000). Partial on",
            "strings, so that several records without one are allowed. A query that uses this index",
            "must contain the type: {dedupKey: {$eq: …, $type: \"string\"}}.",
        ],
        ..Index::PLAIN
    },
    Index {
        name: DEAD_INDEX,
        keys: &[Ascending(DEAD_AT)],
        partial: Some(PartialFilter::Status(DEAD)),
        serves: &["Dead records by date, for operators: list, requeue, discard, prune, stats."],
        ..Index::PLAIN
    },
];

/// Creates missing collections and indexes, and adjusts the retention.
///
/// If instances with different retentions call this at once, the last one wins. An existing
/// collection keeps its validator or lack of one.
///
/// # Errors
///
/// Those of [`Layout::apply`].
pub async fn apply(
    collections: &Collections,
    options: &SchemaOptions,
) -> Result<Applied, SchemaError> {
    layout(collections, options).apply().await
}

/// Compares the outbox with the expected schema.
///
/// # Errors
///
/// Those of [`Layout::verify`].
pub async fn verify(
    collections: &Collections,
    options: &SchemaOptions,
) -> Result<Vec<Difference>, SchemaError> {
    layout(collections, options).verify().await
}

/// Searches for settings of others by which records are removed, hidden or refused.
///
/// # Errors
///
/// Those of [`Layout::hazards`].
pub async fn hazards(
    collections: &Collections,
    options: &SchemaOptions,
) -> Result<Hazards, StoreError> {
    layout(collections, options).hazards().await
}

fn layout(collections: &Collections, options: &SchemaOptions) -> Layout {
    let part = |base| {
        let (options, indexes, protection) = match base {
            names::RECORDS => (
                validator::collection_options(options.validator),
                INDEXES.iter().collect(),
                changes::PROTECTION,
            ),
            _ => (Document::new(), Vec::new(), Protection::All),
        };
        CollectionLayout { name: collections.name(base), options, indexes, protection }
    };
    Layout {
        database: collections.database().clone(),
        parts: names::ALL.into_iter().map(part).collect(),
        retention: options.expire_after_seconds(),
        elsewhere: "outbox.database or outbox.collection_prefix",
    }
}
