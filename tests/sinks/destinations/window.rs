//! `key_window`: several unconfirmed messages of one key.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Document, doc};
use postrider::relay::settings::{OnDead, Settings};
use postrider::sink::PublishFailure;

use crate::destinations::brokers::Brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{settings, start, start_with};
use crate::support::sink::{Fault, TestSink};

fn with_window(window: usize) -> Settings {
    Settings { key_windows: BTreeMap::from([("test".to_owned(), window)]), ..settings() }
}

fn records(count: usize) -> Vec<Document> {
    (0..count).map(|number| record(&id(number), "k")).collect()
}

fn id(number: usize) -> String {
    format!("r-{number:03}")
}

#[fixture::test]
async fn a_window_limits_the_messages_in_flight_and_keeps_order() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    (1..20).for_each(|number| sink.script(&id(number), [Fault::Hold]));
    outbox.insert(records(200)).await;
    let relay = start(&outbox.collections, sink.clone(), with_window(8));
    eventually("eight are under way", || async { sink.most_under_way("k") == 8 }).await;

    sink.release();

    outbox.until_count(doc! { "status": "done" }, 200).await;
    assert_eq!(sink.begun(), (0..200).map(id).collect::<Vec<_>>());
    assert_eq!(sink.most_under_way("k"), 8);
    relay.stop().await;
}

#[fixture::test]
async fn no_publish_begins_after_a_failure_in_the_window() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    sink.script(&id(1), [Fault::AnswerAfter(Duration::from_millis(50), PublishFailure::Retryable)]);
    (2..4).for_each(|number| sink.script(&id(number), [Fault::Hold]));
    outbox.insert(records(10)).await;
    let relay = start(&outbox.collections, sink.clone(), with_window(3));
    outbox.until_count(doc! { "_id": id(1), "lastError": { "$exists": true } }, 1).await;
    assert_eq!(sink.begun(), [0, 1, 2, 3].map(id));

    sink.release();

    outbox.until_count(doc! { "status": "done" }, 10).await;
    // The documented inversion, and no other.
    let order = [0, 1, 2, 3, 1, 4, 5, 6, 7, 8, 9].map(id);
    assert_eq!(sink.begun(), order);
    assert_eq!(outbox.record(&id(1)).await.get_i32("attempt").unwrap(), 2);
    let counted_once = outbox.count(doc! { "attempt": 1 }).await;
    assert_eq!(counted_once, 9, "later ones have one attempt each");
    relay.stop().await;
}

/// Keys of a test that looks for a rare interleaving.
const KEYS: usize = 100;

/// Five records of each key, the third made by `third`.
fn five_of_each_key(third: impl Fn(&mut Document)) -> Vec<Document> {
    let numbers = (0..KEYS).flat_map(|key| (0..5).map(move |number| (key, number)));
    let made = numbers.map(|(key, number)| {
        let mut made = record(&format!("{key:03}/{number}"), &format!("k{key:03}"));
        if number == 2 {
            third(&mut made);
        }
        made
    });
    made.collect()
}

/// No publish had begun before it.
#[fixture::test]
async fn a_first_record_that_is_not_sent_dies_and_others_follow() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let mut all = records(4);
    all[0].insert("type", 5);
    outbox.insert(all).await;
    let relay = start(&outbox.collections, sink.clone(), with_window(3));

    outbox.until_count(doc! { "status": "done" }, 3).await;

    assert_eq!(outbox.count(doc! { "_id": id(0), "status": "dead" }).await, 1);
    assert_eq!(sink.begun(), [1, 2, 3].map(id));
    relay.stop().await;
}

/// Whichever outcome arrived first, the next record was begun.
#[fixture::test]
async fn no_publish_begins_after_a_record_that_is_not_sent() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    (0..KEYS).for_each(|key| sink.script(&format!("{key:03}/1"), [Fault::Hold]));
    outbox
        .insert(five_of_each_key(|malformed| {
            malformed.insert("type", 5);
        }))
        .await;
    let settings = Settings { on_dead: OnDead::Block, ..with_window(3) };
    let relay = start(&outbox.collections, sink.clone(), settings);
    let under_way = || (0..KEYS).all(|key| sink.is_under_way(&format!("{key:03}/1")));
    eventually("the second ones are under way", || async { under_way() }).await;

    sink.release();

    outbox.until_count(doc! { "status": "dead" }, KEYS as u64).await;
    outbox.until_count(doc! { "status": "done" }, 2 * KEYS as u64).await;
    let behind = |id: &String| id.ends_with("/3") || id.ends_with("/4");
    let begun: Vec<String> = sink.begun().into_iter().filter(behind).collect();
    assert!(begun.is_empty(), "{begun:?}");
    relay.stop().await;
}

