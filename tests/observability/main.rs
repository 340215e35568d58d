//! What operators see of a running process: metrics, health, alert rules and the dashboard, by the real
//! promtool and Prometheus.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod dashboard;
mod metrics;
mod processes;
mod prometheus;
mod rules;
mod scene;

use std::collections::BTreeSet;
use std::path::PathBuf;

use postrider::telemetry::metrics::descriptions;

/// A file of the repository.
fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text of a value; empty if it is none.
fn string(value: &serde_json::Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The metrics that the code describes.
fn described() -> BTreeSet<String> {
    descriptions().map(|metric| metric.name.to_owned()).collect()
}

/// The metrics that a query names; the parts of a histogram by its own name.
fn named(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let is_metric =
        |word: &&str| ["postrider_", "process_"].iter().any(|prefix| word.starts_with(prefix));
    let ours = words.filter(is_metric);
    ours.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()).collect()
}
