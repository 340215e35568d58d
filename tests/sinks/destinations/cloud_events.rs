//! CloudEvents in binary mode, read from the messages by the CNCF's SDK for Python.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::oid::ObjectId;
use bson::{Binary, Bson, DateTime, Document, Uuid, doc};
use lapin::message::BasicGetMessage;
use lapin::types::AMQPValue;
use serde_json::{Map, Value, json};

use crate::destinations::brokers::{Brokers, record};
use crate::support::kafka::record::Record;
use crate::support::kafka::topic::Topic;
use crate::support::oracle;
use crate::support::rabbitmq::amqp_client::id;

const QUEUE: &str = "events";

/// A record, and the attributes of its event except time and source.
struct Case {
    id: &'static str,
    record: Document,
    subject: Option<&'static str>,
    content_type: &'static str,
    data: Value,
}

const JSON: &str = "application/json";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Each with an attribute or a body that could be confused with another.
fn cases(prefix: &str) -> Vec<Case> {
    let uuid = Uuid::parse_str("6f1c0ffe-e012-4456-89ab-cdef00112233").unwrap();
    let object_id = ObjectId::parse_str("65f1c0ffee0123456789abcd").unwrap();
    let case = |id, key: &'static str, more| Case {
        id,
        record: record(id, "Größe 1%20", key, more),
        subject: Some(key),
        content_type: JSON,
        data: json!({ "id": id }),
    };
    let forged = ["id", "source", "type", "specversion", "time", "subject"];
    let mut forged: Document =
        forged.into_iter().map(|name| (format!("{prefix}{name}"), "forged".into())).collect();
    forged.extend(doc! { "traceparent": TRACE, "tracestate": "a=1,b=2", "tenant-id": "forged" });
    let created = DateTime::from_millis(1_700_000_000_123);
    let mut by_uuid = case("6f1c0ffe-e012-4456-89ab-cdef00112233", "ä/ö?%41", doc! {});
    by_uuid.record.insert("_id", uuid);
    let mut without_key = case("65f1c0ffee0123456789abcd", "", doc! { "createdAt": created });
    without_key.record.insert("_id", object_id);
    without_key.record.remove("key");
    without_key.record.remove("partition");
    let binary = Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0, 255, 254] };
    let avro = doc! { "payload": binary, "contentType": "application/avro" };
    let own = "application/vnd.shop+json";
    vec![
        case("all", "k", doc! { "tenantId": "t", "createdAt": created, "headers": forged }),
        by_uuid,
        Case { subject: None, ..without_key },
        Case { subject: None, ..case("empty key", "", doc! {}) },
        Case { data: Value::Null, ..case("tombstone", "k", doc! { "payload": Bson::Null }) },
        Case {
            content_type: "text/plain; charset=utf-8",
            data: "Grüße".into(),
            ..case("text", "k", doc! { "payload": "Grüße" })
        },
        Case {
            content_type: "application/avro",
            data: json!({ "base64": "AP/+" }),
            ..case("bytes", "k", avro)
        },
        Case { content_type: own, ..case("own", "k", doc! { "contentType": own }) },
    ]
}

impl Case {
    /// The event of the record as it is stored; its time may be the server's.
    async fn event(&self, brokers: &Brokers) -> Value {
        let stored = brokers.outbox.record(self.record.get("_id").unwrap().clone()).await;
        let time = match stored.get_datetime("createdAt") {
            Ok(created) => created.timestamp_millis(),
            Err(_) => i64::from(stored.get_timestamp("seq").unwrap().time) * 1_000,
        };
        let mut attributes = json!({
            "specversion": "1.0",
            "id": self.id,
            "type": self.record.get_str("type").unwrap(),
            "source": "postrider",
            "time": time,
            "datacontenttype": self.content_type,
        });
        if let Some(subject) = self.subject {
            attributes["subject"] = subject.into();
        }
        json!({ "attributes": attributes, "data": self.data })
    }
}

/// Panics where the SDK reads anything but the events of the cases.
async fn judge(brokers: &Brokers, cases: &[Case], binding: &str, arrived: Vec<Value>) {
    assert_eq!(arrived.len(), cases.len());
    let events = oracle::ask("cloud_events.py", &[binding], &arrived.into()).await;
    for case in cases {
        let of = |event: &&Value| event["attributes"]["id"] == case.id;
        let mut found = events.as_array().unwrap().iter().find(of).unwrap().clone();
        if binding == "kafka" {
            // The SDK makes an attribute of a record's key, which is not in the message.
            let key = found["attributes"].as_object_mut().unwrap().remove("partitionkey");
            let expected = case.record.get_str("key").unwrap_or(case.id);
            assert_eq!(key, Some(expected.into()));
        }
        assert_eq!(found, case.event(brokers).await);
    }
}

/// A Kafka record, for the SDK.
fn from_kafka(record: &Record) -> Value {
    let base64 = |bytes: &Option<Vec<u8>>| json!(bytes.as_ref().map(|bytes| BASE64.encode(bytes)));
    let headers: Map<String, Value> =
        record.headers.iter().map(|(name, value)| (name.clone(), base64(value))).collect();
    assert_eq!(headers.len(), record.headers.len(), "each name once: {record:?}");
    json!({ "headers": headers, "key": base64(&record.key), "body": base64(&record.payload) })
}

