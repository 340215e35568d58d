//! Timeouts of MongoDB operations, and the maximum size of a document.

use std::time::Duration;

/// Read or write of one batch. Twice the driver's server selection timeout, so that an election
/// (seconds) passes within one operation.
pub const BATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Count or list that an operator waits for.
pub const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Creation of collections and indexes at start: an index on a large collection takes long.
pub const SCHEMA_TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum size of a document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 16 << 20;
