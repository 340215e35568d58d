//! The properties and headers as a consumer receives them.

use std::collections::BTreeMap;
use std::str::FromStr;

use bson::oid::ObjectId;
use lapin::types::AMQPValue;
use postrider::sink::{HeaderValue, Message, Sink};
use uuid::Uuid;

use crate::rabbitmq::util::connected;
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::{id, text};
use crate::support::rabbitmq::vhost::Vhost;

const QUEUE: &str = "q";

#[fixture::test]
async fn a_consumer_receives_the_documented_properties() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let sink = connected(&vhost.uri()).await;
    let message = Message { tenant_id: Some("t-1".into()), ..message("m-1", "", QUEUE) };

    sink.publish(message.clone()).await.unwrap();

    let found = amqp.take(QUEUE).await.unwrap();
    let properties = &found.delivery.properties;
    assert_eq!(id(&found), "m-1");
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "OrderCreated");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(properties.timestamp(), &Some(1_700_000_000));
    assert_eq!(properties.delivery_mode(), &Some(2));
    let headers = properties.headers().as_ref().unwrap().inner();
    let ours = BTreeMap::from([
        ("message-key".into(), text("key of m-1")),
        ("tenant-id".into(), text("t-1")),
    ]);
    assert_eq!(headers, &ours);
    assert_eq!(Some(found.delivery.data), message.payload);
}

#[fixture::test]
async fn headers_arrive_with_their_types_and_ours_take_precedence() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let sink = connected(&vhost.uri()).await;
    let object_id = ObjectId::from_str("65f1c0ffee0123456789abcd").unwrap();
    let uuid = Uuid::from_str("0123abcd-89ef-4567-8901-abcdef012345").unwrap();
    let number = bson::Decimal128::from_str("12345678901234567890.5").unwrap();
    let sent = [
        ("string", HeaderValue::String("Grüße".into()), text("Grüße")),
        ("int32", HeaderValue::Int32(-7), AMQPValue::LongInt(-7)),
        ("int64", HeaderValue::Int64(1 << 40), AMQPValue::LongLongInt(1 << 40)),
        ("double", HeaderValue::Double(0.25), AMQPValue::Double(0.25)),
        ("bool", HeaderValue::Bool(true), AMQPValue::Boolean(true)),
        ("date", HeaderValue::Date(1_700_000_000_999), AMQPValue::Timestamp(1_700_000_000)),
        (
            "binary",
            HeaderValue::Binary(vec![0, 128, 255]),
            AMQPValue::ByteArray(vec![0, 128, 255].into()),
        ),
        ("object-id", HeaderValue::ObjectId(object_id), text("65f1c0ffee0123456789abcd")),
        ("uuid", HeaderValue::Uuid(uuid), text("0123abcd-89ef-4567-8901-abcdef012345")),
        ("decimal", HeaderValue::Decimal128(number), text("12345678901234567890.5")),
        ("null", HeaderValue::Null, AMQPValue::Void),
        // Forged: Postrider's own headers must override these.
        ("message-key", HeaderValue::String("forged".into()), text("key of m-1")),
        ("tenant-id", HeaderValue::Int32(1), text("t-1")),
    ];
    let headers = sent.iter().map(|(name, value, _)| ((*name).to_owned(), value.clone()));
    let headers = headers.collect();
    let message = Message { headers, tenant_id: Some("t-1".into()), ..message("m-1", "", QUEUE) };

    sink.publish(message).await.unwrap();

    let found = amqp.take(QUEUE).await.unwrap();
    let found = found.delivery.properties.headers().clone().unwrap();
    let expected = sent.into_iter().map(|(name, _, value)| (name.into(), value));
    assert_eq!(found.inner(), &expected.collect::<BTreeMap<_, _>>());
}

#[fixture::test]
async fn absent_fields_are_absent_properties() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let sink = connected(&vhost.uri()).await;
    let bare = Message { key: None, payload: None, timestamp: None, ..message("m-1", "", QUEUE) };
    // An empty key is a key.
    let empty = Message { key: Some(String::new()), ..message("m-2", "", QUEUE) };

    sink.publish(bare).await.unwrap();
    sink.publish(empty).await.unwrap();

    let bare = amqp.take(QUEUE).await.unwrap();
    assert_eq!(bare.delivery.data, b"");
    assert_eq!(bare.delivery.properties.timestamp(), &None);
    let headers = bare.delivery.properties.headers().clone().unwrap_or_default();
    assert!(headers.inner().is_empty(), "{headers:?}");
    let empty = amqp.take(QUEUE).await.unwrap();
    let headers = empty.delivery.properties.headers().clone().unwrap();
    assert_eq!(headers.inner()["message-key"], text(""));
}

#[fixture::test]
async fn a_body_of_many_frames_arrives_whole() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let sink = connected(&vhost.uri()).await;
    let payload: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let message = Message { payload: Some(payload.clone()), ..message("m-1", "", QUEUE) };

    sink.publish(message).await.unwrap();

    // Compared without printing it.
    assert!(amqp.take(QUEUE).await.unwrap().delivery.data == payload);
}
