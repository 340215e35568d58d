//! Reads of the source: the scan, and the change stream.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::{StreamExt, TryStreamExt};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::options::ReadConcern;
use mongodb::raw_batch_cursor::RawBatchCursor;
use mongodb::{Collection, Database};
use postrider_store::connect::{ask, primary};
use postrider_store::{StoreError, cluster_time, limits, within};

use crate::mapping::{Mapping, StatusWords, overlap};

/// The longest time in which a batch is collected from the change stream, and MongoDB waits for a change.
pub(crate) const BATCH_PAUSE: Duration = Duration::from_millis(100);

/// The documents of one batch of the server.
const BATCH_DOCUMENTS: u32 = 1_000;

/// The reading of the change stream.
pub(crate) const READ_CHANGES: &str = "read changes of the other outbox";

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

/// The source's collection, read from a majority.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) database: Database,
    pub(crate) documents: Collection<RawDocumentBuf>,
    pub(crate) condition: Document,
    pub(crate) has_filter: bool,
    status: Option<StatusWords>,
    time: String,
}

impl Source {
    /// The source of a mapping.
    pub fn new(client: &mongodb::Client, mapping: &Mapping) -> Self {
        let database = client.database(&mapping.database);
        let documents = postrider_store::connect::collection(&database, &mapping.collection);
        Self {
            database,
            documents: documents.clone_with_type(),
            condition: mapping.condition(),
            has_filter: !mapping.filter.is_empty(),
            status: mapping.status.clone(),
            time: mapping.time.clone(),
        }
    }

    /// A time of which a snapshot can be read.
    pub(crate) async fn snapshot_time(&self) -> Result<Timestamp, StoreError> {
        let action = "read the time of a snapshot";
        let read = cluster_time::of_snapshot(&self.database, self.documents.name(), action);
        Ok(read.await?.at)
    }

