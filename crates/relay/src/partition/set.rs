//! Sets of partitions as text: `"0-127"`, `"3,7-9"`.

use std::collections::BTreeSet;

/// Reads a set of partitions, in order.
///
/// # Errors
///
/// What is expected, in words.
pub fn partition_set(text: &str) -> Result<Vec<u8>, String> {
    let wrong =
        || "must be a set of partitions such as 0-127 or 3,7-9, each between 0 and 255".to_owned();
    let mut partitions = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let first: u8 = first.trim().parse().map_err(|_| wrong())?;
        let last: u8 = last.trim().parse().map_err(|_| wrong())?;
        if first > last {
            return Err(wrong());
        }
        partitions.extend(first..=last);
    }
    Ok(partitions.into_iter().collect())
}
