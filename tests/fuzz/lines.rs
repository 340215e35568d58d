//! Messages on standard output: one line of JSON each, whatever they contain.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use postrider::sink::stdout::Stdout;
use postrider::sink::{Message, Sink};
use proptest::prelude::*;
use serde_json::Value;
use tokio::io::AsyncWrite;

use crate::arbitrary;

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl AsyncWrite for Output {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn written(message: Message) -> String {
    let output = Output::default();
    let sink = Stdout::to(output.clone(), Duration::from_secs(10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(sink.publish(message)).unwrap();
    let bytes = output.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

proptest! {
    #[test]
    fn any_message_is_one_line_of_json(message in arbitrary::message()) {
        let text = written(message.clone());

        prop_assert_eq!(text.find('\n'), Some(text.len() - 1), "{}", text);
        let line: Value = serde_json::from_str(&text)
            .map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        prop_assert_eq!(line["id"].as_str(), Some(&*message.id));
        prop_assert_eq!(line["key"].as_str(), message.key.as_deref());
        prop_assert_eq!(line["type"].as_str(), Some(&*message.kind));
        prop_assert_eq!(line["destination"].as_str(), Some(&*message.address.destination));
        prop_assert_eq!(line["contentType"].as_str(), Some(&*message.content_type));
        for (name, _) in &message.headers {
            prop_assert!(line["headers"].get(name).is_some(), "{}", name);
        }
        let Some(payload) = message.payload else {
            prop_assert_eq!(&line["payload"], &Value::Null);
            return Ok(());
        };
        match line.get("payloadBase64") {
            Some(base64) => {
                prop_assert_eq!(BASE64.decode(base64.as_str().unwrap()).unwrap(), payload);
            }
            None if message.content_type.starts_with("text/") => {
                prop_assert_eq!(line["payload"].as_str().unwrap().as_bytes(), payload);
            }
            None => {
                let value: Value = serde_json::from_slice(&payload).unwrap();
                prop_assert_eq!(&line["payload"], &value);
            }
        }
    }
}
