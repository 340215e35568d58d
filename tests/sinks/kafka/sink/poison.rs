//! Poison among good records, through a relay.

use std::collections::BTreeMap;

use bson::{Document, doc};
use postrider::ids::SinkName;
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::RelayParts;
use postrider::relay::settings::Settings;
use postrider::routing::{Router, SinkRules, Template};
use postrider::sink::Sink;
use postrider::wakeup::Wakeup;
use postrider_settings::Glob;
use tokio::sync::watch;

use super::util::{AMPLE_TIMEOUT, sink};
use crate::support::environment::unique;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, record};
use crate::support::relay::{Running, parts, run, settings};

/// A relay to the topic that each record names as its type or as its destination.
pub fn relay(outbox: &TestOutbox, sink: impl Sink) -> Running {
    let rules = SinkRules {
        destination: Template::parse("{type}").unwrap(),
        key: None,
        allowed_destinations: vec![Glob::new("*")],
        source: None,
    };
    let router = Router::new(Vec::new(), BTreeMap::from([(SinkName::from("test"), rules)]), None);
    // A record in backoff must not reach its last attempt within a test.
    let settings = Settings { max_attempts: 10_000, ..settings() };
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let parts = parts(&outbox.collections, sink, settings, share, Wakeup::default());
    run(RelayParts { router, ..parts }, owner)
}

/// Waits until these records are done.
pub async fn until_done<const N: usize>(outbox: &TestOutbox, ids: [&str; N]) {
    let filter = doc! { "_id": { "$in": ids.to_vec() }, "status": "done" };
    outbox.until_count(filter, N as u64).await;
}

pub fn to(topic: &Topic, id: &str, key: &str) -> Document {
    let mut record = record(id, key);
    record.insert("type", &topic.name);
    record
}

/// Asserts that it was sent once, and without an error.
pub async fn went_well(outbox: &TestOutbox, id: &str) {
    let record = outbox.record(id).await;
    assert_eq!(record.get_i32("attempt").unwrap(), 1, "{record}");
    assert!(!record.contains_key("lastError"), "{record}");
}

#[fixture::test]
async fn poison_records_affect_neither_their_key_nor_others() {
    let broker = ProxiedBroker::take().await;
    let (topic, outbox) =
        (broker.topic_with(3, &[("max.message.bytes", "4000")]).await, TestOutbox::new().await);
    let missing = unique("test-");
    let large: Vec<u8> = (0..8_000).map(|_| rand::random()).collect();
    let large = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: large };
    let with = |mut record: Document, name: &str, value: bson::Bson| {
        record.insert(name, value);
        record
    };
    let mut records = Vec::new();
    for number in 0..100 {
        let key = format!("key {}", number % 20);
        records.push(to(&topic, &format!("{number:03}"), &key));
        match number {
            25 => records.push(with(to(&topic, "large", &key), "payload", large.clone().into())),
            47 => records.push(with(
                to(&topic, "missing", &key),
                "destination",
                missing.clone().into(),
            )),
            62 => records.push(with(to(&topic, "illegal", &key), "destination", "no topic".into())),
            _ => {}
        }
    }
    outbox.insert(records).await;

    // So that the large one shares a batch.
    let running = relay(&outbox, sink(&broker.direct(), AMPLE_TIMEOUT / 3, [("linger.ms", "50")]));

    outbox.until_count(doc! { "status": "dead" }, 2).await;
    // All but two that wait behind the one for the missing topic: 067 and 087.
    outbox.until_count(doc! { "status": "done" }, 98).await;
    outbox.until_count(doc! { "_id": "missing", "lastError": { "$exists": true } }, 1).await;
    for id in ["067", "087"] {
        let record = outbox.record(id).await;
        assert_eq!(record.get_str("status").unwrap(), "pending", "{record}");
    }
    let made = Topic::named(&broker.direct(), &missing, 1, &[]).await;
    outbox.until_count(doc! { "status": "done" }, 101).await;

    for (id, reason, words) in
        [("large", "too large: ", topic.name.as_str()), ("illegal", "refused: ", "\"no topic\"")]
    {
        let record = outbox.record(id).await;
        let dead = record.get_str("deadReason").unwrap();
        assert!(dead.starts_with(reason) && dead.contains(words), "{record}");
        assert_eq!(record.get_i32("attempt").unwrap(), 1, "{record}");
    }
    let waited = outbox.record("missing").await;
    assert!(waited.get_i32("attempt").unwrap() > 1, "{waited}");
    assert!(waited.get_str("lastError").unwrap().contains(&missing), "{waited}");
    for number in 0..100 {
        went_well(&outbox, &format!("{number:03}")).await;
    }
    assert_eq!(made.read_ids().await, ["missing"]);
    let found = topic.read_ids().await;
    assert_eq!(found.len(), 100, "each once: {found:?}");
    for key in 0..20 {
        let of_key = |id: &&String| id.parse::<usize>().unwrap() % 20 == key;
        let found: Vec<_> = found.iter().filter(of_key).cloned().collect();
        let expected: Vec<_> = (0..5).map(|number| format!("{:03}", key + 20 * number)).collect();
        assert_eq!(found, expected);
    }
    running.stop().await;
}
