//! What can go wrong between Postrider and MongoDB, and what it means.

use std::future::Future;
use std::time::Duration;

use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};

use crate::codes::TOO_LARGE;
use crate::words;

/// What to do where MongoDB refuses a command.
const CHECK: &str = "run `postrider check`, which names what is missing";

/// What to do where an index is missing.
const APPLY: &str = "run `postrider schema apply`";

/// What MongoDB 6.0 says of a hint at an index that is not there, with the code of any bad value. Others
/// may say more in front of it.
const NO_INDEX: &str = "hint provided does not correspond to an existing index";

/// An operation on MongoDB that did not succeed.
///
/// `Display` says what was tried; the driver's words are its source.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The server or the driver answered with an error.
    #[error("failed to {action}")]
    Driver {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The driver's error.
        #[source]
        source: Box<DriverError>,
    },
    /// No answer in time; whether it took effect is unknown.
    #[error("failed to {action}: no answer from MongoDB within {limit:?}")]
    TimedOut {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// The server's answer was not of the expected shape.
    #[error("failed to {action}: unexpected answer: {detail}")]
    Answer {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// What was wrong with the answer.
        detail: String,
    },
    /// The server takes none of what was written, and will go on so.
    #[error(
        "failed to {action}: MongoDB refuses the document (code {code}); is there a validator that is not ours?"
    )]
    Refused {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The server's code.
        code: i32,
    },
    /// An index by which records are read is missing: it was dropped, or its collection was and a
    /// producer's insert made it again without.
    #[error("failed to {action}: index {index} of {collection} is missing; {APPLY}")]
    NoIndex {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The index.
        index: String,
        /// Its collection, with the prefix.
        collection: String,
    },
}

/// What a failure asks for (codes as in the server's `error_codes.yml`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Network, election, timeout, snapshot too old: the same again may succeed.
    Transient,
    /// Credentials, privileges, a conflicting definition, a missing index: a person must mend it.
    Permanent,
}

impl StoreError {
    /// Names the index that a read of `collection` asked for, where the error is that there is none.
    pub fn of_index(self, collection: &str, index: &str) -> Self {
        let Self::Driver { action, source } = &self else { return self };
        match source.kind.as_ref() {
            ErrorKind::Command(command) if command.message.contains(NO_INDEX) => {
                Self::NoIndex { action, index: index.to_owned(), collection: collection.to_owned() }
            }
            _ => self,
        }
    }

    /// That MongoDB refuses what this instance asks, with the remedy.
    pub fn refusal(&self) -> String {
        match self {
            Self::NoIndex { .. } => self.to_string(),
            _ => format!("MongoDB refuses this instance: {}; {}", self.brief(), self.remedy()),
        }
    }

