//! Recognises the second report of an append.
//!
//! The appends of this process are reported twice: by the process itself, and by the change stream. The
//! first report is taken. What is remembered says nothing about positions, and is forgotten after the second
//! report: a document that is inserted again under its id, after it was deleted, is reported again.

use std::collections::HashMap;

use crate::commits::CommittedAppend;

/// The most appends of each of two generations. Beyond, the older one is forgotten: the transaction finds
/// that an append has its position.
const MAX_KNOWN: usize = 20_000;

/// Who reports an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporter {
    /// The process that has appended it.
    Process,
    ChangeStream,
}

/// The appends that one of the two reporters has reported.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    recent: HashMap<String, Reporter>,
    older: HashMap<String, Reporter>,
}

impl Repeats {
    /// Whether the other reporter has reported this append before.
    pub(super) fn is_repeat(&mut self, reporter: Reporter, append: &CommittedAppend) -> bool {
        // (The ids of this process are texts.)
        let Some(id) = append.id.as_str() else { return false };
        for known in [&mut self.recent, &mut self.older] {
            if known.get(id).is_some_and(|first| *first != reporter) {
                known.remove(id);
                return true;
            }
        }
        if self.recent.len() >= MAX_KNOWN {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(id.to_owned(), reporter);
        false
    }
}

#[cfg(test)]
mod tests {
    use bson::Bson;

    use super::Reporter::{ChangeStream, Process};
    use super::*;
    use crate::names::{AggregateId, AggregateName};

    fn append(id: impl Into<Bson>) -> CommittedAppend {
        let aggregate = (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap());
        CommittedAppend {
            aggregate,
            id: id.into(),
            version: 1,
            create_time: 0,
            events: 1,
            has_null_position: false,
        }
    }

    #[test]
    fn second_report_is_recognised_whichever_comes_first() {
        let mut repeats = Repeats::default();

        for (first, second) in [(Process, ChangeStream), (ChangeStream, Process)] {
            assert!(!repeats.is_repeat(first, &append("a")));
            assert!(repeats.is_repeat(second, &append("a")));
        }
        assert!(repeats.recent.is_empty());
    }

    /// It was deleted, and inserted again.
    #[test]
    fn two_reports_of_one_reporter_are_of_two_documents() {
        let mut repeats = Repeats::default();

        for _ in 0..2 {
            assert!(!repeats.is_repeat(ChangeStream, &append("a")));
            assert!(!repeats.is_repeat(ChangeStream, &append(7)));
        }
    }

    #[test]
    fn old_reports_are_forgotten() {
        let mut repeats = Repeats::default();

        for number in 0..3 * MAX_KNOWN {
            assert!(!repeats.is_repeat(Process, &append(number.to_string())));
        }

        assert!(repeats.recent.len() + repeats.older.len() <= 2 * MAX_KNOWN);
        assert!(!repeats.is_repeat(ChangeStream, &append("0")));
        assert!(repeats.is_repeat(ChangeStream, &append((3 * MAX_KNOWN - 1).to_string())));
    }
}
