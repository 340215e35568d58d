//! Applies messages of a broker to documents: each once, in the order of their streams.
//!
//! A document keeps, in the field `revisions`, the place of the last event of each stream that it has
//! applied. A write names the revisions that were read, so of two consumers one writes, and the other
//! reads again and skips.

use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Collection;
use mongodb::options::ReadConcern;
use postrider_events::feed::FeedFilter;
use postrider_store::connect::{majority, primary};
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};

use crate::error::ApplyError;
use crate::place::{EventPlace, Succession};
use crate::retry::RetryPolicy;

/// The field of a document with the last place of each stream.
pub const REVISIONS: &str = "revisions";

/// How often a write that another one came before is repeated at once.
const MAX_RACES: u32 = 100;

/// The longest pause before that.
const RACE_PAUSE: Duration = Duration::from_millis(20);

/// What an event changes in a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Nothing. The document remembers that it has the event.
    Nothing,
    /// An update with operators, such as `{"$set": …}`. One that writes `_id` or `revisions` is refused.
    Update(Document),
    /// Removes everything but `_id` and `revisions`: for an erased stream. A document that is deleted
    /// would be created again by a message that is repeated.
    Clear,
}

impl Change {
    /// Refuses an update that would lose the caller's change, or what the guard stores.
    fn checked(self) -> Result<Self, ApplyError> {
        let Self::Update(update) = &self else { return Ok(self) };
        for (operator, fields) in update {
            let Bson::Document(fields) = fields else {
                let problem = "must be a document";
                return Err(ApplyError::new(format!("update: {operator} = {fields}: {problem}")));
            };
            let is_ours = |path: &str| matches!(path.split('.').next(), Some("_id" | REVISIONS));
            for (path, value) in fields {
                let renamed = value.as_str().filter(|_| operator == "$rename");
                if is_ours(path) || renamed.is_some_and(is_ours) {
                    let problem = "must not be written; the guard writes `_id` and `revisions`";
                    return Err(ApplyError::new(format!("update: {operator} = {path}: {problem}")));
                }
            }
        }
        Ok(self)
    }
}

/// What became of a message. Acknowledge it in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// The document has changed.
    Applied,
    /// It had the event before: nothing was written.
    Skipped,
}

