//! The file on the disk: opened with a lock, appended to, synced, rotated.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bson::DateTime;

/// The permissions of a new file, from which the umask takes away: records are not for every user.
const FILE_MODE: u32 = 0o640;

/// Where lines are kept. The tests of the sink's contract use one that stops and fails.
pub trait Storage: Send + Sync + 'static {
    /// Opens it to append behind its present content.
    ///
    /// # Errors
    ///
    /// The operating system's, with the path.
    fn open(&self) -> io::Result<Box<dyn DurableAppend>>;

    /// Checks that it can be opened, and leaves nothing behind. Returns whether another process writes to it.
    ///
    /// # Errors
    ///
    /// The operating system's, with the path.
    fn check(&self) -> io::Result<bool>;
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
        let opened = resolved(&self.path).and_then(|path| {
            let (file, size) = open(&path)?;
            Ok(OpenFile { settings: self.clone(), path, file, size })
        });
        Ok(Box::new(opened.map_err(|error| self.with_path(&error))?))
    }

    fn check(&self) -> io::Result<bool> {
        let checked = resolved(&self.path).and_then(|path| check(&path));
        checked.map_err(|error| self.with_path(&error))
    }
}

impl RotatedFile {
    fn with_path(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

struct OpenFile {
    settings: RotatedFile,
    /// Where the file is, behind links.
    path: PathBuf,
    file: File,
    size: u64,
}

impl DurableAppend for OpenFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.try_append(bytes).map_err(|error| self.settings.with_path(&error))
    }
}

impl OpenFile {
    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + bytes.len() as u64 > self.settings.max_size {
            check_name(&self.path, &self.file)?;
            std::fs::rename(&self.path, rotated_name(&self.path)?)?;
            (self.file, self.size) = open(&self.path)?;
        }
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.size += bytes.len() as u64;
        // Lines in a file without this name would be lost.
        check_name(&self.path, &self.file)
    }
}

/// Follows the path if it is a link, so that rotation renames the file and not the link.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if is_link { std::fs::canonicalize(path) } else { Ok(path.to_owned()) }
}

/// Checks that the path still leads to the open file.
fn check_name(path: &Path, file: &File) -> io::Result<()> {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let named = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => Some(identity(found?)),
    };
    if named == Some(identity(file.metadata()?)) {
        return Ok(());
    }
    Err(io::Error::other("the file was removed or replaced while it was open"))
}

/// Opens and locks the file, and ends a line that was cut. Returns its size too.
fn open(path: &Path) -> io::Result<(File, u64)> {
    check_kind(path)?;
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(FILE_MODE).open(path)?;
    if !lock(&file)? {
        return Err(io::Error::other("another process writes to it"));
    }
    // Another process may have rotated it between the two.
    check_name(path, &file)?;
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

/// Checks what [`open`] and a rotation need, and leaves nothing behind. Returns whether another process writes
/// to the file.
fn check(path: &Path) -> io::Result<bool> {
    check_kind(path)?;
    File::open(folder(path))?;
    tempfile::tempfile_in(folder(path))?;
    match OpenOptions::new().read(true).append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        file => Ok(!lock(&file?)?),
    }
}

fn check_kind(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is not a regular file; use a regular file"));
    }
    Ok(())
}

