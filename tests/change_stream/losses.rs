//! A stream that is lost, in every way: the reason is known, and a new stream opens as soon as
//! possible.

use std::time::Duration;

use bson::doc;
use postrider::outbox::collections::Collections;
use postrider::wakeup::{ScanHint, Wakeup};

use crate::support::command_recorder::CommandRecorder;
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::{RunningStream, opened, user_without_change_stream};

/// Waits until an insert causes an event again.
async fn until_an_insert_is_reported(outbox: &TestOutbox, wake: &Wakeup) {
    let key = uuid::Uuid::new_v4().to_string();
    outbox.insert([record(&key, &key)]).await;
    let (partition, key) = (postrider::partition::of_key(&key), key.as_str().into());
    let hint = ScanHint::Key { partition, key };
    eventually("the news", || async { has_hint(wake, &hint) }).await;
}

/// Whether the stream's last report has this effect.
fn has_hint(wake: &Wakeup, hint: &ScanHint) -> bool {
    wake.take_events().iter().any(|change| change.hint().as_ref() == Some(hint))
}

/// Loses a stream, and waits for the next one.
async fn lose<F: Future<Output = ()>>(
    outbox: &TestOutbox,
    collections: &Collections,
    lost: impl AsyncFnOnce(),
    restored: impl FnOnce() -> F,
) -> String {
    let wake = Wakeup::default();
    let mut followed = RunningStream::up(collections, &wake).await;
    until_an_insert_is_reported(outbox, &wake).await;
    wake.take();

    lost().await;

    let why = followed.until_lost().await;
    assert!(wake.take().all, "what came meanwhile is looked for at once");
    assert!(!wake.is_followed(), "and often");
    restored().await;
    followed.until_up().await;
    assert!(wake.take().all, "what came meanwhile is looked for again");
    assert!(wake.is_followed());
    until_an_insert_is_reported(outbox, &wake).await;
    why
}

async fn nothing() {}

#[fixture::test]
async fn a_stream_whose_cursor_was_killed_is_reopened() {
    let outbox = TestOutbox::new().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let kill = async || {
        let cursor = opened(&recorder)[0].answer.get_document("cursor").unwrap().clone();
        let cursors = [cursor.get_i64("id").unwrap()];
        let kill = doc! { "killCursors": "outbox_records", "cursors": cursors.as_slice() };
        outbox.client.database(&outbox.database).run_command(kill).await.unwrap();
    };

    let why = lose(&outbox, &recorder.collections, kill, nothing).await;

    assert!(why.starts_with("failed to read the change stream: "), "{why}");
    assert_eq!(opened(&recorder).len(), 2);
    let resumes = |stream: &crate::support::command_recorder::Command| {
        let command = stream.sent.to_string();
        command.contains("resumeAfter") || command.contains("startAfter")
    };
    assert!(!opened(&recorder).iter().any(resumes));
}

#[fixture::test]
async fn a_stream_whose_connection_is_cut_or_silent_is_reopened() {
    let cut = async {
        let (outbox, proxy, collections) = behind_proxy().await;
        let lost = async || proxy.close();
        let restored = || async { proxy.open() };
        lose(&outbox, &collections, lost, restored).await
    };
    let frozen = async {
        let (outbox, proxy, collections) = behind_proxy().await;
        let began = std::time::Instant::now();
        let lost = async || proxy.freeze();
        let restored = || async { proxy.open() };
        let why = lose(&outbox, &collections, lost, restored).await;
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        why
    };

    // The driver does not notice, since its monitor has a connection of its own.
    let silent = async {
        let (outbox, proxy, collections) = behind_proxy().await;
        let lost = async || proxy.silence("getMore", 1);
        lose(&outbox, &collections, lost, nothing).await
    };

    let (cut, frozen, silent) = tokio::join!(cut, frozen, silent);

    assert!(cut.starts_with("failed to "), "{cut}");
    assert!(frozen.starts_with("failed to "), "{frozen}");
    assert!(silent.contains("no response from MongoDB within 10s"), "{silent}");
}

async fn behind_proxy() -> (TestOutbox, FaultProxy, Collections) {
    let outbox = TestOutbox::new().await;
    let (proxy, collections) = outbox.behind_proxy().await;
    (outbox, proxy, collections)
}

#[fixture::test]
async fn a_stream_on_a_dropped_collection_returns_with_it() {
    let outbox = TestOutbox::new().await;
    let drop = async || outbox.records().drop().await.unwrap();
    let again = || async {
        let database = outbox.client.database(&outbox.database);
        database.create_collection("outbox_records").await.unwrap();
    };

    let why = lose(&outbox, &outbox.collections, drop, again).await;

    assert!(why.contains("the stream ended, since the collection was dropped or renamed"), "{why}");
}

/// Large fields of a record do not reach the stream; its `_id` does, twice.
#[fixture::test]
async fn an_event_that_is_too_large_is_skipped() {
    let outbox = TestOutbox::new().await;
    let large = async || {
        let mut large = record(&"x".repeat(8_000_000), "k");
        large.remove("payload");
        outbox.insert([large]).await;
    };

    let why = lose(&outbox, &outbox.collections, large, nothing).await;

    assert!(why.contains("BSONObjectTooLarge"), "{why}");
    assert!(why.len() < 1_000, "{}", why.len());
}

#[fixture::test]
async fn a_record_of_almost_16_mib_wakes_the_relay() {
    let outbox = TestOutbox::new().await;
    let wake = Wakeup::default();
    let followed = RunningStream::up(&outbox.collections, &wake).await;
    let mut large = record("large", "k");
    large.insert("payload", "x".repeat(16_770_000));

    outbox.insert([large]).await;

    let hint = ScanHint::Key { partition: postrider::partition::of_key("k"), key: "k".into() };
    eventually("the news", || async { has_hint(&wake, &hint) }).await;
    assert!(wake.is_followed());
    drop(followed);
}

#[fixture::test]
async fn a_user_without_the_right_polls_until_it_is_granted() {
    let outbox = TestOutbox::restricted().await;
    let database = outbox.client.database(&outbox.database);
    let (uri, follows) = user_without_change_stream(&outbox).await;
    let client = postrider::store::connect::client(&uri).await.unwrap();
    let collections = Collections::new(client, &outbox.database, "");
    let wake = Wakeup::default();

    let mut followed = RunningStream::start(&collections, &wake);

    let why = followed.until_lost().await;
    assert!(why.contains("not authorized"), "{why}");
    let grant = doc! { "grantPrivilegesToRole": "polls", "privileges": follows };
    database.run_command(grant).await.unwrap();
    followed.until_up().await;
    until_an_insert_is_reported(&outbox, &wake).await;
}
