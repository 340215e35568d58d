//! Decides which appends get the next positions. Pure.
//!
//! Reports arrive in any order, several times, and not at all. A batch has the versions of an aggregate in
//! their order, without a gap between them. What precedes the first one is not known here: the transaction
//! reads it.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::commits::CommittedAppend;
use crate::names::AggregateKey;

/// Takes up to `limit` appends from the front of the queue: of each aggregate one, and those that follow it.
///
/// An append that is in the batch already is dropped. Others of its aggregates stay in the queue, first.
pub(super) fn plan(queue: &mut VecDeque<CommittedAppend>, limit: usize) -> Vec<CommittedAppend> {
    let mut batch: Vec<CommittedAppend> = Vec::new();
    // Where the versions of each aggregate are in the batch.
    let mut runs: HashMap<AggregateKey, Vec<usize>> = HashMap::new();
    let mut rest = VecDeque::new();
    while batch.len() < limit {
        let Some(next) = queue.pop_front() else { break };
        let run = runs.entry(next.aggregate.clone()).or_default();
        let last = run.last().map(|at| batch[*at].version);
        if last.is_none_or(|last| next.version.checked_sub(1) == Some(last)) {
            run.push(batch.len());
            batch.push(next);
        } else if !run.iter().any(|at| batch[*at].id == next.id) {
            // (One of the same version too: it may have replaced a document that was deleted.)
            rest.push_back(next);
        }
    }
    rest.append(queue);
    *queue = rest;
    batch
}

/// The appends of a batch whose predecessors must have positions: the first one of each aggregate, unless
/// its stream begins with it.
pub(super) fn beginnings(batch: &[CommittedAppend]) -> impl Iterator<Item = &CommittedAppend> {
    let mut seen = HashSet::new();
    batch.iter().filter(move |append| seen.insert(&append.aggregate) && append.version > 1)
}

#[cfg(test)]
mod tests {
    use bson::Bson;
    use proptest::prelude::*;

    use super::*;
    use crate::names::{AggregateId, AggregateName};

    fn append(aggregate: u8, version: i64) -> CommittedAppend {
        let name = AggregateName::new("order").unwrap();
        let id = AggregateId::new(&aggregate.to_string()).unwrap();
        CommittedAppend {
            aggregate: (name, id),
            id: Bson::String(format!("{aggregate}/{version}")),
            version,
            create_time: 0,
            events: 1,
            has_null_position: false,
        }
    }

    fn queue(of: &[(u8, i64)]) -> VecDeque<CommittedAppend> {
        of.iter().map(|(aggregate, version)| append(*aggregate, *version)).collect()
    }

    fn places<'a>(appends: impl IntoIterator<Item = &'a CommittedAppend>) -> Vec<&'a str> {
        appends.into_iter().filter_map(|append| append.id.as_str()).collect()
    }

    #[test]
    fn versions_and_their_successors_are_planned_in_their_order() {
        let mut waiting = queue(&[(1, 3), (2, 1), (1, 4), (3, 7)]);

        let batch = plan(&mut waiting, 9);

        assert_eq!(places(&batch), ["1/3", "2/1", "1/4", "3/7"]);
        assert_eq!(places(beginnings(&batch)), ["1/3", "3/7"]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn append_that_does_not_follow_stays_in_the_queue() {
        let mut waiting = queue(&[(1, 3), (1, 2), (1, 5), (1, 3), (1, 4), (2, 1)]);

        let batch = plan(&mut waiting, 9);

        assert_eq!(places(&batch), ["1/3", "1/4", "2/1"]);
        assert_eq!(places(&waiting), ["1/2", "1/5"]);
    }

    #[test]
    fn two_documents_of_one_version_are_planned_one_after_the_other() {
        let again = CommittedAppend { id: Bson::from("again"), ..append(1, 1) };
        let mut waiting = VecDeque::from([append(1, 1), again]);

        assert_eq!(places(&plan(&mut waiting, 9)), ["1/1"]);
        assert_eq!(places(&plan(&mut waiting, 9)), ["again"]);
    }

    #[test]
    fn limit_leaves_the_rest_in_its_order() {
        let mut waiting = queue(&[(1, 1), (2, 1), (3, 1)]);

        assert_eq!(plan(&mut waiting, 2).len(), 2);
        assert_eq!(places(&waiting), ["3/1"]);
    }

    proptest! {
        /// Whatever is reported in whatever order: the versions of a batch follow each other, and each append
        /// is planned in the end.
        #[test]
        fn versions_of_a_batch_follow_each_other(
            reports in prop::collection::vec((0_u8..3, 1_i64..6), 0..40),
            limit in 1_usize..9,
        ) {
            let mut missing: HashSet<(u8, i64)> = reports.iter().copied().collect();
            let mut waiting = queue(&reports);
            while !waiting.is_empty() {
                let batch = plan(&mut waiting, limit);
                prop_assert!(!batch.is_empty() && batch.len() <= limit);
                let mut last: HashMap<u8, i64> = HashMap::new();
                for next in &batch {
                    let aggregate: u8 = next.aggregate.1.as_str().parse().unwrap();
                    let before = last.insert(aggregate, next.version);
                    prop_assert!(before.is_none_or(|before| next.version == before + 1));
                    missing.remove(&(aggregate, next.version));
                }
            }
            prop_assert!(missing.is_empty());
        }
    }
}
