//! The command line as users see it: settings, and what the binary prints.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::outbox::TestOutbox;
use super::process::{Ended, call_with, command, finish};
use super::queue::{mongo_settings, stdout_sink};

/// A password that no other text contains.
pub const PLANTED: &str = "pl4nted-s3cret";

/// A configuration file with this text, in TOML.
pub fn file(text: &str) -> NamedTempFile {
    file_of(".toml", text)
}

/// A configuration file with this text, in the language of the suffix.
pub fn file_of(suffix: &str, text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(suffix).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The settings that are required; no server listens at these addresses.
pub fn valid() -> Vec<String> {
    [vec!["mongo.uri=mongodb://127.0.0.1:1/app".to_owned()], stdout_sink()].concat()
}

/// These settings and more.
pub fn with(settings: Vec<String>, more: &[&str]) -> Vec<String> {
    settings.into_iter().chain(more.iter().map(|setting| (*setting).to_owned())).collect()
}

/// Runs the binary with these environment variables.
pub async fn with_environment(pairs: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = command(arguments);
    command.envs(pairs.iter().copied());
    finish(command).await
}

/// Asserts that standard error contains each of these parts.
#[track_caller]
pub fn says(ended: &Ended, parts: &[&str]) {
    for part in parts {
        assert!(ended.stderr.contains(part), "no {part:?} in {ended}");
    }
}

/// The JSON list that a command such as `instances` prints for this outbox.
pub async fn list_of(outbox: &TestOutbox, command: &str) -> Vec<Value> {
    let ended = call_with(&mongo_settings(&outbox.database), &[command, "--output", "json"]).await;
    ended.with_code(0).json().as_array().unwrap().clone()
}
