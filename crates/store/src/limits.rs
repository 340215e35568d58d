//! How long one operation on MongoDB may take, and how much a document may hold.

use std::time::Duration;

/// A read or write of one batch. Twice the driver's server selection timeout, so
/// that an election (seconds) passes within one operation.
pub const BATCH: Duration = Duration::from_secs(10);

/// A count or a listing that an operator waits for.
pub const SURVEY: Duration = Duration::from_secs(60);

/// Creating collections and indexes at start: an index on a large collection takes long.
pub const SCHEMA: Duration = Duration::from_secs(600);

/// What a document of MongoDB may have, in bytes.
pub const LARGEST_DOCUMENT: usize = 16 << 20;
