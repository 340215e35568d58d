//! Reading the files that a configuration names.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// The largest file that is read: far above any configuration, and far below a host's memory.
const MAX_BYTES: u64 = 16 << 20;

/// How long a file may take: a pipe may wait for a program that fetches a secret, but not for ever.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a text that is read once, without the byte order mark that some editors write. It may come from a
/// pipe, such as `/dev/stdin` or a shell's `<(…)`.
///
/// # Errors
///
/// The operating system's; also for a file above 16 MiB, and one that does not end within 30 s.
pub fn read_text(file: &Path) -> Result<String> {
    let text = String::from_utf8(read_within(file, READ_TIMEOUT)?);
    let text = text.map_err(|_| Error::new(ErrorKind::InvalidData, "it is not valid UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Reads a file that clients read again at each connection, so that it must be a regular one, or a link to
/// one: a pipe would be empty by then.
///
/// # Errors
///
/// Those of [`read_text`]; also for a folder, a pipe or a device.
pub fn read_regular(file: &Path) -> Result<Vec<u8>> {
    if std::fs::metadata(file)?.is_file() {
        read_within(file, READ_TIMEOUT)
    } else {
        Err(Error::other("it must be a regular file, since it is read again for each connection"))
    }
}

/// The words of the operating system for an error, in lower case and without its number.
pub fn io_text(error: &Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        // Names in capitals, such as TLS, stay.
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

fn read_within(file: &Path, limit: Duration) -> Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let file = file.to_owned();
    // Opening a pipe waits for its writer, and nothing ends that but the end of the process.
    std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        let read =
            File::open(file).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
        sender.send(read.map(|_| bytes))
    })?;
    match receiver.recv_timeout(limit) {
        Ok(Ok(bytes)) if bytes.len() as u64 > MAX_BYTES => {
            Err(Error::other("it is larger than 16 MiB"))
        }
        Ok(read) => read,
        Err(_) => Err(Error::other(format!("its end was not reached within {limit:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn text_comes_from_a_file_a_link_or_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| dir.path().join(name));
        std::fs::write(&file, "\u{feff}text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let written = pipe.clone();
        std::thread::spawn(move || std::fs::write(written, "text"));

        assert!(read_regular(&pipe).unwrap_err().to_string().contains("a regular file"));
        for path in [&file, &link, &pipe] {
            assert_eq!(read_text(path).unwrap(), "text");
        }
        assert_eq!(read_regular(&link).unwrap(), "\u{feff}text".as_bytes());
    }

    #[test]
    fn what_does_not_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let limit = Duration::from_millis(50);

        let silent = read_within(&pipe, limit).unwrap_err();
        let endless = read_text(Path::new("/dev/zero")).unwrap_err();
        let folder = read_text(dir.path()).unwrap_err();

        assert_eq!(silent.to_string(), "its end was not reached within 50ms");
        assert_eq!(endless.to_string(), "it is larger than 16 MiB");
        assert_eq!(folder.kind(), ErrorKind::IsADirectory);
    }
}
