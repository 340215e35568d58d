//! What a process logs during an outage.

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

/// An outage is reported once, and a busy machine may interrupt it; each try would be many lines.
const MAX_REPEATS: usize = 3;

/// Asserts what a process has logged after `before` lines: each of these messages, no message for each try, and no
/// error.
#[track_caller]
pub fn assert_logged(postrider: &Postrider, before: usize, expected: &[&str]) {
    let messages = count_messages(&postrider.lines()[before..]);
    for line in expected {
        assert!(messages.contains_key(*line), "{line}: {messages:#?}");
    }
    for (line, count) in &messages {
        assert!(!line.starts_with("ERROR") && *count <= MAX_REPEATS, "{line}: {messages:#?}");
    }
}
