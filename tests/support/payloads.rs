//! Payloads of every BSON kind, with the promised body of each (`docs/producers.md`).
//!
//! One table for all sinks: a sink's test delivers the [`records`], and passes what arrived to
//! [`judge`].

use std::collections::BTreeMap;
use std::fmt;

use bson::oid::ObjectId;
use bson::raw::{CString, RawBson, RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, DbPointer, Decimal128, Document, JavaScriptCodeWithScope, Regex,
    Timestamp, bson, doc, rawdoc,
};
use serde_json::json;

use super::oracle;
use super::outbox::{TestOutbox, mongodb_uri, record};

/// A payload and its promised body.
pub struct Case {
    /// Also the record's `_id` and key.
    pub name: &'static str,
    pub value: RawBson,
    pub body: Body,
    /// PyMongo's text, where it differs from the specification of extended JSON.
    pub pymongo: Option<&'static str>,
}

/// The promised body.
pub enum Body {
    /// No body.
    Null,
    Text(&'static str),
    Bytes(Vec<u8>),
    /// Exactly this text.
    Json(String),
}

impl Body {
    /// `None` for null.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            Self::Json(text) => Some(text.as_bytes()),
        }
    }

    fn content_type(&self) -> &'static str {
        match self {
            Self::Null | Self::Json(_) => "application/json",
            Self::Text(_) => "text/plain; charset=utf-8",
            Self::Bytes(_) => "application/octet-stream",
        }
    }
}

/// A message as a consumer found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub content_type: String,
    /// `None` for null, where the sink distinguishes it from an empty body.
    pub body: Option<Vec<u8>>,
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            None => write!(f, "null, {}", self.content_type),
            Some(body) => write!(f, "`{}`, {}", body.escape_ascii(), self.content_type),
        }
    }
}

/// A record for each case, in the table's order.
pub fn records(cases: &[Case]) -> Vec<RawDocumentBuf> {
    let records = cases.iter().map(|case| {
        let mut record = record(case.name, case.name);
        record.remove("payload");
        let mut record = RawDocumentBuf::try_from(&record).unwrap();
        record.append(cstr!("payload"), case.value.clone());
        record
    });
    records.collect()
}

