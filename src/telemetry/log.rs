//! Structured logs on stderr, without payloads or secrets.

use std::error::Error;
use std::fmt::Write as _;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

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

/// What other crates log is kept to trouble: at lower levels they would show messages.
/// (`lapin` shows each returned message at warn.)
const OTHERS: [&str; 4] =
    ["lapin=error", "lapin::returned_messages=off", "amq_protocol=error", "mongodb=error"];

/// Whether a level is one, or a filter of `tracing`.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_level(level: &str) -> Result<(), String> {
    filter(level).map(|_| ())
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    let mut filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
    for directive in OTHERS {
        filter = filter.add_directive(directive.parse().map_err(|error| format!("{error}"))?);
    }
    Ok(filter)
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
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal);
    let started = match json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.with_target(false).try_init(),
    };
    started.map_err(|error| error.to_string())
}
