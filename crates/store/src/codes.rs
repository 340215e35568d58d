//! Codes of the server's errors, as in its `error_codes.yml`.

/// DuplicateKey: a unique index has another document already.
pub const DUPLICATE_KEY: i32 = 11000;

/// The document would outgrow 16 MiB.
pub const TOO_LARGE: [i32; 2] = [17419, 10334];

/// Codes of a single statement that ask for the same again, as in the server's `error_codes.yml`:
/// elections, shutdowns, time limits, conflicts, sharding that moves, a full disk.
pub const PASSING: [i32; 26] = [
    6, 7, 24, 43, 46, 50, 63, 64, 89, 91, 112, 133, 134, 150, 189, 202, 234, 237, 246, 262, 9001,
    10107, 11600, 11602, 13435, 14031,
];