    /// Opens a scan of what a majority has, this time included, in the order of the source's time and `_id`.
    ///
    /// It does not read a snapshot: MongoDB keeps those for `minSnapshotHistoryWindowInSeconds` only, and the scan of a large
    /// backlog lasts longer. What is committed while it lasts may be in it: see [`ChangedSince`].
    pub(crate) async fn scan(
        &self,
        at: Timestamp,
        behind: Option<&Bson>,
    ) -> Result<RawBatchCursor, StoreError> {
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
            "readConcern": majority_at(at),
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

    /// Opens the change stream: behind a resume token, or at a time. It has the ids of documents with a status, which
    /// are read again, and whole documents without one.
    pub(crate) async fn watch(&self, from: StreamStart) -> Result<SourceStream, StoreError> {
        let mut pipeline = self.changes();
        if self.status.is_some() {
            pipeline.push(
                doc! { "$project": { "operationType": 1, "documentKey": 1, "clusterTime": 1 } },
            );
        }
        self.open(pipeline, from, BATCH_PAUSE).await
    }

    /// Whether a change of [`Self::watch_ids`] inserts a document or sets its status.
    pub(crate) fn is_new(&self, change: &Document) -> bool {
        let Some(status) = &self.status else { return true };
        if change.get_str("operationType").ok() != Some("update") {
            return true;
        }
        let fields = [change.get_array("set"), change.get_array("unset")];
        let mut fields = fields.into_iter().flatten().flatten().filter_map(Bson::as_str);
        fields.any(|field| overlap(field, &status.path))
    }

    /// Opens a change stream of the ids and the names of fields alone.
    pub(crate) async fn watch_ids(
        &self,
        start: Timestamp,
        max_await: Duration,
    ) -> Result<ChangeStream<Document>, StoreError> {
        let mut pipeline = self.changes();
        let set = doc! { "$objectToArray": "$updateDescription.updatedFields" };
        pipeline.push(doc! { "$project": {
            "documentKey": 1,
            "operationType": 1,
            "set": { "$map": { "input": set, "in": "$$this.k" } },
            "unset": "$updateDescription.removedFields",
        } });
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
        if let Some(status) = &self.status {
            let delivered = status.delivered_values();
            let sets_delivered: Vec<Document> = updated_values(&status.path)
                .map(|value| doc! { "$in": [value, { "$literal": &delivered }] })
                .collect();
            pipeline.push(doc! { "$match": { "$or": [
                {
                    "operationType": { "$in": ["insert", "replace"] },
                    format!("fullDocument.{}", status.path): { "$nin": delivered },
                },
                { "operationType": "update", "$expr": { "$not": { "$or": sets_delivered } } },
                { "operationType": { "$in": ["drop", "rename", "invalidate"] } },
            ] } });
        } else {
            let kinds = ["insert", "drop", "rename", "invalidate"];
            pipeline.push(doc! { "$match": { "operationType": { "$in": kinds.as_slice() } } });
        }
        pipeline
    }

    /// Reads documents by their `_id`, in any order, as a majority has them at this time or later.
    pub(crate) async fn by_ids(
        &self,
        ids: &[Bson],
        at: Timestamp,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let command = doc! {
            "find": self.documents.name(),
            "filter": { "$and": [self.condition.clone(), { "_id": { "$in": ids } }] },
            "readConcern": majority_at(at),
            "maxTimeMS": i64::try_from(limits::BATCH_TIMEOUT.as_millis()).unwrap_or(i64::MAX),
        };
        let reading = async {
            let finding = self.database.run_cursor_command(command).selection_criteria(primary());
            finding.await?.with_type().try_collect().await
        };
        within("read the other outbox", limits::BATCH_TIMEOUT, reading).await
    }
}

/// What a majority has at this time or later.
///
/// The commit point of a primary that has just been elected may be behind what its predecessor has reported. Without
/// the time, it would not find a document whose change was received, and the bridge would go past that document.
fn majority_at(time: Timestamp) -> Document {
    doc! { "level": "majority", "afterClusterTime": time }
}

/// The value to which an update sets a field, in each form in which MongoDB may report it: `a.b.c` is `{a: {b: {c}}}`,
/// `{"a.b": {c}}` or `{"a.b.c"}`, by the size of the documents around it.
fn updated_values(path: &str) -> impl Iterator<Item = Document> {
    let names: Vec<&str> = path.split('.').collect();
    (1..=names.len()).map(move |count| {
        let field = doc! { "$literal": names[..count].join(".") };
        let input = "$updateDescription.updatedFields";
        let below = [&["$$at"], &names[count..]].concat().join(".");
        doc! { "$let": {
            "vars": { "at": { "$getField": { "field": field, "input": input } } },
            "in": below,
        } }
    })
}

/// Where a change stream begins.
#[derive(Clone, Debug)]
pub(crate) enum StreamStart {
    At(Timestamp),
    Behind(ResumeToken),
}

/// Whether the change stream cannot be resumed.
pub(crate) fn is_lost(error: &StoreError) -> bool {
    error.code().is_some_and(|code| LOST.contains(&code))
}

/// A change that matters.
pub(crate) enum SourceChange {
    /// The document of this `_id`, which has a status, was inserted or changed at this time.
    Id(Bson, Timestamp),
    /// This document, which has no status, was inserted.
    Document(RawDocumentBuf),
    /// The collection was dropped or renamed.
    Ended,
}

/// What a change means.
pub(crate) fn change(event: ChangeStreamEvent<RawDocumentBuf>) -> Result<SourceChange, StoreError> {
    if let OperationType::Drop | OperationType::Rename | OperationType::Invalidate =
        event.operation_type
    {
        return Ok(SourceChange::Ended);
    }
    if let Some(document) = event.full_document {
        return Ok(SourceChange::Document(document));
    }
    let id = event.document_key.and_then(|mut key| key.remove("_id"));
    match (id, event.cluster_time) {
        (Some(id), Some(at)) => Ok(SourceChange::Id(id, at)),
        _ => Err(StoreError::Answer {
            action: READ_CHANGES,
            detail: "a change without documentKey or clusterTime".to_owned(),
        }),
    }
}

/// The next page of a scan.
pub(crate) async fn next_page(
    scan: &mut RawBatchCursor,
) -> Result<Option<Vec<RawDocumentBuf>>, StoreError> {
    let action = "scan the other outbox";
    let next = async { scan.next().await.transpose() };
    let Some(batch) = within(action, limits::REPORT_TIMEOUT, next).await? else { return Ok(None) };
    let broken = |detail: String| StoreError::Answer { action, detail };
    let documents = batch.doc_slices().map_err(|error| broken(error.to_string()))?;
    let mut page = Vec::new();
    for document in documents {
        let document = document.map_err(|error| broken(error.to_string()))?;
        page.extend(document.as_document().map(|document| document.to_owned()));
    }
    Ok(Some(page))
}