/// Panics where a body differs from the promised one, or where PyMongo disagrees with the promise.
///
/// `nothing` is how null arrives.
pub async fn judge(
    outbox: &TestOutbox,
    cases: &[Case],
    arrived: &BTreeMap<String, Arrived>,
    nothing: Option<&[u8]>,
) {
    let mut wrong = Vec::new();
    let mut question = serde_json::Map::new();
    for Case { name, body, .. } in cases {
        let Some(found) = arrived.get(*name) else {
            wrong.push(format!("{name}: has not arrived"));
            continue;
        };
        let promised = Arrived {
            content_type: body.content_type().to_owned(),
            body: body.bytes().or(nothing).map(<[u8]>::to_vec),
        };
        if *found != promised {
            wrong.push(format!("{name}:\n   found {found}\npromised {promised}"));
        }
        if let Body::Json(text) = body {
            question.insert((*name).to_owned(), json!(text));
        }
    }
    let uri = mongodb_uri();
    let arguments = [uri.as_str(), outbox.database.as_str()];
    let answer = oracle::ask("extended_json.py", &arguments, &question.into()).await;
    for case in cases.iter().filter(|case| matches!(case.body, Body::Json(_))) {
        let [theirs, ours] = [0, 1].map(|of| answer[case.name][of].as_str().unwrap());
        if theirs != case.pymongo.unwrap_or(ours) {
            wrong.push(format!("{}:\n PyMongo {theirs}\npromised {ours}", case.name));
        }
        assert_ne!(case.pymongo, Some(ours), "{}: PyMongo says the same", case.name);
    }
    assert!(wrong.is_empty(), "{} payloads are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn case(name: &'static str, value: impl Into<Bson>, body: Body) -> Case {
    Case { name, value: value.into().try_into().unwrap(), body, pymongo: None }
}

fn json(name: &'static str, value: impl Into<Bson>, text: impl Into<String>) -> Case {
    case(name, value, Body::Json(text.into()))
}

fn otherwise(case: Case, pymongo: &'static str) -> Case {
    Case { pymongo: Some(pymongo), ..case }
}

fn binary(subtype: u8, bytes: &[u8]) -> Binary {
    Binary { subtype: BinarySubtype::from(subtype), bytes: bytes.to_vec() }
}

fn text(value: &str) -> CString {
    value.try_into().unwrap()
}

fn regex(pattern: &str, options: &str) -> Regex {
    Regex { pattern: text(pattern), options: text(options) }
}

fn decimal(number: &str) -> Decimal128 {
    number.parse().unwrap()
}

fn id() -> ObjectId {
    ObjectId::parse_str("65f1c0ffee0123456789abcd").unwrap()
}

/// Every kind.
pub fn all() -> Vec<Case> {
    [plain(), numbers(), dates(), scalars(), documents()].into_iter().flatten().collect()
}

/// Payloads that are sent as their own bytes.
fn plain() -> Vec<Case> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let uuid: Vec<u8> = (0..16).collect();
    let bytes = |name, subtype, bytes: &[u8]| {
        case(name, binary(subtype, bytes), Body::Bytes(bytes.to_vec()))
    };
    vec![
        case("null", Bson::Null, Body::Null),
        case("text", "Grüße, 世界", Body::Text("Grüße, 世界")),
        case("empty text", "", Body::Text("")),
        case("text with NUL", "a\0b\0", Body::Text("a\0b\0")),
        case("astral text", "🚀 𝄞 \u{10ffff}", Body::Text("🚀 𝄞 \u{10ffff}")),
        case("text that is JSON", r#"{"a": 1.0}"#, Body::Text(r#"{"a": 1.0}"#)),
        case("text of many lines", "a\r\nb\n\u{2028}c", Body::Text("a\r\nb\n\u{2028}c")),
        bytes("generic binary", 0, &every_byte),
        bytes("empty binary", 0, b""),
        bytes("function", 1, &every_byte),
        // Its length, which is in front of its bytes, is not one of them.
        bytes("old binary", 2, &every_byte),
        bytes("old UUID", 3, &uuid),
        bytes("UUID", 4, &uuid),
        bytes("UUID of a wrong length", 4, b"short"),
        bytes("MD5", 5, &uuid),
        bytes("encrypted", 6, &every_byte),
        bytes("sensitive", 8, &every_byte),
        bytes("vector", 9, &[0x03, 0, 1, 2]),
        bytes("the user's binary", 0x80, &every_byte),
        bytes("the user's last binary", 0xff, &every_byte),
    ]
}

fn numbers() -> Vec<Case> {
    let number = |name, value: f64, text: &str| json(name, value, text);
    let decimal =
        |name, text: &str| json(name, decimal(text), format!(r#"{{"$numberDecimal":"{text}"}}"#));
    vec![
        json("int32", -7, "-7"),
        json("least int32", i32::MIN, "-2147483648"),
        json("int64", 1_i64 << 40, "1099511627776"),
        json("small int64", 5_i64, "5"),
        json("int64 beyond a double", (1_i64 << 53) + 1, "9007199254740993"),
        json("greatest int64", i64::MAX, "9223372036854775807"),
        json("least int64", i64::MIN, "-9223372036854775808"),
        number("double", 0.1, "0.1"),
        number("integral double", 1.0, "1.0"),
        number("double of all digits", 0.1 + 0.2, "0.30000000000000004"),
        number(
            "double that is hard to parse",
            1.229_999_999_999_999_7e-5,
            "0.000012299999999999997",
        ),
        number("huge double", 1e300, "1e+300"),
        number("greatest double", f64::MAX, "1.7976931348623157e+308"),
        number("least positive double", 5e-324, "5e-324"),
        number("negative zero", -0.0, "-0.0"),
        number("double beyond int64", 1e19, "1e+19"),
        number("NaN", f64::NAN, r#"{"$numberDouble":"NaN"}"#),
        // The result of 0.0 / 0.0 on x86.
        number("negative NaN", -f64::NAN, r#"{"$numberDouble":"NaN"}"#),
        number("infinity", f64::INFINITY, r#"{"$numberDouble":"Infinity"}"#),
        number("negative infinity", f64::NEG_INFINITY, r#"{"$numberDouble":"-Infinity"}"#),
        decimal("decimal", "12345678901234567890.50"),
        decimal("decimal NaN", "NaN"),
        decimal("decimal infinity", "-Infinity"),
        decimal("decimal negative zero", "-0E+3"),
        decimal("decimal zero with places", "0.000"),
        decimal("decimal of all digits", "1234567890123456789012345678901234"),
        decimal("greatest decimal", "9.999999999999999999999999999999999E+6144"),
        decimal("least decimal", "1E-6176"),
        decimal("decimal with exponent", "1.05E+3"),
        decimal("decimal at the edge of plain", "0.000001"),
        decimal("decimal beyond the edge of plain", "1E-7"),
    ]
}

fn dates() -> Vec<Case> {
    let date = |name, millis, text: &str| {
        json(name, DateTime::from_millis(millis), format!(r#"{{"$date":{text}}}"#))
    };
    vec![
        date("epoch", 0, r#""1970-01-01T00:00:00Z""#),
        date("date", 1_700_000_000_000, r#""2023-11-14T22:13:20Z""#),
        date("date with a fraction", 1_700_000_000_123, r#""2023-11-14T22:13:20.123Z""#),
        // A fraction has three digits.
        date("date with a round fraction", 1_700_000_000_500, r#""2023-11-14T22:13:20.500Z""#),
        date("date with a small fraction", 1, r#""1970-01-01T00:00:00.001Z""#),
        date("last date as text", 253_402_300_799_999, r#""9999-12-31T23:59:59.999Z""#),
        date(
            "first date of year 10000",
            253_402_300_800_000,
            r#"{"$numberLong":"253402300800000"}"#,
        ),
        date("date before 1970", -1, r#"{"$numberLong":"-1"}"#),
        date("date before Christ", -99_999_999_999_999, r#"{"$numberLong":"-99999999999999"}"#),
        date("greatest date", i64::MAX, r#"{"$numberLong":"9223372036854775807"}"#),
        date("least date", i64::MIN, r#"{"$numberLong":"-9223372036854775808"}"#),
    ]
}

fn scalars() -> Vec<Case> {
    let seq = |time, increment| Bson::Timestamp(Timestamp { time, increment });
    let code = |scope: Document| JavaScriptCodeWithScope { code: "f(x)".into(), scope };
    let scope = doc! { "x": 1, "y": { "z": DateTime::from_millis(500) } };
    let pointer = RawBson::DbPointer(pointer());
    vec![
        json("true", true, "true"),
        json("false", false, "false"),
        json("ObjectId", id(), r#"{"$oid":"65f1c0ffee0123456789abcd"}"#),
        json(
            "regex",
            regex("^a\"b\\d", "im"),
            r#"{"$regularExpression":{"pattern":"^a\"b\\d","options":"im"}}"#,
        ),
        json("empty regex", regex("", ""), r#"{"$regularExpression":{"pattern":"","options":""}}"#),
        // The specification requires them in alphabetical order.
        json(
            "regex with all options",
            regex("a", "xsmil"),
            r#"{"$regularExpression":{"pattern":"a","options":"ilmsx"}}"#,
        ),
        json("code", Bson::JavaScriptCode("f(\"x\")".into()), r#"{"$code":"f(\"x\")"}"#),
        json(
            "code with scope",
            code(scope),
            r#"{"$code":"f(x)","$scope":{"x":1,"y":{"z":{"$date":"1970-01-01T00:00:00.500Z"}}}}"#,
        ),
        json("code with empty scope", code(doc! {}), r#"{"$code":"f(x)","$scope":{}}"#),
        json("timestamp", seq(7, 9), r#"{"$timestamp":{"t":7,"i":9}}"#),
        json(
            "greatest timestamp",
            seq(u32::MAX, u32::MAX),
            r#"{"$timestamp":{"t":4294967295,"i":4294967295}}"#,
        ),
        json("minKey", Bson::MinKey, r#"{"$minKey":1}"#),
        json("maxKey", Bson::MaxKey, r#"{"$maxKey":1}"#),
        // PyMongo reads these three of the deprecated kinds as something else.
        otherwise(json("symbol", Bson::Symbol("s".into()), r#"{"$symbol":"s"}"#), r#""s""#),
        otherwise(json("undefined", Bson::Undefined, r#"{"$undefined":true}"#), "null"),
        otherwise(
            Case {
                value: pointer,
                ..json(
                    "DBPointer",
                    Bson::Null,
                    r#"{"$dbPointer":{"$ref":"db.c","$id":{"$oid":"65f1c0ffee0123456789abcd"}}}"#,
                )
            },
            r#"{"$ref": "db.c", "$id": {"$oid": "65f1c0ffee0123456789abcd"}}"#,
        ),
    ]
}

/// The type has no constructor.
fn pointer() -> DbPointer {
    let value = bson!({ "$dbPointer": { "$ref": "db.c", "$id": { "$oid": id().to_hex() } } });
    match Bson::try_from(serde_json::to_value(value).unwrap()).unwrap() {
        Bson::DbPointer(pointer) => pointer,
        other => panic!("{other}"),
    }
}

fn documents() -> Vec<Case> {
    let in_binary = |subtype| Bson::Binary(binary(subtype, &[0, 254, 255]));
    let raw = |name, value: RawDocumentBuf, text: &str| Case {
        value: value.into(),
        ..json(name, Bson::Null, text)
    };
    // MongoDB accepts a depth of 180; the record itself is one of them.
    let depth = 170;
    let deep = (0..depth).fold(bson!({}), |inner, _| bson!({ "d": inner }));
    let deep_array = (0..depth).fold(bson!([]), |inner, _| bson!([inner]));
    let deep_text = format!("{}{{}}{}", r#"{"d":"#.repeat(depth), "}".repeat(depth));
    let deep_array_text = format!("{}[]{}", "[".repeat(depth), "]".repeat(depth));
    vec![
        json("empty document", doc! {}, "{}"),
        json("empty array", bson!([]), "[]"),
        json(
            "order of fields",
            doc! { "z": 1, "a": 2, "m": { "y": 1, "b": 2 }, "10": 3, "9": 4 },
            r#"{"z":1,"a":2,"m":{"y":1,"b":2},"10":3,"9":4}"#,
        ),
        json(
            "array of kinds",
            bson!([1, 2_i64, 1.0, "t", null, true, [], {}, [[null]]]),
            r#"[1,2,1.0,"t",null,true,[],{},[[null]]]"#,
        ),
        json("deep document", deep, deep_text),
        json("deep array", deep_array, deep_array_text),
        json(
            "odd field names",
            doc! { "": 1, "a.b": 2, "$set": 3, "a b": 4, "ß🚀": 5, "\"\\": 6, "\u{1}": 7 },
            r#"{"":1,"a.b":2,"$set":3,"a b":4,"ß🚀":5,"\"\\":6,"\u0001":7}"#,
        ),
        // A user's document that looks like extended JSON is sent unchanged, as with PyMongo.
        json(
            "what looks like extended JSON",
            doc! { "n": { "$numberLong": "5" }, "d": { "$date": "x" }, "o": { "$oid": 1, "b": 2 } },
            r#"{"n":{"$numberLong":"5"},"d":{"$date":"x"},"o":{"$oid":1,"b":2}}"#,
        ),
        json(
            "all of it looks like extended JSON",
            doc! { "$numberDouble": "NaN" },
            r#"{"$numberDouble":"NaN"}"#,
        ),
        json(
            "DBRef",
            doc! { "$ref": "c", "$id": id(), "$db": "d", "x": 1 },
            r#"{"$ref":"c","$id":{"$oid":"65f1c0ffee0123456789abcd"},"$db":"d","x":1}"#,
        ),
        // A reader with a map, such as PyMongo, gets the last one of both.
        raw("fields that come twice", twice(), r#"{"a":1,"b":2,"a":3}"#),
        json(
            "escapes",
            doc! { "s": "\0\u{8}\t\n\u{c}\r\"\\/\u{7f}\u{2028}🚀" },
            r#"{"s":"\u0000\b\t\n\f\r\"\\/"#.to_owned() + "\u{7f}\u{2028}🚀\"}",
        ),
        json(
            "binaries",
            bson!([in_binary(0), in_binary(2), in_binary(4), in_binary(0x80)]),
            r#"[{"$binary":{"base64":"AP7/","subType":"00"}},{"$binary":{"base64":"AP7/","subType":"02"}},{"$binary":{"base64":"AP7/","subType":"04"}},{"$binary":{"base64":"AP7/","subType":"80"}}]"#,
        ),
        json(
            "UUIDs",
            doc! { "new": binary(4, &[7; 16]), "old": binary(3, &[7; 16]) },
            r#"{"new":{"$binary":{"base64":"BwcHBwcHBwcHBwcHBwcHBw==","subType":"04"}},"old":{"$binary":{"base64":"BwcHBwcHBwcHBwcHBwcHBw==","subType":"03"}}}"#,
        ),
        json("an order", order(), order_text()),
    ]
}

fn twice() -> RawDocumentBuf {
    let mut twice = rawdoc! { "a": 1, "b": 2 };
    twice.append(cstr!("a"), 3);
    twice
}

fn order() -> Document {
    doc! {
        "id": id(),
        "at": DateTime::from_millis(1_700_000_000_250),
        "total": decimal("19.90"),
        "weight": f64::NAN,
        "lines": [{ "sku": "A-1", "count": 2, "price": 9.95 }, { "sku": "B", "count": 1_i64 }],
        "before": DateTime::from_millis(-500),
        "note": null,
    }
}

fn order_text() -> String {
    r#"{"id":{"$oid":"65f1c0ffee0123456789abcd"},"at":{"$date":"2023-11-14T22:13:20.250Z"},"#
        .to_owned()
        + r#""total":{"$numberDecimal":"19.90"},"weight":{"$numberDouble":"NaN"},"#
        + r#""lines":[{"sku":"A-1","count":2,"price":9.95},{"sku":"B","count":1}],"#
        + r#""before":{"$date":{"$numberLong":"-500"}},"note":null}"#
}