#[fixture::test]
async fn interrupted_records_are_sent_again_before_anything_new() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    (0..KEYS).for_each(|key| {
        sink.script(&format!("{key:03}/2"), [Fault::Answer(PublishFailure::SinkDown)])
    });
    outbox.insert(five_of_each_key(|_| {})).await;
    let relay = start(&outbox.collections, sink.clone(), with_window(3));

    outbox.until_count(doc! { "status": "done" }, 5 * KEYS as u64).await;

    for key in 0..KEYS {
        let of_key = format!("{key:03}/");
        let ids = sink.ids();
        let ids: Vec<&String> = ids.iter().filter(|id| id.starts_with(&of_key)).collect();
        assert!(ids.is_sorted() && ids.len() == 5, "{ids:?}");
    }
    relay.stop().await;
}

/// Its loss is reported last.
#[fixture::test]
async fn interrupted_records_are_sent_again_in_order() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let late = Duration::from_millis(100);
    sink.script(&id(1), [Fault::AnswerAfter(late, PublishFailure::SinkDown)]);
    sink.script(&id(2), [Fault::Answer(PublishFailure::SinkDown)]);
    outbox.insert(records(4)).await;
    let relay = start(&outbox.collections, sink.clone(), with_window(3));

    outbox.until_count(doc! { "status": "done" }, 4).await;

    assert_eq!(sink.begun(), [0, 1, 2, 1, 2, 3].map(id));
    relay.stop().await;
}

/// Each broker keeps its own order only.
#[fixture::test]
async fn a_record_for_another_sink_waits_for_earlier_confirms() {
    let outbox = TestOutbox::new().await;
    let (sink, other) = (TestSink::default(), TestSink::default());
    sink.script(&id(1), [Fault::Hold]);
    let mut all = records(4);
    all[2].insert("type", "other");
    outbox.insert(all).await;
    let sinks = [("test", sink.clone()), ("other", other.clone())];
    let mut both = with_window(8);
    both.key_windows.insert("other".into(), 8);
    let relay = start_with(&outbox.collections, sinks, both);
    eventually("the second one is under way", || async { sink.is_under_way(&id(1)) }).await;
    outbox.until_count(doc! { "_id": id(0), "status": "done" }, 1).await;
    assert_eq!(other.tries(&id(2)), 0);

    sink.release();

    outbox.until_count(doc! { "status": "done" }, 4).await;
    assert_eq!(sink.ids(), [0, 1, 3].map(id));
    assert_eq!(other.ids(), [id(2)]);
    relay.stop().await;
}

#[fixture::test]
async fn one_key_arrives_in_order_on_both_real_brokers() {
    const COUNT: usize = 2_000;
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(4).await;
    brokers.amqp.quorum("T").await;
    let more = format!(
        r#"
        [relay]
        default_sink = "windowed"
        [[routes]]
        type = "K"
        sink = "stream"
        [sinks.stream]
        kind = "kafka"
        brokers = {:?}
        topic = {:?}
        key_window = 20
        [sinks.windowed]
        kind = "rabbitmq"
        uri = {:?}
        key_window = 20
        "#,
        crate::support::kafka::brokers(),
        topic.name,
        brokers.vhost.uri(),
    );
    let of = |kind: &'static str| {
        (0..COUNT).map(move |number| {
            crate::destinations::brokers::record(
                &format!("{kind}-{number:05}"),
                kind,
                kind,
                doc! {},
            )
        })
    };
    brokers.outbox.insert(of("K")).await;
    brokers.outbox.insert(of("T")).await;

    let mut postrider = brokers.start(&more).await;

    brokers.until_done(2 * COUNT as u64).await;
    for (kind, arrived) in [("K", topic.read_ids().await), ("T", brokers.amqp.take_ids("T").await)]
    {
        let expected = (0..COUNT).map(|number| format!("{kind}-{number:05}"));
        let odd = arrived.iter().zip(expected).position(|(arrived, expected)| *arrived != expected);
        assert_eq!((odd, arrived.len()), (None, COUNT), "{kind}: {:?}", odd.map(|at| &arrived[at]));
    }
    postrider.stop().await;
}
