//! Standard output: one JSON object per line, for a pipe, a container's log, or a first look.
//!
//! There is no connection to lose, but there are writes that fail (a closed pipe, a full disk)
//! and a reader that stops. After either the sink is down until a probe finds that
//! lines are taken again; without that, every record in turn would be charged for it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::routing::Template;
use postrider_relay::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::Rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, watch};

use crate::config::{ConnectionHelp, DefaultAddress, SinkConfig, SinkSettings};
use crate::json_line;

/// The keys of a `stdout` sink: it has none of its own. It prints one JSON object per line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StdoutConfig {}

impl SinkConfig for StdoutConfig {
    type Sink = Stdout;

    const DESTINATION: Option<&'static str> = None;

    const CONNECTION_HELP: ConnectionHelp =
        ConnectionHelp { keys: "kind", remedy: "have somebody read standard output" };

    fn validate(_: &SinkSettings<Self>, _: &mut Rules) {}

    fn address(&self) -> DefaultAddress {
        let key = Some(Template::message_type());
        DefaultAddress { destination: Template::fixed(""), key, source: None }
    }

    fn build(settings: SinkSettings<Self>) -> Result<Stdout, String> {
        Ok(Stdout::new(settings.delivery.timeout))
    }
}

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
        let mut line = json_line::render(&message);
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
