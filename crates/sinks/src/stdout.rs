//! Standard output: one JSON object per line, for a pipe, a container's log, or a first look.
//!
//! There is no connection to lose, but writes can fail (a closed pipe, a full disk) and a reader can stop.
//! After either the sink is down until a probe succeeds; otherwise each record would count an attempt.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::routing::{SinkRules, Template};
use postrider_relay::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::{Glob, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use crate::availability::Availability;
use crate::config::{ConnectionHelp, SinkConfig, SinkSettings};
use crate::json_line;

/// The keys of a `stdout` sink: it has no further ones. It prints one JSON object per line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StdoutConfig {}

impl SinkConfig for StdoutConfig {
    type Sink = Stdout;

    const DESTINATION: Option<&'static str> = None;

    /// The standard output of the process.
    const MAX_DESCRIPTORS: u64 = 0;

    const CONNECTION_HELP: ConnectionHelp =
        ConnectionHelp { keys: "kind", remedy: "read the process's standard output" };

    fn validate(_: &SinkSettings<Self>, _: &mut Rules) {}

    fn routing_rules(&self, allowed_destinations: Vec<Glob>) -> SinkRules {
        let key = Some(Template::message_type());
        SinkRules { destination: Template::fixed(""), key, allowed_destinations, source: None }
    }

    fn build(settings: SinkSettings<Self>) -> Result<Stdout, String> {
        Ok(Stdout::new(settings.delivery.timeout))
    }
}

/// Writes lines. A message is confirmed when its line is flushed.
pub struct Stdout {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    output: Mutex<Output>,
    availability: Availability,
}

struct Output {
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// A write failed: part of a line may be written, without its end.
    is_line_cut: bool,
}

impl fmt::Debug for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stdout")
    }
}

impl Stdout {
    /// Writes to the standard output of this process. `timeout` limits each publish and probe.
    pub fn new(timeout: Duration) -> Self {
        Self::to(tokio::io::stdout(), timeout)
    }

    /// Writes to any writer.
    pub fn to(output: impl AsyncWrite + Send + Unpin + 'static, timeout: Duration) -> Self {
        let output = Mutex::new(Output { writer: Box::new(output), is_line_cut: false });
        Self { shared: Arc::new(Shared { output, availability: Availability::default() }), timeout }
    }
}

impl Shared {
    async fn write(&self, line: &[u8]) -> Result<(), PublishError> {
        let mut output = self.output.lock().await;
        // Another write may have failed meanwhile.
        self.availability.check()?;
        output.write(line).await.map_err(|error| {
            let cause = format!("standard output: {error}");
            self.availability.set_down(SinkDown::new(&cause));
            // Part of the line may be written.
            PublishError::new(PublishFailure::Indeterminate, cause)
        })
    }

    /// Ends a line that was cut, if there is one.
    async fn end_cut_line(&self) -> io::Result<()> {
        let mut output = self.output.lock().await;
        if output.is_line_cut { output.write(b"\n").await } else { output.writer.flush().await }
    }
}

impl Output {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_line_cut = true;
        self.writer.write_all(bytes).await?;
        self.writer.flush().await?;
        self.is_line_cut = false;
        Ok(())
    }
}

impl Sink for Stdout {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.shared.availability.check()?;
        let line = json_line::render(&message) + "\n";
        let shared = self.shared.clone();
        let indeterminate = |cause| PublishError::new(PublishFailure::Indeterminate, cause);
        // In a task of its own, so that a line is completed even if this call is dropped.
        let writing = tokio::spawn(async move { shared.write(line.as_bytes()).await });
        match tokio::time::timeout(self.timeout, writing).await {
            Ok(Ok(written)) => written,
            Ok(Err(panic)) => Err(indeterminate(format!("standard output: {panic}"))),
            Err(_) => {
                let cause = format!("standard output accepted no line within {:?}", self.timeout);
                // Otherwise every further line would wait in memory behind this one.
                self.shared.availability.set_down(SinkDown::new(&cause));
                Err(indeterminate(cause))
            }
        }
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        match tokio::time::timeout(self.timeout, self.shared.end_cut_line()).await {
            Ok(Ok(())) => {
                self.shared.availability.set_up();
                Ok(())
            }
            Ok(Err(error)) => Err(SinkDown::new(format!("standard output: {error}"))),
            Err(_) => Err(SinkDown::new("standard output: it is not read")),
        }
    }

    async fn lost(&self) -> SinkDown {
        self.shared.availability.lost().await
    }

    async fn close(&self) {
        // Each line was flushed by itself.
        self.shared.availability.set_down(SinkDown::new("closed"));
    }

    /// Returns the same output: there is no connection that a line could close.
    fn isolated(&self) -> Self {
        Self { shared: self.shared.clone(), timeout: self.timeout }
    }
}
