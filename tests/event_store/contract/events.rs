//! The clauses of the contract of an event store.

use std::collections::BTreeSet;

use bson::doc;
use futures_util::future::join_all;
use postrider::events::{Append, AppendError, Appended, Expected, LoadError, NewEvent, Range};
use postrider::names::{AggregateId, AggregateName};

use crate::contract::stores::Events;

fn id(text: &str) -> AggregateId {
    AggregateId::new(text).unwrap()
}

/// An append of one event to aggregate `id`.
fn append(name: &AggregateName, aggregate: &str, request: &str) -> Append {
    let event = NewEvent::new("E", doc! { "of": request });
    Append::new(name.clone(), id(aggregate), request, vec![event])
}

/// Appends this many versions to aggregate `1`, by requests `r1`, `r2`, …
async fn with_versions(store: &impl Events, name: &AggregateName, count: i64) {
    for version in 1..=count {
        let appended = store.append(append(name, "1", &format!("r{version}"))).await.unwrap();
        assert_eq!((appended.version, appended.replayed), (version, false));
    }
}

async fn versions(store: &impl Events, name: &AggregateName, range: Range) -> Vec<i64> {
    let loaded = store.load(name, &id("1"), &range).await.unwrap();
    loaded.iter().map(|stream| stream.version).collect()
}

pub async fn appended_events_are_loaded(store: &impl Events, name: &AggregateName) {
    let event = |name: &str| NewEvent {
        revision: Some("1.1".into()),
        body_type: Some(format!("shop.{name}")),
        ..NewEvent::new(name, doc! { "b": 1, "a": { "deep": [true, "ß"] } })
    };
    let mut given = append(name, "1", "first").tenant("t");
    given.events = vec![event("One"), event("Two"), event("Three")];
    given.command_id = Some("command".into());
    given.owner_id = Some("owner".into());
    given.header = doc! { "upstream_id": "saga" };

    let appended = store.append(given.clone()).await.unwrap();
    store.append(append(name, "1", "second")).await.unwrap();
    let loaded = store.load(name, &id("1"), &Range::default()).await.unwrap();

    assert_eq!((appended.version, appended.size, appended.replayed), (1, 3, false));
    assert_eq!(appended.aggregate_id, "1");
    assert_eq!(appended.records.iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(loaded.iter().map(|it| it.version).collect::<Vec<_>>(), [1, 2]);
    let first = &loaded[0];
    assert_eq!((&first.id, first.create_time), (&appended.id, appended.create_time));
    assert_eq!((&*first.aggregate_name, &*first.aggregate_id), (name.as_str(), "1"));
    assert_eq!((&*first.request_id, first.size), ("first", 3));
    assert_eq!(first.command_id, given.command_id);
    assert_eq!((&first.tenant_id, &first.owner_id), (&given.tenant_id, &given.owner_id));
    assert_eq!(first.header, given.header);
    assert_eq!(first.body.len(), 3);
    for (event, given) in first.body.iter().zip(&given.events) {
        assert_eq!((&event.name, &event.revision), (&given.name, &given.revision));
        assert_eq!((&event.body_type, &event.body), (&given.body_type, &given.body));
    }
    assert!(loaded[1].create_time >= first.create_time);
}

pub async fn invalid_append_is_refused(store: &impl Events, name: &AggregateName) {
    let empty = Append { events: vec![], ..append(name, "1", "r") };
    let nameless = Append { request_id: String::new(), ..append(name, "1", "r") };
    let negative = append(name, "1", "r").expecting(Expected::Exact(-1));

    for wrong in [empty, nameless, negative] {
        let refused = store.append(wrong).await;
        assert!(matches!(refused, Err(AppendError::Invalid(_))), "{refused:?}");
    }

    assert!(versions(store, name, Range::default()).await.is_empty());
}

pub async fn duplicate_aggregate_is_refused(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 2).await;
    for (request, first) in [("none", Expected::None), ("zero", Expected::Exact(0))] {
        let refused = store.append(append(name, "1", request).expecting(first)).await;
        assert!(
            matches!(refused, Err(AppendError::DuplicateAggregate { actual: 2 })),
            "{refused:?}"
        );
    }
    assert_eq!(versions(store, name, Range::default()).await, [1, 2]);
}

pub async fn append_at_another_version_is_refused(store: &impl Events, name: &AggregateName) {
    let absent = store.append(append(name, "2", "x").expecting(Expected::Exists)).await;
    assert!(matches!(absent, Err(AppendError::VersionConflict { actual: 0, .. })), "{absent:?}");
    with_versions(store, name, 3).await;

    for wrong in [1, 2, 4, 99] {
        let refused = store.append(append(name, "1", "x").expecting(Expected::Exact(wrong))).await;
        assert!(
            matches!(refused, Err(AppendError::VersionConflict { actual: 3, .. })),
            "{wrong}: {refused:?}"
        );
    }

    for (request, right) in [("x", Expected::Exact(3)), ("y", Expected::Exists)] {
        store.append(append(name, "1", request).expecting(right)).await.unwrap();
    }
    assert_eq!(versions(store, name, Range::default()).await, [1, 2, 3, 4, 5]);
}

