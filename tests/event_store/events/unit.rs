//! Units of work: the user's own writes, events and records, all or nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Collection;
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::{
    Append, AppendError, Appended, EventStore, Expected, UnitError, UnitOfWork, UnitOutcome,
};
use postrider::ids::RecordId;
use postrider::names::AggregateName;
use postrider::outbox::NewRecord;
use postrider::wakeup::{ScanHint, Wakeup};

use crate::events::util::{TestStore, another, append, event, exactly, id, versions};
use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::TestOutbox;

/// The user's own documents, of the store's client.
pub fn own(store: &EventStore) -> Collection<Document> {
    let settings = store.context().settings();
    store.context().client().database(&settings.events).collection("own")
}

/// The counts of own documents, streams and records that [`work`] has left.
pub async fn left(test: &TestStore) -> (u64, usize, u64) {
    let own = own(&test.store).count_documents(doc! {}).await.unwrap();
    (own, test.streams("order").await.len(), test.outbox.count(doc! {}).await)
}

/// Writes one of each kind.
pub async fn work(unit: &mut UnitOfWork, own: &Collection<Document>) -> Result<i64, UnitError> {
    let appended = unit.append(append("1", "r")).await?;
    own.insert_one(doc! { "_id": "own" }).session(unit.session()).await?;
    unit.enqueue(NewRecord::new("Plain", doc! {}).key("1"))?;
    Ok(appended.version)
}

pub fn committed<T>(outcome: UnitOutcome<T>) -> (T, Vec<Appended>) {
    match outcome {
        UnitOutcome::Committed { value, appended } => (value, appended),
        UnitOutcome::Replayed { appended } => panic!("a replay of {appended:?}"),
    }
}

pub fn replayed<T>(outcome: UnitOutcome<T>) -> Vec<Appended> {
    match outcome {
        UnitOutcome::Committed { appended, .. } => panic!("committed {appended:?}"),
        UnitOutcome::Replayed { appended } => appended,
    }
}

