//! Messages for the tests of rendering: a plain one, and arbitrary ones, of which many are at a limit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bson::Decimal128;
use bson::oid::ObjectId;
use postrider_relay::sink::{Address, HeaderValue, Message};
use proptest::prelude::*;
use uuid::Uuid;

/// Text around the lengths that AMQP (255 bytes) and Kafka (249 characters) allow.
pub(crate) fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        6 => "[a-zA-Z0-9._-]{0,12}",
        1 => any::<String>(),
        1 => (247_usize..258).prop_map(|length| "x".repeat(length)),
        1 => (120_usize..130).prop_map(|length| "é".repeat(length)),
    ]
}

fn header() -> impl Strategy<Value = HeaderValue> {
    prop_oneof![
        2 => text().prop_map(HeaderValue::String),
        1 => (3_000_usize..4_200).prop_map(|length| HeaderValue::String("x".repeat(length))),
        1 => any::<i32>().prop_map(HeaderValue::Int32),
        1 => any::<i64>().prop_map(HeaderValue::Int64),
        1 => any::<u64>().prop_map(|bits| HeaderValue::Double(f64::from_bits(bits))),
        1 => any::<bool>().prop_map(HeaderValue::Bool),
        1 => any::<i64>().prop_map(HeaderValue::Date),
        1 => proptest::collection::vec(any::<u8>(), 0..300).prop_map(HeaderValue::Binary),
        1 => any::<[u8; 12]>().prop_map(|id| HeaderValue::ObjectId(ObjectId::from_bytes(id))),
        1 => any::<u128>().prop_map(|id| HeaderValue::Uuid(Uuid::from_u128(id))),
        1 => any::<[u8; 16]>()
            .prop_map(|bytes| HeaderValue::Decimal128(Decimal128::from_bytes(bytes))),
        1 => Just(HeaderValue::Null),
    ]
}

fn header_name() -> impl Strategy<Value = String> {
    // Postrider's own, and RabbitMQ's.
    let reserved = ["message-key", "tenant-id", "message-id", "ce_id", "CC", "BCC", ""];
    let reserved = proptest::sample::select(reserved.to_vec()).prop_map(str::to_owned);
    prop_oneof![6 => text(), 1 => reserved]
}

fn time() -> impl Strategy<Value = SystemTime> {
    (-9_000_000_000_000_i64..400_000_000_000_000).prop_map(|millis| {
        let span = Duration::from_millis(millis.unsigned_abs());
        if millis < 0 { UNIX_EPOCH - span } else { UNIX_EPOCH + span }
    })
}

/// A message without special values.
pub(crate) fn plain_message() -> Message {
    Message {
        is_urgent: false,
        id: "m-1".into(),
        key: Some("k".into()),
        kind: "OrderCreated".into(),
        content_type: "application/json".into(),
        payload: Some(b"{}".to_vec()),
        headers: Vec::new(),
        tenant_id: Some("t".into()),
        timestamp: Some(UNIX_EPOCH + Duration::from_millis(12_345)),
        source: Some("shop".into()),
        address: Address { destination: "orders".into(), key: None },
    }
}

/// Any message.
pub(crate) fn message() -> impl Strategy<Value = Message> {
    let optional = || proptest::option::of(text());
    let texts = (text(), optional(), text(), text(), optional(), optional());
    let address = (text(), optional()).prop_map(|(destination, key)| Address { destination, key });
    let payload = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    let headers = proptest::collection::vec((header_name(), header()), 0..6);
    let rest = (address, payload, headers, proptest::option::of(time()));
    (texts, rest).prop_map(|(texts, (address, payload, headers, timestamp))| {
        let (id, key, kind, content_type, tenant_id, source) = texts;
        Message {
            is_urgent: false,
            id,
            key,
            kind,
            content_type,
            payload,
            headers,
            tenant_id,
            timestamp,
            source,
            address,
        }
    })
}
