//! The size limit of a message for Kafka, to the byte.

use bson::raw::RawDocumentBuf;
use bson::{Document, doc};

use crate::destinations::brokers::record;
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;
use crate::support::sizes::{
    LEASE_BYTES, MAX_DOCUMENT_BYTES, incompressible, of_size, with_payload,
};

/// librdkafka's default for `message.max.bytes`.
const LIMIT: usize = 1_000_000;

/// Bytes that librdkafka counts for a record in addition to its key, value and headers: the maximum
/// of its lengths and differences.
const FRAME_BYTES: usize = 36;

/// Settings of a relay from this outbox to the topic.
fn to_topic(outbox: &TestOutbox, topic: &Topic, more: &[&str]) -> Vec<String> {
    let sink = [
        "sinks.kafka.kind=kafka".to_owned(),
        format!("sinks.kafka.brokers=[{:?}]", brokers()),
        format!("sinks.kafka.topic={}", topic.name),
    ];
    let more = more.iter().map(|setting| (*setting).to_owned()).collect();
    [mongo_settings(&outbox.database), sink.to_vec(), more].concat()
}

/// The size of a record's headers: each name and value is preceded by its length, in one byte up to
/// 63 and in two beyond.
fn size_of_headers(headers: &[(&str, usize)]) -> usize {
    let length = |of: usize| if of > 63 { 2 } else { 1 };
    headers
        .iter()
        .map(|(name, value)| length(name.len()) + name.len() + length(*value) + value)
        .sum()
}

/// Postrider's own headers of each of the records here.
fn ours(id: &str) -> [(&str, usize); 3] {
    let content_type = "application/octet-stream".len();
    [("message-id", id.len()), ("message-type", "T".len()), ("content-type", content_type)]
}

async fn dead_reason(outbox: &TestOutbox, id: &str) -> String {
    let dead = outbox.record(id).await;
    assert_eq!(dead.get_str("status").unwrap(), "dead");
    assert_eq!(dead.get_i32("attempt").unwrap(), 1);
    dead.get_str("deadReason").unwrap().to_owned()
}

/// Apart from the sink's `message.max.bytes` only the topic's `max.message.bytes` must be raised. A
/// request may have 100 MiB (`socket.request.max.bytes`), and followers and consumers receive a
/// batch above their limits if it is the first (`replica.fetch.max.bytes`, `fetch.max.bytes`), by
/// Kafka's defaults.
#[fixture::test]
async fn the_largest_record_is_delivered_where_limits_permit_it() {
    let outbox = TestOutbox::new().await;
    let allowed = (17 << 20).to_string();
    let topic = Topic::with(1, &[("max.message.bytes", &allowed)]).await;
    let (largest, payload) = of_size("largest", MAX_DOCUMENT_BYTES - LEASE_BYTES);
    let small = |id| RawDocumentBuf::try_from(&record(id, "T", "k", doc! {})).unwrap();
    for record in [small("before"), largest, small("behind")] {
        outbox.collections.records().insert_one(record).await.unwrap();
    }

    let allowed = format!("sinks.kafka.properties.\"message.max.bytes\"={allowed}");
    let mut relay = Postrider::start(&to_topic(&outbox, &topic, &[&allowed]));
    outbox.until_count(doc! { "status": "done", "attempt": 1, "lastError": null }, 3).await;
    relay.stop().await;

    let mut found = topic.read().await;
    let ids: Vec<&str> = found.iter().map(|record| record.id()).collect();
    assert_eq!(ids, ["before", "largest", "behind"]);
    // Compared without printing it.
    assert!(found.swap_remove(1).payload.unwrap() == payload);
}

