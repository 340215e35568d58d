//! The guard of messages: duplicates, gaps, races, several streams in one document.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::join_all;
use mongodb::Collection;
use postrider::events::feed::FeedFilter;
use postrider_projections::{
    ApplyError, Change, EventPlace, GuardError, Guarded, RetryPolicy, StreamGuard,
};

use crate::support::outbox::TestOutbox;
use crate::world::quick_retry;

struct Documents {
    guard: StreamGuard,
    documents: Collection<Document>,
    _outbox: TestOutbox,
}

impl Documents {
    async fn new() -> Self {
        let outbox = TestOutbox::new().await;
        let documents = outbox.client.database(&outbox.database).collection("documents");
        let guard = StreamGuard::new(documents.clone(), &FeedFilter::default()).unwrap();
        Self { guard: guard.with_retry(quick_retry()), documents, _outbox: outbox }
    }

    /// Adds a number to the document `d`, computed from what is read.
    async fn add(&self, place: &EventPlace, number: i64) -> Result<Guarded, GuardError> {
        self.guard.apply("d", place, |found| Ok(sum_with(found, number))).await
    }

    async fn document(&self) -> Option<Document> {
        self.documents.find_one(doc! { "_id": "d" }).await.unwrap()
    }
}

fn sum_with(found: Option<&Document>, number: i64) -> Change {
    let before = found.and_then(|found| found.get_i64("sum").ok()).unwrap_or(0);
    Change::Update(doc! { "$set": { "sum": before + number }, "$inc": { "events": 1_i64 } })
}

fn place(id: &str, version: i64, index: i64, count: i64) -> EventPlace {
    let (aggregate_name, aggregate_id) = ("cart".to_owned(), id.to_owned());
    EventPlace { aggregate_name, aggregate_id, version, index, count: Some(count) }
}

/// An id can be a value of an event.
#[fixture::test]
async fn id_of_a_document_is_compared_as_a_value() {
    let all = Documents::new().await;
    all.documents.insert_one(doc! { "_id": "d", "sum": 5_i64 }).await.unwrap();

    let id = doc! { "$gt": "" };
    let applied = all.guard.apply(id, &place("c", 1, 0, 1), |found| Ok(sum_with(found, 1))).await;

    // MongoDB stores no such id.
    assert!(matches!(applied, Err(GuardError::Store(_))), "{applied:?}");
    assert_eq!(all.document().await, Some(doc! { "_id": "d", "sum": 5_i64 }));
}

/// The places of appends with 1, 3, 2 and 1 events, with a number each.
fn stream(id: &str) -> Vec<(EventPlace, i64)> {
    let versions = (1..).zip([1, 3, 2, 1]);
    let places =
        versions.flat_map(|(version, count)| (0..count).map(move |index| (version, index, count)));
    let numbered = places.zip([1, 10, 100, 1_000, 10_000, 100_000, 1_000_000]);
    numbered.map(|((version, index, count), n)| (place(id, version, index, count), n)).collect()
}

#[fixture::test]
async fn events_that_come_three_times_are_applied_once() {
    let test = Documents::new().await;
    let events = stream("c.1");

    for (number, (place, n)) in events.iter().enumerate() {
        assert_eq!(test.add(place, *n).await.unwrap(), Guarded::Applied);
        // Again, and with it all that came before.
        for (place, n) in events[..=number].iter().chain(&events[..=number]) {
            assert_eq!(test.add(place, *n).await.unwrap(), Guarded::Skipped);
        }
    }

    let document = test.document().await.unwrap();
    assert_eq!(
        (document.get_i64("sum").unwrap(), document.get_i64("events").unwrap()),
        (1_111_111, 7)
    );
}

#[fixture::test]
async fn event_without_predecessor_is_tried_five_times_and_never_written() {
    let test = Documents::new().await;
    let events = stream("c-1");
    test.add(&events[0].0, 1).await.unwrap();
    test.add(&events[1].0, 10).await.unwrap();
    let before = test.document().await.unwrap();

    // The third of its version, the next version, a version beyond that, and another stream.
    for gap in
        [place("c-1", 2, 2, 3), place("c-1", 3, 0, 2), place("c-1", 4, 0, 1), place("x", 2, 0, 1)]
    {
        let error = test.add(&gap, 5).await.unwrap_err();
        let GuardError::MissingPredecessor { retries, .. } = &error else { panic!("{error}") };
        assert_eq!(*retries, 5);
        assert!(error.to_string().contains(&format!("of version {}", gap.version)), "{error}");
    }
    let other = test.guard.apply("new", &events[1].0, |_| Ok(Change::Nothing)).await;
    assert!(matches!(other, Err(GuardError::MissingPredecessor { .. })), "{other:?}");

    assert_eq!(test.document().await.unwrap(), before);
    assert_eq!(test.documents.count_documents(doc! {}).await.unwrap(), 1);
}

