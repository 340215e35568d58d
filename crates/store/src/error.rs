//! Errors of MongoDB operations, and whether a retry can help.

use std::time::{Duration, Instant};

use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};

use crate::codes::TOO_LARGE_CODES;
use crate::{driver_text, metrics};

/// Remedy when MongoDB refuses a command.
const CHECK_REMEDY: &str = "run `postrider check`, which lists what is missing";

/// Remedy when an index is missing.
const APPLY_REMEDY: &str = "run `postrider schema apply`";

/// Message of MongoDB 6.0 about a hint to a missing index; its code is that of any bad value. Other
/// versions may prefix it.
const NO_INDEX_MESSAGE: &str = "hint provided does not correspond to an existing index";

/// A MongoDB operation that failed.
///
/// `Display` names the operation; the driver's error is its source.
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
    /// No response in time; the outcome is unknown.
    #[error("failed to {action}: no response from MongoDB within {limit:?}")]
    TimedOut {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The timeout.
        limit: Duration,
    },
    /// The URI cannot be used.
    #[error("failed to read the MongoDB URI: {detail}")]
    Uri {
        /// What is wrong, and what to do.
        detail: String,
    },
    /// The deployment is not the one that the configuration describes.
    #[error("failed to {action}: {detail}; {remedy}")]
    Deployment {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// What differs.
        detail: String,
        /// What to do.
        remedy: String,
    },
    /// There is a database whose name differs in case only, which MongoDB refuses.
    #[error(
        "failed to {action}: MongoDB has a database {existing:?}, and refuses a name that differs \
         in case only ({wanted:?}); correct the name of the database in the configuration"
    )]
    DatabaseCase {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The configured name.
        wanted: String,
        /// The name that exists.
        existing: String,
    },
    /// The server's response was invalid.
    #[error("failed to {action}: unexpected response: {detail}")]
    Answer {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// What was wrong with the response.
        detail: String,
    },
    /// The server permanently rejects all of the writes.
    #[error(
        "failed to {action}: MongoDB rejects the document (code {code}); check the validators \
         of the collection"
    )]
    Refused {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The server's code.
        code: i32,
    },
    /// An index that a read needs is missing: it was dropped, or its collection was dropped and
    /// created again by an insert.
    #[error("failed to {action}: index {index} of {collection} is missing; {APPLY_REMEDY}")]
    NoIndex {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The index.
        index: String,
        /// Its collection, with the prefix.
        collection: String,
    },
}

impl StoreError {
    /// Adds the index and `collection` of a read, if the error is that the index is missing.
    pub fn of_index(self, collection: &str, index: &str) -> Self {
        let Self::Driver { action, source } = &self else { return self };
        match source.kind.as_ref() {
            ErrorKind::Command(command) if command.message.contains(NO_INDEX_MESSAGE) => {
                Self::NoIndex { action, index: index.to_owned(), collection: collection.to_owned() }
            }
            _ => self,
        }
    }

    /// Describes that MongoDB refuses the operations of this instance, with the remedy.
    pub fn refusal(&self) -> String {
        match self {
            Self::NoIndex { .. } => self.to_string(),
            _ => format!("MongoDB rejects this instance: {}; {}", self.brief(), self.remedy()),
        }
    }

