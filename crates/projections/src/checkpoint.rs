//! The two kinds of documents that a read model keeps about itself.
//!
//! | collection | document |
//! |---|---|
//! | `postrider_projections` | which generation readers use, which one is being built |
//! | `postrider_projection_checkpoints` | per generation: feed and position, and what it was built with |

use bson::{Bson, DateTime, Document, doc};
use mongodb::{Collection, Database};
use postrider_events::feed::{FeedError, FeedFilter};
use postrider_store::connect;

use crate::error::ProjectionError;
use crate::name::{Generation, ReadModelName};

/// The collection of read models.
pub(crate) const READ_MODELS: &str = "postrider_projections";

/// The collection of checkpoints.
pub(crate) const CHECKPOINTS: &str = "postrider_projection_checkpoints";

/// The fields of both.
pub(crate) mod fields {
    pub(crate) const LIVE: &str = "live";
    pub(crate) const BUILDING: &str = "building";
    pub(crate) const NEWEST: &str = "newest";
    pub(crate) const SWITCHED_AT: &str = "switchedAt";
    pub(crate) const DROPPED_AT: &str = "droppedAt";
    pub(crate) const READ_MODEL: &str = "readModel";
    pub(crate) const GENERATION: &str = "generation";
    pub(crate) const FEED: &str = "feed";
    pub(crate) const POSITION: &str = "position";
    pub(crate) const REVISION: &str = "revision";
    pub(crate) const FILTER: &str = "filter";
    pub(crate) const UPDATED_AT: &str = "updatedAt";
    pub(crate) const FAILURE: &str = "failure";
}

use fields::{
    BUILDING, FAILURE, FEED, FILTER, GENERATION, LIVE, NEWEST, POSITION, READ_MODEL, REVISION,
    UPDATED_AT,
};

/// The document that readers resolve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Generations {
    pub(crate) live: Generation,
    pub(crate) building: Option<Generation>,
    pub(crate) newest: Generation,
}

impl Generations {
    pub(crate) fn read(found: &Document) -> Option<Self> {
        let number = |field: &str| integer(found.get(field)).map(Generation);
        let live = number(LIVE)?;
        Some(Self { live, building: number(BUILDING), newest: number(NEWEST).unwrap_or(live) })
    }
}

/// How far a generation is, and what it was built with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) generation: Generation,
    /// The id of the feed; `None` before the first batch.
    pub(crate) feed: Option<String>,
    pub(crate) position: i64,
    pub(crate) made_with: MadeWith,
    pub(crate) updated_at: Option<DateTime>,
    pub(crate) failure: Option<Failure>,
}

/// What decides the content of a generation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MadeWith {
    pub(crate) revision: i64,
    pub(crate) filter: FeedFilter,
}

/// The event that a projector fails with.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The position of the event.
    pub position: i64,
    /// Its id.
    pub event: String,
    /// Its aggregate, as `order/o-1`.
    pub aggregate: String,
    /// The error.
    pub detail: String,
    /// How often it was tried.
    pub attempts: i64,
    /// Whether the process has stopped; else it tries again.
    pub is_final: bool,
}

impl Checkpoint {
    /// The beginning of a generation.
    pub(crate) fn new_document(
        name: &ReadModelName,
        generation: Generation,
        made_with: &MadeWith,
    ) -> Document {
        doc! {
            "_id": id(name, generation),
            READ_MODEL: name.as_str(),
            GENERATION: generation.0,
            POSITION: 0_i64,
            REVISION: made_with.revision,
            FILTER: made_with.filter_document(),
        }
    }

    pub(crate) fn read(found: &Document) -> Option<Self> {
        let filter = found.get_document(FILTER).ok().cloned().unwrap_or_default();
        Some(Self {
            generation: Generation(integer(found.get(GENERATION))?),
            feed: found.get_str(FEED).ok().map(str::to_owned),
            position: integer(found.get(POSITION))?,
            made_with: MadeWith {
                revision: integer(found.get(REVISION))?,
                filter: bson::deserialize_from_document(filter).ok()?,
            },
            updated_at: found.get_datetime(UPDATED_AT).ok().copied(),
            failure: found.get_document(FAILURE).ok().and_then(Failure::read),
        })
    }

    /// The condition of the next write: no process has moved it since it was read.
    pub(crate) fn unmoved(&self, name: &ReadModelName) -> Document {
        let feed = self.feed.clone().map_or(Bson::Null, Bson::String);
        doc! { "_id": id(name, self.generation), FEED: feed, POSITION: self.position }
    }

    /// Fails if it was built with anything else.
    pub(crate) fn check(&self, own: &MadeWith) -> Result<(), ProjectionError> {
        let generation = self.generation;
        let stored = &self.made_with;
        if stored.revision != own.revision {
            let (stored, own) = (stored.revision, own.revision);
            return Err(ProjectionError::OtherRevision { generation, stored, own });
        }
        if stored.filter != own.filter {
            let text = |of: &MadeWith| of.filter_document().to_string();
            let (stored, own) = (text(stored), text(own));
            return Err(ProjectionError::OtherFilter { generation, stored, own });
        }
        Ok(())
    }

    /// Why the feed cannot be read behind it.
    pub(crate) fn unreadable(&self, error: FeedError) -> ProjectionError {
        let (generation, position) = (self.generation, self.position);
        match error {
            FeedError::WrongFeed { given, actual } => {
                ProjectionError::WrongFeed { generation, given, actual }
            }
            FeedError::PositionAhead { head, .. } => {
                ProjectionError::PositionAhead { generation, position, head }
            }
            error => ProjectionError::Feed(error),
        }
    }
}

impl MadeWith {
    fn filter_document(&self) -> Document {
        // Lists of texts: nothing that BSON cannot hold.
        bson::serialize_to_document(&self.filter).unwrap_or_default()
    }
}

impl Failure {
    fn read(found: &Document) -> Option<Self> {
        let text = |field: &str| found.get_str(field).unwrap_or_default().to_owned();
        Some(Self {
            position: integer(found.get("position"))?,
            event: text("event"),
            aggregate: text("aggregate"),
            detail: text("detail"),
            attempts: integer(found.get("attempts")).unwrap_or(0),
            is_final: found.get_bool("isFinal").unwrap_or(false),
        })
    }

    pub(crate) fn document(&self) -> Document {
        doc! {
            "position": self.position,
            "event": &self.event,
            "aggregate": &self.aggregate,
            "detail": &self.detail,
            "attempts": self.attempts,
            "isFinal": self.is_final,
        }
    }
}

/// The id of the checkpoint of a generation.
pub(crate) fn id(name: &ReadModelName, generation: Generation) -> String {
    format!("{}.{generation}", name.as_str())
}

/// The collection of read models: reads and writes are of a majority.
pub(crate) fn read_models(database: &Database) -> Collection<Document> {
    connect::collection(database, READ_MODELS)
}

/// The collection of checkpoints: reads and writes are of a majority.
pub(crate) fn checkpoints(database: &Database) -> Collection<Document> {
    connect::collection(database, CHECKPOINTS)
}

fn integer(value: Option<&Bson>) -> Option<i64> {
    match value? {
        Bson::Int64(number) => Some(*number),
        Bson::Int32(number) => Some(i64::from(*number)),
        _ => None,
    }
}
