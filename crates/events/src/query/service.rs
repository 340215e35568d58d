//! Runs queries.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Document, doc};
use futures_util::{Stream, TryStreamExt, stream};
use jiff::Timestamp;
use mongodb::error::ErrorKind;
use mongodb::options::Hint;
use mongodb::{Collection, Cursor};
use postrider_store::{StoreError, within};
use tokio::sync::Semaphore;
use tracing::{instrument, warn};

use super::batch::BatchSizes;
pub use super::budget::Scan;
use super::budget::{Access, Asked, Budget, Needed, both};
use super::check;
use super::compile::{Target, filter};
use super::condition::Condition;
pub use super::cursor::Unsortable;
use super::field::FieldName;
use super::plan::Shape;
use super::projection::Projection;
use super::settings::{QuerySettings, ScanPolicy};
use super::sort::SortKey;
use super::{MAX_FIELDS, MAX_PAGE, MAX_SORT, MAX_WINDOW};
use crate::Flaw;
use crate::context::Context;
use crate::decode::decode_any;
use crate::integer::integral;
use crate::names::AggregateName;

const ACTION: &str = "query";

/// The most bytes of a page, as BSON. One larger document is a page.
pub(super) const MAX_PAGE_BYTES: usize = 4 << 20;

/// The same of a list without cursors.
pub(super) const MAX_LIST_BYTES: usize = 8 << 20;

/// The field of a found document that names what in it cannot be decoded.
const INVALID: &str = "invalid";

const COUNT: &str = "count";

/// How long the client waits for the server, beyond the time that the server may take.
const GRACE: Duration = Duration::from_secs(5);

/// Codes of MongoDB's errors (`error_codes.yml`).
const INDEX_NOT_FOUND: i32 = 27;
const TIME_LIMIT: i32 = 50;
/// Of what a query says: BadValue, FailedToParse, TypeMismatch, Overflow (nested too deep),
/// NoQueryExecutionPlans.
const OF_QUERY: [i32; 5] = [2, 9, 14, 15, 291];
/// Codes from this one on that have no name of their own: nearly all are of parsers.
const UNNAMED: i32 = 10_000;

/// What to find.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The condition.
    pub condition: Condition,
    /// The fields of the answers.
    pub projection: Projection,
    /// The order, from its first field on.
    pub sort: Vec<SortKey>,
    /// Whether the id ends the order, so that lists have cursors, and no document is on two pages; by
    /// default. Without it an index on the fields of the order is enough.
    pub is_total: bool,
    /// Whose documents only.
    pub scope: QueryScope,
}

/// Whose documents a query may find, whatever its condition is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryScope {
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// Of this owner.
    pub owner_id: Option<String>,
    /// Of this space.
    pub space_id: Option<String>,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            condition: Condition::All,
            projection: Projection::All,
            sort: Vec::new(),
            is_total: true,
            scope: QueryScope::default(),
        }
    }
}

/// One document of a list, or its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// A document as it is stored. What in it cannot be decoded is named in its field `invalid`.
    Document(Document),
    /// There are more: the cursor of the next part. The last item.
    Next(String),
}

/// A page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its number, from 1.
    pub index: u64,
    /// The documents of a page.
    pub size: u64,
}

