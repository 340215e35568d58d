//! A file: one JSON object per line, synced to the disk before the record counts as delivered, and rotated
//! by size.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the keys of the sink |
//! | [`storage`] | the file itself: opened, appended to, synced, rotated |
//!
//! One thread writes. It takes the lines that wait, appends all of them and syncs once, so that a sync costs
//! little where many keys have records (group commit). After a failed write the sink is down. The next
//! [`probe`](Sink::probe) opens the file again and ends a line that was cut, so that the next one
//! begins on a line of its own. The record of the cut line is delivered again.

pub mod config;
pub mod storage;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::routing::{SinkRules, Template};
use postrider_relay::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::{Glob, Rules};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::active_link::{ActiveLink, Link};
use crate::availability::Availability;
use crate::config::{ConnectionHelp, SinkConfig, SinkSettings};
pub use crate::file::config::FileConfig;
use crate::file::storage::{RotatedFile, Storage};
use crate::json_line;

/// The limit of the lines that one sync confirms.
const MAX_BATCH_LINES: usize = 1_000;

/// Appends lines to a file.
pub struct File {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    storage: Arc<dyn Storage>,
    writer: ActiveLink<Writer>,
    /// One permit: to write to the file. A thread that waits for the disk keeps it.
    write_permit: Arc<Semaphore>,
}

struct Writer {
    lines: mpsc::UnboundedSender<Line>,
    availability: Availability,
}

struct Line {
    text: String,
    confirm: oneshot::Sender<Result<(), String>>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}

impl File {
    /// Creates a sink that opens its file at the first probe. `timeout` limits each publish and probe.
    pub fn new(storage: impl Storage, timeout: Duration) -> Self {
        let shared = Shared {
            storage: Arc::new(storage),
            writer: ActiveLink::default(),
            write_permit: Arc::new(Semaphore::new(1)),
        };
        Self { shared: Arc::new(shared), timeout }
    }

    /// Starts a thread that opens the file, and writes until its sender is dropped or a write fails.
    async fn start_writer(&self) -> Result<Writer, SinkDown> {
        let permit = self.shared.write_permit.clone().acquire_owned();
        // (The semaphore is never closed.)
        let Ok(Ok(permit)) = tokio::time::timeout(self.timeout, permit).await else {
            return Err(SinkDown::new(
                "an earlier write has not finished; the disk does not respond",
            ));
        };
        let (lines, queue) = mpsc::unbounded_channel();
        let availability = Availability::default();
        let (opened, opening) = oneshot::channel();
        let (storage, state) = (self.shared.storage.clone(), availability.clone());
        std::thread::spawn(move || write_lines(&*storage, queue, opened, &state, permit));
        match tokio::time::timeout(self.timeout, opening).await {
            Ok(Ok(Ok(()))) => Ok(Writer { lines, availability }),
            Ok(Ok(Err(error))) => Err(SinkDown::new(error)),
            Ok(Err(_)) | Err(_) => {
                Err(SinkDown::new(format!("the file was not opened within {:?}", self.timeout)))
            }
        }
    }
}

/// Opens the file, and appends the lines that wait, batch by batch.
fn write_lines(
    storage: &dyn Storage,
    mut queue: mpsc::UnboundedReceiver<Line>,
    opened: oneshot::Sender<Result<(), String>>,
    availability: &Availability,
    _permit: OwnedSemaphorePermit,
) {
    let mut file = match storage.open() {
        Ok(file) => file,
        Err(error) => {
            // The probe may have timed out.
            let _ = opened.send(Err(error.to_string()));
            return;
        }
    };
    if opened.send(Ok(())).is_err() {
        return;
    }
    while let Some(first) = queue.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH_LINES
            && let Ok(line) = queue.try_recv()
        {
            batch.push(line);
        }
        // The publishes of the others have timed out: their records are published again.
        batch.retain(|line| !line.confirm.is_closed());
        let bytes: Vec<u8> = batch.iter().flat_map(|line| line.text.bytes()).collect();
        let written = if bytes.is_empty() { Ok(()) } else { file.append(&bytes) };
        let written = written.map_err(|error| error.to_string());
        if let Err(error) = &written {
            availability.set_down(SinkDown::new(error));
        }
        for line in batch {
            // The publish may have timed out.
            let _ = line.confirm.send(written.clone());
        }
        if written.is_err() {
            return;
        }
    }
}

