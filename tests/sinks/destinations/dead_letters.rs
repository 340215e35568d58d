//! Dead letters on either broker, and what happens while their sink is down.

use std::time::Duration;

use bson::{DateTime, doc};
use lapin::types::AMQPValue;
use postrider::ids::LeaseId;
use postrider::relay::settings::{DeadLetters, Settings};
use postrider::routing::Template;
use postrider::sink::{HeaderValue, PublishFailure};

use crate::destinations::brokers::{Brokers, record};
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::rabbitmq::amqp_client::id;
use crate::support::relay::{settings, start_with};
use crate::support::sink::{Fault, TestSink};

#[fixture::test]
async fn a_dead_letter_has_the_reason_and_the_destination() {
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(1).await;
    brokers.amqp.topic("dead").await;
    brokers.amqp.classic("buried").await;
    brokers.amqp.bind("buried", "dead", "#").await;
    let more = format!(
        r#"
        [relay]
        default_sink = "kafka"
        max_attempts = 2
        dead_letter = {{ sink = "rabbit", destination = "dead" }}
        backoff = {{ kind = "fixed", initial = "50ms", jitter = 0.0 }}
        [[routes]]
        type = "T"
        sink = "kafka"
        destination = "{}"
        "#,
        topic.name
    );
    let own = doc! { "color": "red", "x-attempts": "forged" };
    brokers
        .outbox
        .insert([
            record("missing", "T", "k", doc! { "destination": "no-such-topic", "headers": own }),
            record("illegal", "T", "k", doc! { "destination": "no topic" }),
            record("sound", "T", "k", doc! {}),
        ])
        .await;

    let mut postrider = brokers.start(&more).await;

    brokers.until_done(1).await;
    let letters = brokers.amqp.take_all("buried").await;
    assert_eq!(letters.iter().map(id).collect::<Vec<_>>(), ["missing", "illegal"]);
    let header = |at: usize, name: &str| {
        let properties = &letters[at].delivery.properties;
        properties.headers().as_ref().unwrap().inner().get(name).cloned()
    };
    let text = |value: &str| Some(AMQPValue::LongString(value.into()));
    for (at, id) in ["missing", "illegal"].into_iter().enumerate() {
        let dead = brokers.outbox.record(id).await;
        assert_eq!(dead.get_str("status").unwrap(), "dead");
        assert_eq!(header(at, "x-dead-reason"), text(dead.get_str("deadReason").unwrap()));
    }
    assert_eq!(header(0, "x-attempts"), Some(AMQPValue::LongInt(2)));
    assert_eq!(header(1, "x-attempts"), Some(AMQPValue::LongInt(0)));
    assert_eq!(header(0, "x-destination"), text("no-such-topic"));
    assert_eq!(header(0, "color"), text("red"));
    assert_eq!(letters[0].delivery.data, br#"{"id":"missing"}"#);
    assert_eq!(topic.read_ids().await, ["sound"]);
    let sent = r#"postrider_dead_letters_total{sink="rabbit",outcome="sent"}"#;
    assert_eq!(postrider.metric(sent).await, Some(2.0));
    postrider.stop().await;
}

#[fixture::test]
async fn an_unroutable_dead_letter_leaves_the_record_dead() {
    let mut brokers = Brokers::new().await;
    brokers.amqp.classic("T").await;
    let more = r#"
        [relay]
        default_sink = "rabbit"
        dead_letter = { sink = "rabbit", destination = "no-such-exchange" }
    "#;
    brokers
        .outbox
        .insert([
            record("refused", "x".repeat(256).as_str(), "k", doc! {}),
            record("behind", "T", "k", doc! {}),
        ])
        .await;

    let mut postrider = brokers.start(more).await;

    brokers.until_done(1).await;
    let dead = brokers.outbox.record("refused").await;
    assert!(dead.get_str("deadReason").unwrap().starts_with("refused: "), "{dead}");
    assert!(postrider.stderr().contains("failed to send a dead-letter copy"));
    let failed = r#"postrider_dead_letters_total{sink="rabbit",outcome="failed"}"#;
    assert_eq!(postrider.metric(failed).await, Some(1.0));
    postrider.stop().await;
}

fn with_dead_letters() -> Settings {
    let destination = Template::parse("dead.{type}").unwrap();
    let dead_letter = Some(DeadLetters { sink: "dead".into(), destination });
    Settings { max_attempts: 1, dead_letter, ..settings() }
}

#[fixture::test]
async fn no_record_dies_while_the_sink_of_dead_letters_is_down() {
    let outbox = TestOutbox::new().await;
    let (sink, dead) = (TestSink::default(), TestSink::default());
    sink.script("bad", (0..1_000).map(|_| Fault::Answer(PublishFailure::Retryable)));
    dead.set_down(true);
    outbox
        .insert([
            record("bad", "T", "a", doc! {}),
            record("behind", "T", "a", doc! {}),
            record("other", "T", "b", doc! {}),
        ])
        .await;
    let sinks = [("test", sink.clone()), ("dead", dead.clone())];
    let relay = start_with(&outbox.collections, sinks, with_dead_letters());

    outbox.until_count(doc! { "_id": "other", "status": "done" }, 1).await;
    let probes = dead.probes();
    eventually("the dead letter is tried again", || async { dead.probes() > probes + 5 }).await;
    let released = doc! { "_id": "bad", "status": "pending", "leaseId": null, "attempt": 1 };
    eventually("it is released, and stays counted", || async {
        outbox.count(released.clone()).await == 1
    })
    .await;
    assert_eq!(sink.tries("bad"), 1, "what has used up its attempts is not delivered again");
    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 0);
    assert!(!sink.ids().contains(&"behind".to_owned()));
    dead.set_down(false);

    outbox.until_count(doc! { "_id": "behind", "status": "done" }, 1).await;
    assert_eq!(outbox.record("bad").await.get_str("status").unwrap(), "dead");
    let letters = dead.arrived();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].address.destination, "dead.T");
    let reason = "attempts exhausted: 1 delivery failed: scripted Retryable";
    let words = HeaderValue::String(reason.into());
    assert!(letters[0].headers.contains(&("x-dead-reason".into(), words)), "{letters:?}");
    relay.stop().await;
}

