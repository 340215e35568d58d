//! A record whose topic ends each connection, and whose dead letter goes to the same sink.

use bson::doc;

use crate::kafka::sink::poison::to;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

const COUNT: usize = 20;

/// The beginning of a produce request for the topic's only partition; no other request has it.
fn produced(topic: &Topic) -> String {
    format!("{}\u{2}\0\0\0\0", topic.name)
}

/// The dead letters that arrived, and how many were sent and failed.
async fn dead_letters_of(letter_breaks: bool) -> (Vec<String>, f64, f64) {
    let broker = ProxiedBroker::take().await;
    let [poison, taken, dead] =
        [broker.topic(1).await, broker.topic(3).await, broker.topic(1).await];
    let outbox = TestOutbox::new().await;
    // The dead letter has another topic, and the same id.
    broker.cut_at(&if letter_breaks { "p0ison".to_owned() } else { produced(&poison) });
    outbox.insert([to(&poison, "p0ison", "k"), to(&taken, "behind", "k")]).await;
    outbox
        .insert((0..COUNT).map(|n| to(&taken, &format!("other {n}"), &format!("other {n}"))))
        .await;
    let settings = [
        "sinks.stream.kind=kafka".to_owned(),
        format!("sinks.stream.brokers={}", broker.brokers()),
        "sinks.stream.timeout=10s".to_owned(),
        // Otherwise the id would be within a compressed batch.
        "sinks.stream.properties.\"compression.type\"=none".to_owned(),
        "relay.max_attempts=2".to_owned(),
        "relay.backoff.initial=100ms".to_owned(),
        "relay.sink_probe_interval_max=1s".to_owned(),
        "relay.dead_letter.sink=stream".to_owned(),
        format!("relay.dead_letter.destination={}", dead.name),
    ];
    let mut postrider =
        Postrider::start(&[mongo_settings(&outbox.database), settings.to_vec()].concat());

    outbox.until_count(doc! { "status": "dead" }, 1).await;
    outbox.until_count(doc! { "status": "done" }, COUNT as u64 + 1).await;

    let died = outbox.record("p0ison").await;
    let reason = died.get_str("deadReason").unwrap();
    assert!(reason.starts_with("attempts exhausted: 2 deliveries failed"), "{reason}");
    let counted = doc! { "status": "done", "lastError": { "$exists": true } };
    assert_eq!(outbox.count(counted).await, 0, "no other is counted");
    assert!(
        died.get_datetime("deadAt").unwrap()
            <= outbox.record("behind").await.get_datetime("doneAt").unwrap()
    );
    let [sent, failed] = postrider.dead_letters("stream").await;
    let letters = dead.read_ids().await;
    postrider.stop().await;
    (letters, sent, failed)
}

/// Regression: the record was delivered again and again.
#[fixture::test]
async fn a_record_that_breaks_its_sink_dies_with_a_dead_letter_on_it() {
    assert_eq!(dead_letters_of(false).await, (vec!["p0ison".to_owned()], 1.0, 0.0));
}

#[fixture::test(long)]
async fn a_record_dies_without_a_dead_letter_that_breaks_the_sink() {
    assert_eq!(dead_letters_of(true).await, (vec![], 0.0, 1.0));
}
