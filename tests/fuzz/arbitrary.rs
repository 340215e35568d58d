//! BSON, texts and messages of every kind.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bson::oid::ObjectId;
use bson::raw::{CString, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, Regex, Timestamp, doc,
};
use postrider::sink::{Address, HeaderValue, Message};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

/// Text: some ordinary, some long, and some of characters that break parsers.
pub fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        4 => "[a-zA-Z0-9._-]{0,12}",
        2 => any::<String>(),
        1 => "\\PC{0,40}",
        1 => Just(String::new()),
        1 => "[\"'\\\\{}\\[\\]#=\n\r\t\u{0}\u{2028}\u{feff}é€😀]{0,8}",
        1 => (1_usize..1_200).prop_map(|length| "ß".repeat(length)),
    ]
}

/// A field's name: BSON has no NUL in it.
fn name() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        3 => "[a-zA-Z][a-zA-Z0-9._-]{0,8}",
        1 => text().prop_map(|text| text.replace('\0', "")),
    ]
}

fn subtype() -> impl Strategy<Value = BinarySubtype> {
    any::<u8>().prop_map(BinarySubtype::from)
}

/// Bytes, and sometimes a length that fits the subtype.
fn binary() -> impl Strategy<Value = Bson> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(any::<u8>(), 16),
    ];
    (subtype(), bytes).prop_map(|(subtype, bytes)| Bson::Binary(Binary { subtype, bytes }))
}

pub fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

pub fn object_id() -> impl Strategy<Value = ObjectId> {
    any::<[u8; 12]>().prop_map(ObjectId::from_bytes)
}

fn decimal() -> impl Strategy<Value = Decimal128> {
    any::<[u8; 16]>().prop_map(Decimal128::from_bytes)
}

pub fn double() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        any::<u64>().prop_map(f64::from_bits),
        any::<i32>().prop_map(f64::from),
        Just(9_007_199_254_740_993.0),
        Just(-0.0),
    ]
}

pub fn integer() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -2_i64..300, Just(i64::MAX), Just(i64::MIN)]
}

/// A value that contains no other.
pub fn scalar() -> impl Strategy<Value = Bson> {
    prop_oneof![
        4 => text().prop_map(Bson::String),
        2 => integer().prop_map(Bson::Int64),
        2 => any::<i32>().prop_map(Bson::Int32),
        2 => double().prop_map(Bson::Double),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => Just(Bson::Null),
        1 => integer().prop_map(|millis| Bson::DateTime(DateTime::from_millis(millis))),
        1 => any::<i64>().prop_map(|millis| Bson::DateTime(DateTime::from_millis(millis / 1_000))),
        2 => binary(),
        1 => object_id().prop_map(Bson::ObjectId),
        1 => decimal().prop_map(Bson::Decimal128),
        1 => any::<(u32, u32)>()
            .prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment })),
        1 => (name(), "[imsxlu]{0,4}").prop_map(|(pattern, options)| {
            let [pattern, options] = [pattern, options].map(|text| CString::try_from(text).unwrap());
            Bson::RegularExpression(Regex { pattern, options })
        }),
        1 => text().prop_map(Bson::JavaScriptCode),
        1 => text().prop_map(Bson::Symbol),
        1 => (name(), object_id()).prop_map(|(namespace, id)| {
            // It has no constructor.
            let pointer = json!({ "$ref": namespace, "$id": { "$oid": id.to_hex() } });
            Bson::try_from(json!({ "$dbPointer": pointer })).unwrap()
        }),
        1 => prop_oneof![Just(Bson::MinKey), Just(Bson::MaxKey), Just(Bson::Undefined)],
    ]
}

/// Any value, some levels deep.
pub fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(4, 24, 5, |inner| {
        let document =
            proptest::collection::vec((name(), inner.clone()), 0..5).prop_map(Document::from_iter);
        prop_oneof![
            3 => document.clone().prop_map(Bson::Document),
            2 => proptest::collection::vec(inner, 0..5).prop_map(Bson::Array),
            1 => (text(), document).prop_map(|(code, scope)| {
                Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code, scope })
            }),
        ]
    })
}

/// The names of a record's fields, and one without a meaning.
const FIELDS: [&str; 21] = [
    "_id",
    "key",
    "type",
    "payload",
    "contentType",
    "headers",
    "destination",
    "tenantId",
    "status",
    "seq",
    "partition",
    "createdAt",
    "visibleAt",
    "dedupKey",
    "attempt",
    "leaseId",
    "leaseUntil",
    "leaseOwner",
    "lastError",
    "blocks",
    "unknown",
];

