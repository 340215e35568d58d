//! A record as a consumer receives it.

use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use bson::oid::ObjectId;
use postrider::sink::{Address, HeaderValue, Message, Sink};
use uuid::Uuid;

use super::util::{connected, connected_with, publish_all};
use crate::support::kafka::brokers;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::message::message;

fn text(text: &str) -> Option<Vec<u8>> {
    Some(text.as_bytes().to_vec())
}

#[fixture::test]
async fn a_consumer_receives_the_documented_record() {
    let topic = Topic::new(1).await;
    let sink = connected(&brokers()).await;
    let timestamp = Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
    let tenant_id = Some("t-1".into());
    let message = Message { tenant_id, timestamp, ..message("m-1", &topic.name, "route") };

    sink.publish(message.clone()).await.unwrap();

    let [found] = topic.read().await.try_into().unwrap();
    assert_eq!(found.key, text("route"));
    assert_eq!(found.payload, message.payload);
    assert_eq!(found.timestamp, 1_700_000_000_123);
    let headers = [
        ("message-id", "m-1"),
        ("message-type", "OrderCreated"),
        ("content-type", "application/json"),
        ("tenant-id", "t-1"),
    ];
    assert_eq!(found.headers, headers.map(|(name, value)| (name.to_owned(), text(value))));
}

#[fixture::test]
async fn headers_arrive_in_order_and_ours_take_precedence() {
    let topic = Topic::new(1).await;
    let sink = connected(&brokers()).await;
    let object_id = ObjectId::from_str("65f1c0ffee0123456789abcd").unwrap();
    let uuid = Uuid::from_str("0123abcd-89ef-4567-8901-abcdef012345").unwrap();
    let number = bson::Decimal128::from_str("12345678901234567890.5").unwrap();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let sent = [
        ("traceparent", HeaderValue::String(trace.into()), text(trace)),
        ("string", HeaderValue::String("Grüße".into()), text("Grüße")),
        ("empty", HeaderValue::String(String::new()), text("")),
        ("int32", HeaderValue::Int32(-7), text("-7")),
        ("int64", HeaderValue::Int64(1 << 40), text("1099511627776")),
        ("double", HeaderValue::Double(0.25), text("0.25")),
        ("bool", HeaderValue::Bool(false), text("false")),
        ("date", HeaderValue::Date(1_700_000_000_999), text("2023-11-14T22:13:20.999Z")),
        ("binary", HeaderValue::Binary(vec![0, 128, 255]), Some(vec![0, 128, 255])),
        ("object-id", HeaderValue::ObjectId(object_id), text("65f1c0ffee0123456789abcd")),
        ("uuid", HeaderValue::Uuid(uuid), text("0123abcd-89ef-4567-8901-abcdef012345")),
        ("decimal", HeaderValue::Decimal128(number), text("12345678901234567890.5")),
        ("null", HeaderValue::Null, None),
        ("a second", HeaderValue::Null, None),
    ];
    let forged = ["message-id", "message-type", "content-type"];
    let forged = forged.map(|name| (name.to_owned(), HeaderValue::String("forged".into())));
    let headers = sent.iter().map(|(name, value, _)| ((*name).to_owned(), value.clone()));
    let headers = forged.into_iter().chain(headers).collect();

    sink.publish(Message { headers, ..message("m-1", &topic.name, "k") }).await.unwrap();

    let [found] = topic.read().await.try_into().unwrap();
    let expected = sent.into_iter().map(|(name, _, value)| (name.to_owned(), value));
    let ours = [
        ("message-id", "m-1"),
        ("message-type", "OrderCreated"),
        ("content-type", "application/json"),
    ];
    let ours = ours.map(|(name, value)| (name.to_owned(), text(value)));
    assert_eq!(found.headers, expected.chain(ours).collect::<Vec<_>>());
}

#[fixture::test]
async fn a_null_payload_is_a_tombstone_and_an_empty_one_is_not() {
    let topic = Topic::new(1).await;
    let sink = connected(&brokers()).await;

    for (id, payload) in [("null", None), ("empty", Some(Vec::new()))] {
        sink.publish(Message { payload, ..message(id, &topic.name, "k") }).await.unwrap();
    }

    let found: Vec<_> = topic.read().await.into_iter().map(|record| record.payload).collect();
    assert_eq!(found, [None, text("")]);
}