/// Why a message was not applied. Do not acknowledge it.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The source lets only some events of a stream pass, so that predecessors are missing.
    #[error(
        "stream guard: filter = {filter:?}: a source that filters by event or tenant lacks \
         predecessors; consume all events of a stream, or project from the feed, which needs no \
         guard"
    )]
    FilteredSource {
        /// The filter.
        filter: FeedFilter,
    },
    /// An event before it has not been applied. Nothing was written.
    #[error(
        "document {document}: event {index} of version {version} of {stream}: its predecessor is missing \
         after {retries} retries; the document has {found}"
    )]
    MissingPredecessor {
        /// The id of the document.
        document: String,
        /// The stream, as `order/o-1`.
        stream: String,
        /// The version of the event.
        version: i64,
        /// Its index.
        index: i64,
        /// How often the document was read again.
        retries: u32,
        /// What the document has of the stream.
        found: String,
    },
    /// The caller's function failed, or its update is invalid.
    #[error("document {document}: the event cannot be applied")]
    Change {
        /// The id of the document.
        document: String,
        /// The error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// MongoDB failed, after all retries.
    #[error("failed to apply an event")]
    Store(#[from] StoreError),
}

/// Guards the documents of a collection.
///
/// ```no_run
/// use bson::{Document, doc};
/// use postrider_events::feed::FeedFilter;
/// use postrider_projections::{Change, EventPlace, Guarded, StreamGuard};
///
/// # async fn run(
/// #     carts: mongodb::Collection<Document>,
/// #     header: impl Fn(&str) -> Option<String>,
/// #     kind: &str,
/// #     body: Document,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// // The queue receives all events of each cart.
/// let guard = StreamGuard::new(carts, &FeedFilter::default())?;
/// let place = EventPlace::from_headers(header)?;
/// let guarded = guard
///     .apply(place.aggregate_id.clone(), &place, |_cart| match kind {
///         "ItemAdded" => Ok(Change::Update(doc! { "$inc": { "items": body.get_i32("quantity")? } })),
///         "postrider.StreamErased" => Ok(Change::Clear),
///         _ => Ok(Change::Nothing),
///     })
///     .await?;
/// // Now acknowledge the message.
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamGuard {
    documents: Collection<Document>,
    retry: RetryPolicy,
}

/// One try.
enum Tried {
    Over(Guarded),
    /// Another consumer has written first.
    Raced,
    /// With what the document has of the stream.
    Gap(Option<Document>),
}

impl StreamGuard {
    /// A guard of these documents, for messages from a source with this filter.
    ///
    /// # Errors
    ///
    /// [`GuardError::FilteredSource`]: a filter of event names or of a tenant. A filter of aggregate
    /// names passes: it leaves streams whole.
    pub fn new(documents: Collection<Document>, source: &FeedFilter) -> Result<Self, GuardError> {
        if !source.events.is_empty() || source.tenant_id.is_some() {
            return Err(GuardError::FilteredSource { filter: source.clone() });
        }
        Ok(Self { documents, retry: RetryPolicy::default() })
    }

    /// The same with another policy.
    #[must_use]
    pub fn with_retry(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    /// Applies an event to the document with this id, if it is the next one of its stream there.
    ///
    /// `change` gets the document, or `None` before the first event of its first stream, and says what
    /// the event changes. It is called again in each try, so it must only compute. A document may take
    /// several streams; each must pass all its events to it, if with [`Change::Nothing`].
    ///
    /// Where the predecessor is missing, or MongoDB fails for a while, it reads again after the pauses of
    /// the policy.
    ///
    /// # Errors
    ///
    /// [`GuardError`]: nothing was written, except with [`GuardError::Store`], where that is unknown.
    /// Apply the message again: that is safe in any case.
    pub async fn apply(
        &self,
        document: impl Into<Bson>,
        place: &EventPlace,
        mut change: impl FnMut(Option<&Document>) -> Result<Change, ApplyError>,
    ) -> Result<Guarded, GuardError> {
        let document = document.into();
        let (mut retries, mut races) = (0, 0);
        loop {
            let tried = self.try_apply(&document, place, &mut change).await;
            let pause = self.retry.pause_before(retries);
            match tried {
                Ok(Tried::Over(guarded)) => return Ok(guarded),
                Ok(Tried::Raced) if races < MAX_RACES => {
                    races += 1;
                    tokio::time::sleep(RACE_PAUSE.mul_f64(rand::random_range(0.0..1.0))).await;
                    continue;
                }
                Ok(Tried::Raced) => {
                    let detail = format!("concurrent consumers changed the document {races} times");
                    return Err(StoreError::Answer { action: "apply an event", detail }.into());
                }
                Ok(Tried::Gap(found)) if pause.is_none() => {
                    return Err(missing(&document, place, retries, found));
                }
                Err(GuardError::Store(error)) if error.is_permanent() || pause.is_none() => {
                    return Err(error.into());
                }
                Ok(Tried::Gap(_)) | Err(GuardError::Store(_)) => {}
                Err(error) => return Err(error),
            }
            retries += 1;
            tokio::time::sleep(pause.unwrap_or_default()).await;
        }
    }

    async fn try_apply(
        &self,
        document: &Bson,
        place: &EventPlace,
        change: &mut impl FnMut(Option<&Document>) -> Result<Change, ApplyError>,
    ) -> Result<Tried, GuardError> {
        // (As values: they come from events.)
        let by_id = doc! { "_id": { "$eq": document } };
        let finding = self.documents.find_one(by_id).read_concern(ReadConcern::majority());
        let finding = finding.selection_criteria(primary()).into_future();
        let found = within("read a document", limits::BATCH_TIMEOUT, finding).await?;
        let revisions = found.as_ref().and_then(|found| found.get_document(REVISIONS).ok());
        let field = place.stream_field();
        let revision = revisions.and_then(|revisions| revisions.get_document(&field).ok());
        match place.follows(revision) {
            Succession::Applied => return Ok(Tried::Over(Guarded::Skipped)),
            Succession::Gap => return Ok(Tried::Gap(revision.cloned())),
            Succession::Next => {}
        }
        let changed = change(found.as_ref()).and_then(Change::checked);
        let changed = changed.map_err(|error| GuardError::Change {
            document: document.to_string(),
            source: error.into_source(),
        })?;
        let is_new = found.is_none();
        // As it was read, with all its streams: no event of another one is lost.
        let unchanged = match revisions {
            Some(revisions) => {
                doc! { "_id": { "$eq": document }, REVISIONS: { "$eq": revisions } }
            }
            None => doc! { "_id": { "$eq": document }, REVISIONS: { "$exists": false } },
        };
        self.write(unchanged, changed, &field, place, is_new).await
    }

    async fn write(
        &self,
        unchanged: Document,
        changed: Change,
        field: &str,
        place: &EventPlace,
        is_new: bool,
    ) -> Result<Tried, GuardError> {
        let path = format!("{REVISIONS}.{field}");
        let updating = match changed {
            Change::Clear => {
                let own = doc! { field: { "$literal": place.revision() } };
                let revisions = doc! { "$mergeObjects": [format!("${REVISIONS}"), own] };
                let cleared = doc! { "_id": "$_id", REVISIONS: revisions };
                self.documents.update_one(unchanged, vec![doc! { "$replaceWith": cleared }])
            }
            Change::Update(update) => {
                self.documents.update_one(unchanged, with(update, path, place))
            }
            Change::Nothing => {
                self.documents.update_one(unchanged, with(Document::new(), path, place))
            }
        };
        // Only the first event of a stream creates a document; another one has read it.
        let updating = updating.upsert(is_new).write_concern(majority()).into_future();
        match within("apply an event", limits::BATCH_TIMEOUT, updating).await {
            Ok(updated) if updated.matched_count == 1 || updated.upserted_id.is_some() => {
                Ok(Tried::Over(Guarded::Applied))
            }
            Ok(_) => Ok(Tried::Raced),
            Err(error) if error.code() == Some(DUPLICATE_KEY) => Ok(Tried::Raced),
            Err(error) => Err(error.into()),
        }
    }
}

/// The update, and the revision of the stream.
fn with(mut update: Document, path: String, place: &EventPlace) -> Document {
    match update.get_mut("$set") {
        Some(Bson::Document(set)) => _ = set.insert(path, place.revision()),
        _ => _ = update.insert("$set", doc! { path: place.revision() }),
    }
    update
}

fn missing(
    document: &Bson,
    place: &EventPlace,
    retries: u32,
    found: Option<Document>,
) -> GuardError {
    GuardError::MissingPredecessor {
        document: document.to_string(),
        stream: format!("{}/{}", place.aggregate_name, place.aggregate_id),
        version: place.version,
        index: place.index,
        retries,
        found: found.map_or_else(|| "nothing".to_owned(), |found| found.to_string()),
    }
}
