//! Which appends of a group go into one transaction, and at which versions. Pure.

use std::collections::{HashMap, HashSet};

use crate::append::Expected;
use crate::heads::{Head, Heads, Knowledge};
use crate::prepared::{Aggregate, Place};

/// What of an append the decision goes by.
#[derive(Clone, Debug)]
pub(super) struct Wish<'a> {
    pub(super) aggregate: Aggregate,
    pub(super) request_id: &'a str,
    pub(super) expected: Expected,
}

/// What is to become of one append now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It goes, with this version.
    Goes(Place),
    /// It does not fit the version at which its aggregate is.
    Conflicts {
        /// That version.
        actual: i64,
    },
    /// It does not fit what is known from earlier, or nothing is known: its aggregate is to be
    /// read first.
    Unknown,
    /// It is judged once those before it are over.
    Later,
}

/// Decides for appends in the order in which they came, at this time of the server.
///
/// With `alone` only those of the first one's aggregate go.
///
/// Of one aggregate those that go are numbered in their order. One that does not fit what those
/// before it would make of its aggregate is not in conflict yet: they may fail. A request that is
/// there twice goes once; the other one will find it.
pub(super) fn decide(wishes: &[Wish<'_>], heads: &Heads, now: i64, alone: bool) -> Vec<Next> {
    let mut planned: HashMap<&Aggregate, Head> = HashMap::new();
    let mut requests: HashSet<(&Aggregate, &str)> = HashSet::new();
    let mut decisions = Vec::with_capacity(wishes.len());
    for wish in wishes {
        let aggregate = &wish.aggregate;
        if alone && *aggregate != wishes[0].aggregate {
            decisions.push(Next::Later);
            continue;
        }
        if !requests.insert((aggregate, wish.request_id)) {
            decisions.push(Next::Later);
            continue;
        }
        let before = planned.get(aggregate).copied();
        let known = heads.of(aggregate);
        let (head, is_sure) = match (before, known) {
            (Some(head), _) => (head, false),
            (None, Knowledge::Fresh(head)) => (head, true),
            (None, Knowledge::Earlier(head)) => (head, false),
            // Most first appends are: the unique index tells the others.
            (None, Knowledge::Nothing) if wish.expected.is_none() => (Head::default(), false),
            (None, Knowledge::Nothing) => {
                decisions.push(Next::Unknown);
                continue;
            }
        };
        decisions.push(if wish.expected.fits(head.version) {
            // Time does not go back within an aggregate, whatever clocks do.
            let create_time = now.max(head.create_time);
            let place = Place { version: head.version + 1, create_time };
            planned.insert(aggregate, Head { version: place.version, create_time });
            Next::Goes(place)
        } else if is_sure {
            Next::Conflicts { actual: head.version }
        } else if before.is_some() {
            Next::Later
        } else {
            Next::Unknown
        });
    }
    decisions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::{AggregateId, AggregateName};

    const NOW: i64 = 100;

    fn aggregate(id: &str) -> Aggregate {
        (AggregateName::new("a").unwrap(), AggregateId::new(id).unwrap())
    }

    fn wish<'a>(id: &str, request_id: &'a str, expected: Expected) -> Wish<'a> {
        Wish { aggregate: aggregate(id), request_id, expected }
    }

    fn heads(fresh: &[(&str, i64)]) -> Heads {
        let mut heads = Heads::default();
        heads.begin_group();
        for (id, version) in fresh {
            heads.learn(aggregate(id), Head { version: *version, create_time: 0 });
        }
        heads
    }

    fn goes(version: i64) -> Next {
        Next::Goes(Place { version, create_time: NOW })
    }

    #[test]
    fn those_of_one_aggregate_are_numbered_in_their_order() {
        let wishes = [
            wish("1", "a", Expected::Any),
            wish("2", "a", Expected::None),
            wish("1", "b", Expected::Exact(4)),
            wish("1", "c", Expected::Exists),
        ];

        let next = decide(&wishes, &heads(&[("1", 3)]), NOW, false);

        assert_eq!(next, [goes(4), goes(1), goes(5), goes(6)]);
    }

    #[test]
    fn whom_others_of_its_group_stand_before_is_judged_when_they_are_over() {
        let wishes = [wish("1", "a", Expected::Exact(3)), wish("1", "b", Expected::Exact(3))];

        let next = decide(&wishes, &heads(&[("1", 3)]), NOW, false);

        assert_eq!(next, [goes(4), Next::Later]);
    }

    #[test]
    fn a_request_that_is_there_twice_goes_once() {
        let wishes = [wish("1", "a", Expected::Any), wish("1", "a", Expected::Any)];

        assert_eq!(decide(&wishes, &heads(&[("1", 0)]), NOW, false), [goes(1), Next::Later]);
    }

    #[test]
    fn only_what_was_read_for_this_group_makes_a_conflict() {
        let mut heads = heads(&[("1", 3)]);
        let wishes = [wish("1", "a", Expected::Exact(9)), wish("2", "a", Expected::Exists)];

        let fresh = decide(&wishes, &heads, NOW, false);
        heads.begin_group();
        let earlier = decide(&wishes, &heads, NOW, false);

        assert_eq!(fresh, [Next::Conflicts { actual: 3 }, Next::Unknown]);
        assert_eq!(earlier, [Next::Unknown, Next::Unknown]);
    }

    #[test]
    fn time_does_not_go_back_within_an_aggregate() {
        let mut heads = heads(&[]);
        heads.learn(aggregate("1"), Head { version: 1, create_time: NOW + 5 });

        let next = decide(&[wish("1", "a", Expected::Any)], &heads, NOW, false);

        assert_eq!(next, [Next::Goes(Place { version: 2, create_time: NOW + 5 })]);
    }

    #[test]
    fn alone_only_the_first_ones_aggregate_goes() {
        let wishes = [wish("1", "a", Expected::None), wish("2", "a", Expected::None)];

        assert_eq!(decide(&wishes, &heads(&[]), NOW, true), [goes(1), Next::Later]);
    }

    fn expected() -> impl Strategy<Value = Expected> {
        prop_oneof![
            Just(Expected::Any),
            Just(Expected::None),
            Just(Expected::Exists),
            (0_i64..4).prop_map(Expected::Exact),
        ]
    }

    proptest! {
        /// Whatever is asked for: versions of an aggregate follow each other without a gap, each
        /// fits what its append expected, and nobody waits while nobody goes.
        #[test]
        fn what_goes_is_what_one_after_the_other_would_have_done(
            asked in prop::collection::vec((0_u8..3, 0_u8..6, expected()), 1..12),
            versions in prop::collection::vec(0_i64..4, 3),
            alone in any::<bool>(),
        ) {
            let names: Vec<(String, String)> =
                asked.iter().map(|(id, request, _)| (id.to_string(), request.to_string())).collect();
            let wishes: Vec<Wish<'_>> = names
                .iter()
                .zip(&asked)
                .map(|((id, request), (.., expected))| wish(id, request, *expected))
                .collect();
            let known: Vec<(String, i64)> =
                versions.iter().enumerate().map(|(id, version)| (id.to_string(), *version)).collect();
            let known: Vec<(&str, i64)> =
                known.iter().map(|(id, version)| (id.as_str(), *version)).collect();

            let next = decide(&wishes, &heads(&known), NOW, alone);

            let mut at: HashMap<&Aggregate, i64> = HashMap::new();
            for (wish, next) in wishes.iter().zip(&next) {
                let id: usize = wish.aggregate.1.as_str().parse().unwrap();
                let version = at.entry(&wish.aggregate).or_insert(versions[id]);
                match next {
                    Next::Goes(place) => {
                        prop_assert!(wish.expected.fits(*version));
                        prop_assert_eq!(place.version, *version + 1);
                        *version = place.version;
                    }
                    Next::Conflicts { actual } => {
                        prop_assert!(!wish.expected.fits(*actual));
                        prop_assert_eq!(*actual, versions[id]);
                    }
                    Next::Unknown => prop_assert!(false, "everything is known"),
                    Next::Later => {}
                }
            }
            let waits = next.contains(&Next::Later);
            let moves = next.iter().any(|next| *next != Next::Later);
            prop_assert!(!waits || moves);
        }
    }
}