    /// What to do about an error that does not pass by itself.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoIndex { .. } => APPLY,
            _ => CHECK,
        }
    }

    /// The same in one line for a report: what was tried, the server's name for what went wrong,
    /// and how it begins to tell it. (All of it may quote the command, and the answer in hex.)
    pub fn brief(&self) -> String {
        const LONGEST: usize = 120;
        let (action, source) = match self {
            Self::Driver { action, source } => (action, source),
            Self::NoIndex { action, index, collection } => {
                return format!("failed to {action}: index {index} of {collection} is missing");
            }
            _ => return self.to_string(),
        };
        let (name, told) = match source.kind.as_ref() {
            ErrorKind::Command(command) => (command.code_name.as_str(), command.message.clone()),
            _ => ("", words(source)),
        };
        let told = match told.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &told[..end]),
            None => told,
        };
        let colon = if name.is_empty() { "" } else { ": " };
        format!("failed to {action}: {name}{colon}{told}")
    }

    /// The server's error code, where it gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Driver { source, .. } => driver_code(source),
            _ => None,
        }
    }

    /// Whether a document outgrew 16 MiB, by itself or in its command.
    pub fn is_too_large(&self) -> bool {
        /// The result of an upsert.
        const UPSERTED: i32 = 17420;
        self.code().is_some_and(|code| code == UPSERTED || TOO_LARGE.contains(&code))
    }

    /// Whether a document was nested too deep.
    pub fn is_too_deep(&self) -> bool {
        /// Overflow.
        const CODE: i32 = 15;
        self.code() == Some(CODE)
    }

    /// Whether it is our credentials or privileges that don't suffice.
    pub fn is_refusal(&self) -> bool {
        /// Unauthorized, AuthenticationFailed.
        const REFUSED: [i32; 2] = [13, 18];
        let Self::Driver { source, .. } = self else { return false };
        matches!(source.kind.as_ref(), ErrorKind::Authentication { .. })
            || driver_code(source).is_some_and(|code| REFUSED.contains(&code))
    }

    /// Whether trying again can help.
    pub fn meaning(&self) -> Meaning {
        /// Unauthorized, AuthenticationFailed, IndexOptionsConflict, IndexKeySpecsConflict,
        /// InvalidNamespace, CommandNotFound, IllegalOperation, InvalidOptions,
        /// DocumentValidationFailure, AtlasError.
        const PERMANENT: [i32; 10] = [13, 18, 85, 86, 73, 59, 20, 72, 121, 8000];
        match self {
            Self::Driver { source, .. } => match source.kind.as_ref() {
                ErrorKind::Authentication { .. }
                | ErrorKind::InvalidArgument { .. }
                | ErrorKind::IncompatibleServer { .. }
                | ErrorKind::InvalidTlsConfig { .. } => Meaning::Permanent,
                _ if driver_code(source).is_some_and(|code| PERMANENT.contains(&code)) => {
                    Meaning::Permanent
                }
                _ => Meaning::Transient,
            },
            Self::TimedOut { .. } => Meaning::Transient,
            Self::Answer { .. } => Meaning::Transient,
            Self::Refused { .. } | Self::NoIndex { .. } => Meaning::Permanent,
        }
    }
}

fn driver_code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        _ => None,
    }
}

/// Runs one operation under a limit of time.
///
/// The driver has no socket timeout, so a frozen server would hold its caller
/// for ever. A dropped operation closes its connection; whether it took effect is
/// unknown, as with any lost answer.
///
/// # Errors
///
/// [`StoreError::TimedOut`], else the operation's own error.
pub async fn within<T>(
    action: &'static str,
    limit: Duration,
    operation: impl Future<Output = mongodb::error::Result<T>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, operation).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(StoreError::Driver { action, source: Box::new(source) }),
        Err(_) => Err(StoreError::TimedOut { action, limit }),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::error::CommandError;

    use super::*;

    fn refused(code: i32, message: &str) -> StoreError {
        let document = bson::doc! { "code": code, "codeName": "BadValue", "errmsg": message };
        let error: CommandError = bson::deserialize_from_document(document).unwrap();
        let source = Box::new(ErrorKind::Command(error).into());
        StoreError::Driver { action: "read pending records", source }
    }

    #[test]
    fn a_hint_at_no_index_names_the_index_and_the_remedy() {
        // As 6.0 words it, and with other words in front.
        let messages = [
            "error processing query: ns=app.outbox_recordsTree: status $eq \"pending\"\nSort: {}\n\
             Proj: {}\n planner returned error :: caused by :: hint provided does not correspond to \
             an existing index",
            "error enumerating plans for query: ns=app.outbox_records :: caused by :: hint provided \
             does not correspond to an existing index",
        ];
        for message in messages {
            let error = refused(2, message).of_index("outbox_records", "lane_idx");

            assert_eq!(error.meaning(), Meaning::Permanent);
            let told =
                "failed to read pending records: index lane_idx of outbox_records is missing";
            assert_eq!(error.brief(), told);
            assert_eq!(error.refusal(), format!("{told}; run `postrider schema apply`"));
            assert_eq!(error.remedy(), "run `postrider schema apply`");
        }
    }

    #[test]
    fn another_bad_value_is_no_missing_index() {
        let error = refused(2, "$in needs an array").of_index("outbox_records", "lane_idx");

        assert!(matches!(error, StoreError::Driver { .. }), "{error:?}");
        assert_eq!(error.meaning(), Meaning::Transient);
    }
}
