//! Failures in the middle of appends.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::Client;
use mongodb::options::ClientOptions;
use postrider::context::CollectionKind;
use postrider::events::{AppendError, Expected, UnitError};

use crate::events::unit::committed;
use crate::events::util::{TestStore, another, append, behind_a_proxy, exactly, versions};
use crate::support::command_recorder::CommandRecorder;
use crate::support::fault_proxy::ProxyFault;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::replica_set::ReplicaSet;

/// The append and its record are written once, whatever answer is lost.
#[fixture::test]
async fn append_is_written_once_when_an_answer_is_lost() {
    for text in ["commitTransaction", "outbox_records", "order_event_stream"] {
        let test = TestStore::new().await;
        let (proxy, _, store) = behind_a_proxy(&test.outbox).await;
        store.append(append("1", "first")).await.unwrap();
        proxy.on_answer_to(text, ProxyFault::Close);

        let appending = tokio::spawn(async move { store.append(append("1", "r")).await });
        eventually("the answer is caught", || async { proxy.has_caught() }).await;
        proxy.open();
        let appended = appending.await.unwrap().unwrap();

        assert_eq!(appended.version, 2, "{text}");
        assert_eq!(versions(&test.store, "1").await, [1, 2], "{text}");
        assert_eq!(test.records("1").await.len(), 2, "{text}");
    }
}

/// There is no stream without its record, and no record without its stream.
#[fixture::test]
async fn nothing_is_written_when_cut_off_before_the_commit() {
    let test = TestStore::new().await;
    let (proxy, _, store) = behind_a_proxy(&test.outbox).await;
    store.append(append("1", "first")).await.unwrap();
    proxy.on_request("commitTransaction", ProxyFault::Close);

    let appending = tokio::spawn({
        let store = store.clone();
        async move { store.append(append("1", "r")).await }
    });
    eventually("the commit is caught", || async { proxy.has_caught() }).await;
    // Longer than the retry timeout of appends.
    let answer = appending.await.unwrap();

    assert!(
        matches!(answer, Err(AppendError::Unknown(_) | AppendError::Unavailable(_))),
        "{answer:?}"
    );
    assert_eq!(versions(&test.store, "1").await, [1]);
    assert_eq!(test.records("1").await.len(), 1);
    // The transaction is open on the server for a minute. The next one of this store ends it.
    proxy.open();
    let again = at_once(store.append(append("1", "r"))).await.unwrap();
    assert_eq!((again.version, again.replayed), (2, false));
}

/// Less than the retry timeout of appends, and far less than the minute for which MongoDB keeps an open
/// transaction.
async fn at_once<T>(asking: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(8), asking).await.expect("it takes too long")
}

/// Makes commits fail with this error: `times` of them, or (`None`) all until [`let_commits_pass`].
async fn fail_commits(set: &ReplicaSet, times: Option<i32>, error: Document) {
    let mut data = doc! { "failCommands": ["commitTransaction"] };
    data.extend(error);
    let mode = times.map_or(Bson::from("alwaysOn"), |times| doc! { "times": times }.into());
    let fail = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    set.direct(0).database("admin").run_command(fail).await.unwrap();
}

async fn let_commits_pass(set: &ReplicaSet) {
    let pass = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    set.direct(0).database("admin").run_command(pass).await.unwrap();
}

/// The open transactions of the server, active or not.
async fn open_transactions(set: &ReplicaSet) -> Vec<Document> {
    let all = doc! { "$currentOp": { "allUsers": true, "idleSessions": true } };
    let open = doc! { "$match": { "transaction": { "$exists": true } } };
    let found = set.direct(0).database("admin").aggregate([all, open]).await.unwrap();
    found.try_collect().await.unwrap()
}

/// An error of a commit after which the transaction is still open on the server.
fn transient(code: i32) -> Document {
    doc! { "errorCode": code, "errorLabels": ["TransientTransactionError"] }
}

