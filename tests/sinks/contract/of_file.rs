//! A file on a disk that can stop, and be full.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use postrider::sink::Message;
use postrider::sink::file::File;
use postrider::sink::file::storage::{DurableAppend, RotatedFile, Storage};
use tempfile::TempDir;

use crate::contract::harness::{Arrived, Harness};
use crate::support::message::message;

/// The folder of the file, and the faults of its disk. The file itself is a real one.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
    faults: Faults,
}

/// The faults of a disk. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    is_frozen: bool,
    is_full: bool,
    failing_writes: u32,
}

/// A file on a disk with these faults.
pub struct FaultyStorage {
    pub file: RotatedFile,
    pub faults: Faults,
}

struct FaultyFile {
    file: Box<dyn DurableAppend>,
    faults: Faults,
}

impl Faults {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    /// Makes the next writes fail in the middle; files can still be opened.
    pub fn fail_writes(&self, count: u32) {
        self.change(|state| state.failing_writes = count);
    }

    fn pass_write(&self) -> io::Result<()> {
        self.pass()?;
        let left = &mut self.0.0.lock().unwrap().failing_writes;
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Waits while the disk is frozen, and fails where it is full.
    fn pass(&self) -> io::Result<()> {
        let state = self.0.0.lock().unwrap();
        let state = self.0.1.wait_while(state, |state| state.is_frozen).unwrap();
        if state.is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Storage for FaultyStorage {
    fn open(&self) -> io::Result<Box<dyn DurableAppend>> {
        self.faults.pass()?;
        Ok(Box::new(FaultyFile { file: self.file.open()?, faults: self.faults.clone() }))
    }

    fn check(&self) -> io::Result<bool> {
        self.file.check()
    }
}

impl DurableAppend for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(full) = self.faults.pass_write() {
            self.file.append(&bytes[..bytes.len() / 2])?;
            return Err(full);
        }
        self.file.append(bytes)
    }
}

impl Harness for Disk {
    type Sink = File;

    /// An isolated sink shares the file, and so is up when the sink is.
    const CONNECTS: bool = false;

    async fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), faults: Faults::default() }
    }

    fn sink(&self, timeout: Duration) -> File {
        let file = RotatedFile { path: self.folder.path().join("lines"), max_size: 1_000 };
        File::new(FaultyStorage { file, faults: self.faults.clone() }, timeout)
    }

    fn message(&self, id: &str) -> Message {
        message(id, "somewhere", "key")
    }

    fn undeliverable(&self, _: &str) -> Option<Message> {
        None
    }

    fn impossible(&self) -> Vec<Message> {
        Vec::new()
    }

    /// The lines of the rotated files by number, then those of the file itself.
    async fn arrived(&self) -> Vec<Arrived> {
        let mut files: Vec<(u64, String)> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let number = path.extension().and_then(|end| end.to_str()?.parse().ok());
                (number.unwrap_or(u64::MAX), std::fs::read_to_string(path).unwrap())
            })
            .collect();
        files.sort();
        files.iter().flat_map(|(_, text)| Arrived::in_lines(text.as_bytes())).collect()
    }

    async fn freeze(&self) {
        self.faults.change(|state| state.is_frozen = true);
    }

    async fn thaw(&self) {
        self.faults.change(|state| state.is_frozen = false);
    }

    async fn take_down(&self) {
        self.faults.change(|state| state.is_full = true);
    }

    async fn bring_back(&self) {
        self.faults.change(|state| state.is_full = false);
    }

    async fn slow_down(&self, _: Duration) -> bool {
        false
    }
}
