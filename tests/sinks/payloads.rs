//! Payloads and headers of every BSON kind, relayed by the real process: a consumer receives what
//! the documentation promises, and extended JSON agrees with MongoDB's own driver for Python.

use std::collections::BTreeMap;

use crate::support::headers::{self, Header};
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, record};
use crate::support::payloads::{self, Arrived};
use crate::support::process::Postrider;
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::support::rabbitmq::amqp_client::{id, text};
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::sizes::{LEASE_BYTES, MAX_DOCUMENT_BYTES, filled, of_size};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::doc;
use bson::raw::RawDocumentBuf;
use serde_json::Value;

const QUEUE: &str = "q";

/// Settings of a relay from this outbox to the queue [`QUEUE`].
fn to_queue(outbox: &TestOutbox, vhost: &Vhost) -> Vec<String> {
    let sink = [
        "sinks.rabbit.kind=rabbitmq".to_owned(),
        format!("sinks.rabbit.uri={}", vhost.uri()),
        format!("sinks.rabbit.routing_key={QUEUE}"),
    ];
    [mongo_settings(&outbox.database), sink.to_vec()].concat()
}

/// Settings of a relay from this outbox to the topic.
fn to_topic(outbox: &TestOutbox, topic: &Topic) -> Vec<String> {
    let sink = [
        "sinks.kafka.kind=kafka".to_owned(),
        format!("sinks.kafka.brokers=[{:?}]", brokers()),
        format!("sinks.kafka.topic={}", topic.name),
    ];
    [mongo_settings(&outbox.database), sink.to_vec()].concat()
}

#[fixture::test]
async fn a_queue_receives_every_kind_of_payload_as_documented() {
    let outbox = TestOutbox::new().await;
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let cases = payloads::all();
    outbox.collections.records().insert_many(payloads::records(&cases)).await.unwrap();

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, cases.len() as u64).await;
    relay.stop().await;

    let found = amqp.take_all(QUEUE).await.into_iter().map(|message| {
        let content_type = message.delivery.properties.content_type().as_ref().unwrap();
        let content_type = content_type.to_string();
        (id(&message), Arrived { content_type, body: Some(message.delivery.data) })
    });
    payloads::judge(&outbox, &cases, &found.collect(), Some(b"")).await;
}

#[fixture::test]
async fn a_topic_receives_every_kind_of_payload_as_documented() {
    let outbox = TestOutbox::new().await;
    let topic = Topic::new(3).await;
    let cases = payloads::all();
    outbox.collections.records().insert_many(payloads::records(&cases)).await.unwrap();

    let mut relay = Postrider::start(&to_topic(&outbox, &topic));
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, cases.len() as u64).await;
    relay.stop().await;

    let found = topic.read().await.into_iter().map(|record| {
        let content_type = record.header("content-type").unwrap().to_owned();
        (record.id().to_owned(), Arrived { content_type, body: record.payload })
    });
    payloads::judge(&outbox, &cases, &found.collect(), None).await;
}