/// A RabbitMQ message, for the SDK, which accepts only text as headers.
fn from_rabbitmq(message: &BasicGetMessage) -> Value {
    let headers: Map<String, Value> = texts(message).into_iter().collect();
    let content_type = message.delivery.properties.content_type().as_ref().unwrap().as_str();
    let body = BASE64.encode(&message.delivery.data);
    json!({ "headers": headers, "contentType": content_type, "body": body })
}

/// Its headers, all of which must be text.
fn texts(message: &BasicGetMessage) -> Vec<(String, Value)> {
    let headers = message.delivery.properties.headers().clone().unwrap();
    let texts = headers.inner().iter().map(|(name, value)| match value {
        AMQPValue::LongString(text) => (name.to_string(), json!(text.to_string())),
        other => panic!("{name} is no text but {other:?}"),
    });
    texts.collect()
}

/// The table of the sink `topic`.
fn to_topic(topic: &Topic, more: &str) -> String {
    format!(
        "[sinks.topic]\nkind = \"kafka\"\nbrokers = {:?}\ntopic = {:?}\n{more}\n",
        crate::support::kafka::brokers(),
        topic.name,
    )
}

/// The table of the sink `queue`.
fn to_queue(brokers: &Brokers, more: &str) -> String {
    format!(
        "[sinks.queue]\nkind = \"rabbitmq\"\nuri = {:?}\nrouting_key = {QUEUE:?}\n{more}\n",
        brokers.vhost.uri(),
    )
}

/// Relays the records to this sink.
async fn relay(brokers: &mut Brokers, cases: &[Case], sink: &str, table: &str) {
    brokers.outbox.insert(cases.iter().map(|case| case.record.clone())).await;
    let more = format!("[relay]\ndefault_sink = {sink:?}\n{table}");
    let mut postrider = brokers.start(&more).await;
    brokers.until_done(cases.len() as u64).await;
    postrider.stop().await;
}

#[fixture::test]
async fn a_topic_receives_each_record_as_its_event() {
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(2).await;
    let cases = cases("ce_");

    relay(&mut brokers, &cases, "topic", &to_topic(&topic, "cloudevents = true")).await;

    let arrived = topic.read().await;
    judge(&brokers, &cases, "kafka", arrived.iter().map(from_kafka).collect()).await;
    let of = |id: &str| arrived.iter().find(|record| record.id() == id).unwrap();
    for (name, expected) in [
        // Postrider's own headers, as in any message.
        ("message-type", "Größe 1%20"),
        ("content-type", JSON),
        ("tenant-id", "t"),
        ("ce_time", "2023-11-14T22:13:20.123Z"),
        ("traceparent", TRACE),
        ("tracestate", "a=1,b=2"),
    ] {
        assert_eq!(of("all").header(name), Some(expected), "{name}");
    }
    assert_eq!(of("all").headers.len(), 4 + 6 + 2, "{:?}", of("all"));
    // For a compacted topic.
    assert_eq!(of("tombstone").payload, None);
}

#[fixture::test]
async fn a_queue_receives_each_record_as_its_event() {
    let mut brokers = Brokers::new().await;
    brokers.amqp.classic(QUEUE).await;
    let cases = cases("cloudEvents_");

    let table = to_queue(&brokers, "cloudevents = true");
    relay(&mut brokers, &cases, "queue", &table).await;

    let arrived = brokers.amqp.take_all(QUEUE).await;
    let messages = arrived.iter().map(from_rabbitmq).collect();
    judge(&brokers, &cases, "amqp", messages).await;
    let all = texts(arrived.iter().find(|message| id(message) == "all").unwrap());
    let header = |name: &str| &all.iter().find(|(own, _)| own == name).unwrap().1;
    for (name, expected) in [
        ("message-key", "k"),
        ("tenant-id", "t"),
        // For a time the specification permits AMQP's own type and text. Only text keeps the
        // milliseconds, since AMQP 0-9-1 counts seconds, which the SDK would read as milliseconds.
        ("cloudEvents_time", "2023-11-14T22:13:20.123Z"),
        ("traceparent", TRACE),
        ("tracestate", "a=1,b=2"),
    ] {
        assert_eq!(header(name), expected, "{name}");
    }
    assert_eq!(all.len(), 2 + 6 + 2, "{all:?}");
}

