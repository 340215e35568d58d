//! What a process has logged, judged as by somebody whom it wakes at outage.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::process::Postrider;

/// The messages of these lines at `info` and above, and how often each was told.
pub fn told(lines: &[Value]) -> BTreeMap<String, usize> {
    let mut told = BTreeMap::new();
    for line in lines {
        let level = line["level"].as_str().unwrap();
        if ["INFO", "WARN", "ERROR"].contains(&level) {
            let message = line["message"].as_str().unwrap();
            *told.entry(format!("{level} {message}")).or_default() += 1;
        }
    }
    told
}

/// What a process has told since it had logged `before` lines: these, each once, and no more but
/// what it may have told, each once at the most.
#[track_caller]
pub fn assert_told(postrider: &Postrider, before: usize, expected: &[&str], maybe: &[&str]) {
    let mut told = told(&postrider.lines()[before..]);
    for line in maybe {
        if told.get(*line) == Some(&1) {
            told.remove(*line);
        }
    }
    let expected: BTreeMap<String, usize> =
        expected.iter().map(|line| ((*line).to_owned(), 1)).collect();
    assert_eq!(told, expected, "{}", postrider.stderr());
}
