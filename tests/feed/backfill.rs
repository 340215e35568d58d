//! Appends from before the feed, while others are appended and read.

use bson::doc;
use postrider::events::feed::FeedConfig;
use rand::seq::SliceRandom;

use crate::readers::RecordingReader;
use crate::support::outbox::eventually;
use crate::util::{TestFeed, another, sequence, sequence_with, stored, stream};

const NAMES: [&str; 3] = ["order", "customer", "invoice"];

/// Appends of many aggregates, whose times say little of their order.
async fn import(test: &TestFeed, aggregates: i64, versions: i64) {
    for name in NAMES {
        let mut streams = Vec::new();
        for aggregate in 0..aggregates {
            for version in 1..=versions {
                // Of some aggregates later versions have earlier times, of some all have one time.
                let time = match aggregate % 3 {
                    0 => aggregate * 7 + version,
                    1 => aggregate * 7 - version,
                    _ => aggregate,
                };
                let more = doc! { "createTime": 1_000_000 + time };
                streams.push(stream(name, &format!("old-{aggregate}"), version, more));
            }
        }
        streams.shuffle(&mut rand::rng());
        test.streams(name).insert_many(streams).await.unwrap();
    }
}

#[fixture::test(long)]
async fn backfill_under_load_skips_nothing() {
    let test = TestFeed::new().await;
    import(&test, 60, 20).await;
    let (_, other) = another(&test.outbox, test.outbox.admin.client().clone());
    let readers = RecordingReader::start_all(&other, 3);
    let running = [test.sequence(), sequence(&other)];

    for number in 0..100 {
        let name = NAMES[number % 3];
        // To aggregates of before too.
        let id = [format!("old-{}", number % 60), "new".to_owned()][number % 2].clone();
        test.append(name, &id, &format!("live-{number}"), 1 + number % 3).await;
    }

    test.check(readers).await;
    for running in running {
        running.stop().await;
    }
}

/// A backfill continues where another process has stopped, and a live append does not wait for its end.
#[fixture::test]
async fn throttled_backfill_delays_no_append_and_is_resumed() {
    let test = TestFeed::new().await;
    import(&test, 50, 20).await;
    let readers = RecordingReader::start_all(&test.feed, 2);
    let throttled = FeedConfig { backfill_rate: 300, ..FeedConfig::default() };
    let running = sequence_with(&test.feed, throttled);
    test.until(100).await;

    test.append("order", "live", "a", 1).await;
    let position = async || {
        let stored = stored(&test, "order").await;
        stored.into_iter().find(|(id, ..)| id == "live").and_then(|(.., position)| position)
    };
    eventually("the live position", async || position().await.is_some()).await;
    running.stop().await;

    let head = test.feed.state().await.unwrap().unwrap().head;
    assert!(position().await.is_some_and(|position| position < 3_000) && head < 3_001);
    let unthrottled = FeedConfig { backfill_rate: 0, ..FeedConfig::default() };
    let running = sequence_with(&test.feed, unthrottled);
    test.check(readers).await;
    running.stop().await;
}
