//! Reads of an ended stream.

use std::pin::pin;

use futures_util::TryStreamExt;
use postrider::events::{LoadError, Range};

use crate::ending::util::{end, erase, other_store, secret, settle};
use crate::events::util::{TestStore, another, append, id, name};
use crate::support::command_recorder::CommandRecorder;

fn ended<T>(read: Result<T, LoadError>) -> i64 {
    match read {
        Err(LoadError::Ended { version }) => version,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was read"),
    }
}

#[fixture::test]
async fn events_of_an_ended_stream_are_not_read() {
    let test = TestStore::new().await;
    for request in ["a", "b"] {
        test.store.append(append("1", request).tenant("t")).await.unwrap();
    }
    test.store.append(append("2", "a")).await.unwrap();
    end(&test.store, "1", "e").await.unwrap();
    let (name, one) = (name(), id("1"));

    for store in [test.store.clone(), other_store(&test).await] {
        for range in [Range::default(), Range::versions(1..=1), Range::versions(9..=9)] {
            assert_eq!(ended(store.load(&name, &one, &range).await), 3);
        }
        for version in [1, 3, 9] {
            assert_eq!(ended(store.single(&name, &one, version, None).await), 3);
        }
        for tenant in [None, Some("t"), Some("other")] {
            assert_eq!(ended(store.last(&name, &one, tenant).await), 3);
        }
        assert_eq!(ended(store.check_open(&name, &one).await), 3);
        // Requests are known, and the aggregate is listed.
        assert!(store.exists_request_id(&name, &one, "a").await.unwrap());
        assert_eq!(store.aggregate_ids(&name, None, 9, None).await.unwrap(), ["1", "2"]);
        store.last(&name, &id("2"), None).await.unwrap().unwrap();
        store.check_open(&name, &id("none")).await.unwrap();
    }
}

#[fixture::test]
async fn reader_never_takes_an_erased_event_for_an_empty_one() {
    let test = TestStore::new().await;
    for number in 0..1_200 {
        test.store.append(secret(&number.to_string())).await.unwrap();
    }
    let found = test.store.load(&name(), &id("1"), &Range::default()).await.unwrap();
    let mut found = pin!(found);
    let first = found.try_next().await.unwrap().unwrap();
    settle(&test, "done").await;

    erase(&test.store, "x").await.unwrap();
    let mut read = vec![first];
    let failed = loop {
        match found.try_next().await {
            Ok(Some(stream)) => read.push(stream),
            Ok(None) => panic!("the stream is complete"),
            Err(error) => break error,
        }
    };

    assert!(matches!(failed, LoadError::Ended { .. }), "{failed:?}");
    assert!(read.len() < 1_200);
    for event in read.iter().flat_map(|stream| &stream.body) {
        assert!(!event.body.is_empty());
    }
}

#[fixture::test]
async fn reads_cost_at_most_one_seek_more() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    let recorder = CommandRecorder::at(&test.outbox.uri, &test.outbox).await;
    let store = another(&test.outbox, recorder.collections.client().clone());
    let (name, one) = (name(), id("1"));
    let finds = || recorder.commands("find").len();

    let found = store.load(&name, &one, &Range::default()).await.unwrap();
    found.try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(finds(), 2);
    store.single(&name, &one, 1, None).await.unwrap().unwrap();
    assert_eq!(finds(), 4);
    store.last(&name, &one, None).await.unwrap().unwrap();
    assert_eq!(finds(), 5);
    let seek = &recorder.commands("find")[0].sent;
    assert_eq!(seek.get_i64("limit").unwrap(), 1);
    assert_eq!(seek.get_document("sort").unwrap(), &bson::doc! { "version": -1 });
}
