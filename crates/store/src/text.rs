//! Formats texts for logs and stored errors: an error with its sources, a shortened name.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;

use mongodb::error::{Error as DriverError, ErrorKind};

/// Maximum length of a name in a log line, in characters.
pub const MAX_NAME_CHARS: usize = 200;

/// Formats an error with its sources, in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = words(error);
    let mut source = source_of(error);
    while let Some(cause) = source {
        // Writing to a String does not fail.
        let _ = write!(text, ": {}", words(cause));
        source = source_of(cause);
    }
    text
}

/// Returns the text of an error; for the MongoDB driver, one sentence instead of a dump.
fn words(error: &(dyn Error + 'static)) -> String {
    match driver(error) {
        Some(driver) => crate::driver_text(driver),
        None => error.to_string(),
    }
}

/// Returns the source of an error, except for a refused login, which quotes it already.
fn source_of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let driver = driver(error);
    let says_all =
        driver.is_some_and(|driver| matches!(*driver.kind, ErrorKind::Authentication { .. }));
    error.source().filter(|_| !says_all)
}

fn driver<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a DriverError> {
    let boxed = error.downcast_ref::<Box<DriverError>>().map(AsRef::as_ref);
    boxed.or_else(|| error.downcast_ref::<DriverError>())
}

/// Returns a text, or its first characters and its length.
pub fn bounded(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;

    #[derive(Debug, thiserror::Error)]
    #[error("no umbrella")]
    struct Wrapped(#[source] StoreError);

    #[test]
    fn an_error_of_the_driver_is_one_sentence_without_the_server_response() {
        let driver = DriverError::custom("it rained");
        assert!(driver.to_string().contains("server response"), "this must not be shown");

        let direct = chain(&driver);
        let source = StoreError::Driver { action: "look", source: Box::new(driver) };
        let wrapped = chain(&Wrapped(source));

        for text in [&direct, &wrapped] {
            assert!(text.contains("Custom user error"), "{text}");
            assert!(!text.contains("server response"), "{text}");
        }
        assert!(wrapped.starts_with("no umbrella: failed to look: "), "{wrapped}");
    }
}
