//! Sets of partitions as text: `"0-127"`, `"3,7-9"`.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A set of partitions, with the text that named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct PartitionSet {
    text: String,
    partitions: Vec<u8>,
}

impl PartitionSet {
    /// The partitions in ascending order.
    pub fn partitions(&self) -> &[u8] {
        &self.partitions
    }
}

impl TryFrom<String> for PartitionSet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(Self { partitions: partition_set(&text)?, text })
    }
}

impl From<PartitionSet> for String {
    fn from(set: PartitionSet) -> Self {
        set.text
    }
}

impl fmt::Display for PartitionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_set_has_ranges_and_single_partitions() {
        assert_eq!(partition_set("3,7-9, 0").unwrap(), [0, 3, 7, 8, 9]);
        assert_eq!(partition_set("0-255").unwrap().len(), 256);
        for wrong in ["", "9-3", "256", "a"] {
            assert!(partition_set(wrong).is_err(), "{wrong}");
        }
    }
}