/// A page, with the number of documents of all pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Paged {
    /// The documents of this page, as they are stored.
    pub items: Vec<Document>,
    /// The number of all documents that meet the condition.
    pub total: u64,
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// It is invalid. The fields are named as in the JSON form.
    #[error("invalid query")]
    Invalid(Vec<Flaw>),
    /// MongoDB would read a whole large collection.
    #[error(
        "no index serves this query, which would read all of {}, about {} documents; add a \
         condition on an indexed field, or create an index on the fields of the condition and \
         the sort",
        .0.collection, .0.documents
    )]
    Scan(Scan),
    /// MongoDB would read too many documents: an index serves the query, but leaves out too few.
    #[error(
        "this query would read more than {limit} documents of {} (queries.max_scan); add a condition on \
         an indexed field that finds fewer, or create an index on the fields of the condition and the sort",
        .scan.collection
    )]
    Broad {
        /// The plan.
        scan: Scan,
        /// The most documents.
        limit: u64,
    },
    /// [`QuerySettings::max_concurrent`] queries are under way, and none ended soon.
    #[error("{limit} other queries are under way (queries.max_concurrent); retry")]
    Busy {
        /// The most queries.
        limit: usize,
    },
    /// [`Condition::Match`] needs a text index.
    #[error(
        "MATCH needs a text index, and {collection} has none; create one, for example \
         db.getCollection({collection:?}).createIndex({{ \"state.name\": \"text\" }})"
    )]
    NoTextIndex {
        /// The collection.
        collection: String,
    },
    /// The documents of a page are too large together: all of them are in memory.
    #[error(
        "the documents of this page have more than {} MiB; lower its size, choose fields by a projection, or \
         read a list",
        MAX_PAGE_BYTES >> 20
    )]
    LargePage,
    /// The same for a list that has no cursors.
    #[error(
        "the documents of this list have more than {} MiB; lower its limit, or choose fields by a projection",
        MAX_LIST_BYTES >> 20
    )]
    LargeList,
    /// The documents cannot be sorted so.
    #[error("sort: {0}")]
    Unsortable(#[from] Unsortable),
    /// It took longer than [`QuerySettings::timeout`].
    #[error(
        "the query took longer than {limit:?} (queries.timeout); a condition on an indexed field makes it faster"
    )]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// MongoDB refuses the filter or the order.
    #[error("MongoDB rejects the query: {0}")]
    Refused(String),
    /// MongoDB failed.
    #[error(transparent)]
    Store(StoreError),
}

/// Queries of the events and snapshots of a context. Clones share what is known of plans, and the limit of
/// concurrent queries.
#[derive(Clone, Debug)]
pub struct QueryService {
    context: Context,
    pub(super) settings: QuerySettings,
    budget: Budget,
    batches: BatchSizes,
    pub(super) turns: Arc<Semaphore>,
}

impl QueryService {
    /// Queries of this context. Sends nothing.
    pub fn new(context: Context, settings: QuerySettings) -> Self {
        let turns = Arc::new(Semaphore::new(settings.max_concurrent.min(Semaphore::MAX_PERMITS)));
        let (budget, batches) = (Budget::default(), BatchSizes::default());
        Self { context, settings, budget, batches, turns }
    }

    /// The settings.
    pub fn settings(&self) -> &QuerySettings {
        &self.settings
    }

    #[instrument(level = "debug", skip_all, fields(?target, %name))]
    pub(super) async fn count_all(
        &self,
        target: Target,
        name: &AggregateName,
        filter: &Document,
    ) -> Result<u64, QueryError> {
        let shape = Shape { filter, order: &Document::new() };
        let access = self.access(target, name, shape, Needed::All).await?;
        let collection = self.collection(target, name);
        let (limit, timeout) = (self.settings.timeout + GRACE, self.settings.timeout);
        let counted = if let Access::Within(source) = access {
            let mut stages = source.stages(filter);
            stages.push(doc! { "$count": COUNT });
            let counting = async {
                let counted =
                    collection.aggregate(stages).max_time(timeout).await?.try_next().await?;
                Ok(counted.as_ref().and_then(|counted| integral(counted.get(COUNT)?)).unwrap_or(0))
            };
            let counted = within(ACTION, limit, counting).await;
            counted.map(i64::unsigned_abs)
        } else {
            let mut counting = collection.count_documents(filter.clone()).max_time(timeout);
            if filter.is_empty() {
                // Keys are smaller than documents.
                counting = counting.hint(Hint::Keys(doc! { "_id": 1 }));
            }
            within(ACTION, limit, counting).await
        };
        counted.map_err(|error| self.error(error, collection.name()))
    }