    /// Returns the remedy of a permanent error.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoIndex { .. } => APPLY_REMEDY,
            _ => CHECK_REMEDY,
        }
    }

    /// Formats the error in one line for a report: operation, the server's error name, and the
    /// beginning of its message. (The complete message may quote the command, and the response in
    /// hex.)
    pub fn brief(&self) -> String {
        const LONGEST: usize = 120;
        let (action, source) = match self {
            Self::Driver { action, source } => (action, source),
            Self::NoIndex { action, index, collection } => {
                return format!("failed to {action}: index {index} of {collection} is missing");
            }
            _ => return self.to_string(),
        };
        let (name, message) = match source.kind.as_ref() {
            ErrorKind::Command(command) => (command.code_name.as_str(), command.message.clone()),
            _ => ("", driver_text(source)),
        };
        let message = match message.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message,
        };
        let colon = if name.is_empty() { "" } else { ": " };
        format!("failed to {action}: {name}{colon}{message}")
    }

    /// Returns the server's error code, if any.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Driver { source, .. } => driver_code(source),
            _ => None,
        }
    }

    /// Returns whether a document exceeded 16 MiB, by itself or in its command.
    pub fn is_too_large(&self) -> bool {
        /// The result of an upsert.
        const UPSERTED: i32 = 17420;
        self.code().is_some_and(|code| code == UPSERTED || TOO_LARGE_CODES.contains(&code))
    }

    /// Returns whether credentials or privileges are insufficient.
    pub fn is_refusal(&self) -> bool {
        /// Unauthorized, AuthenticationFailed.
        const REFUSED: [i32; 2] = [13, 18];
        let Self::Driver { source, .. } = self else { return false };
        matches!(source.kind.as_ref(), ErrorKind::Authentication { .. })
            || driver_code(source).is_some_and(|code| REFUSED.contains(&code))
    }

    /// Returns whether an operator must repair the cause; if not, a retry can help.
    pub fn is_permanent(&self) -> bool {
        /// Unauthorized, AuthenticationFailed, IndexOptionsConflict, IndexKeySpecsConflict,
        /// InvalidNamespace, CommandNotFound, IllegalOperation, InvalidOptions,
        /// DocumentValidationFailure, AtlasError, DatabaseDifferCase.
        const PERMANENT: [i32; 11] = [13, 18, 85, 86, 73, 59, 20, 72, 121, 8000, 13297];
        match self {
            Self::Driver { source, .. } => match source.kind.as_ref() {
                ErrorKind::Authentication { .. }
                | ErrorKind::InvalidArgument { .. }
                | ErrorKind::IncompatibleServer { .. }
                | ErrorKind::InvalidTlsConfig { .. } => true,
                _ => driver_code(source).is_some_and(|code| PERMANENT.contains(&code)),
            },
            Self::TimedOut { .. } | Self::Answer { .. } | Self::Deployment { .. } => false,
            Self::Refused { .. } | Self::NoIndex { .. } => true,
            Self::Uri { .. } | Self::DatabaseCase { .. } => true,
        }
    }
}

/// Returns the server's error code in an error of the driver, if any.
pub fn driver_code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        _ => None,
    }
}

/// Runs one operation with a timeout, and measures it ([`metrics`]).
///
/// The driver has no socket timeout, so an unresponsive server would block the caller forever. A
/// dropped operation closes its connection; its outcome is unknown.
///
/// # Errors
///
/// [`StoreError::TimedOut`], else the operation's own error.
pub async fn within<T>(
    action: &'static str,
    limit: Duration,
    operation: impl IntoFuture<Output = mongodb::error::Result<T>>,
) -> Result<T, StoreError> {
    let began = Instant::now();
    let result = match tokio::time::timeout(limit, operation).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(StoreError::Driver { action, source: Box::new(source) }),
        Err(_) => Err(StoreError::TimedOut { action, limit }),
    };
    metrics::ended(action, began.elapsed(), result.is_ok());
    result
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
    fn missing_index_error_names_index_and_remedy() {
        // The message of 6.0, and one with a prefix.
        let messages = [
            "error processing query: ns=app.outbox_recordsTree: status $eq \"pending\"\nSort: {}\n\
             Proj: {}\n planner returned error :: caused by :: hint provided does not correspond to \
             an existing index",
            "error enumerating plans for query: ns=app.outbox_records :: caused by :: hint provided \
             does not correspond to an existing index",
        ];
        for message in messages {
            let error = refused(2, message).of_index("outbox_records", "lane_idx");

            assert!(error.is_permanent());
            let brief =
                "failed to read pending records: index lane_idx of outbox_records is missing";
            assert_eq!(error.brief(), brief);
            assert_eq!(error.refusal(), format!("{brief}; run `postrider schema apply`"));
            assert_eq!(error.remedy(), "run `postrider schema apply`");
        }
    }

    #[test]
    fn other_bad_value_is_not_a_missing_index() {
        let error = refused(2, "$in needs an array").of_index("outbox_records", "lane_idx");

        assert!(matches!(error, StoreError::Driver { .. }), "{error:?}");
        assert!(!error.is_permanent());
    }
}
