//! Child processes that end with the test, even if it is killed.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs a command, and next to it a watcher, which holds the other end of a pipe from the test. When
/// the test ends without a word, even by SIGKILL, the watcher kills the process and removes its folder.
const WATCHED: &str = r#"
exec 3<&0
(read -r _ <&3 || { kill -9 $$; [ -z "$0" ] || { sleep 0.2; rm -rf "$0"; }; }) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

/// The same command with a watcher. Its id is that of the process; its standard input is the pipe.
/// [`dismiss`] ends the watch before the test itself ends the process.
pub fn watched(command: &Command, folder: Option<&Path>) -> Command {
    let mut watched = Command::new("sh");
    watched.args(["-c", WATCHED]).arg(folder.unwrap_or(Path::new("")));
    watched.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => watched.env(name, value),
            None => watched.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        watched.current_dir(dir);
    }
    // By this mark `scripts/services.sh stop` finds what an interrupted test has left.
    if let Some(services) = std::env::var_os("POSTRIDER_SERVICES_DIR") {
        watched.env("POSTRIDER_SERVICE_OF", services);
    }
    watched.stdin(Stdio::piped());
    watched
}

/// Runs a command when the test ends without a word, and removes a folder.
const AFTERWARDS: &str = r#"
exec >/dev/null 2>&1
read -r _ || { "$@"; rm -rf "$0"; }
"#;

/// A watcher that does this when the test is gone, unless it is [dismissed](dismiss) before.
pub fn afterwards(command: &[&OsStr], folder: &Path) -> Child {
    let mut watcher = Command::new("sh");
    watcher.args(["-c", AFTERWARDS]).arg(folder).args(command).stdin(Stdio::piped());
    watcher.spawn().unwrap()
}

/// Tells the watcher of a process, if it has one, that there is nothing left to do.
pub fn dismiss(process: &mut Child) {
    if let Some(mut watcher) = process.stdin.take() {
        // It may have ended by itself with the rest.
        let _ = watcher.write_all(b"\n");
    }
}
