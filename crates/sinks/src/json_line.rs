//! A message as one JSON object on one line, for sinks that write text (docs/destinations.md).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::DateTime;
use postrider_relay::sink::{HeaderValue, Message};
use postrider_store::dates::rfc3339;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

/// Renders a message as one line, without the line end.
pub(crate) fn render(message: &Message) -> String {
    let mut line = Map::new();
    line.insert("id".into(), json!(message.id));
    line.insert("key".into(), json!(message.key));
    line.insert("type".into(), json!(message.kind));
    line.insert("destination".into(), json!(message.address.destination));
    line.insert("contentType".into(), json!(message.content_type));
    let headers = message.headers.iter().map(|(name, value)| (name.clone(), header(value)));
    let mut headers: Map<String, Value> = headers.collect();
    if let Some(tenant) = &message.tenant_id {
        headers.insert("tenant-id".into(), json!(tenant));
    }
    line.insert("headers".into(), Value::Object(headers));
    let time = message.timestamp.map(DateTime::from_system_time);
    line.insert("timestamp".into(), json!(time.and_then(rfc3339)));
    let mut line = Value::Object(line).to_string();
    // The payload is JSON already.
    line.pop();
    let (name, payload) = payload(message);
    line + &format!(r#","{name}":{payload}}}"#)
}

/// Returns the name of the payload's field, and its value as JSON.
fn payload(message: &Message) -> (&'static str, String) {
    let Some(bytes) = &message.payload else { return ("payload", "null".into()) };
    let text = std::str::from_utf8(bytes).ok();
    if is_json(&message.content_type)
        && let Some(json) = text.and_then(compact)
    {
        return ("payload", json);
    }
    match text {
        Some(text) if message.content_type.starts_with("text/") => {
            ("payload", json!(text).to_string())
        }
        _ => ("payloadBase64", json!(BASE64.encode(bytes)).to_string()),
    }
}

/// Removes the space between the tokens of JSON, so that it fits one line; `None` for other text.
///
/// The tokens stay as they are: a number keeps its digits, and any depth is accepted.
fn compact(text: &str) -> Option<String> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let (mut in_string, mut escaped) = (false, false);
    let is_token = |character: &char| {
        let is_delimiter = *character == '"' && !escaped;
        escaped = in_string && *character == '\\' && !escaped;
        in_string ^= is_delimiter;
        in_string || !character.is_ascii_whitespace()
    };
    Some(text.chars().filter(is_token).collect())
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence == "application/json" || essence.ends_with("+json")
}

fn header(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Int32(number) => json!(number),
        HeaderValue::Int64(number) => json!(number),
        HeaderValue::Double(number) if number.is_finite() => json!(number),
        HeaderValue::Bool(value) => json!(value),
        HeaderValue::Binary(bytes) => json!(BASE64.encode(bytes)),
        other => json!(other.text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::plain_message;

    fn message(content_type: &str, payload: Option<&[u8]>) -> Message {
        Message {
            content_type: content_type.into(),
            payload: payload.map(<[u8]>::to_vec),
            headers: vec![("n".into(), HeaderValue::Int32(7))],
            ..plain_message()
        }
    }

    #[test]
    fn line_has_its_fields_in_the_documented_order() {
        let line = render(&message("application/json", Some(br#"{"b":1,"a":2}"#)));

        let expected = r#"{"id":"m-1","key":"k","type":"OrderCreated","destination":"orders","contentType":"application/json","headers":{"n":7,"tenant-id":"t"},"timestamp":"1970-01-01T00:00:12.345Z","payload":{"b":1,"a":2}}"#;
        assert_eq!(line, expected);
    }

    #[test]
    fn payload_is_json_or_text_or_base64() {
        for (content_type, payload_bytes, expected) in [
            ("text/plain; charset=utf-8", Some(&b"hi"[..]), ("payload", r#""hi""#)),
            ("application/octet-stream", Some(&b"hi"[..]), ("payloadBase64", r#""aGk=""#)),
            ("application/json", Some(&b"{broken"[..]), ("payloadBase64", r#""e2Jyb2tlbg==""#)),
            ("application/json", Some(&b"\"\xff\""[..]), ("payloadBase64", r#""Iv8i""#)),
            ("application/vnd.x+json", Some(&b"1"[..]), ("payload", "1")),
            ("application/json", None, ("payload", "null")),
        ] {
            let (name, value) = payload(&message(content_type, payload_bytes));

            assert_eq!((name, value.as_str()), expected);
        }
    }

    #[test]
    fn json_of_several_lines_becomes_one_line() {
        for (text, expected) in [
            ("{\r\n\t\"a b\" : [ 1.50, 1e400 ]\n}\n", r#"{"a b":[1.50,1e400]}"#),
            (r#"[ "\\", " \" " , "\\\" " ]"#, r#"["\\"," \" ","\\\" "]"#),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(compact(text).unwrap(), expected);
        }
    }

    #[test]
    fn json_of_any_depth_is_accepted() {
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);

        assert_eq!(compact(&deep).unwrap(), deep);
    }
}
