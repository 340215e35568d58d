//! Aggregates loaded from a snapshot and later events, and from all events.

use std::error::Error;

use bson::{Document, doc};
use postrider::context::CollectionKind;
use postrider::events::{Append, AppendError, Event, EventStore, Expected, NewEvent};
use postrider::snapshot::{
    Aggregate, Loaded, Repository, RepositoryError, Saved, Snapshot, SnapshotStore, Strategy,
};
use serde::{Deserialize, Serialize};

use crate::home::{Home, id, order};
use crate::support::outbox::TestOutbox;

/// An aggregate whose state depends on each event and on their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Tally {
    total: i64,
    steps: Vec<i64>,
    deleted: bool,
}

impl Aggregate for Tally {
    fn apply(&mut self, event: &Event) -> Result<(), Box<dyn Error + Send + Sync>> {
        match event.name.as_str() {
            "Added" => {
                let step = event.body.get_i64("step")?;
                self.total = self.total * 3 + step;
                self.steps.push(step);
            }
            "Deleted" => self.deleted = true,
            other => return Err(format!("no event of a tally: {other}").into()),
        }
        Ok(())
    }

    fn is_deleted(&self) -> bool {
        self.deleted
    }
}

struct Stage {
    _outbox: TestOutbox,
    home: Home,
    events: EventStore,
}

impl Stage {
    async fn new() -> Self {
        let outbox = TestOutbox::new().await;
        let home = Home::within(&outbox, &outbox.client);
        let events = EventStore::new(home.context.clone(), outbox.admin.clone());
        Self { _outbox: outbox, home, events }
    }

    fn repository(&self, strategy: Strategy) -> Repository<Tally> {
        Repository::new(self.events.clone(), self.snapshots(), order(), strategy)
    }

    fn snapshots(&self) -> SnapshotStore {
        self.home.snapshots()
    }
}

/// An append of two events.
fn append(aggregate: &str, version: i64) -> Append {
    let added = |step: i64| NewEvent::new("Added", doc! { "step": step });
    let events = vec![added(version * 10), added(version * 10 + 1)];
    Append::new(order(), id(aggregate), format!("request-{version}"), events)
        .expecting(Expected::Exact(version - 1))
}

/// The state after all events up to a version.
fn replayed(version: i64) -> Tally {
    let steps: Vec<i64> = (1..=version).flat_map(|v| [v * 10, v * 10 + 1]).collect();
    let total = steps.iter().fold(0, |total, step| total * 3 + step);
    Tally { total, steps, deleted: false }
}

fn is_as_of(loaded: &Loaded<Tally>, version: i64) {
    assert_eq!(loaded.state, replayed(version));
    assert_eq!(loaded.version, version);
}

#[fixture::test]
async fn snapshot_and_later_events_equal_all_events() {
    let stage = Stage::new().await;
    let strategies = [
        (Strategy::All, [1, 2, 3, 4, 5, 6, 7]),
        (Strategy::EveryVersions(3), [0, 0, 3, 3, 3, 6, 6]),
        (Strategy::None, [0; 7]),
    ];
    for (aggregate, (strategy, snapshot_versions)) in ["a", "b", "c"].into_iter().zip(strategies) {
        let repository = stage.repository(strategy);
        for (version, snapshot_version) in (1..).zip(snapshot_versions) {
            let last = stage.snapshots().version(&order(), &id(aggregate)).await.unwrap();

            let stored = repository.append(append(aggregate, version)).await.unwrap();
            assert_eq!(stored.appended.version, version);
            let is_due = snapshot_version > last;
            let saved = is_due.then_some(Saved { written: true, version });
            assert_eq!(stored.snapshot.unwrap(), saved, "{strategy:?}");

            let loaded = repository.load(&id(aggregate), None).await.unwrap().unwrap();
            is_as_of(&loaded, version);
            assert_eq!(loaded.snapshot_version, snapshot_version, "{strategy:?}");
        }
    }
}

#[fixture::test]
async fn earlier_version_or_time_is_replayed_from_events() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::All);
    let mut times = Vec::new();
    for version in 1..=4 {
        let stored = repository.append(append("a", version)).await.unwrap();
        times.push(stored.appended.create_time);
        // The next append must have another time.
        let later = async || stage.home.now().await.timestamp_millis() > times[times.len() - 1] + 5;
        crate::support::outbox::eventually("a later time", later).await;
    }

    let a = id("a");
    for (version, time) in (1..).zip(&times) {
        let by_version = repository.load_version(&a, version, None).await.unwrap().unwrap();
        let by_time = repository.load_time(&a, *time, None).await.unwrap().unwrap();
        for loaded in [by_version, by_time] {
            is_as_of(&loaded, version);
            assert_eq!(loaded.snapshot_version, 0);
        }
    }
    assert_eq!(repository.load_version(&a, 0, None).await.unwrap(), None);
    assert_eq!(repository.load_time(&a, times[0] - 1, None).await.unwrap(), None);
    is_as_of(&repository.load_version(&a, 9, None).await.unwrap().unwrap(), 4);
}

