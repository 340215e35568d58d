//! Formats texts for logs, terminals and stored errors: an error with its sources, a shortened name, a text
//! without control characters.

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

/// Whether a terminal, or a reader of lines, acts on a character in place of showing it: control characters,
/// line breaks, marks of the writing direction, and characters that are invisible by definition.
fn is_active(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{061c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{206f}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns a text that is safe on a terminal and stays on its line. What is not shown as itself is escaped as in
/// a literal of Rust, such as `\u{1b}` or `\n`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return text.into();
    }
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            _ if !is_active(character) => printable.push(character),
            _ if character.is_control() => printable.extend(character.escape_default()),
            _ => printable.extend(character.escape_unicode()),
        }
    }
    printable.into()
}

/// Returns the same value as JSON that is safe on a terminal. `json` may have line ends and tabs between its
/// tokens, as each writer of JSON escapes them in texts.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |character: char| is_active(character) && !matches!(character, '\n' | '\t');
    if !json.contains(is_escaped) {
        return json.into();
    }
    let mut printable = String::with_capacity(json.len());
    for character in json.chars() {
        if is_escaped(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = write!(printable, "\\u{unit:04x}");
            }
        } else {
            printable.push(character);
        }
    }
    printable.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;

    #[test]
    fn text_is_escaped_and_stays_readable() {
        assert_eq!(
            printable("\u{1b}[2J\r\n\u{9b}1m\u{202e}é😀"),
            "\\u{1b}[2J\\r\\n\\u{9b}1m\\u{202e}é😀"
        );
        let active = (char::MIN..=char::MAX).filter(|one| is_active(*one));
        for one in active {
            assert!(printable(&one.to_string()).is_ascii(), "{one:?}");
            assert!(printable_json(&serde_json::json!(one).to_string()).is_ascii(), "{one:?}");
        }
        for one in ['\u{7f}', '\u{85}', '\u{200e}', '\u{2029}', '\u{2066}', '\u{2069}', '\u{e0041}']
        {
            assert!(is_active(one), "{one:?}");
        }
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let value =
            serde_json::json!({ "a\u{9b}": ["\u{202e}x\n\u{7f}", "\u{e0041}\\u{1b}", "é"] });
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let printable = printable_json(&json);

            assert!(!printable.contains(|c| is_active(c) && c != '\n'), "{printable:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&printable).unwrap(), value);
        }
    }

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