/// Without ending the earlier transaction each try would meet its write conflict for a minute
/// (`transactionLifetimeLimitSeconds`).
#[fixture::test]
async fn append_does_not_meet_its_own_transaction_after_failed_commits() {
    let set = ReplicaSet::of(1).await;
    // After 91 and 11600 the driver selects the server again only at its next heartbeat.
    let outbox = TestOutbox::at(&format!("{}&heartbeatFrequencyMS=1000", set.uri())).await;
    let store = another(&outbox, outbox.client.clone());
    store.append(append("1", "first")).await.unwrap();
    let mut version = 1;
    for (code, times) in [(112, 4), (91, 4), (11600, 3)] {
        fail_commits(&set, Some(times), transient(code)).await;
        let alone = append("1", &format!("alone {code} {times}"));
        let appended = at_once(store.append(alone.clone())).await.unwrap();
        version += 1;
        assert_eq!((appended.version, appended.replayed), (version, false), "{code} {times}");
        assert!(open_transactions(&set).await.is_empty(), "{code} {times}");
        assert!(at_once(store.append(alone)).await.unwrap().replayed, "{code} {times}");

        fail_commits(&set, Some(times), transient(code)).await;
        let request = format!("in a unit {code} {times}");
        let unit = store.unit_of_work(async |mut unit| {
            unit.append(append("1", &request)).await?;
            Ok(())
        });
        let (_, appended) = committed(at_once(unit).await.unwrap());
        version += 1;
        assert_eq!(appended[0].version, version, "{code} {times}");
        assert!(open_transactions(&set).await.is_empty(), "{code} {times}");
    }
    assert_eq!(versions(&store, "1").await, (1..=version).collect::<Vec<_>>());
    assert_eq!(outbox.count(doc! {}).await, u64::try_from(version).unwrap());
}

