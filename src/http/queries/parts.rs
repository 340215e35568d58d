//! Lists of queries, a part at a time.

use std::sync::Arc;

use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::events::query::{Found, Query, QueryError, QueryService, QueryTurn, Target};
use crate::http::answers::{Answering, HeldTurn, PartError, PartText, Parts};
use crate::http::problem::Problem;
use crate::http::stream::{ListForm, ListText};
use crate::names::AggregateName;

/// A list that is asked for.
pub(super) struct Listing {
    pub(super) target: Target,
    pub(super) name: AggregateName,
    pub(super) query: Query,
    pub(super) limit: u32,
    pub(super) after: Option<String>,
}

/// A list of which each part is a query of its own, behind the cursor of the one before: between two of them nothing
/// is open at MongoDB. A list without cursors is one part.
struct QueryParts<F> {
    queries: QueryService,
    listing: Listing,
    list: ListText,
    /// Encodes a document.
    item: F,
    turn: Option<QueryTurn>,
    is_begun: bool,
}

/// Answers a list as it is read.
pub(super) async fn list<T, F>(
    queries: &QueryService,
    listing: Listing,
    form: ListForm,
    answering: Answering,
    item: F,
) -> Result<Response, Problem>
where
    F: Fn(bson::Document) -> T + Send + Sync + 'static,
    T: Serialize + Send + Sync + 'static,
{
    let list = ListText::new(form, listing.limit);
    let kind = list.content_type();
    let queries = queries.clone();
    let parts = QueryParts { queries, listing, list, item, turn: None, is_begun: false };
    answering.stream(kind, parts, CancellationToken::new()).await
}

impl<F, T> Parts for QueryParts<F>
where
    F: Fn(bson::Document) -> T + Send + Sync + 'static,
    T: Serialize + Send + Sync + 'static,
{
    type Error = QueryError;

    fn turn<'a>(
        &'a mut self,
        _: &'a Arc<Semaphore>,
    ) -> BoxFuture<'a, Result<HeldTurn, QueryError>> {
        async {
            // An answer that has begun is not cut because others came first.
            let turn = if std::mem::replace(&mut self.is_begun, true) {
                self.queries.wait_for_turn().await
            } else {
                self.queries.turn().await?
            };
            self.turn = Some(turn.clone());
            Ok(turn.into_permit())
        }
        .boxed()
    }

    fn read(&mut self) -> BoxFuture<'_, PartText<QueryError>> {
        self.read_part().boxed()
    }
}

impl<F, T> QueryParts<F>
where
    F: Fn(bson::Document) -> T + Send + Sync,
    T: Serialize + Send + Sync,
{
    async fn read_part(&mut self) -> PartText<QueryError> {
        let (Some(turn), false) = (self.turn.take(), self.list.is_over()) else { return Ok(None) };
        let Listing { target, name, query, after, .. } = &mut self.listing;
        let found = turn.list(*target, name, query, self.list.left(), after.as_deref()).await?;
        let mut found = std::pin::pin!(found);
        let (mut text, mut next) = (String::new(), None);
        while let Some(found) = found.try_next().await? {
            match found {
                Found::Document(document) => {
                    let item = (self.item)(document);
                    self.list.push(&mut text, &item).map_err(PartError::Encode)?;
                }
                Found::Next(cursor) => next = Some(cursor),
            }
        }
        if next.is_none() || self.list.left() == 0 {
            self.list.end(&mut text, next.as_deref()).map_err(PartError::Encode)?;
        }
        *after = next;
        Ok(Some(text))
    }
}
