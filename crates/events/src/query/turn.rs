//! Queries whose results are held while they are answered: lists and pages.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::{Stream, StreamExt, TryStreamExt, future, stream};
use tokio::sync::OwnedSemaphorePermit;

use super::MAX_LIST;
use super::budget::Needed;
use super::compile::Target;
use super::cursor::Place;
use super::plan::Shape;
use super::projection::Projection;
use super::service::{
    Find, Found, MAX_LIST_BYTES, MAX_PAGE_BYTES, Page, Paged, Query, QueryError, QueryService,
    StoredDocument, Unsortable, filter_of, refuse,
};
use super::sort::order;
use crate::Flaw;
use crate::names::AggregateName;

/// The size of a list, as BSON, behind which it ends with a cursor.
const LIST_BYTES: usize = 1 << 20;

/// How long a query waits for others to end.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

/// The right to execute a query: one of [`QuerySettings::max_concurrent`](super::QuerySettings). Clones share it.
#[derive(Clone, Debug)]
pub struct QueryTurn {
    pub(super) service: QueryService,
    pub(super) permit: Arc<OwnedSemaphorePermit>,
}

impl QueryService {
    /// Waits until another query may be executed, for a second at most.
    ///
    /// # Errors
    ///
    /// [`QueryError::Busy`].
    pub async fn turn(&self) -> Result<QueryTurn, QueryError> {
        let busy = QueryError::Busy { limit: self.settings.max_concurrent };
        tokio::time::timeout(TURN_TIMEOUT, self.wait_for_turn()).await.map_err(|_| busy)
    }

    /// The same, for as long as that takes.
    pub async fn wait_for_turn(&self) -> QueryTurn {
        loop {
            // (It is never closed.)
            if let Ok(permit) = self.turns.clone().acquire_owned().await {
                return QueryTurn { service: self.clone(), permit: Arc::new(permit) };
            }
        }
    }

    /// Lists documents: [`QueryTurn::list`].
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
        self.turn().await?.list(target, name, query, limit, after).await
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
        self.turn().await?.single(target, name, query).await
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
        self.turn().await?.page(target, name, query, page).await
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
        let _turn = self.turn().await?;
        self.count_all(target, name, &filter).await
    }
}

impl QueryTurn {
    /// Holds the turn for as long as a result is in memory.
    pub fn into_permit(self) -> Arc<OwnedSemaphorePermit> {
        self.permit
    }

    /// Lists the documents that meet the condition, from a cursor on: at most `limit`, and a cursor if
    /// there are more. The order ends with the id, so that no document is skipped or found twice, unless it
    /// is changed meanwhile. A list ends with a cursor also behind about 1 MiB; without a total order, which has no
    /// cursors, one of more than 8 MiB is refused.
    ///
    /// The turn is held until the list is dropped.
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
        let service = &self.service;
        let mut flaws = service.flaws(query, target);
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
        let mut behind = place.map_or_else(|| vec![Document::new()], |place| place.filters(&order));
        if behind.is_empty() {
            // Behind the greatest value of all.
            behind.push(doc! { "_id": { "$in": [] } });
        }
        // One more is the beginning of the next part.
        let count = u64::from(limit) + 1;
        let shape = Shape { filter: &filter, order: &order };
        let access = service.access(target, name, shape, Needed::First { count, behind: &behind });
        let access = access.await?;
        let needed: Vec<&str> = order.keys().map(String::as_str).collect();
        let (projection, is_wider) = query.projection.stored(target, &needed);
        let find = Find {
            target,
            name: name.clone(),
            filter,
            order: order.clone(),
            projection,
            skip: 0,
            limit: i64::from(limit) + 1,
            access,
        };
        let mut behind = behind.into_iter();
        let found = service.find(&find, &behind.next().unwrap_or_default()).await?;
        let service = service.clone();
        let others = stream::iter(behind.map(Ok)).and_then(move |behind| {
            let (service, find) = (service.clone(), find.clone());
            async move { service.find(&find, &behind).await }
        });
        let listing = Listing {
            found: Box::pin(found.chain(others.try_flatten()).take(limit as usize + 1)),
            order: query.is_total.then_some(order),
            projection: is_wider.then(|| (query.projection.clone(), target)),
            left: limit,
            place: None,
            bytes: 0,
            _turn: self.clone(),
        };
        // Behind the cursor nothing follows.
        Ok(stream::try_unfold(Some(listing), |listing| async {
            let Some(mut listing) = listing else { return Ok(None) };
            let found = listing.next().await?;
            Ok(found.map(|found| {
                let has_more = matches!(found, Found::Document(_));
                (found, has_more.then_some(listing))
            }))
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
        let service = &self.service;
        let mut flaws = service.flaws(query, target);
        flaws.extend(page.flaws());
        refuse(flaws)?;
        let (filter, order) =
            (filter_of(query, target), order(&query.sort, target, query.is_total));
        let shape = Shape { filter: &filter, order: &order };
        let begin = [Document::new()];
        let needed = Needed::First { count: page.index * page.size, behind: &begin };
        let access = service.access(target, name, shape, needed).await?;
        let (projection, _) = query.projection.stored(target, &[]);
        let find = Find {
            target,
            name: name.clone(),
            filter: filter.clone(),
            order,
            projection,
            skip: (page.index - 1) * page.size,
            limit: i64::try_from(page.size).unwrap_or(i64::MAX),
            access,
        };
        let items = async {
            let mut found = pin!(service.find(&find, &Document::new()).await?);
            let (mut items, mut bytes) = (Vec::new(), 0);
            while let Some(document) = found.try_next().await? {
                bytes += document.bytes;
                if bytes > MAX_PAGE_BYTES && !items.is_empty() {
                    return Err(QueryError::LargePage);
                }
                items.push(document.marked());
            }
            Ok(items)
        };
        let (items, total) =
            future::try_join(items, service.count_all(target, name, &filter)).await?;
        Ok(Paged { items, total })
    }
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
    /// The size of what was found, as BSON.
    bytes: usize,
    _turn: QueryTurn,
}

impl<S: Stream<Item = Result<StoredDocument, QueryError>>> Listing<S> {
    async fn next(&mut self) -> Result<Option<Found>, QueryError> {
        let Some(mut found) = self.found.try_next().await? else { return Ok(None) };
        let is_full = self.place.is_some() && self.bytes >= LIST_BYTES;
        let Some(left) = self.left.checked_sub(1).filter(|_| !is_full) else {
            let Some(order) = &self.order else { return Ok(None) };
            let Some(place) = &self.place else {
                return Err(Unsortable::Invalid.into());
            };
            return Ok(Some(Found::Next(place.encode(order)?)));
        };
        let is_first = self.bytes == 0;
        self.bytes += found.bytes;
        if self.order.is_none() && self.bytes > MAX_LIST_BYTES && !is_first {
            return Err(QueryError::LargeList);
        }
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
