//! When a snapshot is worth saving.

/// After which appends a snapshot is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// After each.
    All,
    /// Once so many versions have passed since the last snapshot; below 1 is as 1.
    EveryVersions(u32),
    /// Never.
    None,
}

impl Strategy {
    /// Whether one is due at `version`, when the last is of `last` (0: there is none).
    pub fn is_due(self, version: i64, last: i64) -> bool {
        match self {
            Self::All => version > last,
            Self::EveryVersions(offset) => version.saturating_sub(last) >= offset.max(1).into(),
            Self::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_due_once_so_many_versions_have_passed() {
        let due = |strategy: Strategy, last| -> Vec<i64> {
            (1..=12).filter(|version| strategy.is_due(*version, last)).collect()
        };

        assert_eq!(due(Strategy::EveryVersions(5), 0), [5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(due(Strategy::EveryVersions(5), 5), [10, 11, 12]);
        assert_eq!(due(Strategy::All, 10), [11, 12]);
        assert_eq!(due(Strategy::EveryVersions(0), 10), [11, 12]);
        assert_eq!(due(Strategy::None, 0), [0; 0]);
    }
}
