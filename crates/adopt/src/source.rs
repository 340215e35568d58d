//! Reads of the source: the scan, and the change stream.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::error::{CommandError, ErrorKind};
use mongodb::options::ReadConcern;
use mongodb::raw_batch_cursor::RawBatchCursor;
use mongodb::{Collection, Database};
use postrider_outbox::ids::RecordId;
use postrider_store::codes::TRANSIENT_CODES;
use postrider_store::connect::{ask, primary};
use postrider_store::{StoreError, cluster_time, limits, within};

use crate::mapping::Mapping;

/// The longest time in which a batch is collected from the change stream, and MongoDB waits for a change.
pub(crate) const BATCH_PAUSE: Duration = Duration::from_millis(100);

/// The documents of one batch of the server.
const BATCH_DOCUMENTS: u32 = 1_000;

/// A change stream of the source.
pub(crate) type SourceStream = ChangeStream<ChangeStreamEvent<RawDocumentBuf>>;

/// ChangeStreamHistoryLost, ChangeStreamFatalError, InvalidResumeToken.
const LOST: [i32; 3] = [286, 280, 260];

/// From where documents without a status are copied.
#[derive(Clone, Debug, PartialEq)]
pub enum StartPoint {
    /// What is inserted from now on.
    Now,
    /// What was inserted since this time, as far as MongoDB's oplog reaches.
    Time(DateTime),
    /// The documents behind this `_id`, and what is inserted from now on. As text, as `outbox list` shows ids; a prefix
    /// (`str:`) names its type.
    Id(String),
}

/// What a source cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// There is none.
    #[error(
        "adopt.collection = {collection}: there is no such collection in the database {database}; correct \
         adopt.collection or adopt.database"
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
    NoCollection {
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
    /// MongoDB refuses the filter.
    #[error("adopt.fields.filter: MongoDB refuses it: {detail}; correct the condition")]
    Filter {
        /// Its message.
        detail: String,
    },
}

/// The source's collection, read from a majority.
#[derive(Clone, Debug)]
pub struct Source {
    database: Database,
    documents: Collection<RawDocumentBuf>,
    condition: Document,
    has_filter: bool,
    delivered: Vec<Bson>,
    status: Option<String>,
    time: String,
}

impl Source {
    /// The source of a mapping.
    pub fn new(client: &mongodb::Client, mapping: &Mapping) -> Self {
        let database = client.database(&mapping.database);
        let documents = postrider_store::connect::collection(&database, &mapping.collection);
        let words = mapping.status.iter().flat_map(|status| status.delivered.iter());
        let mut delivered = Vec::new();
        for word in words {
            delivered.push(Bson::String(word.clone()));
            delivered.extend(word.parse().ok().map(Bson::Boolean));
        }
        Self {
            database,
            documents: documents.clone_with_type(),
            condition: mapping.condition(),
            has_filter: !mapping.filter.is_empty(),
            delivered,
            status: mapping.status.as_ref().map(|status| status.path.clone()),
            time: mapping.time.clone(),
        }
    }

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
                return Ok(Err(SourceError::NoCollection { collection, kind: kind.to_owned() }));
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

