//! Processes that end with the test, however that ends.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs a command, and beside it a watcher, which holds the other end of a pipe from us: when we
/// end without a word, though it be by SIGKILL, it kills the process and removes its folder.
const WATCHED: &str = r#"
exec 3<&0
(read -r _ <&3 || { kill -9 $$; [ -z "$0" ] || { sleep 0.2; rm -rf "$0"; }; }) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

/// The same command, watched; its id is that of the process, and its standard input ours.
/// [`dismiss`] ends the watch where the process is to end by our hand.
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

/// Runs a command when we end without a word, and removes a folder.
const AFTERWARDS: &str = r#"
exec >/dev/null 2>&1
read -r _ || { "$@"; rm -rf "$0"; }
"#;

/// A watcher who does this when we are gone, unless he is [dismissed](dismiss) before.
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
