//! Decides which appends of a group go into one transaction, and at which versions. Pure.

use std::collections::{HashMap, HashSet};

use crate::append::Append;
use crate::names::AggregateKey;
use crate::prepared::Place;
use crate::state::{EndKind, StreamState};
use crate::version_cache::{Cached, LatestVersion, VersionCache};

/// The next step for one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Write it at this place.
    Write(Place),
    /// Its aggregate is at another version than it expects.
    Conflict {
        /// The version of the aggregate.
        actual: i64,
    },
    /// Its stream has ended.
    Ended {
        /// The version of the aggregate.
        actual: i64,
    },
    /// Read its aggregate first: the version is missing or stale.
    ReadFirst,
    /// Decide once the appends before it are answered.
    Wait,
}

/// An append to decide about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) append: &'a Append,
    pub(super) ending: Option<EndKind>,
}

/// Decides for appends in the order of their arrival, at a time of the server.
///
/// With `first_aggregate_only`, appends to other aggregates than the first one's wait.
///
/// Appends to one aggregate are numbered in their order. One that does not fit the version after those
/// before it is not in conflict yet: they may fail. A request that is in the group twice is written once,
/// and the second one is answered as a replay.
pub(super) fn decide(
    appends: &[Candidate<'_>],
    cache: &VersionCache,
    now: i64,
    first_aggregate_only: bool,
) -> Vec<Decision> {
    let mut planned: HashMap<AggregateKey, LatestVersion> = HashMap::new();
    let mut requests: HashSet<(AggregateKey, &str)> = HashSet::new();
    let mut decisions = Vec::with_capacity(appends.len());
    for Candidate { append, ending } in appends {
        let aggregate = append.aggregate();
        let is_excluded = first_aggregate_only && aggregate != appends[0].append.aggregate();
        if is_excluded || !requests.insert((aggregate.clone(), append.request_id.as_str())) {
            decisions.push(Decision::Wait);
            continue;
        }
        let before = planned.get(&aggregate).copied();
        let (latest, is_sure) = match (before, cache.get(&aggregate)) {
            (Some(latest), _) => (latest, false),
            (None, Cached::Fresh(latest)) => (latest, true),
            (None, Cached::Stale(latest)) => (latest, false),
            // Mostly right for a first append; else the unique index refuses it.
            (None, Cached::Missing) if append.expected.is_none() => {
                (LatestVersion::default(), false)
            }
            (None, Cached::Missing) => {
                decisions.push(Decision::ReadFirst);
                continue;
            }
        };
        let is_permitted = latest.state.permits(*ending);
        decisions.push(if is_permitted && append.expected.fits(latest.version) {
            // Times never decrease within an aggregate, even if clocks do.
            let create_time = now.max(latest.create_time);
            let place = Place { version: latest.version + 1, create_time };
            let state = StreamState::after(*ending);
            planned.insert(aggregate, LatestVersion { version: place.version, create_time, state });
            Decision::Write(place)
        } else if is_sure && !is_permitted {
            Decision::Ended { actual: latest.version }
        } else if is_sure {
            Decision::Conflict { actual: latest.version }
        } else if before.is_some() {
            Decision::Wait
        } else {
            Decision::ReadFirst
        });
    }
    decisions
}

#[cfg(test)]
mod tests {
    use postrider_outbox::erase::PendingRecords;
    use proptest::prelude::*;

    use super::*;
    use crate::append::Expected;
    use crate::names::{AggregateId, AggregateName};

    const NOW: i64 = 100;

    fn aggregate(id: &str) -> AggregateKey {
        (AggregateName::new("a").unwrap(), AggregateId::new(id).unwrap())
    }

    fn append(id: &str, request_id: &str, expected: Expected) -> Append {
        let (name, id) = aggregate(id);
        Append::new(name, id, request_id, vec![]).expecting(expected)
    }

    fn decided(appends: &[Append], cache: &VersionCache, first_only: bool) -> Vec<Decision> {
        let appends: Vec<_> =
            appends.iter().map(|append| Candidate { append, ending: None }).collect();
        decide(&appends, cache, NOW, first_only)
    }

    fn cached(fresh: &[(&str, i64)]) -> VersionCache {
        let mut cache = VersionCache::default();
        cache.begin_group();
        for (id, version) in fresh {
            cache.insert(aggregate(id), at(*version, 0));
        }
        cache
    }

    fn at(version: i64, create_time: i64) -> LatestVersion {
        LatestVersion { version, create_time, ..LatestVersion::default() }
    }

    fn goes(version: i64) -> Decision {
        Decision::Write(Place { version, create_time: NOW })
    }

    #[test]
    fn appends_to_one_aggregate_are_numbered_in_order() {
        let appends = [
            append("1", "a", Expected::Any),
            append("2", "a", Expected::None),
            append("1", "b", Expected::Exact(4)),
            append("1", "c", Expected::Exists),
        ];

        let next = decided(&appends, &cached(&[("1", 3)]), false);

        assert_eq!(next, [goes(4), goes(1), goes(5), goes(6)]);
    }

    #[test]
    fn append_waits_when_earlier_ones_change_its_version() {
        let appends = [append("1", "a", Expected::Exact(3)), append("1", "b", Expected::Exact(3))];

        let next = decided(&appends, &cached(&[("1", 3)]), false);

        assert_eq!(next, [goes(4), Decision::Wait]);
    }

    #[test]
    fn request_is_written_once_when_it_is_queued_twice() {
        let appends = [append("1", "a", Expected::Any), append("1", "a", Expected::Any)];

        assert_eq!(decided(&appends, &cached(&[("1", 0)]), false), [goes(1), Decision::Wait]);
    }

    #[test]
    fn conflict_needs_a_version_read_for_this_group() {
        let mut cache = cached(&[("1", 3)]);
        let appends = [append("1", "a", Expected::Exact(9)), append("2", "a", Expected::Exists)];

        let fresh = decided(&appends, &cache, false);
        cache.begin_group();
        let earlier = decided(&appends, &cache, false);

        assert_eq!(fresh, [Decision::Conflict { actual: 3 }, Decision::ReadFirst]);
        assert_eq!(earlier, [Decision::ReadFirst, Decision::ReadFirst]);
    }

    #[test]
    fn append_to_an_ended_stream_is_refused_by_a_fresh_read_only() {
        let mut cache = cached(&[]);
        let ended = LatestVersion { state: StreamState::Ended, ..at(3, 0) };
        cache.insert(aggregate("1"), ended);
        let appends = [append("1", "a", Expected::Any), append("1", "b", Expected::Exact(3))];

        let fresh = decided(&appends, &cache, false);
        cache.begin_group();
        let earlier = decided(&appends, &cache, false);

        assert_eq!(fresh, [Decision::Ended { actual: 3 }, Decision::Ended { actual: 3 }]);
        assert_eq!(earlier, [Decision::ReadFirst, Decision::ReadFirst]);
    }

    #[test]
    fn append_waits_behind_an_end_in_its_group() {
        let (first, second) = (append("1", "a", Expected::Exists), append("1", "b", Expected::Any));
        let candidates = [
            Candidate { append: &first, ending: Some(EndKind::End) },
            Candidate { append: &second, ending: None },
        ];

        let next = decide(&candidates, &cached(&[("1", 3)]), NOW, false);

        assert_eq!(next, [goes(4), Decision::Wait]);
    }

    #[test]
    fn time_never_decreases_within_an_aggregate() {
        let mut cache = cached(&[]);
        cache.insert(aggregate("1"), at(1, NOW + 5));

        let next = decided(&[append("1", "a", Expected::Any)], &cache, false);

        assert_eq!(next, [Decision::Write(Place { version: 2, create_time: NOW + 5 })]);
    }

    #[test]
    fn appends_to_other_aggregates_wait_when_excluded() {
        let appends = [append("1", "a", Expected::None), append("2", "a", Expected::None)];

        assert_eq!(decided(&appends, &cached(&[]), true), [goes(1), Decision::Wait]);
    }

    fn expected() -> impl Strategy<Value = Expected> {
        prop_oneof![
            Just(Expected::Any),
            Just(Expected::None),
            Just(Expected::Exists),
            (0_i64..4).prop_map(Expected::Exact),
        ]
    }

    fn ending() -> impl Strategy<Value = Option<EndKind>> {
        prop_oneof![
            4 => Just(None),
            1 => Just(Some(EndKind::End)),
            1 => Just(Some(EndKind::Erase(PendingRecords::Deliver))),
        ]
    }

    proptest! {
        /// Versions of an aggregate have no gap, each fits its append's expectation, nothing but an erasure
        /// follows an end, and no append waits
        /// while none is written.
        #[test]
        fn decisions_equal_those_of_single_appends(
            asked in prop::collection::vec((0_u8..3, 0_u8..6, expected(), ending()), 1..12),
            versions in prop::collection::vec(0_i64..4, 3),
            alone in any::<bool>(),
        ) {
            let appends: Vec<Append> = asked
                .iter()
                .map(|(id, request, expected, _)| {
                    append(&id.to_string(), &request.to_string(), *expected)
                })
                .collect();
            let known: Vec<(String, i64)> =
                versions.iter().enumerate().map(|(id, version)| (id.to_string(), *version)).collect();
            let known: Vec<(&str, i64)> =
                known.iter().map(|(id, version)| (id.as_str(), *version)).collect();

            let candidates: Vec<Candidate<'_>> = appends
                .iter()
                .zip(&asked)
                .map(|(append, (.., ending))| Candidate { append, ending: *ending })
                .collect();
            let next = decide(&candidates, &cached(&known), NOW, alone);

            let mut states: HashMap<AggregateKey, StreamState> = HashMap::new();
            let mut at: HashMap<AggregateKey, i64> = HashMap::new();
            for (Candidate { append, ending }, next) in candidates.iter().zip(&next) {
                let state = states.entry(append.aggregate()).or_default();
                let id: usize = append.id.as_str().parse().unwrap();
                let version = at.entry(append.aggregate()).or_insert(versions[id]);
                match next {
                    Decision::Write(place) => {
                        prop_assert!(append.expected.fits(*version));
                        prop_assert!(state.permits(*ending));
                        prop_assert_eq!(place.version, *version + 1);
                        *state = StreamState::after(*ending);
                        *version = place.version;
                    }
                    Decision::Conflict { actual } => {
                        prop_assert!(!append.expected.fits(*actual));
                        prop_assert_eq!(*actual, versions[id]);
                    }
                    Decision::Ended { .. } => prop_assert!(false, "no stream had ended"),
                    Decision::ReadFirst => prop_assert!(false, "everything is known"),
                    Decision::Wait => {}
                }
            }
            let waits = next.contains(&Decision::Wait);
            let moves = next.iter().any(|next| *next != Decision::Wait);
            prop_assert!(!waits || moves);
        }
    }
}