/// An error in the Wow framework; here an answer.
pub async fn repeated_request_gets_the_first_answer(store: &impl Events, name: &AggregateName) {
    let first = append(name, "1", "r1").expecting(Expected::None);
    let answer = store.append(first.clone()).await.unwrap();
    store.append(append(name, "1", "r2")).await.unwrap();
    let mut other = append(name, "1", "r1");
    other.events.push(NewEvent::new("More", doc! {}));

    // Decided before the version; bodies are not compared.
    for again in [first.clone(), first.expecting(Expected::Exact(9)), other] {
        let again = store.append(again).await.unwrap();
        assert_eq!(again, Appended { replayed: true, ..answer.clone() });
    }

    assert_eq!(versions(store, name, Range::default()).await, [1, 2]);
}

pub async fn request_ids_are_scoped_to_the_aggregate(store: &impl Events, name: &AggregateName) {
    for aggregate in ["1", "2", "3"] {
        let appended = store.append(append(name, aggregate, "r")).await.unwrap();
        assert_eq!((appended.version, appended.replayed), (1, false));
    }
}

pub async fn request_is_found_in_its_aggregate_only(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 2).await;
    store.append(append(name, "2", "r3")).await.unwrap();
    let exists = async |aggregate: &str, request: &str| {
        store.exists_request_id(name, &id(aggregate), request).await.unwrap()
    };

    assert!(exists("1", "r1").await && exists("1", "r2").await && exists("2", "r3").await);
    assert!(!exists("1", "r3").await && !exists("2", "r1").await && !exists("3", "r1").await);
}

pub async fn concurrent_appends_to_many_aggregates_are_stored(
    store: &impl Events,
    name: &AggregateName,
) {
    let ids: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    let appends = ids.iter().map(|id| store.append(append(name, id, "r")));
    for appended in join_all(appends).await {
        assert_eq!(appended.unwrap().version, 1);
    }

    assert_eq!(store.aggregate_ids(name, None, 1_000, None).await.unwrap(), ids);
}

pub async fn one_of_several_appends_wins_a_version(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 1).await;
    let racers = (0..100).map(|racer| {
        store.append(append(name, "1", &format!("racer {racer}")).expecting(Expected::Exact(1)))
    });
    let (won, lost): (Vec<_>, Vec<_>) = join_all(racers).await.into_iter().partition(Result::is_ok);

    assert_eq!((won.len(), lost.len()), (1, 99));
    for lost in lost {
        assert!(matches!(lost, Err(AppendError::VersionConflict { actual: 2, .. })), "{lost:?}");
    }
    assert_eq!(versions(store, name, Range::default()).await, [1, 2]);
}

pub async fn concurrent_appends_to_one_aggregate_leave_no_gap(
    store: &impl Events,
    name: &AggregateName,
) {
    let appends = (0..100).map(|number| store.append(append(name, "1", &number.to_string())));
    let mut answered: Vec<i64> =
        join_all(appends).await.into_iter().map(|it| it.unwrap().version).collect();
    answered.sort_unstable();

    assert_eq!(answered, (1..=100).collect::<Vec<_>>());
    assert_eq!(versions(store, name, Range::default()).await, answered);
}

pub async fn concurrent_loads_are_complete(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 10).await;

    let loads = (0..1_000).map(|_| versions(store, name, Range::default()));
    for loaded in join_all(loads).await {
        assert_eq!(loaded, (1..=10).collect::<Vec<_>>());
    }
}

pub async fn absent_events_are_not_found(store: &impl Events, name: &AggregateName) {
    let nothing = async || {
        assert!(versions(store, name, Range::default()).await.is_empty());
        assert_eq!(store.single(name, &id("1"), 1, None).await.unwrap(), None);
        assert_eq!(store.last(name, &id("1"), None).await.unwrap(), None);
        assert!(!store.exists_request_id(name, &id("1"), "r").await.unwrap());
    };
    nothing().await;
    assert!(store.aggregate_ids(name, None, 9, None).await.unwrap().is_empty());

    store.append(append(name, "2", "r")).await.unwrap();
    nothing().await;
}

pub async fn versions_are_loaded_by_inclusive_range(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 5).await;
    let from = |version| Range { from_version: Some(version), ..Range::default() };
    let to = |version| Range { to_version: Some(version), ..Range::default() };

    assert_eq!(versions(store, name, Range::versions(2..=4)).await, [2, 3, 4]);
    assert_eq!(versions(store, name, Range::versions(3..=3)).await, [3]);
    assert_eq!(versions(store, name, Range::versions(0..=99)).await, [1, 2, 3, 4, 5]);
    assert_eq!(versions(store, name, from(4)).await, [4, 5]);
    assert_eq!(versions(store, name, to(2)).await, [1, 2]);
    assert!(versions(store, name, from(6)).await.is_empty());
    let two = Range { limit: Some(2), ..from(2) };
    assert_eq!(versions(store, name, two).await, [2, 3]);
}

