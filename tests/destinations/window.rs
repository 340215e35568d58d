//! `key_window`: several unconfirmed messages of one key.

use std::collections::BTreeMap;

use bson::{Document, doc};
use postrider::relay::settings::Settings;
use postrider::sink::Verdict;

use crate::brokers::Brokers;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_as_the_window_holds_are_under_way_and_no_more_in_their_order() {
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
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_nothing_new_begins_and_each_has_its_own_outcome() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    sink.script(&id(1), [Fault::Answer(Verdict::Charge)]);
    (2..4).for_each(|number| sink.script(&id(number), [Fault::Hold]));
    outbox.insert(records(10)).await;
    let relay = start(&outbox.collections, sink.clone(), with_window(3));
    outbox.until_count(doc! { "_id": id(1), "lastError": { "$exists": true } }, 1).await;
    assert_eq!(sink.begun(), [0, 1, 2, 3].map(id));

    sink.release();

    outbox.until_count(doc! { "status": "done" }, 10).await;
    // The documented inversion, and no other.
    assert_eq!(sink.begun(), [0, 1, 2, 3, 1, 4, 5, 6, 7, 8, 9].map(id));
    assert_eq!(outbox.record(&id(1)).await.get_i32("attempt").unwrap(), 2);
    let charged_once = outbox.count(doc! { "attempt": 1 }).await;
    assert_eq!(charged_once, 9, "those behind it are not charged for it");
    relay.stop().await;
    outbox.drop().await;
}

/// Each broker keeps its own order only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_for_another_sink_waits_until_those_before_it_are_confirmed() {
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
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_arrives_in_order_on_both_real_brokers() {
    const COUNT: usize = 2_000;
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(4).await;
    brokers.hand.quorum("T").await;
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
            crate::brokers::record(&format!("{kind}-{number:05}"), kind, kind, doc! {})
        })
    };
    brokers.outbox.insert(of("K")).await;
    brokers.outbox.insert(of("T")).await;

    let mut postrider = brokers.start(&more).await;

    brokers.until_done(2 * COUNT as u64).await;
    for (kind, arrived) in [("K", topic.read_ids().await), ("T", brokers.hand.take_ids("T").await)]
    {
        let expected = (0..COUNT).map(|number| format!("{kind}-{number:05}"));
        let odd = arrived.iter().zip(expected).position(|(arrived, expected)| *arrived != expected);
        assert_eq!((odd, arrived.len()), (None, COUNT), "{kind}: {:?}", odd.map(|at| &arrived[at]));
    }
    postrider.stop().await;
    topic.drop().await;
    brokers.drop().await;
}