    /// The `_id` that this text means. Several types have the same text: the one that a document has, else the one that the
    /// source's ids have.
    pub(crate) async fn id_of(&self, text: &str) -> Result<Result<Bson, String>, StoreError> {
        let candidates: Vec<Bson> =
            RecordId::parse_candidates(text).iter().map(Bson::from).collect();
        let found = self.ids(doc! { "_id": { "$in": &candidates } }, 1).await?;
        match found.as_slice() {
            [one] => return Ok(Ok(one.clone())),
            [] => {}
            _ => {
                let detail = "documents with an _id of several types have this text; write uuid:, oid:, int: or str: \
                              before it";
                return Ok(Err(detail.to_owned()));
            }
        }
        // It may be deleted.
        let mut used = self.ids(doc! {}, 1).await?;
        used.extend(self.ids(doc! {}, -1).await?);
        let is_forced = candidates.len() == 1 && text.contains(':');
        let fitting = candidates.iter().find(|candidate| {
            let is_text = matches!(candidate, Bson::String(_));
            used.iter().all(|id| is_alike(id, candidate)) && (is_forced || !is_text)
        });
        Ok(fitting.cloned().ok_or_else(|| {
            let example = used.first().map(|id| RecordId::from(id.clone()).to_string());
            let example = example.map(|id| format!(" (one of them is {id})")).unwrap_or_default();
            format!(
                "no document has this _id, nor are the ids of {} of its type{example}; write now, a time such as \
                 2026-01-31T12:00:00Z, or the _id of the last message that arrived, with str: before a text whose \
                 document is deleted",
                self.documents.name()
            )
        }))
    }

    /// The first ids of two types that match, in this order.
    async fn ids(&self, filter: Document, order: i32) -> Result<Vec<Bson>, StoreError> {
        let documents = self.documents.clone_with_type::<Document>();
        let reading = async {
            let finding = documents.find(filter).projection(doc! { "_id": 1 });
            finding.sort(doc! { "_id": order }).limit(2).await?.try_collect().await
        };
        let action = "read the ids of the other outbox";
        let found: Vec<Document> = within(action, limits::BATCH_TIMEOUT, reading).await?;
        Ok(found.into_iter().filter_map(|mut found| found.remove("_id")).collect())
    }

    /// A time of which a snapshot can be read.
    pub(crate) async fn snapshot_time(&self) -> Result<Timestamp, StoreError> {
        let action = "read the time of a snapshot";
        let read = cluster_time::of_snapshot(&self.database, self.documents.name(), action);
        Ok(read.await?.at)
    }

    /// Opens a scan of what a majority has, in the order of the source's time and `_id`.
    ///
    /// It does not read a snapshot: MongoDB keeps those for `minSnapshotHistoryWindowInSeconds` only, and the scan of a large
    /// backlog lasts longer. What is committed while it lasts may be in it: see [`ChangedSince`].
    pub(crate) async fn scan(&self, behind: Option<&Bson>) -> Result<RawBatchCursor, StoreError> {
        let mut order = doc! { &self.time: 1 };
        order.insert("_id", 1);
        let mut filter = self.condition.clone();
        if let Some(id) = behind {
            filter = doc! { "$and": [filter, { "_id": { "$gt": id.clone() } }] };
        }
        let command = doc! {
            "find": self.documents.name(),
            "filter": filter,
            "sort": order,
            "allowDiskUse": true,
            "batchSize": BATCH_DOCUMENTS,
            "readConcern": { "level": "majority" },
        };
        let opening = self
            .database
            .run_cursor_command(command)
            .selection_criteria(primary())
            .batch_size(BATCH_DOCUMENTS)
            .batch();
        // The sort reads everything before the first batch.
        within("scan the other outbox", limits::SCHEMA_TIMEOUT, opening).await
    }

    /// Opens the change stream: behind a resume token, or at a time.
    pub(crate) async fn watch(&self, from: StreamStart) -> Result<SourceStream, StoreError> {
        self.open(self.changes(), from, BATCH_PAUSE).await
    }

    /// Opens a change stream of the ids alone.
    pub(crate) async fn watch_ids(
        &self,
        start: Timestamp,
        max_await: Duration,
    ) -> Result<ChangeStream<Document>, StoreError> {
        let mut pipeline = self.changes();
        pipeline.push(doc! { "$project": { "documentKey": 1 } });
        Ok(self.open(pipeline, StreamStart::At(start), max_await).await?.with_type())
    }

