//! What a process logs during an outage: each message once.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::process::Postrider;

/// The messages of these lines at `info` and above, and how often each was logged.
pub fn count_messages(lines: &[Value]) -> BTreeMap<String, usize> {
    let mut messages = BTreeMap::new();
    for line in lines {
        let level = line["level"].as_str().unwrap();
        if ["INFO", "WARN", "ERROR"].contains(&level) {
            let message = line["message"].as_str().unwrap();
            *messages.entry(format!("{level} {message}")).or_default() += 1;
        }
    }
    messages
}

/// On a machine that does not run it for seconds, at any moment.
const SUSPENDED: &str =
    "WARN this process was suspended; it reads its partitions again before it publishes";

/// Asserts what a process has logged after `before` lines: each of these once, and at most once
/// each message that is optional; and any number of true warnings of a busy machine.
#[track_caller]
pub fn assert_logged(postrider: &Postrider, before: usize, expected: &[&str], maybe: &[&str]) {
    let mut messages = count_messages(&postrider.lines()[before..]);
    messages.remove(SUSPENDED);
    for line in maybe {
        if messages.get(*line) == Some(&1) {
            messages.remove(*line);
        }
    }
    let expected: BTreeMap<String, usize> =
        expected.iter().map(|line| ((*line).to_owned(), 1)).collect();
    assert_eq!(messages, expected, "{}", postrider.stderr());
}