    /// Finds documents, behind those that a filter leaves out.
    #[instrument(level = "debug", skip_all, fields(target = ?find.target, name = %find.name))]
    pub(super) async fn find(
        &self,
        find: &Find,
        behind: &Document,
    ) -> Result<impl Stream<Item = Result<StoredDocument, QueryError>> + Send + use<>, QueryError>
    {
        let Find { target, name, filter, order, projection, skip, limit, access } = find;
        let collection = self.collection(*target, name);
        let batch = self.batches.of(collection.name(), projection);
        let timeout = self.settings.timeout;
        let deadline = timeout + GRACE;
        let filter = both(filter, behind);
        let cursor: Result<Cursor<RawDocumentBuf>, StoreError> =
            if let Access::Within(source) = access {
                let mut stages = source.stages(&filter);
                if !order.is_empty() {
                    stages.push(doc! { "$sort": order });
                }
                if *skip > 0 {
                    stages.push(doc! { "$skip": i64::try_from(*skip).unwrap_or(i64::MAX) });
                }
                stages.push(doc! { "$limit": limit });
                if !projection.is_empty() {
                    stages.push(doc! { "$project": projection });
                }
                let finding = collection.aggregate(stages).with_type::<RawDocumentBuf>();
                let finding = finding.batch_size(batch.documents()).max_time(timeout);
                within(ACTION, deadline, finding).await
            } else {
                let documents = collection.clone_with_type::<RawDocumentBuf>();
                let mut finding = documents
                    .find(filter)
                    .sort(order.clone())
                    .projection(projection.clone())
                    .skip(*skip)
                    .limit(*limit)
                    .batch_size(batch.documents())
                    .max_time(timeout);
                if let Access::InOrder(index) = access {
                    finding = finding.hint(index.clone());
                }
                within(ACTION, deadline, finding).await
            };
        let cursor = cursor.map_err(|error| self.error(error, collection.name()))?;
        let state = (cursor, batch, self.clone(), collection.name().to_owned());
        Ok(stream::try_unfold(state, move |(mut cursor, batch, service, collection)| async move {
            let next = within(ACTION, deadline, async { cursor.try_next().await }).await;
            let Some(raw) = next.map_err(|error| service.error(error, &collection))? else {
                return Ok(None);
            };
            batch.saw(raw.as_bytes().len());
            Ok(Some((StoredDocument::read(&raw), (cursor, batch, service, collection))))
        }))
    }

    /// Decides how a query is executed. Refuses one that reads too many documents, or logs it.
    pub(super) async fn access(
        &self,
        target: Target,
        name: &AggregateName,
        shape: Shape<'_>,
        needed: Needed<'_>,
    ) -> Result<Access, QueryError> {
        let collection = self.collection(target, name);
        let database = self.context.database(target.kind());
        let limit = self.settings.max_scan;
        let (database, timeout) = (&database, self.settings.timeout);
        let asked = Asked { database, collection: &collection, shape, needed, limit, timeout };
        let access = self.budget.access(asked).await;
        let access = access.map_err(|error| self.error(error, collection.name()))?;
        let (refusal, Scan { collection, documents }) = match access {
            Access::Free | Access::Within(_) | Access::InOrder(_) => return Ok(access),
            Access::Unindexed(scan) => (QueryError::Scan(scan.clone()), scan),
            Access::Broad(scan) => (QueryError::Broad { scan: scan.clone(), limit }, scan),
        };
        match self.settings.scans {
            ScanPolicy::Refuse => Err(refusal),
            ScanPolicy::Warn => {
                warn!(
                    collection,
                    documents, "no index serves a query, which reads too many documents"
                );
                Ok(Access::Free)
            }
        }
    }

    fn collection(&self, target: Target, name: &AggregateName) -> Collection<Document> {
        self.context.collection(target.kind(), name.as_str())
    }

    pub(super) fn flaws(&self, query: &Query, target: Target) -> Vec<Flaw> {
        let mut flaws = check::flaws(&query.condition, "condition", self.settings.raw);
        if let Err(overlap) = query.projection.check(target) {
            flaws.push(Flaw::new("projection", overlap.to_string()));
        }
        let projected = query.projection.fields();
        let sorted: Vec<&FieldName> = query.sort.iter().map(|sort| &sort.field).collect();
        for (member, fields, most) in
            [("projection", projected.iter().collect(), MAX_FIELDS), ("sort", sorted, MAX_SORT)]
        {
            if fields.len() > most {
                flaws.push(Flaw::new(member, format!("has more than {most} fields")));
            }
            let is_below_id = |field: &&FieldName| {
                let id = [target.id_field(), "_id"].into_iter();
                id.filter_map(|id| field.as_str().strip_prefix(id))
                    .any(|rest| rest.starts_with('.'))
            };
            // MongoDB would leave out the id, without which there is no cursor.
            if let Some(field) = fields.into_iter().find(is_below_id) {
                flaws.push(Flaw::new(member, format!("has {field}, but an id has no fields")));
            }
        }
        flaws
    }