/// A record as a producer writes it.
fn sound_record() -> impl Strategy<Value = Document> {
    (text(), text(), text(), value()).prop_map(|(id, key, kind, payload)| {
        doc! { "_id": id, "key": key, "type": kind, "payload": payload, "status": "pending" }
    })
}

/// Values that mean no `seq`, and valid ones.
fn seq() -> impl Strategy<Value = Bson> {
    (0_u32..2, 0_u32..2)
        .prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment }))
}

/// A record with fields of any kind among its own.
pub fn record() -> impl Strategy<Value = Document> {
    let wrong = (proptest::sample::select(&FIELDS[..]), value());
    let headers = proptest::collection::vec((name(), scalar()), 0..4).prop_map(Document::from_iter);
    let headers = headers.prop_map(|headers| ("headers", Bson::Document(headers)));
    let wrong = prop_oneof![4 => wrong, 2 => headers, 1 => seq().prop_map(|seq| ("seq", seq))];
    (sound_record(), proptest::collection::vec(wrong, 0..4)).prop_map(|(mut record, wrong)| {
        for (field, value) in wrong {
            record.insert(field, value);
        }
        record
    })
}

/// A record in bytes, some of which are changed; its length is right.
pub fn broken_record() -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6);
    (record(), changes, any::<proptest::sample::Index>(), any::<bool>()).prop_map(
        |(record, changes, cut, cuts)| {
            let mut bytes = RawDocumentBuf::try_from(&record).unwrap().into_bytes();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if cuts {
                bytes.truncate(cut.index(bytes.len()));
            }
            framed(bytes)
        },
    )
}

/// Any bytes within the frame of a document, without which a driver returns nothing.
pub fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..64).prop_map(framed)
}

/// The same bytes with the length and the end of a document.
pub fn framed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().max(5), 0);
    let length = i32::try_from(bytes.len()).unwrap();
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    *bytes.last_mut().unwrap() = 0;
    bytes
}

fn header() -> impl Strategy<Value = HeaderValue> {
    prop_oneof![
        text().prop_map(HeaderValue::String),
        any::<i32>().prop_map(HeaderValue::Int32),
        integer().prop_map(HeaderValue::Int64),
        double().prop_map(HeaderValue::Double),
        any::<bool>().prop_map(HeaderValue::Bool),
        integer().prop_map(HeaderValue::Date),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(HeaderValue::Binary),
        object_id().prop_map(HeaderValue::ObjectId),
        uuid().prop_map(HeaderValue::Uuid),
        decimal().prop_map(HeaderValue::Decimal128),
        Just(HeaderValue::Null),
    ]
}

/// Names and values of headers.
pub fn headers() -> impl Strategy<Value = Vec<(String, HeaderValue)>> {
    let name = prop_oneof![
        4 => text(),
        1 => Just("tenant-id".to_owned()),
        1 => Just("aggregate-name".to_owned()),
    ];
    proptest::collection::vec((name, header()), 0..5)
}

fn time() -> impl Strategy<Value = SystemTime> {
    // The years that every SystemTime has.
    (-9_000_000_000_000_i64..400_000_000_000_000).prop_map(|millis| {
        let span = Duration::from_millis(millis.unsigned_abs());
        if millis < 0 { UNIX_EPOCH - span } else { UNIX_EPOCH + span }
    })
}

/// A message, more of them with JSON than without.
pub fn message() -> impl Strategy<Value = Message> {
    let json = (value(), any::<bool>()).prop_map(|(value, on_many_lines)| {
        let json = value.into_relaxed_extjson();
        if on_many_lines {
            serde_json::to_vec_pretty(&json).unwrap()
        } else {
            serde_json::to_vec(&json).unwrap()
        }
    });
    let payload = prop_oneof![
        4 => json.prop_map(Some),
        2 => text().prop_map(|text| Some(text.into_bytes())),
        1 => proptest::collection::vec(any::<u8>(), 0..64).prop_map(Some),
        1 => Just(None),
    ];
    let content_type = prop_oneof![
        3 => Just("application/json".to_owned()),
        1 => Just("text/plain; charset=utf-8".to_owned()),
        1 => Just("application/octet-stream".to_owned()),
        1 => text(),
    ];
    let address = (text(), proptest::option::of(text()))
        .prop_map(|(destination, key)| Address { destination, key });
    let texts = (text(), proptest::option::of(text()), text(), proptest::option::of(text()));
    let rest = (content_type, payload, headers(), proptest::option::of(time()), address);
    (texts, rest).prop_map(|((id, key, kind, tenant_id), rest)| {
        let (content_type, payload, headers, timestamp, address) = rest;
        let source = None;
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
