//! What no report brings to a sequencer, or brings late.

use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use mongodb::ClientSession;
use mongodb::options::ReadConcern;
use postrider::events::feed::FeedConfig;

use crate::readers::RecordingReader;
use crate::support::outbox::eventually;
use crate::util::{TestFeed, another, append, sequence, sequence_with, stream};

/// Kills the cursor of the change stream; whether there was one.
async fn kill_change_stream(test: &TestFeed) -> bool {
    let admin = test.outbox.client.database("admin");
    // Of an idle cursor, and of a read that waits.
    let namespaces = ["$cmd.aggregate", "$cmd"].map(|of| format!("{}.{of}", test.outbox.database));
    let pipeline = [
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": { "ns": { "$in": namespaces.to_vec() }, "cursor.cursorId": { "$gt": 0 } } },
    ];
    let listing = admin.aggregate(pipeline).read_concern(ReadConcern::local());
    let found = listing.await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let cursor = |of: &Document| of.get_document("cursor").ok()?.get_i64("cursorId").ok();
    let cursors: Vec<i64> = found.iter().filter_map(cursor).collect();
    if cursors.is_empty() {
        return false;
    }
    let kill = doc! { "killCursors": "$cmd.aggregate", "cursors": cursors };
    test.database().run_command(kill).await.unwrap();
    true
}

/// What is lost with the change stream must be found without them.
fn without_audits() -> FeedConfig {
    FeedConfig { audit_interval: Duration::from_secs(3600), ..FeedConfig::default() }
}

#[fixture::test]
async fn lost_change_stream_loses_no_append() {
    let test = TestFeed::new().await;
    let running = sequence_with(&test.feed, without_audits());
    let readers = RecordingReader::start_all(&test.feed, 2);
    // Another process: its appends are known by the change stream alone.
    let (store, _) = another(&test.outbox, test.outbox.admin.client().clone());

    for number in 0..60 {
        let id = (number % 3).to_string();
        store.append(append("order", &id, &number.to_string(), 1 + number % 2)).await.unwrap();
        if number % 20 == 10 {
            eventually("a change stream", async || kill_change_stream(&test).await).await;
        }
    }

    test.check(readers).await;
    running.stop().await;
}

#[fixture::test]
async fn cut_connections_lose_no_append() {
    let test = TestFeed::new().await;
    let (proxy, feed) = test.behind_proxy().await;
    let running = sequence_with(&feed, without_audits());
    let mut readers = RecordingReader::start_all(&feed, 2);
    readers.extend(RecordingReader::start_all(&test.feed, 1));

    for number in 0..90 {
        let id = (number % 3).to_string();
        test.append("order", &id, &number.to_string(), 1 + number % 2).await;
        if number % 15 == 7 {
            proxy.cut();
        }
    }
    // An answer to a commit is lost.
    proxy.lose_answers_to("commitTransaction", 1);
    test.append("order", "0", "last", 1).await;
    eventually("a lost answer", async || proxy.has_caught()).await;
    test.append("order", "0", "behind", 1).await;

    test.check(readers).await;
    running.stop().await;
}

/// An older release and other programs report nothing, set any time, and create collections without an
/// index.
#[fixture::test]
async fn appends_of_other_programs_into_new_collections_get_positions() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    let readers = RecordingReader::start_all(&test.feed, 2);
    test.append("order", "1", "a", 1).await;
    test.until(1).await;

    for number in 0..12_i64 {
        let name = format!("new-{}", number % 4);
        let time = [Bson::Int64(i64::MAX), Bson::Int32(-5), Bson::Double(7.0)];
        let time = time[usize::try_from(number).unwrap() % 3].clone();
        // The later version is there first, in a batch of its own.
        for version in [2, 1] {
            let more = doc! { "createTime": time.clone() };
            test.insert(&name, &number.to_string(), version, more).await;
        }
        test.append("order", "1", &number.to_string(), 1).await;
    }

    test.check(readers).await;
    running.stop().await;
}

/// A transaction with an append that is not committed yet.
async fn held(test: &TestFeed, id: &str) -> ClientSession {
    let mut session = test.outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    for version in 1..=2 {
        let more = doc! { "createTime": DateTime::now().timestamp_millis() };
        let late = stream("order", id, version, more);
        test.streams("order").insert_one(late).session(&mut session).await.unwrap();
    }
    session
}

/// However late it commits: each later append has its position before.
#[fixture::test]
async fn delayed_commits_are_behind_the_head() {
    let test = TestFeed::new().await;
    let first = test.sequence();
    let (_, other) = another(&test.outbox, test.outbox.admin.client().clone());
    let second = sequence(&other);
    let readers = RecordingReader::start_all(&test.feed, 3);
    test.append("order", "1", "first", 1).await;
    test.until(1).await;
    let (mut sessions, mut head) = (Vec::new(), 1);
    for number in 0..12 {
        sessions.push(held(&test, &format!("late-{number}")).await);
        test.append("order", "1", &number.to_string(), 1).await;
        head += 1;
    }
    test.until(head).await;

    // The last one first; readers are beyond the times of all.
    while let Some(mut session) = sessions.pop() {
        session.commit_transaction().await.unwrap();
        head += 2;
        if sessions.len() % 3 == 0 {
            test.append("order", "1", &format!("between-{}", sessions.len()), 1).await;
            head += 1;
            test.until(head).await;
        }
    }

    test.check(readers).await;
    first.stop().await;
    second.stop().await;
}
