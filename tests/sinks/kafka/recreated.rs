//! A topic that is deleted and created again, with another leader.

use bson::{Document, doc};

use crate::support::kafka::node::Node;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

const KEYS: usize = 10;

/// A round of records for a topic, with keys of its own.
fn round(topic: &str, number: usize) -> Vec<Document> {
    let one = |key: usize| {
        let key = format!("{topic} {key}");
        let mut record = record(&format!("{number} of {key}"), &key);
        record.insert("destination", topic);
        record
    };
    (0..KEYS).map(one).collect()
}

/// Regression: probes reached it, and no record did but one in each turn of the circuit, for ever. librdkafka does not
/// follow a leader whose epoch is earlier than the last one that it has seen.
#[fixture::test(long)]
async fn a_topic_created_again_with_another_leader_is_delivered_to() {
    let first = Node::start().await;
    let mut second = Node::joining(&first).await;
    let brokers = first.brokers();
    let topic = Topic::spread(&brokers, &[2]).await;
    let other = Topic::spread(&brokers, &[1]).await;
    let outbox = TestOutbox::new().await;
    let settings = [
        "sinks.k.kind=kafka",
        &format!("sinks.k.brokers={brokers}"),
        "sinks.k.timeout=2s",
        "relay.sink_probe_interval_max=1s",
    ];
    let settings = [mongo_settings(&outbox.database), settings.map(str::to_owned).into()].concat();
    let mut postrider = Postrider::start(&settings);
    let mut inserted = 0;
    let mut insert = async |number| {
        outbox.insert([round(&topic.name, number), round(&other.name, number)].concat()).await;
        inserted += 2 * KEYS as u64;
        inserted
    };
    let count = insert(0).await;
    outbox.until_count(doc! { "status": "done" }, count).await;
    for number in 1..=2 {
        second.kill();
        second.start_again().await;
        let count = insert(number).await;
        outbox.until_count(doc! { "status": "done" }, count).await;
    }

    topic.delete().await;
    let again = Topic::assigned(&brokers, &topic.name, &[&[1]], &[]).await;
    let mut count = 0;
    for number in 3..=22 {
        count = insert(number).await;
    }

    outbox.until_count(doc! { "status": "done" }, count).await;
    assert_eq!(outbox.count(doc! { "attempt": { "$ne": 1 } }).await, 0);
    for (topic, first) in [(&again, 3), (&other, 0)] {
        let mut arrived = topic.read_ids().await;
        arrived.sort();
        arrived.dedup();
        let mut expected: Vec<String> = (first..=22)
            .flat_map(|number| round(&topic.name, number))
            .map(|record| record.get_str("_id").unwrap().to_owned())
            .collect();
        expected.sort();
        assert_eq!(arrived, expected);
    }
    postrider.stop().await;
}
