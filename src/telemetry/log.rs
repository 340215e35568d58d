//! Structured logs on stderr, without payloads or secrets.

use std::error::Error;
use std::fmt::Write as _;
use std::io::IsTerminal;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// An error with its sources, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String does not fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// Crates of which nothing but errors is logged, whatever the level: below they show messages
/// and credentials, byte by byte.
const QUIET: [&str; 3] = ["lapin", "amq_protocol", "mongodb"];

/// Here `lapin` shows each returned message.
const RETURNED: &str = "lapin::returned_messages";

fn is_fit_to_print(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let of = |name: &&str| target.split("::").next() == Some(name);
    !QUIET.iter().any(of) || (*metadata.level() == Level::ERROR && target != RETURNED)
}

/// Whether a level is one, or a filter of `tracing`.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_level(level: &str) -> Result<(), String> {
    filter(level).map(|_| ())
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(level).map_err(|error| error.to_string())
}

/// Starts logging to stderr. `json` of `None` means text on a terminal, JSON elsewhere.
///
/// # Errors
///
/// A level that is no filter of `tracing` (`info`, `postrider=debug,info`, …).
pub fn init(json: Option<bool>, level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    let terminal = std::io::stderr().is_terminal();
    let json = json.unwrap_or(!terminal);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let layer = match json {
        true => layer.json().flatten_event(true).boxed(),
        false => layer.with_target(false).boxed(),
    };
    // Apart from the level: a filter of the operator's could name a module more closely.
    let layer = layer.with_filter(filter.and(filter_fn(is_fit_to_print)));
    tracing_subscriber::registry().with(layer).try_init().map_err(|error| error.to_string())
}
