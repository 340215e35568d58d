//! Runs queries.

use std::pin::{Pin, pin};
use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Document, doc};
use futures_util::{Stream, StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use mongodb::Collection;
use mongodb::error::ErrorKind;
use mongodb::options::Hint;
use postrider_store::{StoreError, within};
use tracing::{instrument, warn};

use super::check;
use super::compile::{Target, filter};
use super::condition::Condition;
use super::cursor::Place;
pub use super::cursor::Unsortable;
use super::field::FieldName;
pub use super::plan::Scan;
use super::plan::{Plans, Shape};
use super::projection::Projection;
use super::settings::{QuerySettings, ScanPolicy};
use super::sort::{SortKey, order};
use super::{MAX_FIELDS, MAX_LIST, MAX_PAGE, MAX_SORT, MAX_WINDOW};
use crate::Flaw;
use crate::context::Context;
use crate::decode::decode_any;
use crate::names::AggregateName;

const ACTION: &str = "query";

/// The field of a found document that names what in it cannot be decoded.
const INVALID: &str = "invalid";

/// The documents of one batch of the server.
const BATCH_DOCUMENTS: u32 = 500;

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
    /// [`Condition::Match`] needs a text index.
    #[error(
        "MATCH needs a text index, and {collection} has none; create one, for example \
         db.getCollection({collection:?}).createIndex({{ \"state.name\": \"text\" }})"
    )]
    NoTextIndex {
        /// The collection.
        collection: String,
    },
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

/// Queries of the events and snapshots of a context. Clones share what is known of plans.
#[derive(Clone, Debug)]
pub struct QueryService {
    context: Context,
    settings: QuerySettings,
    plans: Plans,
}

impl QueryService {
    /// Queries of this context. Sends nothing.
    pub fn new(context: Context, settings: QuerySettings) -> Self {
        Self { context, settings, plans: Plans::default() }
    }

    /// The settings.
    pub fn settings(&self) -> &QuerySettings {
        &self.settings
    }

    /// Lists the documents that meet the condition, from a cursor on: at most `limit`, and a cursor if
    /// there are more. The order ends with the id, so that no document is skipped or found twice, unless it
    /// is changed meanwhile.
    ///
    /// # Errors
    ///
    /// [`QueryError`]; later as items, then also [`QueryError::Unsortable`].
    pub async fn list(
        &self,
        target: Target,
        name: &AggregateName,
        query: &Query,
        limit: u32,
        after: Option<&str>,
    ) -> Result<impl Stream<Item = Result<Found, QueryError>> + Send + use<>, QueryError> {
        let mut flaws = self.flaws(query, target);
        if !(1..=MAX_LIST).contains(&limit) {
            flaws.push(Flaw::new("limit", format!("must be from 1 to {MAX_LIST}")));
        }
        let order = order(&query.sort, target, query.is_total);
        let mut place = None;
        if let Some(after) = after {
            match Place::decode(after, &order) {
                Ok(read) => place = Some(read),
                Err(error) => flaws.push(Flaw::new("after", error.to_string())),
            }
        }
        refuse(flaws)?;
        let filter = filter_of(query, target);
        // Not behind a cursor: to begin there is no reason to read all of the rest.
        self.refuse_scan(target, name, Shape { filter: &filter, order: &order }).await?;
        let filters = match place {
            None => vec![filter],
            Some(place) => {
                let behind = place.filters(&order).into_iter();
                behind.map(|behind| doc! { "$and": [&filter, behind] }).collect()
            }
        };
        let mut filters = filters.into_iter();
        let needed: Vec<&str> = order.keys().map(String::as_str).collect();
        let (stored, is_wider) = query.projection.stored(target, &needed);
        // One more is the beginning of the next part.
        let range = Slice { skip: 0, limit: i64::from(limit) + 1 };
        // Behind the greatest value of all there is nothing.
        let first = filters.next().unwrap_or_else(|| doc! { "_id": { "$in": [] } });
        let found = self.find(target, name, &first, &order, stored.clone(), range).await?;
        let (service, name, sorted) = (self.clone(), name.clone(), order.clone());
        let others = stream::iter(filters.map(Ok)).and_then(move |filter| {
            let (service, name, order) = (service.clone(), name.clone(), sorted.clone());
            let stored = stored.clone();
            async move { service.find(target, &name, &filter, &order, stored, range).await }
        });
        let listing = Listing {
            found: Box::pin(found.chain(others.try_flatten()).take(limit as usize + 1)),
            order: query.is_total.then_some(order),
            projection: is_wider.then(|| (query.projection.clone(), target)),
            left: limit,
            place: None,
        };
        Ok(stream::try_unfold(listing, |mut listing| async {
            Ok(listing.next().await?.map(|found| (found, listing)))
        }))
    }

