//! The bridge: copies the undelivered documents of another outbox into `outbox_records`.
//!
//! ```text
//! source collection ──scan, change stream──▶ read (mapping) ──▶ one transaction: mark the source, insert records
//! ```
//!
//! A document is marked in the source's own terms, and only if its status is still the one that was read: one that
//! changed meanwhile stays as it is. One process at a time copies, under a lease with an epoch; its document is
//! written in every transaction, so that of two owners one meets a write conflict.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the section `[adopt]` |
//! | [`mapping`], [`presets`] | which field is what, and which status means what |
//! | [`value`] | paths, constants and templates |
//! | [`read`] | a source document → the record, or why it is skipped |
//! | [`state`] | the document of the bridge: owner, epoch, resume token |
//! | [`copy`] | one transaction |
//! | `batch` | the transactions of a batch |
//! | `lease` | the right of this process to copy |
//! | `start` | where it begins |
//! | [`source`], [`source_check`] | reads of the source, and whether it can be copied |
//! | `scan` | the scan of what is there |
//! | `changed_since` | what a scan leaves to the change stream |
//! | `ids` | an `_id` as a key of a map |
//! | [`bridge`] | the loop |
//! | [`report`] | what a run has done, and why it ended |
//! | [`old_relay`] | whether the old relay still runs |
//! | [`metrics`] | what is counted |

mod batch;
pub mod bridge;
mod changed_since;
pub mod config;
pub mod copy;
mod ids;
mod lease;
pub mod mapping;
pub mod metrics;
pub mod old_relay;
pub mod presets;
pub mod read;
pub mod report;
mod scan;
pub mod source;
pub mod source_check;
mod start;
pub mod state;
pub mod value;
