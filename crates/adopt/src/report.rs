//! What a run has done, and why it ended.

use std::collections::BTreeMap;

use bson::Document;
use postrider_store::StoreError;

use crate::read::{SkipReason, SkippedDocument};
use crate::state::LEASE;

/// Why the bridge ended.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Of MongoDB.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Documents without a status may be missing.
    #[error(
        "{collection}: the change stream cannot be resumed (the collection was dropped or renamed, or the resume token \
         or the time of --from is older than MongoDB's oplog), and the documents have no status that shows which of \
         them were delivered; find the last message that arrived, then start again with --restart and --from ID or \
         --from now"
    )]
    LostResumeToken {
        /// The source.
        collection: String,
    },
    /// The operator must name the start.
    #[error(
        "--from: is not set, and the documents of {collection} have no status; set --from now, --from TIME or --from ID"
    )]
    NoStart {
        /// The source.
        collection: String,
    },
    /// The operator must name a document.
    #[error(
        "--from: is not an _id, and the documents of {collection} have no status; with --once and --dry-run, set --from \
         ID to the last document that was delivered"
    )]
    NoDocument {
        /// The source.
        collection: String,
    },
    /// The operator named no start that can be used.
    #[error("--from {start}: {detail}")]
    WrongStart {
        /// What the operator named.
        start: String,
        /// What is wrong with it, and what to do.
        detail: String,
    },
    /// Another process copies.
    #[error(
        "{collection}: another process copies this source; stop it, or wait for the end of its lease ({LEASE:?})"
    )]
    Owned {
        /// The source.
        collection: String,
    },
}

/// What a run has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdoptReport {
    /// Documents that were copied, or of a dry run, would be.
    pub copied: u64,
    /// Documents that stay as they are, by reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// The first of them.
    pub listed: Vec<SkippedDocument>,
    /// The first records, of a dry run.
    pub sample: Vec<Document>,
    /// Documents that were inserted during the last scan, or got another status: the change stream has them.
    pub left: u64,
    /// Whether it was stopped before its end.
    pub is_partial: bool,
}