pub async fn single_and_last_versions_are_found(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 3).await;
    let all = store.load(name, &id("1"), &Range::default()).await.unwrap();

    for stream in &all {
        let single = store.single(name, &id("1"), stream.version, None).await.unwrap();
        assert_eq!(single.as_ref(), Some(stream));
    }
    assert_eq!(store.single(name, &id("1"), 0, None).await.unwrap(), None);
    assert_eq!(store.single(name, &id("1"), 4, None).await.unwrap(), None);
    assert_eq!(store.last(name, &id("1"), None).await.unwrap().as_ref(), all.last());
}

pub async fn times_are_loaded_by_inclusive_range(store: &impl Events, name: &AggregateName) {
    let mut times: Vec<i64> = Vec::new();
    // Until there are four different times.
    while times.iter().collect::<BTreeSet<_>>().len() < 4 {
        let request = times.len().to_string();
        times.push(store.append(append(name, "1", &request)).await.unwrap().create_time);
    }
    let distinct: Vec<i64> = times.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let within = async |range: Range, from: i64, to: i64| {
        let expected = (1..).zip(&times).filter(|(_, time)| (from..=to).contains(*time));
        let expected: Vec<i64> = expected.map(|(version, _)| version).collect();
        assert_eq!(versions(store, name, range).await, expected);
    };

    let (from, to) = (distinct[1], distinct[2]);
    within(Range::times(from..=to), from, to).await;
    within(Range::times(from..=from), from, from).await;
    within(Range { from_time: Some(to), ..Range::default() }, to, i64::MAX).await;
    within(Range { to_time: Some(from), ..Range::default() }, 0, from).await;
    let later = distinct[3] + 1;
    within(Range::times(later..=later), later, later).await;
}

pub async fn invalid_range_is_refused(store: &impl Events, name: &AggregateName) {
    with_versions(store, name, 3).await;
    let (two, three, minus) = (Some(2), Some(3), Some(-1));
    for range in [
        Range { from_version: three, to_version: two, ..Range::default() },
        Range { from_version: minus, to_version: two, ..Range::default() },
        Range { from_time: three, to_time: two, ..Range::default() },
        Range { from_time: minus, to_time: two, ..Range::default() },
    ] {
        let refused = store.load(name, &id("1"), &range).await;
        assert!(matches!(refused, Err(LoadError::Range(_))), "{range:?}: {refused:?}");
    }
}

pub async fn aggregates_are_listed_once_in_order(store: &impl Events, name: &AggregateName) {
    let other = AggregateName::new(&format!("{name}.other")).unwrap();
    for aggregate in ["b", "a10", "a9", "Z"] {
        for request in ["1", "2"] {
            store.append(append(name, aggregate, request)).await.unwrap();
        }
    }
    store.append(append(&other, "a5", "1")).await.unwrap();
    let scan = async |after: Option<&str>, limit: u32| {
        store.aggregate_ids(name, after, limit, None).await.unwrap()
    };

    assert_eq!(scan(None, 99).await, ["Z", "a10", "a9", "b"]);
    assert_eq!(scan(None, 2).await, ["Z", "a10"]);
    assert_eq!(scan(Some("a10"), 2).await, ["a9", "b"]);
    assert_eq!(scan(Some("a"), 1).await, ["a10"]);
    assert!(scan(Some("b"), 9).await.is_empty());
    assert!(scan(None, 0).await.is_empty());
    assert_eq!(store.aggregate_ids(&other, None, 9, None).await.unwrap(), ["a5"]);
}

pub async fn reads_are_limited_to_the_tenant(store: &impl Events, name: &AggregateName) {
    store.append(append(name, "1", "r").tenant("t")).await.unwrap();
    store.append(append(name, "2", "r").tenant("u")).await.unwrap();
    store.append(append(name, "3", "r")).await.unwrap();

    for (tenant, sees) in [(Some("t"), true), (None, true), (Some("u"), false)] {
        let range = Range { tenant_id: tenant.map(str::to_owned), ..Range::default() };
        assert_eq!(!versions(store, name, range).await.is_empty(), sees, "{tenant:?}");
        let single = store.single(name, &id("1"), 1, tenant).await.unwrap();
        assert_eq!(single.is_some(), sees, "{tenant:?}");
        let last = store.last(name, &id("1"), tenant).await.unwrap();
        assert_eq!(last.is_some(), sees, "{tenant:?}");
        assert!(last.is_none_or(|last| last.tenant_id.as_deref() == Some("t")));
    }
    assert_eq!(store.aggregate_ids(name, None, 9, Some("t")).await.unwrap(), ["1"]);
    assert_eq!(store.aggregate_ids(name, None, 9, None).await.unwrap(), ["1", "2", "3"]);
}
