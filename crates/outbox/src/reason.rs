//! Why a record is dead, in words that tools can group.

use std::fmt;

use crate::content::Malformed;

/// The longest text that a record keeps of an error or a reason, in characters.
const LONGEST: usize = 1000;

/// Why a record will not be delivered. `Display` is `deadReason`: it begins with a fixed
/// word and quotes neither payload nor secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// A producer's field is of the wrong type or missing.
    Malformed(Malformed),
    /// No route matches and there is no default sink.
    Unroutable(String),
    /// A template names something that the record does not have.
    Template(String),
    /// Over a limit of MongoDB, of the sink or of its protocol.
    TooLarge(String),
    /// The protocol or the configuration forbids it, or the broker named it as the
    /// cause of a closed connection.
    Refused(String),
    /// The last of the permitted deliveries failed.
    AttemptsExhausted {
        /// Deliveries charged.
        attempts: u32,
        /// How the last one failed.
        error: String,
    },
    /// Its lease ran out again and again: it crashes or hangs those who deliver it.
    LeaseExpired {
        /// Deliveries charged.
        attempts: u32,
    },
}

impl DeadReason {
    /// The fixed word before the colon.
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

    /// The failure of the last delivery, where there was one.
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

/// The text cut to what a record keeps.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => text[..end].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_begins_with_its_word() {
        let exhausted =
            DeadReason::AttemptsExhausted { attempts: 10, error: "nack".into() }.to_string();
        let expired = DeadReason::LeaseExpired { attempts: 3 }.to_string();

        assert_eq!(exhausted, "attempts exhausted: 10 deliveries failed, the last one with: nack");
        assert_eq!(expired, "lease expired: 3 times");
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        let long = "ß".repeat(2000);

        assert_eq!(shortened(&long).chars().count(), 1000);
    }
}
