//! Structured logs on stderr, without payloads or secrets.

use std::error::Error;
use std::fmt::Write as _;
use std::io::IsTerminal;

use mongodb::error::Error as DriverError;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// An error with its sources, in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = words(error);
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String does not fail.
        let _ = write!(text, ": {}", words(cause));
        source = cause.source();
    }
    text
}

/// What an error says for itself; of MongoDB's driver without the labels, and the whole answer in
/// hex, that it shows besides.
fn words(error: &(dyn Error + 'static)) -> String {
    let boxed = error.downcast_ref::<Box<DriverError>>().map(AsRef::as_ref);
    match boxed.or_else(|| error.downcast_ref::<DriverError>()) {
        Some(driver) => driver.kind.to_string(),
        None => error.to_string(),
    }
}

/// Crates that say nothing here, whatever the level. What goes wrong in them reaches their sink,
/// which says it once and not at every try; below errors they show messages and credentials,
/// byte by byte.
const SILENT: [&str; 2] = ["lapin", "amq_protocol"];

/// A crate of which nothing but errors is logged, for the same sake.
const QUIET: &str = "mongodb";

fn is_fit_to_print(metadata: &Metadata<'_>) -> bool {
    let of = metadata.target().split("::").next().unwrap_or_default();
    let silent = SILENT.iter().any(|name| of.starts_with(name));
    !silent && (of != QUIET || *metadata.level() == Level::ERROR)
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
    // Apart from the level: a filter of the operator's could name a module more closely. Both for
    // all and not for the layer: those lost lines while librdkafka's threads logged beside ours.
    let subscriber = tracing_subscriber::registry().with(layer);
    let subscriber = subscriber.with(filter_fn(is_fit_to_print)).with(filter);
    subscriber.try_init().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

    use super::*;
    use crate::store::StoreError;

    #[test]
    fn of_the_drivers_errors_what_went_wrong_is_told_and_no_answer_in_hex() {
        let driver = DriverError::custom("it rained");
        assert!(driver.to_string().contains("server response"), "what is kept from showing");

        let direct = chain(&driver);
        let wrapped = StoreError::Driver { action: "look", source: Box::new(driver) };
        let wrapped = chain(anyhow::Error::from(wrapped).context("no umbrella").as_ref());

        for told in [&direct, &wrapped] {
            assert!(told.contains("Custom user error"), "{told}");
            assert!(!told.contains("server response"), "{told}");
        }
        assert!(wrapped.starts_with("no umbrella: failed to look: "), "{wrapped}");
    }
}
