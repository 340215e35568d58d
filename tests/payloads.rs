//! Payloads of every BSON kind, relayed by the real process: what a consumer finds is what the
//! contract says, and extended JSON is what MongoDB's own driver for Python says of the record.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod support;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::oid::ObjectId;
use bson::raw::RawDocumentBuf;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document, doc};
use lapin::types::AMQPValue;
use serde_json::Value;
use support::kafka::brokers;
use support::kafka::topic::Topic;
use support::outbox::{TestOutbox, record};
use support::payloads::{self, Arrived};
use support::process::Postrider;
use support::queue::{mongo_settings, stdout_sink};
use support::rabbitmq::hand::{id, text};
use support::rabbitmq::vhost::Vhost;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_gets_of_every_kind_what_the_contract_says() {
    let outbox = TestOutbox::new().await;
    let vhost = Vhost::new().await;
    let hand = vhost.hand().await;
    hand.classic(QUEUE).await;
    let cases = payloads::all();
    outbox.collections.records().insert_many(payloads::records(&cases)).await.unwrap();

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, cases.len() as u64).await;
    relay.stop().await;

    let found = hand.take_all(QUEUE).await.into_iter().map(|message| {
        let content_type = message.delivery.properties.content_type().as_ref().unwrap();
        let content_type = content_type.to_string();
        (id(&message), Arrived { content_type, body: Some(message.delivery.data) })
    });
    payloads::judge(&outbox, &cases, &found.collect(), Some(b"")).await;
    vhost.drop().await;
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_gets_of_every_kind_what_the_contract_says() {
    let outbox = TestOutbox::new().await;
    let topic = Topic::new(3).await;
    let cases = payloads::all();
    outbox.collections.records().insert_many(payloads::records(&cases)).await.unwrap();

    let sink = [
        "sinks.kafka.kind=kafka".to_owned(),
        format!("sinks.kafka.brokers=[{:?}]", brokers()),
        format!("sinks.kafka.topic={}", topic.name),
    ];
    let mut relay = Postrider::start(&[mongo_settings(&outbox.database), sink.to_vec()].concat());
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, cases.len() as u64).await;
    relay.stop().await;

    let found = topic.read().await.into_iter().map(|record| {
        let content_type = record.header("content-type").unwrap().to_owned();
        (record.id().to_owned(), Arrived { content_type, body: record.payload })
    });
    payloads::judge(&outbox, &cases, &found.collect(), None).await;
    topic.drop().await;
    outbox.drop().await;
}

/// The id of a line, and its payload as bytes: JSON in the very words of the line.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_output_shows_of_every_kind_what_the_contract_says() {
    let outbox = TestOutbox::new().await;
    let cases = payloads::all();
    outbox.collections.records().insert_many(payloads::records(&cases)).await.unwrap();

    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut relay = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, cases.len() as u64).await;
    let ended = relay.stop().await;

    let found: BTreeMap<String, Arrived> = ended.stdout.lines().map(read).collect();
    payloads::judge(&outbox, &cases, &found, None).await;
    outbox.drop().await;
}

/// The largest document that MongoDB stores.
const LARGEST: usize = 16 << 20;

/// What a first lease adds: `attempt`, `leaseId`, `leaseUntil`, `leaseOwner`.
const LEASE: usize = 13 + 30 + 20 + 33;

