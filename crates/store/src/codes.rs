//! Error codes of the server, as in its `error_codes.yml`.

/// DuplicateKey: violates a unique index.
pub const DUPLICATE_KEY: i32 = 11000;

/// The document would exceed 16 MiB.
pub const TOO_LARGE_CODES: [i32; 2] = [17419, 10334];

/// Transient codes of a single statement, which can be retried: elections, shutdowns, time limits,
/// conflicts, chunk migrations, a full disk.
pub const TRANSIENT_CODES: [i32; 26] = [
    6, 7, 24, 43, 46, 50, 63, 64, 89, 91, 112, 133, 134, 150, 189, 202, 234, 237, 246, 262, 9001,
    10107, 11600, 11602, 13435, 14031,
];