#[fixture::test]
async fn unit_is_committed_in_the_order_of_its_calls() {
    let test = TestStore::new().await;
    let own = own(&test.store);
    let invoice = AggregateName::new("invoice").unwrap();

    let outcome = test.store.unit_of_work(async |mut unit| {
        let first = unit.append(exactly("1", "a", 0)).await?;
        unit.enqueue(NewRecord::new("Between", doc! {}).key("1"))?;
        let event = vec![event("Billed")];
        unit.append(Append::new(invoice.clone(), id("7"), "a", event)).await?;
        let second = unit.append(exactly("1", "b", 1)).await?;
        own.insert_one(doc! { "_id": second.version }).session(unit.session()).await?;
        Ok((first.version, second.version))
    });
    let (value, appended) = committed(outcome.await.unwrap());

    assert_eq!(value, (1, 2));
    assert_eq!(appended.iter().map(|it| it.version).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(versions(&test.store, "1").await, [1, 2]);
    let records = test.records("1").await;
    let types: Vec<_> = records.iter().map(|it| it.get_str("type").unwrap()).collect();
    assert_eq!(types, ["E", "Between", "E"]);
    let ids: Vec<_> = appended.iter().flat_map(|it| it.records.clone()).collect();
    for record in ids {
        test.outbox.record(bson::Uuid::from_uuid_1(record)).await;
    }
    assert_eq!(test.streams("invoice").await.len(), 1);
    assert!(own.find_one(doc! { "_id": 2_i64 }).await.unwrap().is_some());
}

#[fixture::test]
async fn failed_work_leaves_nothing_and_returns_its_error() {
    let test = TestStore::new().await;
    let own = own(&test.store);
    own.insert_one(doc! { "_id": "there" }).await.unwrap();

    let abandoned = test.store.unit_of_work(async |mut unit| {
        work(&mut unit, &own).await?;
        Err::<(), _>(UnitError::abandon("no stock"))
    });
    let abandoned = abandoned.await.unwrap_err();
    let own_write = test.store.unit_of_work(async |mut unit| {
        work(&mut unit, &own).await?;
        own.insert_one(doc! { "_id": "there" }).session(unit.session()).await?;
        Ok(())
    });
    let own_write = own_write.await.unwrap_err();

    assert!(
        matches!(&abandoned, UnitError::Abandoned(why) if why.to_string() == "no stock"),
        "{abandoned:?}"
    );
    assert!(matches!(own_write, UnitError::Own(_)), "{own_write:?}");
    assert_eq!(left(&test).await, (1, 0, 0));
}

#[fixture::test]
async fn work_may_continue_after_a_conflict() {
    let test = TestStore::new().await;
    let own = own(&test.store);
    test.store.append(append("1", "first")).await.unwrap();
    let unit_with = async |second: Append| {
        let outcome = test.store.unit_of_work(async |mut unit| {
            work(&mut unit, &own).await?;
            unit.append(second.clone()).await?;
            Ok(())
        });
        outcome.await.unwrap_err().to_string()
    };

    assert_eq!(
        unit_with(exactly("1", "s", 1)).await,
        "version conflict: expected version 1, but the aggregate is at version 2"
    );
    assert_eq!(
        unit_with(append("1", "s").expecting(Expected::None)).await,
        "the aggregate already exists, at version 2"
    );
    assert_eq!(
        unit_with(append("2", "s").expecting(Expected::Exists)).await,
        "version conflict: expected an aggregate that exists, but the aggregate is at version 0"
    );
    // A request has one append.
    assert_eq!(
        unit_with(append("1", "r")).await,
        "aggregate \"1\" has already used this request id"
    );
    assert_eq!(left(&test).await, (0, 1, 1));
    let outcome = test.store.unit_of_work(async |mut unit| {
        let refused = unit.append(exactly("1", "s", 9)).await.unwrap_err();
        assert!(matches!(refused, UnitError::Append(AppendError::VersionConflict { .. })));
        work(&mut unit, &own).await
    });
    assert_eq!(committed(outcome.await.unwrap()).0, 2);
    assert_eq!(left(&test).await, (1, 2, 3));
}

#[fixture::test]
async fn duplicate_record_is_named() {
    let test = TestStore::new().await;
    let record = |id: &str| {
        let record = NewRecord::new("Plain", doc! {}).id(RecordId::String(id.into()));
        record.dedup_key("once")
    };
    let enqueued = test.store.unit_of_work(async |mut unit| unit.enqueue(record("a")));
    let (id, appended) = committed(enqueued.await.unwrap());

    let again = test.store.unit_of_work(async |mut unit| {
        unit.append(append("1", "r")).await?;
        unit.enqueue(record("b"))
    });
    let again = again.await.unwrap_err();
    let wrong = test.store.unit_of_work(async |mut unit| {
        unit.enqueue(NewRecord::new("Plain", doc! {}).header("h", doc! {}))
    });

    assert_eq!((id, appended.len()), (RecordId::String("a".into()), 0));
    assert!(
        matches!(&again, UnitError::DuplicateRecord(RecordId::String(id)) if id == "b"),
        "{again:?}"
    );
    assert!(matches!(wrong.await, Err(UnitError::Own(_))));
    assert_eq!(left(&test).await, (0, 0, 1));
}

/// Collections are not created within a transaction that may have read them.
#[fixture::test]
async fn work_runs_again_after_a_collection_was_created() {
    let test = TestStore::new().await;
    let recorder = CommandRecorder::on(&test.outbox).await;
    let store = another(&test.outbox, recorder.collections.client().clone());
    let streams = store.context().collection(CollectionKind::Events, "order");
    let runs = AtomicU32::new(0);
    let once = async |request: &str| {
        let outcome = store.unit_of_work(async |mut unit| {
            runs.fetch_add(1, Ordering::Relaxed);
            streams.find_one(doc! {}).session(unit.session()).await?;
            // Work that ignores the error is interrupted too.
            let _ = unit.append(append("1", request)).await;
            Ok(())
        });
        committed(outcome.await.unwrap()).1[0].version
    };

    assert_eq!(once("a").await, 1);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(once("b").await, 2);
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    assert_eq!(recorder.commands("createIndexes").len(), 1);
    for commit in recorder.commands("commitTransaction") {
        let concern = commit.sent.get_document("writeConcern").unwrap();
        assert_eq!(concern.get_str("w").unwrap(), "majority", "{commit:?}");
    }
}

#[fixture::test]
async fn unit_wakes_the_relay_after_its_commit() {
    let outbox = TestOutbox::new().await;
    let settings = ContextSettings::new(&outbox.database);
    let context = Context::new(outbox.admin.client().clone(), settings);
    let wake = Wakeup::default();
    let store = EventStore::with_wakeup(context, outbox.admin.clone(), wake.clone());

    let failed = store.unit_of_work(async |mut unit| {
        unit.append(append("order-123", "r")).await?;
        Err::<(), _>(UnitError::abandon("as it is meant"))
    });
    failed.await.unwrap_err();
    assert_eq!(wake.take(), Default::default());
    let done = store.unit_of_work(async |mut unit| {
        unit.append(append("order-123", "r")).await?;
        unit.enqueue(NewRecord::new("Plain", doc! {}).key("user-456"))?;
        let due = bson::DateTime::from_millis(i64::MAX / 2);
        unit.enqueue(NewRecord::new("Plain", doc! {}).key("later").scheduled_for(due))?;
        Ok(())
    });
    committed(done.await.unwrap());

    let hint = |partition, key: &str| ScanHint::Key { partition, key: key.into() };
    let reasons = wake.take();
    assert_eq!(reasons.hints, [hint(189, "order-123"), hint(22, "user-456")]);
    assert!(!reasons.all);
    let done = store.unit_of_work(async |mut unit| unit.enqueue(NewRecord::new("Plain", doc! {})));
    committed(done.await.unwrap());
    assert!(wake.take().all);
}

#[fixture::test]
async fn close_waits_for_begun_units_and_refuses_new_ones() {
    let test = TestStore::new().await;
    let (release, held) = tokio::sync::oneshot::channel::<()>();
    let (reached, is_there) = tokio::sync::oneshot::channel();
    let once = Mutex::new(Some((held, reached)));
    let store = test.store.clone();
    let running = tokio::spawn(async move {
        let outcome = store.unit_of_work(async |mut unit| {
            let first = once.lock().unwrap().take();
            if let Some((held, reached)) = first {
                reached.send(()).unwrap();
                held.await.unwrap();
            }
            unit.append(append("1", "r")).await
        });
        outcome.await
    });
    is_there.await.unwrap();

    let mut closing = Box::pin(test.store.close());
    assert!(futures_util::poll!(&mut closing).is_pending());
    let late = test.store.unit_of_work(async |mut unit| unit.append(append("1", "late")).await);
    assert!(matches!(late.await, Err(UnitError::Append(AppendError::Closed))));
    // There is no condition for something that must not happen.
    let closed = tokio::time::timeout(Duration::from_millis(300), &mut closing).await;
    assert!(closed.is_err());
    release.send(()).unwrap();
    closing.await;

    committed(running.await.unwrap().unwrap());
    assert_eq!(versions(&test.store, "1").await, [1]);
}