    /// The error of a query, by MongoDB's code.
    fn error(&self, error: StoreError, collection: &str) -> QueryError {
        match error.code() {
            Some(TIME_LIMIT) => QueryError::Timeout { limit: self.settings.timeout },
            Some(INDEX_NOT_FOUND) => QueryError::NoTextIndex { collection: collection.to_owned() },
            _ if is_about_query(&error) => {
                let brief = error.brief();
                let message = brief.split_once(": ").map_or(&*brief, |(_, message)| message);
                QueryError::Refused(message.to_owned())
            }
            _ => QueryError::Store(error),
        }
    }
}

/// Whether MongoDB cannot read a query, which it would never execute.
fn is_about_query(error: &StoreError) -> bool {
    let StoreError::Driver { source, .. } = error else { return false };
    match source.kind.as_ref() {
        ErrorKind::Command(command) => {
            let is_unnamed = command.code >= UNNAMED && command.code_name.starts_with("Location");
            OF_QUERY.contains(&command.code) || is_unnamed
        }
        _ => false,
    }
}

/// What is found, and how.
#[derive(Clone, Debug)]
pub(super) struct Find {
    pub(super) target: Target,
    pub(super) name: AggregateName,
    pub(super) filter: Document,
    pub(super) order: Document,
    pub(super) projection: Document,
    pub(super) skip: u64,
    pub(super) limit: i64,
    pub(super) access: Access,
}

/// A document as far as it can be decoded.
pub(super) struct StoredDocument {
    pub(super) document: Document,
    /// Its size as BSON.
    pub(super) bytes: usize,
    /// Its invalid fields, and why.
    invalid: Vec<String>,
}

impl StoredDocument {
    fn read(found: &RawDocument) -> Self {
        let (document, invalid) = decode_any(found);
        Self { document, bytes: found.as_bytes().len(), invalid }
    }

    /// Whether the value of this field is as it is stored.
    pub(super) fn has_valid(&self, field: &str) -> bool {
        let path = |invalid: &String| invalid.split(':').next().unwrap_or_default().to_owned();
        let is_of = |path: String| {
            path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                || field.strip_prefix(&*path).is_some_and(|rest| rest.starts_with('.'))
        };
        !self.invalid.iter().map(path).any(is_of)
    }

    /// The document; one with invalid fields names them.
    pub(super) fn marked(mut self) -> Document {
        if !self.invalid.is_empty() {
            self.document.insert(INVALID, self.invalid);
        }
        self.document
    }
}

impl Page {
    /// What is wrong with it.
    pub fn flaws(&self) -> Vec<Flaw> {
        let Self { index, size } = *self;
        let mut flaws = Vec::new();
        if index == 0 {
            flaws.push(Flaw::new("page.index", "must be 1 or above"));
        }
        if !(1..=u64::from(MAX_PAGE)).contains(&size) {
            flaws.push(Flaw::new("page.size", format!("must be from 1 to {MAX_PAGE}")));
        } else if index.saturating_mul(size) > MAX_WINDOW {
            let detail = format!(
                "index × size must be at most {MAX_WINDOW}; use a list with cursors to read \
                 further"
            );
            flaws.push(Flaw::new("page.index", detail));
        }
        flaws
    }
}

pub(super) fn refuse(flaws: Vec<Flaw>) -> Result<(), QueryError> {
    if flaws.is_empty() { Ok(()) } else { Err(QueryError::Invalid(flaws)) }
}

pub(super) fn filter_of(query: &Query, target: Target) -> Document {
    let filter = filter(&query.condition, target, Timestamp::now());
    let QueryScope { tenant_id, owner_id, space_id } = &query.scope;
    let scope = [("tenantId", tenant_id), ("ownerId", owner_id), ("spaceId", space_id)];
    let mut all: Vec<Document> = scope
        .into_iter()
        .filter_map(|(field, id)| id.as_ref().map(|id| doc! { field: { "$eq": id } }))
        .collect();
    if all.is_empty() {
        return filter;
    }
    if !filter.is_empty() {
        all.push(filter);
    }
    doc! { "$and": all }
}