#[fixture::test]
async fn a_record_without_a_time_gets_the_time_of_its_sending() {
    let topic = Topic::new(1).await;
    let sink = connected(&brokers()).await;
    let begin = bson::DateTime::now().timestamp_millis();

    for (id, timestamp) in [("none", None), ("before", Some(UNIX_EPOCH - Duration::from_secs(1)))] {
        sink.publish(Message { timestamp, ..message(id, &topic.name, "k") }).await.unwrap();
    }

    let found = topic.read().await;
    let end = bson::DateTime::now().timestamp_millis();
    assert!(found.iter().all(|record| (begin..=end).contains(&record.timestamp)), "{found:?}");
}

/// Keys and their hashes in Java (`UtilsTest.testMurmur2` of Kafka).
const KEYS: [(&str, i32); 6] = [
    ("21", -973_932_308),
    ("foobar", -790_332_482),
    ("a-little-bit-long-string", -985_981_536),
    ("a-little-bit-longer-string", -1_486_304_829),
    ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
    ("abc", 479_470_107),
];

const PARTITIONS: i32 = 7;

#[fixture::test]
async fn a_key_lands_in_the_partition_where_javas_clients_put_it() {
    let topic = Topic::new(PARTITIONS).await;
    let sink = connected(&brokers()).await;
    let to = |key: Option<&str>| Address {
        destination: topic.name.clone(),
        key: key.map(str::to_owned),
    };
    // The key of the route, else the record's own, else its id.
    let messages = KEYS.iter().flat_map(|(key, _)| {
        let own = Some((*key).to_owned());
        let message = |id: &str| message(id, &topic.name, key);
        [
            Message { address: to(Some(key)), ..message("by route") },
            Message { address: to(None), key: own, ..message("by record") },
            Message { address: to(None), key: None, ..message(key) },
        ]
    });

    let outcomes = publish_all(&sink, messages).await;

    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let found = topic.read().await;
    for (key, hash) in KEYS {
        let of_key: Vec<_> = found.iter().filter(|record| record.key == text(key)).collect();
        assert_eq!(of_key.len(), 3, "{key}");
        for record in of_key {
            assert_eq!(record.partition, (hash & i32::MAX) % PARTITIONS, "{record:?}");
        }
    }
}

#[fixture::test]
async fn the_empty_key_is_a_key_and_has_one_partition() {
    let topic = Topic::new(PARTITIONS).await;
    let sink = connected(&brokers()).await;
    let messages = (0..60).map(|number| {
        let address = Address { destination: topic.name.clone(), key: None };
        let key = Some(String::new());
        Message { key, address, ..message(number.to_string(), &topic.name, "") }
    });

    let outcomes = publish_all(&sink, messages).await;

    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let found = topic.read().await;
    assert_eq!(found.len(), 60);
    // 0x106e08d9 is murmur2 of nothing.
    let expected = (0x106e_08d9 % PARTITIONS, text(""));
    for record in found {
        assert_eq!((record.partition, record.key), expected);
    }
}

#[fixture::test]
async fn compressed_records_can_be_read() {
    const SIZE: usize = 300_000;
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    for codec in [None, Some("zstd"), Some("gzip"), Some("snappy"), Some("none")] {
        let sink = match codec {
            None => connected(&broker.brokers()).await,
            Some(codec) => connected_with(&broker.brokers(), [("compression.type", codec)]).await,
        };
        let before = broker.sent();
        let payload = Some(b"again and ".repeat(SIZE / 10));
        let id = codec.unwrap_or("default");

        sink.publish(Message { payload: payload.clone(), ..message(id, &topic.name, "k") })
            .await
            .unwrap();

        let sent = broker.sent() - before;
        assert_eq!(sent > SIZE, codec == Some("none"), "{id}: {sent} bytes");
        let found = topic.read().await.pop().unwrap();
        assert_eq!(found.id(), id);
        // Compared without printing it.
        assert!(found.payload == payload, "{id}");
        sink.close().await;
    }
}
