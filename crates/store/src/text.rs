//! Texts for logs and stored errors: an error with its sources, a name cut to a length.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;

use mongodb::error::{Error as DriverError, ErrorKind};

/// Characters of a name that a line has at most.
pub const LONGEST_NAME: usize = 200;

/// An error with its sources, in one line.
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

/// What an error says for itself; of MongoDB's driver one sentence in place of its dump.
fn words(error: &(dyn Error + 'static)) -> String {
    match driver(error) {
        Some(driver) => crate::words(driver),
        None => error.to_string(),
    }
}

/// What an error came of. A refused login quotes its source, which would only say it again.
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

/// A text, or so many characters of its beginning and how long it was.
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
