//! Child processes that end with the test, even if it is killed.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs a command, and a watcher that holds the other end of a pipe from the test. When the test
/// ends without a message, even by SIGKILL, the watcher kills the process and removes its folder.
const WATCHED_SCRIPT: &str = r#"
exec 3<&0
(read -r _ <&3 || { kill -9 $$; [ -z "$0" ] || { sleep 0.2; rm -rf "$0"; }; }) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

/// The same command with a watcher. Its id is that of the process; its standard input is the pipe.
/// [`dismiss`] ends the watch before the test itself ends the process.
pub fn watched(command: &Command, folder: Option<&Path>) -> Command {
    let mut watched = Command::new("sh");
    watched.args(["-c", WATCHED_SCRIPT]).arg(folder.unwrap_or(Path::new("")));
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
    // `scripts/services.sh stop` finds the processes of an interrupted test by this mark.
    if let Some(services) = std::env::var_os("POSTRIDER_SERVICES_DIR") {
        watched.env("POSTRIDER_SERVICE_OF", services);
    }
    watched.stdin(Stdio::piped());
    watched
}

/// Runs a command when the test ends without a message, and removes a folder.
const AFTERWARDS_SCRIPT: &str = r#"
exec >/dev/null 2>&1
read -r _ || { "$@"; rm -rf "$0"; }
"#;

/// Starts a watcher that does this when the test is gone, unless it is [dismissed](dismiss) before.
pub fn afterwards(command: &[&OsStr], folder: &Path) -> Child {
    let mut watcher = Command::new("sh");
    watcher.args(["-c", AFTERWARDS_SCRIPT]).arg(folder).args(command).stdin(Stdio::piped());
    watcher.spawn().unwrap()
}

/// Dismisses the watcher of a process, if it has one.
pub fn dismiss(process: &mut Child) {
    if let Some(mut watcher) = process.stdin.take() {
        // The watcher may have ended with its process.
        let _ = watcher.write_all(b"\n");
    }
}
