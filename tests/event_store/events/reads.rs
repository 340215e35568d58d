//! Reads of events.

use bson::doc;
use futures_util::TryStreamExt;
use postrider::events::{LoadError, Range};

use crate::events::util::{TestStore, append, id, load, name};

#[fixture::test]
async fn ranges_of_versions_and_times_are_inclusive_and_ascending() {
    let test = TestStore::new().await;
    for request in ["a", "b", "c", "d"] {
        test.store.append(append("1", request)).await.unwrap();
    }
    let streams =
        test.store.context().collection(postrider::context::CollectionKind::Events, "order");
    for version in 1..=4_i64 {
        let time = doc! { "$set": { "createTime": 100 * version } };
        streams.update_one(doc! { "version": version }, time).await.unwrap();
    }
    let versions = async |range: Range| -> Vec<i64> {
        load(&test.store, "1", range).await.iter().map(|stream| stream.version).collect()
    };

    assert_eq!(versions(Range::default()).await, [1, 2, 3, 4]);
    assert_eq!(versions(Range::versions(2..=3)).await, [2, 3]);
    assert_eq!(versions(Range::versions(3..=99)).await, [3, 4]);
    assert_eq!(versions(Range::times(100..=300)).await, [1, 2, 3]);
    assert!(versions(Range::times(301..=399)).await.is_empty());
    let both = Range { from_time: Some(200), ..Range::versions(1..=3) };
    assert_eq!(versions(both).await, [2, 3]);
    assert_eq!(versions(Range { limit: Some(2), ..Range::default() }).await, [1, 2]);
    assert!(load(&test.store, "unknown", Range::default()).await.is_empty());
}

#[fixture::test]
async fn invalid_range_is_refused() {
    let test = TestStore::new().await;
    for (range, field) in [
        (Range { to_version: Some(2), ..Range::versions(3..=9) }, "toVersion"),
        (Range::versions(-1..=2), "fromVersion"),
        (Range { to_time: Some(2), ..Range::times(3..=9) }, "toTime"),
        (Range::times(-3..=2), "fromTime"),
    ] {
        let refused = test.store.load(&name(), &id("1"), &range).await.err();

        assert!(
            matches!(&refused, Some(LoadError::Range(flaw)) if flaw.field == field),
            "{range:?}: {refused:?}"
        );
    }
}

#[fixture::test]
async fn reads_are_limited_to_the_tenant() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a").tenant("t")).await.unwrap();
    test.store.append(append("2", "a").tenant("u")).await.unwrap();
    test.store.append(append("3", "a")).await.unwrap();
    let (store, name) = (&test.store, name());
    let of =
        |tenant: Option<&str>| Range { tenant_id: tenant.map(str::to_owned), ..Range::default() };

    assert_eq!(load(store, "1", of(Some("t"))).await.len(), 1);
    assert!(load(store, "1", of(Some("u"))).await.is_empty());
    assert_eq!(load(store, "1", of(None)).await.len(), 1);
    assert!(store.single(&name, &id("1"), 1, Some("t")).await.unwrap().is_some());
    assert!(store.single(&name, &id("1"), 1, Some("u")).await.unwrap().is_none());
    assert!(store.last(&name, &id("1"), Some("u")).await.unwrap().is_none());
    assert_eq!(store.aggregate_ids(&name, None, 9, Some("t")).await.unwrap(), ["1"]);
    assert_eq!(store.aggregate_ids(&name, None, 9, None).await.unwrap(), ["1", "2", "3"]);
}

#[fixture::test]
async fn versions_last_appends_and_requests_are_found() {
    let test = TestStore::new().await;
    for request in ["a", "b", "c"] {
        test.store.append(append("1", request)).await.unwrap();
    }
    let (store, name) = (&test.store, name());

    let second = store.single(&name, &id("1"), 2, None).await.unwrap().unwrap();
    let last = store.last(&name, &id("1"), None).await.unwrap().unwrap();

    assert_eq!((second.version, second.request_id.as_str()), (2, "b"));
    assert_eq!((last.version, last.request_id.as_str()), (3, "c"));
    assert!(store.single(&name, &id("1"), 4, None).await.unwrap().is_none());
    assert!(store.last(&name, &id("2"), None).await.unwrap().is_none());
    assert!(store.exists_request_id(&name, &id("1"), "b").await.unwrap());
    assert!(!store.exists_request_id(&name, &id("1"), "x").await.unwrap());
    assert!(!store.exists_request_id(&name, &id("2"), "b").await.unwrap());
}

#[fixture::test]
async fn aggregate_ids_are_listed_once_in_order() {
    let test = TestStore::new().await;
    for aggregate in ["b", "a10", "a9", "Z", "ä"] {
        test.store.append(append(aggregate, "1")).await.unwrap();
        test.store.append(append(aggregate, "2")).await.unwrap();
    }
    let (store, name) = (&test.store, name());

    let all = store.aggregate_ids(&name, None, 99, None).await.unwrap();
    let page = store.aggregate_ids(&name, Some("a10"), 2, None).await.unwrap();
    let none = store.aggregate_ids(&name, Some("ä"), 2, None).await.unwrap();

    assert_eq!(all, ["Z", "a10", "a9", "b", "ä"]);
    assert_eq!(page, ["a9", "b"]);
    assert!(none.is_empty());
    // One key and one document per aggregate, whatever its number of versions.
    let find = doc! {
        "find": "order_event_stream",
        "filter": { "aggregateId": { "$gt": "" }, "version": 1 },
        "sort": { "aggregateId": 1 },
        "limit": 3,
    };
    let explain = doc! { "explain": find, "verbosity": "executionStats" };
    let explained = test.outbox.admin.database().run_command(explain).await.unwrap();
    let keys = explained.get_document("executionStats").unwrap().get_i32("totalKeysExamined");
    assert!(keys.unwrap() <= 6, "{explained}");
}

#[fixture::test]
async fn long_stream_is_read_in_batches() {
    let test = TestStore::new().await;
    let appends = (0..1_200).map(|number| test.store.append(append("1", &number.to_string())));
    for answer in futures_util::future::join_all(appends).await {
        answer.unwrap();
    }

    let mut found = Box::pin(test.store.load(&name(), &id("1"), &Range::default()).await.unwrap());
    let first = found.try_next().await.unwrap().unwrap();
    let rest: Vec<_> = found.try_collect().await.unwrap();

    assert_eq!(first.version, 1);
    assert_eq!(rest.len(), 1_199);
    assert!(rest.iter().zip(2..).all(|(stream, version)| stream.version == version));
}
