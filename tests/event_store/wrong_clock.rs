//! Only the server's clock matters, not that of a process.

use std::process::{Command, Stdio};

use crate::support::clock::faketime;

/// Set in the processes that these tests start.
const WITHIN: &str = "POSTRIDER_TEST_CLOCK_IS_WRONG";

/// Runs the tests that depend on time in a process with this clock offset.
fn run_with_clock_offset(offset: &str) {
    if std::env::var_os(WITHIN).is_some() {
        return;
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["prepare_keys::expiry::", "snapshots::time::"])
        .env("LD_PRELOAD", faketime())
        .env("FAKETIME", offset)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env(WITHIN, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(!said.contains("running 0 tests"), "{said}");
}

#[test]
fn tests_pass_with_a_clock_a_day_ahead() {
    run_with_clock_offset("+1d");
}

#[test]
fn tests_pass_with_a_clock_a_day_behind() {
    run_with_clock_offset("-1d");
}