    /// Reads the first document that meets the condition.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub async fn single(
        &self,
        target: Target,
        name: &AggregateName,
        query: &Query,
    ) -> Result<Option<Document>, QueryError> {
        let query = Query { is_total: false, ..query.clone() };
        let found = self.list(target, name, &query, 1, None).await?;
        Ok(match pin!(found).try_next().await? {
            Some(Found::Document(document)) => Some(document),
            _ => None,
        })
    }

    /// Reads a page, and counts all documents that meet the condition.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub async fn page(
        &self,
        target: Target,
        name: &AggregateName,
        query: &Query,
        page: Page,
    ) -> Result<Paged, QueryError> {
        let mut flaws = self.flaws(query, target);
        flaws.extend(page.flaws());
        refuse(flaws)?;
        let (filter, order) =
            (filter_of(query, target), order(&query.sort, target, query.is_total));
        self.refuse_scan(target, name, Shape { filter: &filter, order: &order }).await?;
        let (stored, _) = query.projection.stored(target, &[]);
        let range = Slice {
            skip: (page.index - 1) * page.size,
            limit: i64::try_from(page.size).unwrap_or(i64::MAX),
        };
        let items = async {
            let found = self.find(target, name, &filter, &order, stored, range).await?;
            found.map_ok(StoredDocument::marked).try_collect::<Vec<_>>().await
        };
        let (items, total) = future::try_join(items, self.count_all(target, name, &filter)).await?;
        Ok(Paged { items, total })
    }

    /// Counts the documents that meet the condition of a query.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub async fn count(
        &self,
        target: Target,
        name: &AggregateName,
        query: &Query,
    ) -> Result<u64, QueryError> {
        refuse(self.flaws(query, target))?;
        let filter = filter_of(query, target);
        self.refuse_scan(target, name, Shape { filter: &filter, order: &Document::new() }).await?;
        self.count_all(target, name, &filter).await
    }

    #[instrument(level = "debug", skip_all, fields(?target, %name))]
    async fn count_all(
        &self,
        target: Target,
        name: &AggregateName,
        filter: &Document,
    ) -> Result<u64, QueryError> {
        let collection = self.collection(target, name);
        let mut counting =
            collection.count_documents(filter.clone()).max_time(self.settings.timeout);
        if filter.is_empty() {
            // Keys are smaller than documents.
            counting = counting.hint(Hint::Keys(doc! { "_id": 1 }));
        }
        let counted = within(ACTION, self.settings.timeout + GRACE, counting).await;
        counted.map_err(|error| self.error(error, collection.name()))
    }

    /// Finds documents.
    #[instrument(level = "debug", skip_all, fields(?target, %name))]
    async fn find(
        &self,
        target: Target,
        name: &AggregateName,
        filter: &Document,
        order: &Document,
        projection: Document,
        Slice { skip, limit }: Slice,
    ) -> Result<impl Stream<Item = Result<StoredDocument, QueryError>> + Send + use<>, QueryError>
    {
        let collection = self.collection(target, name);
        let documents = collection.clone_with_type::<RawDocumentBuf>();
        let finding = documents
            .find(filter.clone())
            .sort(order.clone())
            .projection(projection)
            .skip(skip)
            .limit(limit)
            .batch_size(BATCH_DOCUMENTS)
            .max_time(self.settings.timeout);
        let limit = self.settings.timeout + GRACE;
        let cursor = within(ACTION, limit, finding).await;
        let cursor = cursor.map_err(|error| self.error(error, collection.name()))?;
        let state = (cursor, self.clone(), collection.name().to_owned());
        Ok(stream::try_unfold(state, move |(mut cursor, service, collection)| async move {
            let next = within(ACTION, limit, async { cursor.try_next().await }).await;
            let Some(raw) = next.map_err(|error| service.error(error, &collection))? else {
                return Ok(None);
            };
            Ok(Some((StoredDocument::read(&raw), (cursor, service, collection))))
        }))
    }

    /// Refuses a query that reads a whole large collection, or logs it.
    async fn refuse_scan(
        &self,
        target: Target,
        name: &AggregateName,
        shape: Shape<'_>,
    ) -> Result<(), QueryError> {
        let collection = self.collection(target, name);
        let database = self.context.database(target.kind());
        let scanning = self.plans.scan(&database, &collection, shape, self.settings.max_scan);
        let scan = scanning.await.map_err(|error| self.error(error, collection.name()))?;
        match (scan, self.settings.scans) {
            (None, _) => Ok(()),
            (Some(scan), ScanPolicy::Refuse) => Err(QueryError::Scan(scan)),
            (Some(Scan { collection, documents }), ScanPolicy::Warn) => {
                warn!(collection, documents, "no index serves a query, which reads all documents");
                Ok(())
            }
        }
    }

    fn collection(&self, target: Target, name: &AggregateName) -> Collection<Document> {
        self.context.collection(target.kind(), name.as_str())
    }

    fn flaws(&self, query: &Query, target: Target) -> Vec<Flaw> {
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

/// Documents of a query, from one to another.
#[derive(Clone, Copy, Debug)]
struct Slice {
    skip: u64,
    limit: i64,
}

/// A list that is being read.
struct Listing<S> {
    found: Pin<Box<S>>,
    /// The order, if it is total.
    order: Option<Document>,
    /// The projection, if more was read than it has.
    projection: Option<(Projection, Target)>,
    /// How many documents may follow.
    left: u32,
    /// The place behind the last document.
    place: Option<Place>,
}

impl<S: Stream<Item = Result<StoredDocument, QueryError>>> Listing<S> {
    async fn next(&mut self) -> Result<Option<Found>, QueryError> {
        let Some(mut found) = self.found.try_next().await? else { return Ok(None) };
        let Some(left) = self.left.checked_sub(1) else {
            let Some(order) = &self.order else { return Ok(None) };
            let Some(place) = &self.place else {
                return Err(Unsortable::Invalid.into());
            };
            return Ok(Some(Found::Next(place.encode(order)?)));
        };
        self.left = left;
        // (Where the value of an order is not valid, the place stays: the next part begins with it again.)
        if let Some(order) = &self.order
            && order.keys().all(|field| found.has_valid(field))
        {
            self.place = Some(Place::behind(&found.document, order)?);
        }
        if let Some((projection, target)) = &self.projection {
            projection.apply(*target, &mut found.document);
        }
        Ok(Some(Found::Document(found.marked())))
    }
}

/// A document as far as it can be decoded.
struct StoredDocument {
    document: Document,
    /// Its invalid fields, and why.
    invalid: Vec<String>,
}

impl StoredDocument {
    fn read(found: &RawDocument) -> Self {
        let (document, invalid) = decode_any(found);
        Self { document, invalid }
    }

    /// Whether the value of this field is as it is stored.
    fn has_valid(&self, field: &str) -> bool {
        let path = |invalid: &String| invalid.split(':').next().unwrap_or_default().to_owned();
        let is_of = |path: String| {
            path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                || field.strip_prefix(&*path).is_some_and(|rest| rest.starts_with('.'))
        };
        !self.invalid.iter().map(path).any(is_of)
    }

    /// The document; one with invalid fields names them.
    fn marked(mut self) -> Document {
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

fn refuse(flaws: Vec<Flaw>) -> Result<(), QueryError> {
    if flaws.is_empty() { Ok(()) } else { Err(QueryError::Invalid(flaws)) }
}

fn filter_of(query: &Query, target: Target) -> Document {
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