#[fixture::test]
async fn aggregate_without_events_is_none() {
    let stage = Stage::new().await;

    let repository = stage.repository(Strategy::All);
    // In a task of its own, as in a server.
    let loading = tokio::spawn(async move { repository.load(&id("nobody"), None).await });

    assert_eq!(loading.await.unwrap().unwrap(), None);
}

#[fixture::test]
async fn snapshot_fields_come_from_the_events() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::EveryVersions(2));
    let first = Append { owner_id: Some("owner".into()), ..append("a", 1).tenant("tenant") };
    let first = repository.append(first).await.unwrap().appended;
    let deleted = Append { events: vec![NewEvent::new("Deleted", doc! {})], ..append("a", 2) };
    let second = repository.append(deleted).await.unwrap().appended;

    let snapshot = stage.snapshots().load(&order(), &id("a"), None).await.unwrap().unwrap();

    let expected = Snapshot {
        tenant_id: Some("tenant".into()),
        owner_id: Some("owner".into()),
        event_id: Some(second.id),
        first_event_time: Some(first.create_time),
        event_time: Some(second.create_time),
        snapshot_time: snapshot.snapshot_time,
        deleted: true,
        ..Snapshot::new(
            id("a"),
            2,
            bson::serialize_to_document(&Tally { deleted: true, ..replayed(1) }).unwrap(),
        )
    };
    assert_eq!(snapshot, expected);
}

#[fixture::test]
async fn aggregate_of_another_tenant_is_not_loaded() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::All);
    repository.append(append("a", 1).tenant("ours")).await.unwrap();

    assert!(repository.load(&id("a"), Some("ours")).await.unwrap().is_some());
    assert_eq!(repository.load(&id("a"), Some("theirs")).await.unwrap(), None);
    assert_eq!(repository.load_version(&id("a"), 1, Some("theirs")).await.unwrap(), None);
    assert_eq!(repository.load_time(&id("a"), i64::MAX, Some("theirs")).await.unwrap(), None);
}

#[fixture::test]
async fn undecodable_snapshot_is_ignored_and_replaced() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::EveryVersions(1));
    repository.append(append("a", 1)).await.unwrap();
    let of_another_form = Snapshot::new(id("a"), 1, doc! { "sum": "ten" });
    stage.snapshots().save(&order(), of_another_form).await.unwrap();

    let loaded = repository.load(&id("a"), None).await.unwrap().unwrap();
    is_as_of(&loaded, 1);
    assert_eq!(loaded.snapshot_version, 0);

    repository.append(append("a", 2)).await.unwrap();
    let loaded = repository.load(&id("a"), None).await.unwrap().unwrap();
    is_as_of(&loaded, 2);
    assert_eq!(loaded.snapshot_version, 2);
}

#[fixture::test]
async fn missing_version_is_an_error() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::None);
    for version in 1..=3 {
        repository.append(append("a", version)).await.unwrap();
    }
    let streams = stage.home.context.collection(CollectionKind::Events, "order");
    let gone = doc! { "aggregateId": "a", "version": 2 };
    assert_eq!(streams.delete_one(gone).await.unwrap().deleted_count, 1);

    let loaded = repository.load(&id("a"), None).await;

    assert!(matches!(loaded, Err(RepositoryError::Missing { missing: 2, found: 3 })), "{loaded:?}");
}

#[fixture::test]
async fn append_succeeds_when_the_snapshot_fails() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::All);
    let odd = Append { events: vec![NewEvent::new("Odd", Document::new())], ..append("a", 1) };

    let appending = tokio::spawn(async move { repository.append(odd).await });

    let stored = appending.await.unwrap().unwrap();
    assert_eq!(stored.appended.version, 1);
    assert!(
        matches!(stored.snapshot, Err(RepositoryError::Apply { version: 1, .. })),
        "{:?}",
        stored.snapshot
    );
    assert_eq!(stage.snapshots().version(&order(), &id("a")).await.unwrap(), 0);
}

#[fixture::test]
async fn conflicting_append_saves_no_snapshot() {
    let stage = Stage::new().await;
    let repository = stage.repository(Strategy::All);
    repository.append(append("a", 1)).await.unwrap();

    let stale = Append { request_id: "another".into(), ..append("a", 1) };
    let refused = repository.append(stale).await;

    assert!(
        matches!(
            refused,
            Err(AppendError::VersionConflict { actual: 1, .. }
                | AppendError::DuplicateAggregate { actual: 1 })
        ),
        "{refused:?}"
    );
    assert_eq!(stage.snapshots().version(&order(), &id("a")).await.unwrap(), 1);
}
