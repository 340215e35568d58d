//! Decides when to save a snapshot.

/// The appends after which a snapshot is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Each one.
    All,
    /// Those with this many versions since the last snapshot; 0 is as 1.
    EveryVersions(u32),
    /// None.
    None,
}

impl Strategy {
    /// Whether a snapshot is due at `version` after one of version `last` (0: none).
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
    fn snapshot_is_due_after_the_configured_versions() {
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