/// A new session of the pool may be another one.
#[fixture::test]
async fn append_is_retried_in_the_same_session() {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let recorder = CommandRecorder::at(&set.uri(), &outbox).await;
    let store = another(&outbox, recorder.collections.client().clone());
    store.append(append("1", "first")).await.unwrap();
    let before = recorder.commands("insert").len();
    fail_commits(&set, Some(3), transient(112)).await;
    let client = recorder.collections.client().clone();
    let others = tokio::spawn(async move {
        let mut taken = Vec::new();
        loop {
            taken.push(client.start_session().await.unwrap());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });

    store.append(append("1", "r")).await.unwrap();
    others.abort();

    let inserts = recorder.commands("insert").split_off(before);
    let session = inserts[0].sent.get_document("lsid").unwrap();
    assert_eq!(inserts.len(), 8, "two of each try");
    assert!(inserts.iter().all(|insert| insert.sent.get_document("lsid").unwrap() == session));
}

/// A client may retry at any process, without a conflict with the failed transaction.
#[fixture::test]
async fn failed_append_leaves_no_open_transaction() {
    let unknown = doc! { "errorCode": 50 };
    join_all([transient(91), transient(112), transient(11600), unknown].map(async |error| {
        let set = ReplicaSet::of(1).await;
        let outbox = TestOutbox::at(&set.uri()).await;
        let store = another(&outbox, outbox.client.clone());
        store.append(append("1", "first")).await.unwrap();
        fail_commits(&set, None, error.clone()).await;

        let began = Instant::now();
        let answer = store.append(append("1", "r")).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{error}: {:?}", began.elapsed());
        if error.contains_key("errorLabels") {
            assert!(matches!(answer, Err(AppendError::Unavailable(_))), "{answer:?}")
        } else {
            assert!(matches!(answer, Err(AppendError::Unknown(_))), "{answer:?}")
        }
        assert!(open_transactions(&set).await.is_empty(), "{error}");

        let_commits_pass(&set).await;
        let other = postrider::store::connect::client(&set.uri()).await.unwrap();
        let again = at_once(another(&outbox, other).append(append("1", "r"))).await.unwrap();
        assert_eq!((again.version, again.replayed), (2, false), "{error}");
        assert_eq!(outbox.count(doc! {}).await, 2, "{error}");
    }))
    .await;
}

/// The same for a unit of work.
#[fixture::test(long)]
async fn failed_unit_leaves_no_open_transaction() {
    join_all([transient(91), doc! { "errorCode": 50 }].map(async |error| {
        let set = ReplicaSet::of(1).await;
        let outbox = TestOutbox::at(&set.uri()).await;
        let store = another(&outbox, outbox.client.clone());
        store.append(append("1", "first")).await.unwrap();
        fail_commits(&set, None, error.clone()).await;
        let unit = || store.unit_of_work(async |mut unit| unit.append(append("1", "r")).await);

        let answer = unit().await;
        assert!(matches!(answer, Err(UnitError::Append(_))), "{answer:?}");
        assert!(open_transactions(&set).await.is_empty(), "{error}");

        let_commits_pass(&set).await;
        let (appended, _) = committed(at_once(unit()).await.unwrap());
        assert_eq!((appended.version, appended.replayed), (2, false), "{error}");
    }))
    .await;
}

/// After the first answers it is unknown whether the transaction was committed.
#[fixture::test]
async fn commit_is_retried_while_its_outcome_is_unknown() {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let store = another(&outbox, outbox.client.clone());
    store.append(append("1", "first")).await.unwrap();
    // MaxTimeMSExpired, which the driver itself does not retry.
    fail_commits(&set, Some(3), doc! { "errorCode": 50 }).await;

    let appended = store.append(append("1", "again")).await.unwrap();

    assert_eq!((appended.version, appended.replayed), (2, false));
    assert_eq!(versions(&store, "1").await, [1, 2]);
}

/// An uncommitted document of another transaction is a write conflict (112) and no duplicate: which
/// append is first is known when that transaction ends.
#[fixture::test]
async fn append_waits_for_an_uncommitted_one() {
    for commits in [true, false] {
        let test = TestStore::new().await;
        test.store.append(append("0", "first")).await.unwrap();
        let streams = test.store.context().collection(CollectionKind::Events, "order");
        let client = test.outbox.admin.client();
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let theirs = doc! { "_id": "x", "aggregateId": "1", "requestId": "x", "version": 1,
        "createTime": 5_i64, "size": 0, "body": [] };
        streams.insert_one(theirs).session(&mut session).await.unwrap();
        let recorder = CommandRecorder::on(&test.outbox).await;
        let store = another(&test.outbox, recorder.collections.client().clone());

        let appending =
            tokio::spawn(
                async move { store.append(append("1", "r").expecting(Expected::None)).await },
            );
        // A first append reads the version only after it was refused.
        eventually("it was refused", || async { !recorder.commands("find").is_empty() }).await;
        if commits {
            session.commit_transaction().await.unwrap()
        } else {
            session.abort_transaction().await.unwrap()
        }
        let answer = appending.await.unwrap();

        if commits {
            assert!(
                matches!(answer, Err(AppendError::DuplicateAggregate { actual: 1 })),
                "{answer:?}"
            )
        } else {
            assert_eq!(answer.unwrap().version, 1)
        }
    }
}

/// An exact replay violates both indexes, and is a replay whatever their order.
#[fixture::test]
async fn exact_replay_does_not_conflict_in_another_process() {
    let test = TestStore::new().await;
    test.store.append(exactly("1", "r", 0)).await.unwrap();
    let client = postrider::store::connect::client(&test.outbox.uri).await.unwrap();
    let other = another(&test.outbox, client);

    let again = other.append(exactly("1", "r", 0)).await.unwrap();

    assert!(again.replayed);
}

/// Read and write concerns do not depend on the URI.
#[fixture::test]
async fn uri_cannot_weaken_read_and_write_concerns() {
    let test = TestStore::new().await;
    let uri = test.outbox.uri.clone();
    let sign = if uri.contains('?') { '&' } else { '?' };
    let uri = format!("{uri}{sign}w=1&readPreference=secondary&readConcernLevel=local");
    ClientOptions::parse(&uri).await.unwrap();
    let recorder = CommandRecorder::at(&uri, &test.outbox).await;
    let client: Client = recorder.collections.client().clone();
    let store = another(&test.outbox, client);

    store.append(append("1", "a")).await.unwrap();
    store.append(exactly("1", "b", 9)).await.unwrap_err();
    assert_eq!(versions(&store, "1").await, [1]);

    // A conflict is confirmed by a linearizable read.
    let levels = ["majority", "linearizable"].map(|level| doc! { "level": level });
    for find in recorder.commands("find") {
        assert!(levels.contains(find.sent.get_document("readConcern").unwrap()), "{find:?}");
        let preference = find.sent.get_document("$readPreference").cloned().unwrap_or_default();
        assert_ne!(preference.get_str("mode").ok(), Some("secondary"), "{find:?}");
    }
    for insert in
        recorder.commands("insert").iter().filter(|it| it.sent.contains_key("startTransaction"))
    {
        let snapshot = insert.sent.get_document("readConcern").unwrap();
        assert_eq!(snapshot.get_str("level").unwrap(), "snapshot", "{insert:?}");
    }
    let commits = recorder.commands("commitTransaction");
    assert!(!commits.is_empty());
    for commit in commits {
        let concern = commit.sent.get_document("writeConcern").unwrap();
        assert_eq!(concern.get_str("w").unwrap(), "majority", "{commit:?}");
    }
}

/// Appends are answered without MongoDB, with an error that permits a retry.
#[fixture::test]
async fn appends_fail_without_mongodb_and_so_do_queued_ones() {
    let test = TestStore::new().await;
    let (proxy, _, store) = behind_a_proxy(&test.outbox).await;
    store.append(append("1", "first")).await.unwrap();
    proxy.freeze();

    let answers = futures_util::future::join_all((0..5).map(|number| {
        let store = store.clone();
        async move {
            let append = append("1", &number.to_string());
            tokio::time::timeout(Duration::from_secs(60), store.append(append)).await
        }
    }))
    .await;

    for answer in answers {
        assert!(
            matches!(answer, Ok(Err(AppendError::Unavailable(_) | AppendError::Unknown(_)))),
            "{answer:?}"
        );
    }
}
