//! Decides which appends get the next positions. Pure.
//!
//! Reports arrive in any order, several times, and not at all: an append is put into the plan only behind
//! its predecessor. What is not known of a predecessor is read before ([`Planned::lookups`]).

use std::collections::{HashMap, HashSet, VecDeque};

use crate::commits::CommittedAppend;
use crate::names::AggregateKey;

/// The most aggregates whose last version is remembered: beyond, those not used for longer are forgotten.
const MAX_KNOWN: usize = 200_000;

/// The last versions that have positions.
#[derive(Debug, Default)]
pub(super) struct Positioned {
    recent: HashMap<AggregateKey, i64>,
    older: HashMap<AggregateKey, i64>,
}

impl Positioned {
    /// The last version of this aggregate that is known to have a position.
    pub(super) fn version(&self, aggregate: &AggregateKey) -> Option<i64> {
        self.recent.get(aggregate).or_else(|| self.older.get(aggregate)).copied()
    }

    /// Remembers that this version, and all before, have positions.
    pub(super) fn insert(&mut self, aggregate: &AggregateKey, version: i64) {
        if self.recent.len() >= MAX_KNOWN / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(aggregate.clone(), version);
    }

    /// Forgets an aggregate: what is known of it may be wrong.
    pub(super) fn remove(&mut self, aggregate: &AggregateKey) {
        self.recent.remove(aggregate);
        self.older.remove(aggregate);
    }

    pub(super) fn clear(&mut self) {
        self.recent.clear();
        self.older.clear();
    }
}

/// A version whose predecessors must be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lookup {
    pub(super) aggregate: AggregateKey,
    /// The version before which to read.
    pub(super) before: i64,
}

/// The next appends to get positions, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Planned {
    pub(super) batch: Vec<CommittedAppend>,
    /// What must be known before the rest can be planned. Their appends are in the queue, first.
    pub(super) lookups: Vec<Lookup>,
}

/// Takes up to `limit` appends from the front of the queue, each behind its predecessor.
///
/// An append that has a position is dropped. One whose predecessor is not known stays in the queue, with
/// all later ones of its aggregate.
pub(super) fn plan(
    queue: &mut VecDeque<CommittedAppend>,
    positioned: &Positioned,
    limit: usize,
) -> Planned {
    let mut planned = Planned::default();
    let mut ahead: HashMap<AggregateKey, i64> = HashMap::new();
    let mut waiting: HashSet<AggregateKey> = HashSet::new();
    let mut rest = VecDeque::new();
    while planned.batch.len() < limit {
        let Some(next) = queue.pop_front() else { break };
        if waiting.contains(&next.aggregate) {
            rest.push_back(next);
            continue;
        }
        let known = ahead.get(&next.aggregate).copied();
        let known = known.or_else(|| positioned.version(&next.aggregate));
        // A stream begins with version 1: it has no predecessor.
        let known = known.or_else(|| (next.version <= 1).then_some(next.version - 1));
        match known {
            Some(known) if next.version <= known => {}
            Some(known) if next.version == known + 1 => {
                ahead.insert(next.aggregate.clone(), next.version);
                planned.batch.push(next);
            }
            _ => {
                let aggregate = next.aggregate.clone();
                waiting.insert(aggregate.clone());
                planned.lookups.push(Lookup { aggregate, before: next.version });
                rest.push_back(next);
                if planned.lookups.len() >= limit {
                    break;
                }
            }
        }
    }
    rest.append(queue);
    *queue = rest;
    planned
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
        }
    }

    fn queue(of: &[(u8, i64)]) -> VecDeque<CommittedAppend> {
        of.iter().map(|(aggregate, version)| append(*aggregate, *version)).collect()
    }

    fn places(planned: &[CommittedAppend]) -> Vec<String> {
        planned.iter().map(|append| append.id.to_string().replace('"', "")).collect()
    }

    #[test]
    fn first_versions_and_successors_are_planned_in_their_order() {
        let mut waiting = queue(&[(1, 1), (2, 1), (1, 2)]);

        let planned = plan(&mut waiting, &Positioned::default(), 9);

        assert_eq!(places(&planned.batch), ["1/1", "2/1", "1/2"]);
        assert!(planned.lookups.is_empty() && waiting.is_empty());
    }

    #[test]
    fn append_with_a_position_is_dropped() {
        let mut positioned = Positioned::default();
        positioned.insert(&append(1, 3).aggregate, 3);
        let mut waiting = queue(&[(1, 2), (1, 3), (1, 4), (1, 4)]);

        let planned = plan(&mut waiting, &positioned, 9);

        assert_eq!(places(&planned.batch), ["1/4"]);
    }

    #[test]
    fn append_waits_when_its_predecessor_is_unknown() {
        let mut waiting = queue(&[(1, 3), (1, 4), (2, 1)]);

        let planned = plan(&mut waiting, &Positioned::default(), 9);

        assert_eq!(places(&planned.batch), ["2/1"]);
        let aggregate = append(1, 3).aggregate;
        assert_eq!(planned.lookups, [Lookup { aggregate, before: 3 }]);
        assert_eq!(waiting, queue(&[(1, 3), (1, 4)]));
    }

    #[test]
    fn limit_leaves_the_rest_in_its_order() {
        let mut waiting = queue(&[(1, 1), (2, 1), (3, 1)]);

        let planned = plan(&mut waiting, &Positioned::default(), 2);

        assert_eq!(planned.batch.len(), 2);
        assert_eq!(waiting, queue(&[(3, 1)]));
    }

    proptest! {
        /// Whatever is reported in whatever order: no version is planned before its predecessor, and none
        /// twice.
        #[test]
        fn versions_are_planned_once_and_in_their_order(
            reports in prop::collection::vec((0_u8..3, 1_i64..6), 0..40),
            known in prop::collection::vec(prop::option::of(0_i64..6), 3),
            limit in 1_usize..9,
        ) {
            let mut positioned = Positioned::default();
            for (aggregate, version) in (0_u8..).zip(&known) {
                if let Some(version) = version {
                    positioned.insert(&append(aggregate, 1).aggregate, *version);
                }
            }
            let mut last: Vec<i64> = known.iter().map(|known| known.unwrap_or(0)).collect();
            let mut waiting = queue(&reports);
            loop {
                let before = waiting.len();
                let planned = plan(&mut waiting, &positioned, limit);
                prop_assert!(planned.batch.len() <= limit);
                for next in &planned.batch {
                    let aggregate: usize = next.aggregate.1.as_str().parse().unwrap();
                    prop_assert_eq!(next.version, last[aggregate] + 1);
                    last[aggregate] = next.version;
                    positioned.insert(&next.aggregate, next.version);
                }
                if waiting.len() == before {
                    break;
                }
            }
        }
    }
}