impl Link for Writer {
    async fn lost(&self) -> SinkDown {
        self.availability.lost().await
    }

    async fn is_usable(&self, _limit: Duration) -> Result<bool, SinkDown> {
        // (A writer that panicked has dropped its queue.)
        Ok(self.availability.check().is_ok() && !self.lines.is_closed())
    }

    fn retire(&self, cause: SinkDown) {
        self.availability.set_down(cause);
    }
}

impl SinkConfig for FileConfig {
    type Sink = File;

    const DESTINATION: Option<&'static str> = None;

    /// The file, the one that takes its place, and their folder.
    const MAX_DESCRIPTORS: u64 = 4;

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "path",
        remedy: "create the folder, grant this user write permission, or free disk space",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let Some(path) = &settings.own.path else {
            rules.wrong("path", "is not set; set it, for example to /folder/name.ndjson");
            return;
        };
        let is_file = path.file_name().is_some() && !path.is_dir();
        rules.require(is_file, "path", "must be a file; add a name such as orders.ndjson");
    }

    fn routing_rules(&self, allowed_destinations: Vec<Glob>) -> SinkRules {
        SinkRules {
            destination: Template::fixed(""),
            key: None,
            allowed_destinations,
            source: None,
        }
    }

    fn build(settings: SinkSettings<Self>) -> Result<File, String> {
        let path = settings.own.path.ok_or("path is not set")?;
        let storage = RotatedFile { path, max_size: settings.own.max_size as u64 };
        Ok(File::new(storage, settings.delivery.timeout))
    }

    async fn check(sink: &File) -> Result<&'static str, SinkDown> {
        let storage = sink.shared.storage.clone();
        let checked = tokio::task::spawn_blocking(move || storage.check()).await;
        match checked.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(false) => Ok("writable"),
            Ok(true) => Ok("writable; another process writes to it, probably `postrider run`"),
            Err(error) => Err(SinkDown::new(error.to_string())),
        }
    }
}

impl Sink for File {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let down = |cause: &str| PublishError::new(PublishFailure::SinkDown, cause);
        // Part of the line may be in the file. It is the disk's fault, and never evidence against a record.
        let failed = |cause: String| PublishError::new(PublishFailure::ConnectionEnded, cause);
        let writer = self.shared.writer.get().ok_or_else(|| down("the file is not open"))?;
        writer.availability.check()?;
        let (confirm, confirmed) = oneshot::channel();
        let text = json_line::render(&message) + "\n";
        if writer.lines.send(Line { text, confirm }).is_err() {
            return Err(down("the writer of the file has stopped"));
        }
        match tokio::time::timeout(self.timeout, confirmed).await {
            Ok(Ok(written)) => written.map_err(failed),
            Ok(Err(_)) => {
                Err(failed("the writer of the file stopped before it confirmed".to_owned()))
            }
            Err(_) => {
                let cause = format!("the disk confirmed nothing within {:?}", self.timeout);
                // Otherwise every further line would wait in memory behind this one.
                writer.availability.set_down(SinkDown::new(&cause));
                Err(failed(cause))
            }
        }
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        self.shared.writer.probe(self.timeout, self.start_writer()).await
    }

    async fn lost(&self) -> SinkDown {
        self.shared.writer.lost().await
    }

    async fn close(&self) {
        // The thread ends when the last publish drops its sender.
        self.shared.writer.take();
    }

    /// Returns the same file: there is no connection that a line could close.
    fn isolated(&self) -> Self {
        Self { shared: self.shared.clone(), timeout: self.timeout }
    }
}
