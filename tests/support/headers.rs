//! Headers of every kind that a record may have, and their form in each sink.

use bson::oid::ObjectId;
use bson::{Binary, Bson, DateTime, Decimal128, Document};
use lapin::types::AMQPValue;
use serde_json::{Value, json};

use super::rabbitmq::amqp_client::text;

/// A header, and its form in each sink.
pub struct Header {
    pub name: &'static str,
    pub value: Bson,
    /// Typed for each kind that AMQP has; text for the others.
    pub amqp: AMQPValue,
    /// Text in UTF-8, but binaries as bytes and null as null.
    pub kafka: Option<Vec<u8>>,
    /// As JSON has it, else text; binaries in base64.
    pub json: Value,
}

/// The field `headers` of a record with all of them.
pub fn of_record(headers: &[Header]) -> Document {
    headers.iter().map(|header| (header.name.to_owned(), header.value.clone())).collect()
}

/// A header that is text in Kafka.
fn header(
    name: &'static str,
    value: impl Into<Bson>,
    amqp: AMQPValue,
    kafka: &str,
    json: impl Into<Value>,
) -> Header {
    Header { name, value: value.into(), amqp, kafka: Some(kafka.into()), json: json.into() }
}

/// A header that is the same text in every sink.
fn as_text(name: &'static str, value: impl Into<Bson>, same: &str) -> Header {
    header(name, value, text(same), same, same)
}

fn binary(name: &'static str, subtype: u8, bytes: &[u8], base64: &str) -> Header {
    Header {
        name,
        value: Binary { subtype: subtype.into(), bytes: bytes.to_vec() }.into(),
        amqp: AMQPValue::ByteArray(bytes.to_vec().into()),
        kafka: Some(bytes.to_vec()),
        json: base64.into(),
    }
}

/// AMQP's dates count seconds.
fn date(name: &'static str, millis: i64, amqp: AMQPValue, same: &str) -> Header {
    header(name, DateTime::from_millis(millis), amqp, same, same)
}

/// Every kind.
pub fn all() -> Vec<Header> {
    let decimal = |number: &str| number.parse::<Decimal128>().unwrap();
    let id = ObjectId::parse_str("65f1c0ffee0123456789abcd").unwrap();
    let uuid = Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] };
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let greatest = AMQPValue::LongLongInt(i64::MAX);
    vec![
        as_text("string", "Grüße\0🚀", "Grüße\0🚀"),
        as_text("empty", "", ""),
        header("int32", i32::MIN, AMQPValue::LongInt(i32::MIN), "-2147483648", i32::MIN),
        header("int64", i64::MAX, greatest, "9223372036854775807", i64::MAX),
        header("small int64", 1_i64, AMQPValue::LongLongInt(1), "1", 1),
        header("double", 0.1, AMQPValue::Double(0.1), "0.1", 0.1),
        header("integral double", 1.0, AMQPValue::Double(1.0), "1", 1.0),
        // RabbitMQ, which is written in Erlang, cannot read such a number, and closes the
        // connection; JSON has none.
        as_text("infinity", f64::INFINITY, "Infinity"),
        as_text("negative infinity", f64::NEG_INFINITY, "-Infinity"),
        as_text("NaN", -f64::NAN, "NaN"),
        header(
            "greatest double",
            f64::MAX,
            AMQPValue::Double(f64::MAX),
            &format!("17976931348623157{}", "0".repeat(292)),
            f64::MAX,
        ),
        header("true", true, AMQPValue::Boolean(true), "true", true),
        header("false", false, AMQPValue::Boolean(false), "false", false),
        date(
            "date",
            1_700_000_000_999,
            AMQPValue::Timestamp(1_700_000_000),
            "2023-11-14T22:13:20.999Z",
        ),
        date("early date", -1_500, text("1969-12-31T23:59:58.5Z"), "1969-12-31T23:59:58.5Z"),
        // RFC 3339 ends with the year 9999.
        date(
            "late date",
            253_402_300_800_000,
            AMQPValue::Timestamp(253_402_300_800),
            "253402300800000",
        ),
        binary("binary", 0, &[0, 255], "AP8="),
        binary("old binary", 2, &[0, 255], "AP8="),
        binary("old UUID", 3, &[7; 16], "BwcHBwcHBwcHBwcHBwcHBw=="),
        binary("MD5", 5, &[7; 16], "BwcHBwcHBwcHBwcHBwcHBw=="),
        binary("user's binary", 0x80, b"", ""),
        as_text("UUID", uuid, "07070707-0707-0707-0707-070707070707"),
        // Not a UUID: too short.
        binary("short UUID", 4, &[7; 3], "BwcH"),
        as_text("ObjectId", id, "65f1c0ffee0123456789abcd"),
        as_text("decimal", decimal("1.50"), "1.50"),
        as_text("decimal NaN", decimal("NaN"), "NaN"),
        Header {
            name: "null",
            value: Bson::Null,
            amqp: AMQPValue::Void,
            kafka: None,
            json: json!(null),
        },
        as_text("traceparent", trace, trace),
        as_text("tracestate", "a=1,b=2", "a=1,b=2"),
        header("a.b $c", 1, AMQPValue::LongInt(1), "1", 1),
    ]
}
