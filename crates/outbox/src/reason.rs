//! Reasons why a record is dead, each with a fixed word to group by.

use std::fmt;

use postrider_store::limits::MAX_DOCUMENT_BYTES;

use crate::content::Malformed;

/// Maximum length of a stored error or reason, in characters.
const MAX_CHARS: usize = 1000;

/// Maximum size of a new record, in bytes: the largest document of MongoDB, less the fields that a relay adds. These are
/// the last error and the reason, of four bytes a character at most, and fields of a fixed size.
pub const MAX_RECORD_BYTES: usize = MAX_DOCUMENT_BYTES - (2 * 4 * MAX_CHARS + (8 << 10));

/// Reason why a record is marked dead. `Display` is `deadReason`: it begins with a fixed word and
/// quotes neither payload nor secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// A field of the producer has the wrong type or is missing.
    Malformed(Malformed),
    /// No route matches and there is no default sink.
    Unroutable(String),
    /// A template refers to a value that the record does not have.
    Template(String),
    /// Over a limit of MongoDB, of the sink or of its protocol.
    TooLarge(String),
    /// Forbidden by the protocol or the configuration, or reported by the broker as the cause of a
    /// closed connection.
    Refused(String),
    /// The last permitted attempt failed.
    AttemptsExhausted {
        /// Attempts counted.
        attempts: u32,
        /// Error of the last attempt.
        error: String,
    },
    /// Its lease expired repeatedly: it crashes or hangs the instances that deliver it.
    LeaseExpired {
        /// Attempts counted.
        attempts: u32,
    },
}

impl DeadReason {
    /// Returns the fixed word before the colon.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Unroutable(_) => "unroutable",
            Self::Template(_) => "template",
            Self::TooLarge(_) => "too large",
            Self::Refused(_) => "refused",
            Self::AttemptsExhausted { .. } => "attempts exhausted",
            Self::LeaseExpired { .. } => "lease expired",
        }
    }

    /// Returns the error of the last attempt, if any.
    pub(crate) fn last_error(&self) -> Option<&str> {
        match self {
            Self::AttemptsExhausted { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.word())?;
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unroutable(detail)
            | Self::Template(detail)
            | Self::TooLarge(detail)
            | Self::Refused(detail) => f.write_str(detail),
            Self::AttemptsExhausted { attempts: 1, error } => {
                write!(f, "1 delivery failed: {error}")
            }
            Self::AttemptsExhausted { attempts, error } => {
                write!(f, "{attempts} deliveries failed, the last one with: {error}")
            }
            Self::LeaseExpired { attempts: 1 } => f.write_str("once"),
            Self::LeaseExpired { attempts } => write!(f, "{attempts} times"),
        }
    }
}

/// Shortens a text to the maximum that a record stores.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => text[..end].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_begins_with_its_word() {
        let exhausted =
            DeadReason::AttemptsExhausted { attempts: 10, error: "nack".into() }.to_string();
        let expired = DeadReason::LeaseExpired { attempts: 3 }.to_string();

        assert_eq!(exhausted, "attempts exhausted: 10 deliveries failed, the last one with: nack");
        assert_eq!(expired, "lease expired: 3 times");
    }

    #[test]
    fn text_is_cut_at_a_character_boundary() {
        let long = "ß".repeat(2000);

        assert_eq!(shortened(&long).chars().count(), 1000);
    }
}
