//! A partition without a leader: a second broker leads it, and is killed.

use bson::{Document, doc};
use futures_util::TryStreamExt;

use crate::support::kafka::node::Node;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

/// Rounds of records for the partition that has a leader, while the other one has none.
const ROUNDS: usize = 20;

/// Keys of each partition.
const KEYS: usize = 10;

/// `KEYS` keys of each of two partitions, as Java's partitioner assigns them.
async fn keys(topic: &Topic, outbox: &TestOutbox) -> [Vec<String>; 2] {
    let records = (0..8 * KEYS).map(|number| record(&format!("0/{number:03}"), &key(number)));
    outbox.insert(records).await;
    outbox.until_count(doc! { "status": "done" }, 8 * KEYS as u64).await;
    let mut keys = [Vec::new(), Vec::new()];
    for arrived in topic.read().await {
        let key = String::from_utf8(arrived.key.clone().unwrap()).unwrap();
        let of_partition = &mut keys[usize::try_from(arrived.partition).unwrap()];
        if of_partition.len() < KEYS {
            of_partition.push(key);
        }
    }
    assert!(keys.iter().all(|keys| keys.len() == KEYS), "{keys:?}");
    keys
}

fn key(number: usize) -> String {
    format!("k{number:03}")
}

/// One record of each key.
fn round(number: usize, keys: &[String]) -> Vec<Document> {
    keys.iter().map(|key| record(&format!("{number}/{key}"), key)).collect()
}

/// The records of the partition once had attempts counted, and died; those of the others waited.
#[fixture::test(long)]
async fn a_partition_without_a_leader_delays_only_its_own_records() {
    let first = Node::start().await;
    let mut second = Node::joining(&first).await;
    let topic = Topic::spread(&first.brokers(), &[1, 2]).await;
    let outbox = TestOutbox::new().await;
    let settings = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.topic={}", topic.name),
        format!("sinks.k.brokers={}", first.brokers()),
        "sinks.k.timeout=2s".to_owned(),
        "relay.max_attempts=2".to_owned(),
        "relay.sink_probe_interval_max=1s".to_owned(),
    ];
    let settings = [mongo_settings(&outbox.database), settings.to_vec()].concat();
    let mut postrider = Postrider::start(&settings);
    let [well, sick] = keys(&topic, &outbox).await;
    let before = 8 * KEYS as u64;

    second.kill();
    outbox.insert(round(1, &sick)).await;
    postrider.until_logged("destination does not confirm").await;
    for number in 1..=ROUNDS {
        outbox.insert(round(number, &well)).await;
        let arrived = doc! { "_id": { "$in": ids(number, &well) }, "status": "done" };
        outbox.until_count(arrived, KEYS as u64).await;
    }
    let waiting = doc! { "_id": { "$in": ids(1, &sick) }, "status": "pending" };
    assert_eq!(outbox.count(waiting).await, KEYS as u64);
    assert_eq!(postrider.metric("postrider_sink_up{sink=\"k\"}").await, Some(1.0));

    outbox.insert(round(2, &sick)).await;
    second.start_again().await;

    let count = before + (KEYS * (ROUNDS + 2)) as u64;
    eventually("all are delivered", || async {
        outbox.count(doc! { "status": "done" }).await == count
    })
    .await;
    let all: Vec<Document> = outbox
        .records()
        .find(doc! { "attempt": { "$ne": 1 } })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert!(all.is_empty(), "a broker's fault is counted: {all:#?}");
    let arrived = topic.read().await;
    let of_well: Vec<&str> =
        arrived.iter().filter(|record| record.partition == 0).map(|record| record.id()).collect();
    assert_eq!(of_well.iter().collect::<std::collections::HashSet<_>>().len(), of_well.len());
    for key in &sick {
        let of_key = arrived.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes()));
        let mut of_key: Vec<&str> = of_key.map(|record| record.id()).collect();
        of_key.dedup();
        assert_eq!(of_key[of_key.len() - 2..], [format!("1/{key}"), format!("2/{key}")]);
    }
    postrider.stop().await;
}

fn ids(number: usize, keys: &[String]) -> Vec<String> {
    keys.iter().map(|key| format!("{number}/{key}")).collect()
}
