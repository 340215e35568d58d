//! Standard output: one JSON object per line, for a pipe, a container's log, or a first look.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::DateTime;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use crate::sink::{HeaderValue, Message, PublishError, Sink, SinkDown, Verdict};

/// A writer of lines. A message counts as delivered when its line was flushed.
pub struct Stdout {
    output: Arc<Mutex<Box<dyn AsyncWrite + Send + Unpin>>>,
    timeout: Duration,
}

impl std::fmt::Debug for Stdout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stdout")
    }
}

impl Stdout {
    /// This process's standard output. `timeout` limits one line, should nobody read.
    pub fn new(timeout: Duration) -> Self {
        Self::to(tokio::io::stdout(), timeout)
    }

    /// Lines into any writer.
    pub fn to(output: impl AsyncWrite + Send + Unpin + 'static, timeout: Duration) -> Self {
        Self { output: Arc::new(Mutex::new(Box::new(output))), timeout }
    }
}

impl Sink for Stdout {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let mut line = line(&message).to_string();
        line.push('\n');
        let output = self.output.clone();
        // A task of its own: a line begun is ended, whoever has stopped waiting.
        let writing = tokio::spawn(async move {
            let mut output = output.lock().await;
            output.write_all(line.as_bytes()).await?;
            output.flush().await
        });
        let unknown = |detail: String| Err(PublishError::new(Verdict::Unknown, detail));
        match tokio::time::timeout(self.timeout, writing).await {
            Ok(Ok(Ok(()))) => Ok(()),
            // Part of the line may be out.
            Ok(Ok(Err(error))) => unknown(format!("standard output: {error}")),
            Ok(Err(panic)) => unknown(format!("standard output: {panic}")),
            Err(_) => unknown(format!("standard output took no line within {:?}", self.timeout)),
        }
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let flushing = async { self.output.lock().await.flush().await };
        match tokio::time::timeout(self.timeout, flushing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SinkDown::new(format!("standard output: {error}"))),
            Err(_) => Err(SinkDown::new("standard output: nobody reads it")),
        }
    }

    async fn lost(&self) -> SinkDown {
        std::future::pending().await
    }

    async fn close(&self) {
        // Each line was flushed by itself.
    }
}

/// The line's object, its fields in the contract's order (section 3).
fn line(message: &Message) -> Value {
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
    line.insert("timestamp".into(), json!(message.timestamp.and_then(rfc3339)));
    let (name, payload) = payload(message);
    line.insert(name.into(), payload);
    Value::Object(line)
}

fn payload(message: &Message) -> (&'static str, Value) {
    let Some(bytes) = &message.payload else { return ("payload", Value::Null) };
    if is_json(&message.content_type)
        && let Ok(value) = serde_json::from_slice(bytes)
    {
        return ("payload", value);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if message.content_type.starts_with("text/") => ("payload", json!(text)),
        _ => ("payloadBase64", json!(BASE64.encode(bytes))),
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence == "application/json" || essence.ends_with("+json")
}

fn header(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::String(text) => json!(text),
        HeaderValue::Int32(number) => json!(number),
        HeaderValue::Int64(number) => json!(number),
        HeaderValue::Double(number) => json!(number),
        HeaderValue::Bool(value) => json!(value),
        HeaderValue::Date(millis) => {
            json!(DateTime::from_millis(*millis).try_to_rfc3339_string().ok())
        }
        HeaderValue::Binary(bytes) => json!(BASE64.encode(bytes)),
        HeaderValue::ObjectId(id) => json!(id.to_hex()),
        HeaderValue::Uuid(id) => json!(id.to_string()),
        HeaderValue::Decimal128(number) => json!(number.to_string()),
        HeaderValue::Null => Value::Null,
    }
}

fn rfc3339(time: SystemTime) -> Option<String> {
    DateTime::from_system_time(time).try_to_rfc3339_string().ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::sink::Address;

    fn message(content_type: &str, payload: Option<&[u8]>) -> Message {
        Message {
            id: "1".into(),
            key: None,
            kind: "T".into(),
            content_type: content_type.into(),
            payload: payload.map(<[u8]>::to_vec),
            headers: vec![("n".into(), HeaderValue::Int32(7))],
            tenant_id: None,
            timestamp: Some(UNIX_EPOCH + Duration::from_secs(1)),
            address: Address { destination: "d".into(), key: None },
        }
    }

    #[test]
    fn a_line_has_the_fields_of_the_contract_in_their_order() {
        let line = line(&message("application/json", Some(br#"{"b":1,"a":2}"#))).to_string();

        let expected = r#"{"id":"1","key":null,"type":"T","destination":"d","contentType":"application/json","headers":{"n":7},"timestamp":"1970-01-01T00:00:01Z","payload":{"b":1,"a":2}}"#;
        assert_eq!(line, expected);
    }

    #[test]
    fn a_payload_is_json_or_text_or_base64() {
        for (content_type, payload_bytes, expected) in [
            ("text/plain; charset=utf-8", Some(&b"hi"[..]), ("payload", json!("hi"))),
            ("application/octet-stream", Some(&b"hi"[..]), ("payloadBase64", json!("aGk="))),
            ("application/json", Some(&b"{broken"[..]), ("payloadBase64", json!("e2Jyb2tlbg=="))),
            ("application/vnd.x+json", Some(&b"1"[..]), ("payload", json!(1))),
            ("application/json", None, ("payload", Value::Null)),
        ] {
            assert_eq!(payload(&message(content_type, payload_bytes)), expected);
        }
    }
}
