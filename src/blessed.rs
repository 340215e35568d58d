//! Files of the repository that the code writes: compared in each test run, and written again on demand.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

use std::path::Path;

/// Holds a file, named from the repository's root, to what the code says. With `POSTRIDER_BLESS=1`
/// it is written again.
pub(crate) fn compare(file: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "{file} is out of date; write it again with POSTRIDER_BLESS=1");
}