/// Locks the file; returns `false` if another process has locked it.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the name for the rotated file: its own with the time in milliseconds, so that the name does not come
/// again after a reader has removed the file, and with a number above all others in any case.
fn rotated_name(path: &Path) -> io::Result<PathBuf> {
    let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut last = 0;
    for entry in std::fs::read_dir(folder(path))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(&own).and_then(|rest| rest.strip_prefix('.')?.parse().ok());
        last = last.max(number.unwrap_or(0u64));
    }
    let next = last.checked_add(1).ok_or_else(|| {
        io::Error::other(format!("{own}.{last} has the highest possible number; rename that file"))
    })?;
    let next = next.max(u64::try_from(DateTime::now().timestamp_millis()).unwrap_or(0));
    Ok(path.with_file_name(format!("{own}.{next}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rotated(folder: &Path, max_size: u64) -> RotatedFile {
        RotatedFile { path: folder.join("a.ndjson"), max_size }
    }

    /// The texts of the rotated files, by their numbers.
    fn rotated_texts(path: &Path) -> Vec<String> {
        let prefix = format!("{}.", path.file_name().unwrap().to_str().unwrap());
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|it| it.unwrap());
        let number = |name: &str| name.strip_prefix(&prefix)?.parse::<u64>().ok();
        let mut files: Vec<(u64, String)> = names
            .filter_map(|entry| {
                let number = number(entry.file_name().to_str()?)?;
                Some((number, std::fs::read_to_string(entry.path()).unwrap()))
            })
            .collect();
        files.sort();
        files.into_iter().map(|(_, text)| text).collect()
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

        assert_eq!(rotated_texts(&storage.path), ["one\ntwo\n", "three\n", "four\n"]);
        assert_eq!(std::fs::read_to_string(&storage.path).unwrap(), "five\n");
    }

    #[test]
    fn name_of_a_rotated_file_is_never_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 4);
        let mut names = Vec::new();
        for _ in 0..3 {
            // A reader removes each file, and the process restarts.
            let mut file = storage.open().unwrap();
            file.append(b"one\n").unwrap();
            file.append(b"two\n").unwrap();
            drop(file);
            std::fs::remove_file(&storage.path).unwrap();
            let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            for path in left {
                std::fs::remove_file(&path).unwrap();
                names.push(path);
            }
            std::thread::sleep(Duration::from_millis(2));
        }

        assert_eq!(names.len(), 3);
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    }

    #[test]
    fn new_file_is_not_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 1_000);

        let _file = storage.open().unwrap();

        // The umask may take more away.
        let mode = std::fs::metadata(&storage.path).unwrap().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
        assert_eq!(mode & 0o600, 0o600, "{mode:o}");
    }

    #[test]
    fn check_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 1_000);

        assert!(!storage.check().unwrap());

        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut file = storage.open().unwrap();
        file.append(b"one\n").unwrap();
        assert!(storage.check().unwrap(), "another writes to it");
        drop(file);
        assert!(!storage.check().unwrap());
        assert_eq!(std::fs::read_to_string(&storage.path).unwrap(), "one\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn check_fails_where_the_file_cannot_be_opened_or_made() {
        let at = |path: &str| RotatedFile { path: path.into(), max_size: 8 };
        for path in ["/no/such/folder/a", "/proc/a", "/dev/null", "/dev/null/a"] {
            let checked = at(path).check().map_err(|error| error.to_string());
            let opened = at(path).open().err().map(|error| error.to_string());

            assert!(opened.is_some(), "{path}");
            let error = checked.unwrap_err();
            assert!(error.starts_with(&format!("{path}: ")), "{error}");
        }
    }

    #[test]
    fn append_to_a_file_that_lost_its_name_fails() {
        let folder = tempfile::tempdir().unwrap();
        let storage = rotated(folder.path(), 1_000);
        let moved = folder.path().join("moved");
        for (case, is_replaced) in [("removed", false), ("replaced", true)] {
            let mut file = storage.open().unwrap();
            file.append(b"kept\n").unwrap();
            std::fs::rename(&storage.path, &moved).unwrap();
            if is_replaced {
                std::fs::write(&storage.path, "").unwrap();
            }

            let error = file.append(b"lost\n").unwrap_err().to_string();

            assert!(error.ends_with("removed or replaced while it was open"), "{case}: {error}");
            storage.open().unwrap().append(b"again\n").unwrap();
            assert_eq!(std::fs::read_to_string(&storage.path).unwrap(), "again\n", "{case}");
            std::fs::remove_file(&storage.path).unwrap();
        }
    }

    #[test]
    fn full_file_behind_a_link_is_rotated_next_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (data, link) = (folder.path().join("data"), folder.path().join("link"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("a"), "one\n").unwrap();
        std::os::unix::fs::symlink(data.join("a"), &link).unwrap();

        RotatedFile { path: link.clone(), max_size: 4 }.open().unwrap().append(b"two\n").unwrap();

        assert_eq!(rotated_texts(&data.join("a")), ["one\n"]);
        assert_eq!(std::fs::read_to_string(link).unwrap(), "two\n");
    }

    #[test]
    fn no_file_is_opened_or_rotated_where_lines_could_be_lost() {
        let folder = tempfile::tempdir().unwrap();
        let device = RotatedFile { path: "/dev/null".into(), max_size: 8 };
        assert!(device.open().err().unwrap().to_string().contains("not a regular file"));

        let storage = rotated(folder.path(), 8);
        let last = folder.path().join(format!("a.ndjson.{}", u64::MAX));
        std::fs::write(&last, "oldest\n").unwrap();
        let mut file = storage.open().unwrap();
        file.append(b"one\n").unwrap();

        let error = file.append(b"another\n").unwrap_err().to_string();

        assert!(error.contains("the highest possible number"), "{error}");
        assert_eq!(std::fs::read_to_string(&last).unwrap(), "oldest\n");
        assert_eq!(std::fs::read_to_string(&storage.path).unwrap(), "one\n");
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