/// The pauses of the article: 100, 200, 400, 800, 1600 ms, each with up to 100 ms at random.
#[fixture::test]
async fn retries_read_again_and_end_when_the_predecessor_has_come() {
    let test = Documents::new().await;
    let guard = test.guard.clone().with_retry(RetryPolicy::default());
    let events = stream("c-1");
    test.add(&events[0].0, 1).await.unwrap();
    let began = Instant::now();

    let waiting = guard.apply("d", &events[2].0, |found| Ok(sum_with(found, 100)));
    let coming = async {
        tokio::time::sleep(Duration::from_millis(350)).await;
        test.add(&events[1].0, 10).await
    };
    let (waited, came) = tokio::join!(waiting, coming);

    assert_eq!((waited.unwrap(), came.unwrap()), (Guarded::Applied, Guarded::Applied));
    assert!(began.elapsed() >= Duration::from_millis(350));
    assert_eq!(test.document().await.unwrap().get_i64("sum").unwrap(), 111);
}

/// Consumers that get the same messages at the same time, each in order.
#[fixture::test]
async fn racing_duplicates_are_applied_once() {
    let test = Documents::new().await;
    let events = stream("c-1");
    let applied = AtomicUsize::new(0);

    join_all((0..8).map(async |_| {
        for (place, n) in &events {
            if test.add(place, *n).await.unwrap() == Guarded::Applied {
                applied.fetch_add(1, Ordering::Relaxed);
            }
        }
    }))
    .await;

    assert_eq!(applied.into_inner(), 7);
    let document = test.document().await.unwrap();
    assert_eq!(
        (document.get_i64("sum").unwrap(), document.get_i64("events").unwrap()),
        (1_111_111, 7)
    );
}

/// Each sum is computed from the document that was read: a lost update would lose a number.
#[fixture::test]
async fn several_streams_in_one_document_lose_no_event() {
    let test = Documents::new().await;

    join_all((0..6).map(async |number| {
        for (place, n) in stream(&format!("c.{number}$")) {
            test.add(&place, n).await.unwrap();
            assert_eq!(test.add(&place, n).await.unwrap(), Guarded::Skipped);
        }
    }))
    .await;

    let document = test.document().await.unwrap();
    assert_eq!(
        (document.get_i64("sum").unwrap(), document.get_i64("events").unwrap()),
        (6_666_666, 42)
    );
    assert_eq!(document.get_document("revisions").unwrap().len(), 6);
}

#[fixture::test]
async fn cleared_document_stays_empty_when_its_events_come_again() {
    let test = Documents::new().await;
    let events = stream("c-1");
    for (place, n) in &events {
        test.add(place, *n).await.unwrap();
    }
    let erased = place("c-1", 5, 0, 1);

    test.guard.apply("d", &erased, |_| Ok(Change::Clear)).await.unwrap();
    for (place, n) in &events {
        assert_eq!(test.add(place, *n).await.unwrap(), Guarded::Skipped);
    }

    let revision = doc! { "cart/c-1": { "version": 5_i64, "index": 0_i64, "count": 1_i64 } };
    assert_eq!(test.document().await, Some(doc! { "_id": "d", "revisions": revision }));
}

#[fixture::test]
async fn event_that_changes_nothing_is_remembered_and_an_error_is_not() {
    let test = Documents::new().await;
    let events = stream("c-1");

    let failed = test.guard.apply("d", &events[0].0, |_| Err(ApplyError::new("no"))).await;
    assert!(matches!(failed, Err(GuardError::Change { .. })), "{failed:?}");
    assert_eq!(test.document().await, None);
    test.guard.apply("d", &events[0].0, |_| Ok(Change::Nothing)).await.unwrap();

    assert_eq!(test.add(&events[1].0, 10).await.unwrap(), Guarded::Applied);
    assert_eq!(test.document().await.unwrap().get_i64("sum").unwrap(), 10);
}

#[fixture::test]
async fn update_that_is_invalid_is_refused_and_writes_nothing() {
    let test = Documents::new().await;
    test.add(&place("c-1", 1, 0, 1), 1).await.unwrap();
    let before = test.document().await;

    for update in [
        doc! { "$set": 5 },
        doc! { "$set": [{ "sum": 5 }] },
        doc! { "$inc": { "sum": 5 }, "$unset": { "revisions": "" } },
        doc! { "$set": { "revisions.cart/c-2": { "version": 1 } } },
        doc! { "$setOnInsert": { "_id": "e" } },
        doc! { "$rename": { "sum": "revisions" } },
    ] {
        let next = place("c-1", 2, 0, 1);
        let refused = test.guard.apply("d", &next, |_| Ok(Change::Update(update.clone()))).await;
        let Err(GuardError::Change { source, .. }) = refused else {
            panic!("{update}: {refused:?}")
        };
        assert!(source.to_string().starts_with("update: $"), "{source}");
        assert_eq!(test.document().await, before, "{update}");
    }
}

#[fixture::test]
async fn guard_of_a_filtered_source_is_refused() {
    let test = Documents::new().await;
    let events = FeedFilter { events: vec!["Paid".into()], ..FeedFilter::default() };
    let tenant = FeedFilter { tenant_id: Some("t".into()), ..FeedFilter::default() };
    let aggregates = FeedFilter { aggregates: vec!["cart".into()], ..FeedFilter::default() };

    for filter in [events, tenant] {
        let error = StreamGuard::new(test.documents.clone(), &filter).unwrap_err();
        assert!(matches!(error, GuardError::FilteredSource { .. }), "{error}");
        assert!(error.to_string().contains("predecessors"), "{error}");
    }
    assert!(StreamGuard::new(test.documents.clone(), &aggregates).is_ok());
}
