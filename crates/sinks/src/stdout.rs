//! Standard output: one JSON object per line, for a pipe, a container's log, or a first look.
//!
//! There is no connection to lose, but there are writes that fail (a closed pipe, a full disk)
//! and a reader that stops. After either the sink is down until a probe finds that
//! lines are taken again; without that, every record in turn would be charged for it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::DateTime;
use postrider_relay::sink::{HeaderValue, Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_store::dates::rfc3339;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, watch};

/// A writer of lines. A message counts as delivered when its line was flushed.
pub struct Stdout {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    output: Mutex<Output>,
    /// Why no line may be begun at the moment.
    down: watch::Sender<Option<SinkDown>>,
}

struct Output {
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// A write failed: part of a line may be out, without its end.
    torn: bool,
}

impl fmt::Debug for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let output = Mutex::new(Output { writer: Box::new(output), torn: false });
        let (down, _) = watch::channel(None);
        Self { shared: Arc::new(Shared { output, down }), timeout }
    }
}

impl Shared {
    fn check(&self) -> Result<(), SinkDown> {
        self.down.borrow().clone().map_or(Ok(()), Err)
    }

    fn go_down(&self, why: &str) {
        self.down.send_if_modified(|down| {
            let was_up = down.is_none();
            down.get_or_insert_with(|| SinkDown::new(why));
            was_up
        });
    }

    async fn write(&self, line: &[u8]) -> Result<(), PublishError> {
        let mut output = self.output.lock().await;
        // While this one waited for its turn, another may have failed.
        self.check().map_err(|down| PublishError::new(PublishFailure::SinkDown, down))?;
        output.write(line).await.map_err(|error| {
            let why = format!("standard output: {error}");
            self.go_down(&why);
            // Part of the line may be out.
            PublishError::new(PublishFailure::Indeterminate, why)
        })
    }

    /// Ends what was torn, if anything was.
    async fn mend(&self) -> io::Result<()> {
        let mut output = self.output.lock().await;
        match output.torn {
            true => output.write(b"\n").await,
            false => output.writer.flush().await,
        }
    }
}

impl Output {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.torn = true;
        self.writer.write_all(bytes).await?;
        self.writer.flush().await?;
        self.torn = false;
        Ok(())
    }
}

impl Sink for Stdout {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.shared.check().map_err(|down| PublishError::new(PublishFailure::SinkDown, down))?;
        let mut line = line(&message);
        line.push('\n');
        let shared = self.shared.clone();
        // A task of its own: a line begun is ended, whoever has stopped waiting.
        let writing = tokio::spawn(async move { shared.write(line.as_bytes()).await });
        match tokio::time::timeout(self.timeout, writing).await {
            Ok(Ok(written)) => written,
            Ok(Err(panic)) => Err(PublishError::new(
                PublishFailure::Indeterminate,
                format!("standard output: {panic}"),
            )),
            Err(_) => {
                let why = format!("standard output took no line within {:?}", self.timeout);
                // Else every further line would wait in memory behind this one.
                self.shared.go_down(&why);
                Err(PublishError::new(PublishFailure::Indeterminate, why))
            }
        }
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        match tokio::time::timeout(self.timeout, self.shared.mend()).await {
            Ok(Ok(())) => {
                self.shared.down.send_replace(None);
                Ok(())
            }
            Ok(Err(error)) => Err(SinkDown::new(format!("standard output: {error}"))),
            Err(_) => Err(SinkDown::new("standard output: nobody reads it")),
        }
    }

    async fn lost(&self) -> SinkDown {
        let mut down = self.shared.down.subscribe();
        let lost = down.wait_for(Option::is_some).await;
        // The sender lives as long as this sink.
        let lost = lost.ok().and_then(|down| down.clone());
        lost.unwrap_or_else(|| SinkDown::new("closed"))
    }

    async fn close(&self) {
        // Each line was flushed by itself.
        self.shared.go_down("closed");
    }

    /// The same output: there is no connection that a line could take down.
    fn isolated(&self) -> Self {
        Self { shared: self.shared.clone(), timeout: self.timeout }
    }
}

/// The line's object, its fields in the contract's order (section 3).
fn line(message: &Message) -> String {
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

/// The field's name, and its value as JSON.
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

/// JSON without the space between its tokens, so on one line; `None` where it is no JSON.
///
/// Its tokens stay as they are: a number keeps its digits, and no depth is too much.
fn compact(text: &str) -> Option<String> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let (mut in_string, mut escaped) = (false, false);
    let is_token = |character: &char| {
        let ends_or_begins = *character == '"' && !escaped;
        escaped = in_string && *character == '\\' && !escaped;
        in_string ^= ends_or_begins;
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
    use std::time::{Duration, UNIX_EPOCH};

    use postrider_relay::sink::Address;

    use super::*;

    fn message(content_type: &str, payload: Option<&[u8]>) -> Message {
        Message {
            is_urgent: false,
            id: "1".into(),
            key: None,
            kind: "T".into(),
            content_type: content_type.into(),
            payload: payload.map(<[u8]>::to_vec),
            headers: vec![("n".into(), HeaderValue::Int32(7))],
            tenant_id: None,
            timestamp: Some(UNIX_EPOCH + Duration::from_secs(1)),
            source: None,
            address: Address { destination: "d".into(), key: None },
        }
    }

    #[test]
    fn a_line_has_the_fields_of_the_contract_in_their_order() {
        let line = line(&message("application/json", Some(br#"{"b":1,"a":2}"#)));

        let expected = r#"{"id":"1","key":null,"type":"T","destination":"d","contentType":"application/json","headers":{"n":7},"timestamp":"1970-01-01T00:00:01Z","payload":{"b":1,"a":2}}"#;
        assert_eq!(line, expected);
    }

    #[test]
    fn a_payload_is_json_or_text_or_base64() {
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
    fn json_of_many_lines_goes_on_one_and_keeps_its_tokens() {
        for (text, expected) in [
            ("{\r\n\t\"a b\" : [ 1.50, 1e400 ]\n}\n", r#"{"a b":[1.50,1e400]}"#),
            (r#"[ "\\", " \" " , "\\\" " ]"#, r#"["\\"," \" ","\\\" "]"#),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(compact(text).unwrap(), expected);
        }
    }

    #[test]
    fn json_of_any_depth_is_json() {
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);

        assert_eq!(compact(&deep).unwrap(), deep);
    }
}