/// The id of a line, and its payload as bytes: JSON exactly as in the line.
fn read(line: &str) -> (String, Arrived) {
    let (head, payload) = line.split_once(r#","payload"#).unwrap_or_else(|| panic!("{line}"));
    let payload = payload.strip_suffix('}').unwrap();
    let line: Value = serde_json::from_str(&format!("{head}}}")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let content_type = text(&line["contentType"]);
    let body = match payload.strip_prefix(r#"Base64":"#) {
        Some(base64) => Some(BASE64.decode(base64.trim_matches('"')).unwrap()),
        None => match payload.strip_prefix(r#"":"#).unwrap() {
            "null" => None,
            text if content_type.starts_with("text/") => {
                Some(serde_json::from_str::<String>(text).unwrap().into_bytes())
            }
            json => Some(json.as_bytes().to_vec()),
        },
    };
    (text(&line["id"]), Arrived { content_type, body })
}

#[fixture::test]
async fn standard_output_has_every_kind_of_payload_as_documented() {
    let outbox = TestOutbox::new().await;
    let cases = payloads::all();
    outbox.collections.records().insert_many(payloads::records(&cases)).await.unwrap();

    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut relay = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, cases.len() as u64).await;
    let ended = relay.stop().await;

    let found: BTreeMap<String, Arrived> = ended.stdout.lines().map(read).collect();
    payloads::judge(&outbox, &cases, &found, None).await;
}

#[fixture::test]
async fn records_too_large_for_a_lease_die() {
    let outbox = TestOutbox::new().await;
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let (fits, payload) = of_size("fits", MAX_DOCUMENT_BYTES - LEASE_BYTES);
    let (over, _) = of_size("over", MAX_DOCUMENT_BYTES - LEASE_BYTES + 1);
    let (full, _) = of_size("full", MAX_DOCUMENT_BYTES);
    let good = |id| RawDocumentBuf::try_from(&record(id, "k")).unwrap();
    for record in [good("1"), fits, good("2"), over, good("3"), full, good("4")] {
        outbox.collections.records().insert_one(record).await.unwrap();
    }

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    let well = doc! { "status": "done", "attempt": 1, "lastError": null };
    outbox.until_count(well, 5).await;
    outbox.until_count(doc! { "status": "dead" }, 2).await;
    relay.stop().await;

    let mut found = amqp.take_all(QUEUE).await;
    let ids: Vec<String> = found.iter().map(id).collect();
    assert_eq!(ids, ["1", "fits", "2", "3", "4"]);
    // Compared without printing it.
    assert!(found.swap_remove(1).delivery.data == payload);
    let reason = doc! { "_id": "over", "deadReason": { "$regex": "^too large: " } };
    assert_eq!(outbox.count(reason).await, 1);
    // Not even a reason fits.
    assert_eq!(outbox.count(doc! { "_id": "full", "deadReason": null }).await, 1);
}

/// They once stayed pending for ever, since no partition fitted, and nothing was logged.
#[fixture::test(long)]
async fn unstamped_records_too_large_for_a_lease_die() {
    let (outbox, vhost) = (TestOutbox::new().await, Vhost::new().await);
    let amqp = vhost.amqp_client().await;
    amqp.classic(QUEUE).await;
    let unstamped = |id: &str, key: &str| {
        let mut record = record(id, key);
        record.remove("partition");
        record
    };
    // A record that ends this many bytes below the limit, one behind it, and one of another key.
    let insert = async |id: &str, room: usize| {
        let (large, _) = filled(unstamped(id, id), MAX_DOCUMENT_BYTES - room);
        outbox.admin.records().insert_one(large).await.unwrap();
        let behind = unstamped(&format!("{id}, behind"), id);
        outbox.insert([behind, unstamped(&format!("{id}, other"), "other")]).await;
    };
    insert("fits", LEASE_BYTES).await;
    let before = [("over", LEASE_BYTES - 1), ("15", 15), ("1", 1)];
    for (id, room) in before {
        insert(id, room).await;
    }

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    outbox.until_count(doc! { "status": "dead" }, 3).await;
    outbox.until_count(doc! { "status": "done", "attempt": 1, "lastError": null }, 9).await;
    // Delivered by the change stream.
    let during = [("15 more", 15), ("1 more", 1)];
    for (id, room) in during {
        insert(id, room).await;
    }
    outbox.until_count(doc! { "status": "dead" }, 5).await;
    outbox.until_count(doc! { "status": "done", "attempt": 1, "lastError": null }, 13).await;
    let log = relay.lines();
    relay.stop().await;

    let mut arrived = amqp.take_all(QUEUE).await.iter().map(id).collect::<Vec<_>>();
    arrived.sort();
    let all = ["fits"].into_iter().chain(before.into_iter().chain(during).map(|(id, _)| id));
    let others = all.flat_map(|id| [format!("{id}, behind"), format!("{id}, other")]);
    let mut expected: Vec<String> = others.chain(["fits".to_owned()]).collect();
    expected.sort();
    assert_eq!(arrived, expected, "each once, and none that is dead");
    for (id, room) in before.into_iter().chain(during) {
        // As much of the reason as there is room for: in 15 bytes none.
        let words = if room > 15 {
            doc! { "$regex": "^too large:" }
        } else {
            doc! { "$exists": false }
        };
        assert_eq!(outbox.count(doc! { "_id": id, "deadReason": words }).await, 1, "{id}");
        let is_reported = |line: &Value| {
            let reason = line["reason"].as_str().unwrap_or_default();
            line["message"] == "record is dead"
                && line["id"] == id
                && reason.starts_with("too large: ")
        };
        assert!(log.iter().any(is_reported), "{id}: {log:#?}");
    }
}

/// An outbox with one record, `m`, that has all headers.
async fn with_headers(headers: &[Header]) -> TestOutbox {
    let outbox = TestOutbox::new().await;
    let mut record = record("m", "k");
    record.insert("headers", headers::of_record(headers));
    outbox.insert([record]).await;
    outbox
}

#[fixture::test]
async fn a_queue_receives_every_kind_of_header_as_documented() {
    let sent = headers::all();
    let outbox = with_headers(&sent).await;
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    outbox.until_count(doc! { "status": "done" }, 1).await;
    relay.stop().await;

    let found = amqp.take(QUEUE).await.unwrap().delivery.properties.headers().clone().unwrap();
    let key = ("message-key".into(), text("k"));
    let expected = sent.into_iter().map(|header| (header.name.into(), header.amqp)).chain([key]);
    assert_eq!(found.inner(), &expected.collect::<BTreeMap<_, _>>());
}

#[fixture::test]
async fn a_topic_receives_every_kind_of_header_as_documented() {
    let sent = headers::all();
    let outbox = with_headers(&sent).await;
    let topic = Topic::new(1).await;

    let mut relay = Postrider::start(&to_topic(&outbox, &topic));
    outbox.until_count(doc! { "status": "done" }, 1).await;
    relay.stop().await;

    let found = topic.read().await.swap_remove(0).headers;
    let ours = [("message-id", "m"), ("message-type", "T"), ("content-type", "application/json")];
    let ours = ours.map(|(name, value)| (name.to_owned(), Some(value.as_bytes().to_vec())));
    // In the record's order.
    let sent = sent.into_iter().map(|header| (header.name.to_owned(), header.kafka));
    assert_eq!(found, sent.chain(ours).collect::<Vec<_>>());
}

#[fixture::test]
async fn standard_output_has_every_kind_of_header() {
    let sent = headers::all();
    let outbox = with_headers(&sent).await;

    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut relay = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done" }, 1).await;
    let line = relay.stop().await.json();

    let names = line["headers"].as_object().unwrap().keys();
    assert_eq!(names.collect::<Vec<_>>(), sent.iter().map(|of| of.name).collect::<Vec<_>>());
    for header in sent {
        assert_eq!(line["headers"][header.name], header.json, "{}", header.name);
    }
}
