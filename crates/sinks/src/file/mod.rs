//! A file: one JSON object per line, synced to the disk before the record counts as delivered, and rotated
//! by size.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the keys of the sink |
//! | [`storage`] | the file itself: opened, appended to, synced, rotated |
//!
//! One thread writes. It takes the lines that wait, appends all of them and syncs once, so that a sync costs
//! little where many keys have records (group commit). After a failed write the sink is down; the next
//! [`probe`](Sink::probe) opens the file again and ends a line that was cut off, so that the next one
//! begins on a line of its own. The record of the cut line is delivered again.

pub mod config;
pub mod storage;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::routing::Template;
use postrider_relay::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::Rules;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::config::{ConnectionHelp, DefaultAddress, SinkConfig, SinkSettings};
pub use crate::file::config::FileConfig;
use crate::file::storage::RotatedFile;
use crate::file::storage::Storage;
use crate::json_line;
use crate::slot::{self, Slot};

/// The most lines that one sync confirms.
const MAX_BATCH_LINES: usize = 1_000;

/// A file of lines.
pub struct File {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    storage: Arc<dyn Storage>,
    /// The writer in use; none before the first probe, after a failure and after a close.
    writer: Slot<Writer>,
    /// Held while a writer is started.
    opening: Mutex<()>,
    /// The one right to write to the file. A thread that waits for the disk keeps it.
    right: Arc<Semaphore>,
}

struct Writer {
    lines: mpsc::UnboundedSender<Line>,
    down: watch::Sender<Option<SinkDown>>,
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
    /// A sink that opens its file at the first probe. `timeout` limits each publish and probe.
    pub fn new(storage: impl Storage, timeout: Duration) -> Self {
        let shared = Shared {
            storage: Arc::new(storage),
            writer: Slot::default(),
            opening: Mutex::new(()),
            right: Arc::new(Semaphore::new(1)),
        };
        Self { shared: Arc::new(shared), timeout }
    }

    /// Opens the file in a thread of its own, which writes until its sender is gone or a write fails.
    async fn start(&self) -> Result<Writer, SinkDown> {
        let right = self.shared.right.clone();
        // (The semaphore is never closed.)
        let right = tokio::time::timeout(self.timeout, right.acquire_owned()).await;
        let Ok(Ok(right)) = right else {
            return Err(SinkDown::new("an earlier write has not ended: the disk does not answer"));
        };
        let (lines, queue) = mpsc::unbounded_channel();
        let (down, _) = watch::channel(None);
        let (opened, opening) = oneshot::channel();
        let (storage, failed) = (self.shared.storage.clone(), down.clone());
        std::thread::spawn(move || write_lines(&*storage, queue, opened, &failed, right));
        match tokio::time::timeout(self.timeout, opening).await {
            Ok(Ok(Ok(()))) => Ok(Writer { lines, down }),
            Ok(Ok(Err(error))) => Err(SinkDown::new(error)),
            Ok(Err(_)) | Err(_) => {
                Err(SinkDown::new(format!("the file was not opened within {:?}", self.timeout)))
            }
        }
    }
}

/// Opens the file, and appends what waits, batch by batch.
fn write_lines(
    storage: &dyn Storage,
    mut queue: mpsc::UnboundedReceiver<Line>,
    opened: oneshot::Sender<Result<(), String>>,
    down: &watch::Sender<Option<SinkDown>>,
    _right: OwnedSemaphorePermit,
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
        // Nobody waits for these any more: their records are released, and published again.
        batch.retain(|line| !line.confirm.is_closed());
        let bytes: Vec<u8> = batch.iter().flat_map(|line| line.text.bytes()).collect();
        let written = if bytes.is_empty() { Ok(()) } else { file.append(&bytes) };
        let written = written.map_err(|error| error.to_string());
        if let Err(error) = &written {
            down.send_replace(Some(SinkDown::new(error)));
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

impl slot::Link for Writer {
    async fn lost(&self) -> SinkDown {
        let mut down = self.down.subscribe();
        let lost = down.wait_for(Option::is_some).await;
        // The sender lives as long as this writer.
        lost.ok().and_then(|down| down.clone()).unwrap_or_else(|| SinkDown::new("closed"))
    }
}

impl SinkConfig for FileConfig {
    type Sink = File;

    const DESTINATION: Option<&'static str> = None;

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "path",
        remedy: "create the folder, permit this user to write there, or free space",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let Some(path) = &settings.own.path else {
            rules.wrong("path", "is not set; write it as /folder/name.ndjson");
            return;
        };
        let is_file = path.file_name().is_some() && !path.is_dir();
        rules.require(is_file, "path", "must be a file; add a name such as orders.ndjson");
    }

    fn address(&self) -> DefaultAddress {
        DefaultAddress { destination: Template::fixed(""), key: None, source: None }
    }

    fn build(settings: SinkSettings<Self>) -> Result<File, String> {
        let path = settings.own.path.ok_or("path is not set")?;
        let storage = RotatedFile { path, max_size: settings.own.max_size as u64 };
        Ok(File::new(storage, settings.delivery.timeout))
    }
}

impl Sink for File {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let down = |why: &str| PublishError::new(PublishFailure::SinkDown, why);
        let writer = self.shared.writer.link().ok_or_else(|| down("the file is not open"))?;
        if let Some(cause) = writer.down.borrow().as_ref() {
            return Err(down(&cause.detail));
        }
        let (confirm, confirmed) = oneshot::channel();
        let text = json_line::render(&message) + "\n";
        if writer.lines.send(Line { text, confirm }).is_err() {
            return Err(down("the writer of the file has ended"));
        }
        match tokio::time::timeout(self.timeout, confirmed).await {
            Ok(Ok(Ok(()))) => Ok(()),
            // A part of the line may be in the file.
            Ok(Ok(Err(error))) => Err(PublishError::new(PublishFailure::Indeterminate, error)),
            Ok(Err(_)) => {
                let why = "the writer of the file ended before it confirmed";
                Err(PublishError::new(PublishFailure::Indeterminate, why))
            }
            Err(_) => {
                let why = format!("the disk confirmed nothing within {:?}", self.timeout);
                // Otherwise every further line would wait in memory behind this one.
                writer.down.send_replace(Some(SinkDown::new(&why)));
                Err(PublishError::new(PublishFailure::Indeterminate, why))
            }
        }
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let _opening = self.shared.opening.lock().await;
        if let Some(writer) = self.shared.writer.link() {
            if writer.down.borrow().is_none() {
                return Ok(());
            }
            self.shared.writer.take();
        }
        let writer = self.start().await?;
        self.shared.writer.put(writer);
        Ok(())
    }

    async fn lost(&self) -> SinkDown {
        self.shared.writer.lost().await
    }

    async fn close(&self) {
        // The thread ends when the last publish has let go of its sender.
        self.shared.writer.take();
    }

    /// The same file: a line cannot take anything down that the others use.
    fn isolated(&self) -> Self {
        Self { shared: self.shared.clone(), timeout: self.timeout }
    }
}