    async fn open(
        &self,
        pipeline: Vec<Document>,
        from: StreamStart,
        max_await: Duration,
    ) -> Result<SourceStream, StoreError> {
        let watching = self.documents.watch().pipeline(pipeline).batch_size(BATCH_DOCUMENTS);
        let watching = watching.read_concern(ReadConcern::majority()).selection_criteria(primary());
        let watching = watching.max_await_time(max_await);
        let watching = match from {
            StreamStart::At(time) => watching.start_at_operation_time(time),
            StreamStart::Behind(token) => watching.resume_after(token),
        };
        within("open the change stream of the other outbox", limits::BATCH_TIMEOUT, watching).await
    }

    /// The time of the last write of the primary.
    pub(crate) async fn operation_time(&self) -> Result<Timestamp, StoreError> {
        const ACTION: &str = "read the time of the last write";
        let answer = ask(&self.database, ACTION, doc! { "ping": 1 }).await?;
        answer
            .get_timestamp("operationTime")
            .map_err(|error| StoreError::Answer { action: ACTION, detail: error.to_string() })
    }

    /// The changes after which a document may have to be copied, and the ends of the collection.
    fn changes(&self) -> Vec<Document> {
        let mut pipeline = Vec::new();
        if let Some(path) = &self.status {
            let of_document = format!("fullDocument.{path}");
            let of_update = format!("updateDescription.updatedFields.{path}");
            pipeline.push(doc! { "$match": { "$or": [
                {
                    "operationType": { "$in": ["insert", "replace"] },
                    of_document: { "$nin": self.delivered.clone() },
                },
                { "operationType": "update", of_update: { "$nin": self.delivered.clone() } },
                { "operationType": { "$in": ["drop", "rename", "invalidate"] } },
            ] } });
        } else {
            let kinds = ["insert", "drop", "rename", "invalidate"];
            pipeline.push(doc! { "$match": { "operationType": { "$in": kinds.as_slice() } } });
        }
        pipeline
    }

    /// Reads documents by their `_id`, in any order.
    pub(crate) async fn by_ids(&self, ids: &[Bson]) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let filter = doc! { "$and": [self.condition.clone(), { "_id": { "$in": ids } }] };
        let reading = async { self.documents.find(filter).await?.try_collect().await };
        within("read the other outbox", limits::BATCH_TIMEOUT, reading).await
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

/// Whether MongoDB compares both ids by value, not by their types.
fn is_alike(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Int32(_) | Bson::Int64(_), Bson::Int32(_) | Bson::Int64(_)) => true,
        (Bson::Binary(one), Bson::Binary(other)) => one.subtype == other.subtype,
        (one, other) => one.element_type() == other.element_type(),
    }
}

/// Where a change stream begins.
#[derive(Clone, Debug)]
pub(crate) enum StreamStart {
    At(Timestamp),
    Behind(ResumeToken),
}

/// The first cluster time of a second.
pub(crate) fn at_time(time: DateTime) -> Timestamp {
    let time = u32::try_from(time.timestamp_millis() / 1_000).unwrap_or(0);
    Timestamp { time, increment: 1 }
}

/// Whether the change stream cannot be resumed.
pub(crate) fn is_lost(error: &StoreError) -> bool {
    error.code().is_some_and(|code| LOST.contains(&code))
}

/// A change that matters.
pub(crate) enum SourceChange {
    /// This was inserted.
    Inserted(RawDocumentBuf),
    /// The document of this `_id` changed.
    Changed(Bson),
    /// The collection was dropped or renamed.
    Ended,
}

pub(crate) fn change(event: ChangeStreamEvent<RawDocumentBuf>) -> Option<SourceChange> {
    match event.operation_type {
        OperationType::Insert | OperationType::Replace => {
            event.full_document.map(SourceChange::Inserted)
        }
        OperationType::Update => {
            Some(SourceChange::Changed(event.document_key?.get("_id")?.clone()))
        }
        OperationType::Drop | OperationType::Rename | OperationType::Invalidate => {
            Some(SourceChange::Ended)
        }
        _ => None,
    }
}
