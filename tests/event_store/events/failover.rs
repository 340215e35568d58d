//! Appends through a rollback and the election after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::{CollectionOptions, ReadConcern};
use postrider::events::{AppendError, Appended, EventStore, Range, UnitOutcome};
use tokio::task::JoinSet;

use crate::events::util::{another, append, exactly, load};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::replica_set::ReplicaSet;

const WRITERS: usize = 6;

/// Retries with the same request id until there is an answer, as clients do.
async fn until_appended(store: &EventStore, aggregate: &str, request: &str) -> Appended {
    loop {
        match store.append(append(aggregate, request)).await {
            Ok(appended) => return appended,
            Err(AppendError::Unavailable(_) | AppendError::Unknown(_)) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[fixture::test]
async fn answered_appends_survive_a_rollback_whole_and_once() {
    let mut set = ReplicaSet::start().await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let store = another(&outbox, outbox.client.clone());
    let mut writers = JoinSet::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for writer in 0..WRITERS {
        let (store, stopped) = (store.clone(), stopped.clone());
        writers.spawn(async move {
            // Two per aggregate.
            let aggregate = (writer / 2).to_string();
            let mut answers = Vec::new();
            while !*stopped.borrow() {
                let request = format!("{writer}-{}", answers.len());
                answers.push((request.clone(), until_appended(&store, &aggregate, &request).await));
            }
            (aggregate, answers)
        });
    }
    let old = set.primary().await;
    let database = outbox.database.clone();
    let on_old = set.direct(old).database(&database);
    let count = async |concern: ReadConcern| {
        let options = CollectionOptions::builder().read_concern(concern).build();
        let streams = on_old.collection_with_options::<Document>("order_event_stream", options);
        streams.count_documents(doc! {}).await.unwrap()
    };
    let local = async || count(ReadConcern::local()).await;
    let majority = async || count(ReadConcern::majority()).await;
    eventually("appends are made", || async { majority().await > 50 }).await;

    let rollback_id = set.rollback_id(old).await;
    for member in set.secondaries().await {
        set.stop_replication(member).await;
    }
    // These reach no majority and are not answered.
    eventually("there is something to be rolled back", || async {
        local().await > majority().await
    })
    .await;
    set.kill(old);
    for member in (0..3).filter(|member| *member != old) {
        set.restart_replication(member).await;
    }
    set.primary_other_than(old).await;
    set.restart(old).await;
    eventually("the old primary has rolled back", || async {
        set.rollback_id(old).await > rollback_id
    })
    .await;
    let after = store.append(append("after", "r")).await;
    assert!(after.is_ok() || until_appended(&store, "after", "r").await.version == 1);
    stop.send(true).unwrap();

    let mut answered: BTreeMap<String, Vec<(String, Appended)>> = BTreeMap::new();
    for (aggregate, answers) in writers.join_all().await {
        answered.entry(aggregate).or_default().extend(answers);
    }
    for (aggregate, answers) in answered {
        let streams = load(&store, &aggregate, Range::default()).await;
        let versions: Vec<i64> = streams.iter().map(|stream| stream.version).collect();
        assert_eq!(versions, (1..=versions.len() as i64).collect::<Vec<_>>(), "no gap");
        let there: BTreeMap<&str, (i64, &str)> = streams
            .iter()
            .map(|stream| (stream.request_id.as_str(), (stream.version, stream.id.as_str())))
            .collect();
        assert_eq!(there.len(), streams.len(), "no request twice");
        for (request, appended) in &answers {
            let answered = (appended.version, appended.id.as_str());
            assert_eq!(there.get(request.as_str()), Some(&answered), "{request}");
        }
        let records = outbox.records().find(doc! { "key": &aggregate }).await.unwrap();
        let records: Vec<Document> = records.try_collect().await.unwrap();
        let text = |record: &Document| {
            let headers = record.get_document("headers").unwrap();
            headers.get_str("request-id").unwrap().to_owned()
        };
        let of_records: BTreeSet<String> = records.iter().map(text).collect();
        let of_streams: BTreeSet<String> =
            streams.iter().map(|stream| stream.request_id.clone()).collect();
        assert_eq!((of_records, records.len()), (of_streams, streams.len()), "both or neither");
        let next = exactly(&aggregate, "next", streams.len() as i64);
        assert_eq!(store.append(next).await.unwrap().version, streams.len() as i64 + 1);
    }
}

/// As after an election: the primary has an append of which its majority reads know nothing yet.
#[fixture::test]
async fn conflict_is_confirmed_while_majority_reads_are_behind() {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let store = async || {
        let client = postrider::store::connect::client(&outbox.uri).await.unwrap();
        let store = another(&outbox, client);
        store.append(append("first", &uuid::Uuid::new_v4().to_string())).await.unwrap();
        store
    };
    let (writer, lane, unit) = (store().await, store().await, store().await);
    writer.append(exactly("1", "a", 0)).await.unwrap();
    let admin = set.direct(0).database("admin");
    let hold = async |mode: &str| {
        let command = doc! { "configureFailPoint": "disableSnapshotting", "mode": mode };
        admin.run_command(command).await.unwrap();
    };
    hold("alwaysOn").await;
    // (Its answer waits for a majority too.)
    let late = tokio::spawn(async move { writer.append(exactly("1", "b", 1)).await });
    let streams =
        set.direct(0).database(&outbox.database).collection::<Document>("order_event_stream");
    let is_written = || async {
        streams.count_documents(doc! { "aggregateId": "1", "version": 2 }).await.unwrap() == 1
    };
    eventually("an append that majority reads do not show", is_written).await;

    let next = tokio::spawn(async move { lane.append(exactly("1", "c", 2)).await });
    let again = tokio::spawn(async move {
        unit.unit_of_work(async |mut unit| unit.append(exactly("1", "b", 0)).await).await
    });
    let confirming = || async {
        let asked = vec![
            doc! { "$currentOp": {} },
            doc! { "$match": { "command.readConcern.level": "linearizable" } },
        ];
        let found: Vec<Document> =
            admin.aggregate(asked).await.unwrap().try_collect().await.unwrap();
        found.len() == 2 || next.is_finished() || again.is_finished()
    };
    eventually("reads that a majority must confirm", confirming).await;
    hold("off").await;

    assert_eq!(late.await.unwrap().unwrap().version, 2);
    assert_eq!(next.await.unwrap().unwrap().version, 3);
    let UnitOutcome::Replayed { appended } = again.await.unwrap().unwrap() else {
        panic!("the request was appended before");
    };
    assert_eq!(appended[0].version, 2);
}
