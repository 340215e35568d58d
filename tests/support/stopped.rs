//! Waiting until a process has stopped.

use std::time::{Duration, Instant};

/// Waits until every thread of a process that was sent SIGSTOP has stopped: on a busy machine some
/// run a moment longer.
pub fn until_stopped(process: u32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_stopped(process) {
        assert!(Instant::now() < deadline, "process {process} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut states = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        // After the name, which may contain any characters.
        stat.rsplit_once(") ")?.1.chars().next()
    });
    states.all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
}