#[fixture::test]
async fn a_payload_above_the_limit_dies_and_affects_no_other() {
    let outbox = TestOutbox::new().await;
    let topic = Topic::new(1).await;
    let small = |id, key| record(id, "T", key, doc! {});
    let of = |id, size| with_payload(id, incompressible(size));
    let records = [
        small("before", "k"),
        small("other before", "other"),
        of("over", LIMIT + 1),
        small("between", "k"),
        of("far over", 5 * LIMIT),
        small("behind", "k"),
        small("other behind", "other"),
    ];
    for record in records {
        outbox.insert([record]).await;
    }

    let mut relay = Postrider::start(&to_topic(&outbox, &topic, &[]));
    outbox.until_count(doc! { "status": "done", "attempt": 1, "lastError": null }, 5).await;
    outbox.until_count(doc! { "status": "dead" }, 2).await;
    relay.stop().await;

    let found = topic.read_ids().await;
    let of = |of: &str| found.iter().filter(|id| id.contains(of)).cloned().collect::<Vec<_>>();
    assert_eq!(found.len(), 5);
    assert_eq!(of("other"), ["other before", "other behind"]);
    let same: Vec<_> = found.iter().filter(|id| !id.contains("other")).collect();
    assert_eq!(same, ["before", "between", "behind"]);
    for (id, size) in [("over", LIMIT + 1), ("far over", 5 * LIMIT)] {
        assert_eq!(
            dead_reason(&outbox, id).await,
            format!("too large: its payload has {size} bytes, message.max.bytes is {LIMIT}")
        );
    }
}

#[fixture::test]
async fn the_limit_includes_key_headers_and_frame() {
    let outbox = TestOutbox::new().await;
    // So that only the sink checks the size.
    let topic = Topic::with(1, &[("max.message.bytes", "2000000")]).await;
    // Its id is 1 byte long, like the other one's.
    let room = LIMIT - FRAME_BYTES - "k".len() - size_of_headers(&ours("1"));
    let with_header = |id, size: usize| {
        let mut record = with_payload(id, incompressible(size));
        record.insert("headers", doc! { "h": "x".repeat(100) });
        record
    };
    let header = size_of_headers(&[("h", 100)]);
    let records: [Document; 5] = [
        with_payload("1", incompressible(room)),
        with_payload("2", incompressible(room + 1)),
        with_header("3", room - header),
        with_header("4", room - header + 1),
        with_payload("5", Vec::new()),
    ];
    for record in records {
        outbox.insert([record]).await;
    }

    let mut relay = Postrider::start(&to_topic(&outbox, &topic, &[]));
    outbox.until_count(doc! { "status": "done", "attempt": 1, "lastError": null }, 3).await;
    outbox.until_count(doc! { "status": "dead" }, 2).await;
    relay.stop().await;

    let found = topic.read().await;
    let sizes: Vec<(&str, usize)> =
        found.iter().map(|record| (record.id(), record.payload.as_ref().unwrap().len())).collect();
    assert_eq!(sizes, [("1", room), ("3", room - header), ("5", 0)]);
    let words =
        "too large: with key and headers it is larger than message.max.bytes, which is 1000000";
    for id in ["2", "4"] {
        assert_eq!(dead_reason(&outbox, id).await, words);
    }
}

#[fixture::test]
async fn a_record_above_the_topics_limit_dies_alone_with_the_reason() {
    let outbox = TestOutbox::new().await;
    let topic = Topic::with(1, &[("max.message.bytes", "5000")]).await;
    let records = (0..20).map(|number| {
        let size = if number == 7 { 5_000 } else { 1_000 };
        let mut record = with_payload(&format!("{number:02}"), incompressible(size));
        // Many keys at once, so that batches have more than one record.
        record.insert("key", format!("key {}", number % 10));
        record.remove("partition");
        record
    });
    outbox.insert(records).await;

    let mut relay = Postrider::start(&to_topic(&outbox, &topic, &[]));
    outbox.until_count(doc! { "status": "done", "attempt": 1, "lastError": null }, 19).await;
    outbox.until_count(doc! { "status": "dead" }, 1).await;
    relay.stop().await;

    let mut found = topic.read_ids().await;
    found.sort();
    let expected = (0..20).filter(|number| *number != 7).map(|number| format!("{number:02}"));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let reason = dead_reason(&outbox, "07").await;
    assert!(reason.starts_with("too large: "), "{reason}");
    assert!(reason.contains(&topic.name) && reason.contains("max.message.bytes"), "{reason}");
}
