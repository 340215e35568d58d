//! Whether a source can be copied.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{CommandError, ErrorKind};
use postrider_store::codes::TRANSIENT_CODES;
use postrider_store::{StoreError, limits, within};

use crate::source::Source;

/// What a source cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// There is none.
    #[error(
        "adopt.collection = {collection}: does not exist in the database {database}; correct adopt.collection or \
         adopt.database"
    )]
    Absent {
        /// The database.
        database: String,
        /// The collection.
        collection: String,
    },
    /// It has no change stream, or its documents cannot be marked.
    #[error(
        "adopt.collection = {collection}: is a {kind}, which has no change stream; name the collection that it is made of"
    )]
    NotACollection {
        /// The name.
        collection: String,
        /// `view` or `timeseries`.
        kind: String,
    },
    /// It is capped.
    #[error(
        "adopt.collection = {collection}: is a capped collection, which MongoDB neither reads as a snapshot nor changes in a \
         transaction; copy what is undelivered into a collection that is not capped, and name that"
    )]
    Capped {
        /// Its name.
        collection: String,
    },
    /// MongoDB rejects the filter.
    #[error("adopt.fields.filter: MongoDB rejects the condition: {detail}; correct it")]
    Filter {
        /// Its message.
        detail: String,
    },
}

impl Source {
    /// Checks that the source is a collection and that MongoDB accepts the filter. A user needs no privilege but that to
    /// read it.
    ///
    /// # Errors
    ///
    /// Of MongoDB; the inner one says what is wrong with the source.
    pub async fn check(&self) -> Result<Result<(), SourceError>, StoreError> {
        let command = doc! {
            "listCollections": 1,
            "filter": { "name": self.documents.name() },
            "nameOnly": true,
            "authorizedCollections": true,
        };
        let action = "look for the collection of the other outbox";
        let listing = async {
            let cursor = self.database.run_cursor_command(command).await?;
            cursor.try_collect::<Vec<Document>>().await
        };
        let found = within(action, limits::BATCH_TIMEOUT, listing).await?;
        let collection = self.documents.name().to_owned();
        let Some(found) = found.first() else {
            return Ok(Err(SourceError::Absent {
                database: self.database.name().to_owned(),
                collection,
            }));
        };
        match found.get_str("type") {
            Ok("collection") | Err(_) => {}
            Ok(kind) => {
                return Ok(Err(SourceError::NotACollection { collection, kind: kind.to_owned() }));
            }
        }
        match self.snapshot_time().await {
            // (To read `options.capped` would need a privilege more.)
            Err(error) if refusal(&error).is_some_and(|it| it.message.contains("capped")) => {
                return Ok(Err(SourceError::Capped { collection }));
            }
            other => drop(other?),
        }
        if !self.has_filter {
            return Ok(Ok(()));
        }
        let find = doc! { "find": collection, "filter": self.condition.clone() };
        let explain = doc! { "explain": find, "verbosity": "queryPlanner" };
        let explaining = self.database.run_command(explain);
        let action = "check adopt.fields.filter";
        let error = match within(action, limits::BATCH_TIMEOUT, explaining).await {
            Ok(_) => return Ok(Ok(())),
            Err(error) => error,
        };
        match refusal(&error) {
            Some(refused) if !error.is_refusal() && !TRANSIENT_CODES.contains(&refused.code) => {
                Ok(Err(SourceError::Filter { detail: refused.message.clone() }))
            }
            _ => Err(error),
        }
    }
}

/// What MongoDB answered to a command that it refuses.
fn refusal(error: &StoreError) -> Option<&CommandError> {
    let StoreError::Driver { source, .. } = error else { return None };
    match source.kind.as_ref() {
        ErrorKind::Command(refused) => Some(refused),
        _ => None,
    }
}
