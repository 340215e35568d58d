//! A topic with fewer replicas in sync than its `min.insync.replicas`: one of two is killed.
//!
//! A topic that demands more replicas than it has is different: Kafka then demands as many as it
//! has (`Partition.effectiveMinIsr`).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bson::{Document, doc};

use crate::support::kafka::node::Node;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

/// Keys of each topic.
const KEYS: usize = 10;

/// `sinks.k.timeout`.
const TIMEOUT: Duration = Duration::from_secs(6);

/// The limit for a round of records for the healthy topic: less than a wait for one publish that is
/// not confirmed, and far more than it takes on a busy machine.
const ROUND_LIMIT: Duration = Duration::from_secs(5);

/// Probes of the other topic that end meanwhile.
const PROBES: usize = 2;

fn id(kind: &str, key: usize, number: usize) -> String {
    format!("{kind} {key}/{number:05}")
}

/// One record of each key.
fn round(topic: &Topic, kind: &str, number: usize) -> Vec<Document> {
    let of_key = |key| {
        let mut record = record(&id(kind, key, number), &format!("{kind} {key}"));
        record.insert("type", topic.name.as_str());
        record
    };
    (0..KEYS).map(of_key).collect()
}

/// The ids of a key in this many rounds, in their order.
fn ids(kind: &str, key: usize, rounds: usize) -> Vec<String> {
    (0..rounds).map(|number| id(kind, key, number)).collect()
}

/// What arrived of a key.
fn of_key<'a>(arrived: &'a [String], kind: &str, key: usize) -> Vec<&'a String> {
    let key = format!("{kind} {key}/");
    arrived.iter().filter(|id| id.starts_with(&key)).collect()
}

/// Each record of the topic once blocked the whole sink for a publish's timeout, and died.
#[fixture::test(long)]
async fn a_topic_below_min_insync_delays_only_its_own_records() {
    let first = Node::start().await;
    let mut second = Node::joining(&first).await;
    let brokers = first.brokers();
    let good = Topic::replicated(&brokers, &[1], &[]).await;
    let sick = Topic::replicated(&brokers, &[1, 2], &[("min.insync.replicas", "2")]).await;
    sick.until_in_sync(2).await;
    let outbox = TestOutbox::new().await;
    let settings = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.brokers={brokers}"),
        format!("sinks.k.timeout={}s", TIMEOUT.as_secs()),
        // A record with two counted attempts is dead.
        "relay.max_attempts=2".to_owned(),
        "relay.sink_probe_interval_max=1s".to_owned(),
    ];
    let settings = [mongo_settings(&outbox.database), settings.to_vec()].concat();
    let mut postrider = Postrider::start(&settings);
    outbox.insert([round(&good, "good", 0), round(&sick, "sick", 0)].concat()).await;
    outbox.until_count(doc! { "status": "done" }, 2 * KEYS as u64).await;

    second.kill();
    sick.until_in_sync(1).await;
    let mut more = round(&sick, "sick", 1);
    let counted = doc! { "$or": [
        { "attempt": { "$gt": 1 } }, { "lastError": { "$ne": null } }, { "status": "dead" },
    ] };
    let (mut rounds, mut unconfirmed) = (1, 0);
    let deadline = Instant::now() + 10 * TIMEOUT;
    // One of each key before the circuit opened, then one at a time.
    while unconfirmed < KEYS + PROBES {
        assert!(Instant::now() < deadline, "{unconfirmed} were not confirmed in time");
        let began = Instant::now();
        more.extend(round(&good, "good", rounds));
        outbox.insert(std::mem::take(&mut more)).await;
        rounds += 1;
        let done = doc! { "status": "done", "type": &good.name };
        outbox.until_count(done, (rounds * KEYS) as u64).await;
        assert!(began.elapsed() < ROUND_LIMIT, "round {rounds} took {:?}", began.elapsed());
        assert_eq!(outbox.count(counted.clone()).await, 0, "round {rounds}");
        let waiting = doc! { "status": "pending", "type": &sick.name };
        assert_eq!(outbox.count(waiting).await, KEYS as u64, "round {rounds}");
        let published =
            postrider.metric("postrider_publish_duration_seconds_count{sink=\"k\"}").await;
        // All but those that are done, each of which was published once.
        unconfirmed = (published.unwrap() as usize).saturating_sub((rounds + 1) * KEYS);
    }
    assert_eq!(postrider.metric("postrider_sink_up{sink=\"k\"}").await, Some(1.0));
    assert!(!postrider.stderr().contains("sink is down"), "{}", postrider.stderr());
    let is_named = |report: &serde_json::Value| {
        let detail = report["parts"]["sink k"]["detail"].as_str().unwrap_or_default();
        detail.contains(&sick.name) && detail.contains("does not confirm")
    };
    postrider.until_report("the topic that does not confirm", is_named).await;

    outbox.insert(round(&sick, "sick", 2)).await;
    sick.alter("min.insync.replicas", "1").await;

    outbox.until_count(doc! { "status": "done" }, ((rounds + 3) * KEYS) as u64).await;
    assert_eq!(outbox.count(doc! { "attempt": { "$ne": 1 } }).await, 0, "a fault of the topic");
    assert_eq!(outbox.count(counted).await, 0);
    let (to_good, to_sick) = (good.read_ids().await, sick.read_ids().await);
    assert_eq!(to_good.len(), rounds * KEYS, "none of them twice");
    for key in 0..KEYS {
        let expected = ids("good", key, rounds);
        assert_eq!(of_key(&to_good, "good", key), expected.iter().collect::<Vec<_>>());
        let mut seen = HashSet::new();
        let mut first_ones = of_key(&to_sick, "sick", key);
        // A record whose publish was not confirmed may be there more than once.
        first_ones.retain(|id| seen.insert(*id));
        assert_eq!(first_ones, ids("sick", key, 3).iter().collect::<Vec<_>>());
    }
    postrider.stop().await;
}