/// The relay reads again what it waits for in every `poll_interval`, however long its pauses are.
#[fixture::test]
async fn a_key_continues_when_a_record_with_a_dead_letter_is_deleted() {
    let outbox = TestOutbox::new().await;
    let (sink, dead) = (TestSink::default(), TestSink::default());
    sink.script("bad", [Fault::Answer(PublishFailure::Retryable)]);
    dead.set_down(true);
    outbox.insert([record("bad", "T", "a", doc! {}), record("behind", "T", "a", doc! {})]).await;
    let sinks = [("test", sink.clone()), ("dead", dead.clone())];
    let settings =
        Settings { sink_probe_interval_max: Duration::from_secs(3_600), ..with_dead_letters() };
    let relay = start_with(&outbox.collections, sinks, settings);
    let released = doc! { "_id": "bad", "status": "pending", "attempt": 1, "leaseId": null };
    outbox.until_count(released, 1).await;

    outbox.records().delete_one(doc! { "_id": "bad" }).await.unwrap();

    outbox.until_count(doc! { "_id": "behind", "status": "done" }, 1).await;
    relay.stop().await;
}

/// It dies first: the publish of its dead letter must not be what crashes the process.
#[fixture::test]
async fn a_record_that_crashed_its_instances_gets_a_dead_letter() {
    let outbox = TestOutbox::new().await;
    let (sink, dead) = (TestSink::default(), TestSink::default());
    let long_ago = DateTime::from_millis(DateTime::now().timestamp_millis() - 1_000);
    let lease = doc! {
        "attempt": 3,
        "leaseCrashes": 2,
        "leaseId": LeaseId::fresh(),
        "leaseOwner": LeaseId::fresh(),
        "leaseUntil": long_ago,
    };
    outbox.insert([record("spent", "T", "a", lease), record("behind", "T", "a", doc! {})]).await;
    dead.set_frozen(true);
    let sinks = [("test", sink.clone()), ("dead", dead.clone())];

    let relay = start_with(&outbox.collections, sinks, with_dead_letters());

    outbox.until_count(doc! { "_id": "behind", "status": "done" }, 1).await;
    assert_eq!(outbox.record("spent").await.get_str("status").unwrap(), "dead");
    eventually("its dead letter is on its way", || async { dead.tries("spent") == 1 }).await;
    dead.set_frozen(false);
    dead.until("the dead letter", |arrived| arrived.len() == 1).await;
    let words = HeaderValue::String("lease expired: 3 times".into());
    assert!(dead.arrived()[0].headers.contains(&("x-dead-reason".into(), words)));
    relay.stop().await;
}