/// `cloudEvents:` is the other prefix of the CNCF's binding for AMQP, which the SDK reads too;
/// `ce-` is Knative's for RabbitMQ. Kafka has no other standard prefix.
#[fixture::test]
async fn the_prefix_can_be_configured() {
    for (prefix, binding) in [("cloudEvents:", "amqp"), ("ce-", "rabbitmq")] {
        let mut brokers = Brokers::new().await;
        brokers.amqp.classic(QUEUE).await;
        let cases = cases(prefix);
        let prefix = format!("cloudevents = true\ncloudevents_prefix = {prefix:?}");

        let table = to_queue(&brokers, &prefix);
        relay(&mut brokers, &cases, "queue", &table).await;

        let arrived = brokers.amqp.take_all(QUEUE).await.iter().map(from_rabbitmq).collect();
        judge(&brokers, &cases, binding, arrived).await;
    }
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(1).await;
    let all = &cases("shop.")[..1];
    let prefix = "cloudevents = true\ncloudevents_prefix = \"shop.\"";

    relay(&mut brokers, all, "topic", &to_topic(&topic, prefix)).await;

    let arrived = &topic.read().await[0];
    let named = |prefix: &str| {
        let names = arrived.headers.iter().filter_map(|(name, _)| name.strip_prefix(prefix));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(named("shop."), ["specversion", "id", "type", "source", "time", "subject"]);
    assert_eq!(named("ce_"), Vec::<String>::new());
    assert_eq!(arrived.header("shop.id"), Some("all"));
}

/// Both sinks with this option, records of type `Q` to the queue.
fn to_both(brokers: &Brokers, topic: &Topic, more: &str) -> String {
    let relay = "[relay]\ndefault_sink = \"topic\"\n[[routes]]\ntype = \"Q\"\nsink = \"queue\"\n";
    format!("{relay}{}{}", to_topic(topic, more), to_queue(brokers, more))
}

#[fixture::test]
async fn a_record_with_an_invalid_templated_source_dies_alone() {
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(1).await;
    brokers.amqp.classic(QUEUE).await;
    let source = "cloudevents = true\ncloudevents_source = \"{tenantId}{header.path}\"";
    let of = |id, kind: &str, tenant: &str| {
        record(id, kind, kind, doc! { "tenantId": tenant, "headers": { "path": "/shop" } })
    };
    let empty = doc! { "tenantId": "", "headers": { "path": "" } };
    let mut no_tenant = of("K no tenant", "K", "");
    no_tenant.remove("tenantId");
    brokers
        .outbox
        .insert([
            of("K before", "K", "t"),
            no_tenant,
            of("K behind", "K", ""),
            of("Q before", "Q", "t"),
            record("Q no path", "Q", "Q", doc! { "tenantId": "t" }),
            record("Q empty", "Q", "Q", empty),
            of("Q behind", "Q", ""),
            // It has no name that an event may have, and goes to the topic.
            of("no type", "", "t"),
        ])
        .await;

    let more = to_both(&brokers, &topic, source);
    let mut postrider = brokers.start(&more).await;

    brokers.until_done(4).await;
    brokers.outbox.until_count(doc! { "status": "dead", "attempt": 1 }, 4).await;
    postrider.stop().await;
    let records: Vec<Value> = topic.read().await.iter().map(from_kafka).collect();
    let messages: Vec<Value> =
        brokers.amqp.take_all(QUEUE).await.iter().map(from_rabbitmq).collect();
    for (kind, binding, arrived) in [("K", "kafka", records), ("Q", "amqp", messages)] {
        let events = oracle::ask("cloud_events.py", &[binding], &arrived.into()).await;
        let events = events.as_array().unwrap().iter().map(|event| &event["attributes"]);
        let found: Vec<_> = events.map(|of| (of["id"].clone(), of["source"].clone())).collect();
        let expected = [("before", "t/shop"), ("behind", "/shop")];
        let expected = expected.map(|(id, source)| (format!("{kind} {id}").into(), source.into()));
        assert_eq!(found, expected);
    }
    for (id, reason) in [
        ("K no tenant", "template: the record has no tenantId"),
        ("Q no path", "template: the record has no header \"path\""),
        ("Q empty", "refused: it cannot be a CloudEvent, since its source is empty"),
        ("no type", "refused: it cannot be a CloudEvent, since its type is empty"),
    ] {
        let dead = brokers.outbox.record(id).await;
        assert_eq!(dead.get_str("deadReason").unwrap(), reason);
    }
}

#[fixture::test]
async fn a_message_has_no_attributes_without_cloudevents() {
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(1).await;
    brokers.amqp.classic(QUEUE).await;
    let own = doc! { "traceparent": TRACE, "ce_own": "o", "cloudEvents_id": "own" };
    let of = |id, kind| record(id, kind, "k", doc! { "headers": own.clone() });
    brokers.outbox.insert([of("k", "K"), of("q", "Q")]).await;

    let more = to_both(&brokers, &topic, "cloudevents = false");
    let mut postrider = brokers.start(&more).await;

    brokers.until_done(2).await;
    postrider.stop().await;
    let arrived = &topic.read().await[0];
    let names: Vec<&str> = arrived.headers.iter().map(|(name, _)| name.as_str()).collect();
    let ours = ["message-id", "message-type", "content-type"];
    let own: Vec<&str> = own.keys().map(String::as_str).collect();
    assert_eq!(names, [&own[..], &ours].concat());
    let message = brokers.amqp.take(QUEUE).await.unwrap();
    assert_eq!(id(&message), "q");
    let found: Vec<(String, Value)> = texts(&message);
    let expected =
        [("ce_own", "o"), ("cloudEvents_id", "own"), ("message-key", "k"), ("traceparent", TRACE)];
    assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.into())));
}
