//! The file on the disk: opened with a lock, appended to, synced, rotated.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Where lines are kept. The tests of the sink's contract use one that stops and fails.
pub trait Storage: Send + Sync + 'static {
    /// Opens it to append behind its present content.
    ///
    /// # Errors
    ///
    /// The operating system's, with the path.
    fn open(&self) -> io::Result<Box<dyn DurableAppend>>;
}

/// An open file.
pub trait DurableAppend {
    /// Appends bytes, and returns when they are on the disk.
    ///
    /// # Errors
    ///
    /// The operating system's, with the path. A part of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A file that is rotated by size.
#[derive(Clone, Debug)]
pub struct RotatedFile {
    /// The file.
    pub path: PathBuf,
    /// The size in bytes at which it is rotated.
    pub max_size: u64,
}

impl Storage for RotatedFile {
    fn open(&self) -> io::Result<Box<dyn DurableAppend>> {
        let (file, size) = open(&self.path).map_err(|error| self.with_path(&error))?;
        Ok(Box::new(OpenFile { rotated: self.clone(), file, size }))
    }
}

impl RotatedFile {
    fn with_path(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

struct OpenFile {
    rotated: RotatedFile,
    file: File,
    size: u64,
}

impl DurableAppend for OpenFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.try_append(bytes).map_err(|error| self.rotated.with_path(&error))
    }
}

impl OpenFile {
    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + bytes.len() as u64 > self.rotated.max_size {
            std::fs::rename(&self.rotated.path, rotated_name(&self.rotated.path)?)?;
            (self.file, self.size) = open(&self.rotated.path)?;
        }
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.size += bytes.len() as u64;
        Ok(())
    }
}

/// Opens and locks the file, and ends a line that was cut. Returns its size too.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(io::Error::other("another process writes to it"));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // So that the name of a new file survives a crash, as its content does.
    File::open(folder(path))?.sync_all()?;
    let mut size = file.metadata()?.len();
    if size > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            size += 1;
        }
    }
    Ok((file, size))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the name for the rotated file: its own with the next number.
fn rotated_name(path: &Path) -> io::Result<PathBuf> {
    let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut last = 0;
    for entry in std::fs::read_dir(folder(path))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(&own).and_then(|rest| rest.strip_prefix('.')?.parse().ok());
        last = last.max(number.unwrap_or(0u64));
    }
    Ok(path.with_file_name(format!("{own}.{}", last + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotated(folder: &Path, max_size: u64) -> RotatedFile {
        RotatedFile { path: folder.join("a.ndjson"), max_size }
    }

    #[test]
    fn full_file_is_rotated_to_the_next_number() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 8);

        let mut file = storage.open().unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            file.append(line.as_bytes()).unwrap();
        }
        drop(file);
        // After a restart the numbers continue.
        storage.open().unwrap().append(b"five\n").unwrap();

        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("a.ndjson.1"), "one\ntwo\n");
        assert_eq!(read("a.ndjson.2"), "three\n");
        assert_eq!(read("a.ndjson.3"), "four\n");
        assert_eq!(read("a.ndjson"), "five\n");
    }

    #[test]
    fn cut_line_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 1_000);
        std::fs::write(&storage.path, "whole\ncut").unwrap();

        storage.open().unwrap().append(b"next\n").unwrap();

        assert_eq!(std::fs::read_to_string(&storage.path).unwrap(), "whole\ncut\nnext\n");
    }

    #[test]
    fn error_of_a_second_writer_has_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 1_000);
        let _first = storage.open().unwrap();

        let error = storage.open().err().unwrap().to_string();

        assert!(error.contains("a.ndjson: another process writes to it"), "{error}");
    }

    #[test]
    fn error_of_a_missing_folder_has_the_path() {
        let storage = rotated(Path::new("/no/such/folder"), 1_000);

        let error = storage.open().err().unwrap().to_string();

        assert!(error.starts_with("/no/such/folder/a.ndjson: "), "{error}");
    }
}
