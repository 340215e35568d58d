//! Decides which appends of a group go into one transaction, and at which versions. Pure.

use std::collections::{HashMap, HashSet};

use crate::append::Expected;
use crate::prepared::{AggregateKey, Place};
use crate::version_cache::{Cached, LatestVersion, VersionCache};

/// The part of an append that the decision depends on.
#[derive(Clone, Debug)]
pub(super) struct AppendIntent<'a> {
    pub(super) aggregate: AggregateKey,
    pub(super) request_id: &'a str,
    pub(super) expected: Expected,
}

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
    /// Read its aggregate first: the version is missing or stale.
    ReadFirst,
    /// Decide once the appends before it are answered.
    Wait,
}

/// Decides for appends in the order of their arrival, at a time of the server.
///
/// With `first_aggregate_only`, appends to other aggregates than the first one's wait.
///
/// Appends to one aggregate are numbered in their order. One that does not fit the version after those
/// before it is not in conflict yet: they may fail. A request that is in the group twice is written once,
/// and the second one is answered as a replay.
pub(super) fn decide(
    intents: &[AppendIntent<'_>],
    cache: &VersionCache,
    now: i64,
    first_aggregate_only: bool,
) -> Vec<Decision> {
    let mut planned: HashMap<&AggregateKey, LatestVersion> = HashMap::new();
    let mut requests: HashSet<(&AggregateKey, &str)> = HashSet::new();
    let mut decisions = Vec::with_capacity(intents.len());
    for intent in intents {
        let aggregate = &intent.aggregate;
        let is_excluded = first_aggregate_only && *aggregate != intents[0].aggregate;
        if is_excluded || !requests.insert((aggregate, intent.request_id)) {
            decisions.push(Decision::Wait);
            continue;
        }
        let before = planned.get(aggregate).copied();
        let (latest, is_sure) = match (before, cache.get(aggregate)) {
            (Some(latest), _) => (latest, false),
            (None, Cached::Fresh(latest)) => (latest, true),
            (None, Cached::Stale(latest)) => (latest, false),
            // Mostly right for a first append; else the unique index refuses it.
            (None, Cached::Missing) if intent.expected.is_none() => {
                (LatestVersion::default(), false)
            }
            (None, Cached::Missing) => {
                decisions.push(Decision::ReadFirst);
                continue;
            }
        };
        decisions.push(if intent.expected.fits(latest.version) {
            // Times never decrease within an aggregate, even if clocks do.
            let create_time = now.max(latest.create_time);
            let place = Place { version: latest.version + 1, create_time };
            planned.insert(aggregate, LatestVersion { version: place.version, create_time });
            Decision::Write(place)
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
    use proptest::prelude::*;

    use super::*;
    use crate::names::{AggregateId, AggregateName};

    const NOW: i64 = 100;

    fn aggregate(id: &str) -> AggregateKey {
        (AggregateName::new("a").unwrap(), AggregateId::new(id).unwrap())
    }

    fn intent<'a>(id: &str, request_id: &'a str, expected: Expected) -> AppendIntent<'a> {
        AppendIntent { aggregate: aggregate(id), request_id, expected }
    }

    fn cached(fresh: &[(&str, i64)]) -> VersionCache {
        let mut cache = VersionCache::default();
        cache.begin_group();
        for (id, version) in fresh {
            cache.insert(aggregate(id), LatestVersion { version: *version, create_time: 0 });
        }
        cache
    }

    fn goes(version: i64) -> Decision {
        Decision::Write(Place { version, create_time: NOW })
    }

    #[test]
    fn appends_to_one_aggregate_are_numbered_in_order() {
        let intents = [
            intent("1", "a", Expected::Any),
            intent("2", "a", Expected::None),
            intent("1", "b", Expected::Exact(4)),
            intent("1", "c", Expected::Exists),
        ];

        let next = decide(&intents, &cached(&[("1", 3)]), NOW, false);

        assert_eq!(next, [goes(4), goes(1), goes(5), goes(6)]);
    }

    #[test]
    fn append_waits_when_earlier_ones_change_its_version() {
        let intents = [intent("1", "a", Expected::Exact(3)), intent("1", "b", Expected::Exact(3))];

        let next = decide(&intents, &cached(&[("1", 3)]), NOW, false);

        assert_eq!(next, [goes(4), Decision::Wait]);
    }

    #[test]
    fn request_is_written_once_when_it_is_queued_twice() {
        let intents = [intent("1", "a", Expected::Any), intent("1", "a", Expected::Any)];

        assert_eq!(decide(&intents, &cached(&[("1", 0)]), NOW, false), [goes(1), Decision::Wait]);
    }

    #[test]
    fn conflict_needs_a_version_read_for_this_group() {
        let mut cache = cached(&[("1", 3)]);
        let intents = [intent("1", "a", Expected::Exact(9)), intent("2", "a", Expected::Exists)];

        let fresh = decide(&intents, &cache, NOW, false);
        cache.begin_group();
        let earlier = decide(&intents, &cache, NOW, false);

        assert_eq!(fresh, [Decision::Conflict { actual: 3 }, Decision::ReadFirst]);
        assert_eq!(earlier, [Decision::ReadFirst, Decision::ReadFirst]);
    }

    #[test]
    fn time_never_decreases_within_an_aggregate() {
        let mut cache = cached(&[]);
        cache.insert(aggregate("1"), LatestVersion { version: 1, create_time: NOW + 5 });

        let next = decide(&[intent("1", "a", Expected::Any)], &cache, NOW, false);

        assert_eq!(next, [Decision::Write(Place { version: 2, create_time: NOW + 5 })]);
    }

    #[test]
    fn appends_to_other_aggregates_wait_when_excluded() {
        let intents = [intent("1", "a", Expected::None), intent("2", "a", Expected::None)];

        assert_eq!(decide(&intents, &cached(&[]), NOW, true), [goes(1), Decision::Wait]);
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
        /// Versions of an aggregate have no gap, each fits its append's expectation, and no append waits
        /// while none is written.
        #[test]
        fn decisions_equal_those_of_single_appends(
            asked in prop::collection::vec((0_u8..3, 0_u8..6, expected()), 1..12),
            versions in prop::collection::vec(0_i64..4, 3),
            alone in any::<bool>(),
        ) {
            let names: Vec<(String, String)> =
                asked.iter().map(|(id, request, _)| (id.to_string(), request.to_string())).collect();
            let intents: Vec<AppendIntent<'_>> = names
                .iter()
                .zip(&asked)
                .map(|((id, request), (.., expected))| intent(id, request, *expected))
                .collect();
            let known: Vec<(String, i64)> =
                versions.iter().enumerate().map(|(id, version)| (id.to_string(), *version)).collect();
            let known: Vec<(&str, i64)> =
                known.iter().map(|(id, version)| (id.as_str(), *version)).collect();

            let next = decide(&intents, &cached(&known), NOW, alone);

            let mut at: HashMap<&AggregateKey, i64> = HashMap::new();
            for (intent, next) in intents.iter().zip(&next) {
                let id: usize = intent.aggregate.1.as_str().parse().unwrap();
                let version = at.entry(&intent.aggregate).or_insert(versions[id]);
                match next {
                    Decision::Write(place) => {
                        prop_assert!(intent.expected.fits(*version));
                        prop_assert_eq!(place.version, *version + 1);
                        *version = place.version;
                    }
                    Decision::Conflict { actual } => {
                        prop_assert!(!intent.expected.fits(*actual));
                        prop_assert_eq!(*actual, versions[id]);
                    }
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