/// A record of this size, by a binary payload.
fn of_size(id: &str, size: usize) -> (RawDocumentBuf, Vec<u8>) {
    let with = |bytes: Vec<u8>| {
        let mut record = record(id, "k");
        record.insert("payload", Binary { subtype: BinarySubtype::Generic, bytes });
        RawDocumentBuf::try_from(&record).unwrap()
    };
    let rest = with(Vec::new()).as_bytes().len();
    let payload: Vec<u8> = (0..size - rest).map(|number| (number % 251) as u8).collect();
    (with(payload.clone()), payload)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_record_that_a_lease_fits_into_is_delivered_and_larger_ones_die() {
    let outbox = TestOutbox::new().await;
    let vhost = Vhost::new().await;
    let hand = vhost.hand().await;
    hand.classic(QUEUE).await;
    let (fits, payload) = of_size("fits", LARGEST - LEASE);
    let (over, _) = of_size("over", LARGEST - LEASE + 1);
    let (full, _) = of_size("full", LARGEST);
    let good = |id| RawDocumentBuf::try_from(&record(id, "k")).unwrap();
    for record in [good("1"), fits, good("2"), over, good("3"), full, good("4")] {
        outbox.collections.records().insert_one(record).await.unwrap();
    }

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    let well = doc! { "status": "done", "attempt": 1, "lastError": null };
    outbox.until_count(well, 5).await;
    outbox.until_count(doc! { "status": "dead" }, 2).await;
    relay.stop().await;

    let mut found = hand.take_all(QUEUE).await;
    let ids: Vec<String> = found.iter().map(id).collect();
    assert_eq!(ids, ["1", "fits", "2", "3", "4"]);
    // Compared without showing them.
    assert!(found.swap_remove(1).delivery.data == payload);
    let reason = doc! { "_id": "over", "deadReason": { "$regex": "^too large: " } };
    assert_eq!(outbox.count(reason).await, 1);
    // Not even a reason fits.
    assert_eq!(outbox.count(doc! { "_id": "full", "deadReason": null }).await, 1);
    vhost.drop().await;
    outbox.drop().await;
}

/// A typed entry for each kind that AMQP has; text for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_every_kind_arrive_as_the_contract_says() {
    let outbox = TestOutbox::new().await;
    let vhost = Vhost::new().await;
    let hand = vhost.hand().await;
    hand.classic(QUEUE).await;
    let binary = |subtype: u8, bytes: &[u8]| {
        Bson::Binary(Binary { subtype: subtype.into(), bytes: bytes.to_vec() })
    };
    let bytes = |bytes: &[u8]| AMQPValue::ByteArray(bytes.to_vec().into());
    let date = |millis| Bson::DateTime(DateTime::from_millis(millis));
    let id = ObjectId::parse_str("65f1c0ffee0123456789abcd").unwrap();
    let decimal = |number: &str| Bson::Decimal128(number.parse().unwrap());
    let sent = [
        ("string", "Grüße\0🚀".into(), text("Grüße\0🚀")),
        ("empty", "".into(), text("")),
        ("int32", i32::MIN.into(), AMQPValue::LongInt(i32::MIN)),
        ("int64", i64::MAX.into(), AMQPValue::LongLongInt(i64::MAX)),
        ("small int64", 1_i64.into(), AMQPValue::LongLongInt(1)),
        ("double", 1.0.into(), AMQPValue::Double(1.0)),
        // RabbitMQ, which is Erlang, can't read such a number, and closes the connection.
        ("infinity", f64::INFINITY.into(), text("Infinity")),
        ("negative infinity", f64::NEG_INFINITY.into(), text("-Infinity")),
        ("NaN", (-f64::NAN).into(), text("NaN")),
        ("greatest double", f64::MAX.into(), AMQPValue::Double(f64::MAX)),
        ("true", true.into(), AMQPValue::Boolean(true)),
        ("false", false.into(), AMQPValue::Boolean(false)),
        // AMQP counts seconds.
        ("date", date(1_700_000_000_999), AMQPValue::Timestamp(1_700_000_000)),
        ("late date", date(253_402_300_800_000), AMQPValue::Timestamp(253_402_300_800)),
        ("early date", date(-1_500), text("1969-12-31T23:59:58.5Z")),
        ("binary", binary(0, &[0, 255]), bytes(&[0, 255])),
        ("old binary", binary(2, &[0, 255]), bytes(&[0, 255])),
        ("old UUID", binary(3, &[7; 16]), bytes(&[7; 16])),
        ("MD5", binary(5, &[7; 16]), bytes(&[7; 16])),
        ("user's binary", binary(0x80, b""), bytes(b"")),
        ("UUID", binary(4, &[7; 16]), text("07070707-0707-0707-0707-070707070707")),
        // It is none.
        ("short UUID", binary(4, &[7; 3]), bytes(&[7; 3])),
        ("ObjectId", id.into(), text("65f1c0ffee0123456789abcd")),
        ("decimal", decimal("1.50"), text("1.50")),
        ("decimal NaN", decimal("NaN"), text("NaN")),
        ("null", Bson::Null, AMQPValue::Void),
        ("traceparent", "00-1-2-01".into(), text("00-1-2-01")),
        ("a.b $c", 1.into(), AMQPValue::LongInt(1)),
    ];
    let mut record = record("m", "k");
    let headers = sent.iter().map(|(name, value, _)| ((*name).to_owned(), value.clone()));
    record.insert("headers", headers.collect::<Document>());
    outbox.insert([record]).await;

    let mut relay = Postrider::start(&to_queue(&outbox, &vhost));
    outbox.until_count(doc! { "status": "done" }, 1).await;
    relay.stop().await;

    let found = hand.take(QUEUE).await.unwrap().delivery.properties.headers().clone().unwrap();
    let key = ("message-key".into(), text("k"));
    let expected = sent.into_iter().map(|(name, _, value)| (name.into(), value)).chain([key]);
    assert_eq!(found.inner(), &expected.collect::<BTreeMap<_, _>>());
    vhost.drop().await;
    outbox.drop().await;
}
