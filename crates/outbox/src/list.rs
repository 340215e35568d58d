//! Lists records in pages: oldest first, or by id.
//!
//! Dates are read in the order of their index. `seq` and `attempt` have no index: up to
//! `MAX_SORTED_RECORDS` records are sorted. By id, records that no index selects are searched in
//! steps, up to `SEARCH_TIMEOUT`; the page then ends where the search did.
//!
//! A page also ends by its size ([`PageSize`]), and its records are read in small batches.

mod filter;
mod page;
mod position;
mod reading;

use bson::DateTime;
use postrider_store::page::PageSize;
use postrider_store::{ServerClock, StoreError};

use crate::inspect::Inspector;
use crate::list::page::ListQuery;
use crate::list::position::{ListPosition, PLACE_PREFIX};
use crate::undecoded::RawId;

pub use filter::{Filter, ListError, Sort, StatusFilter};
pub use page::RecordPage;

impl Inspector {
    /// Returns a page of records after a position: the `next` of a page, or an id. Records have their
    /// known fields except payload and headers, and long values are cut ([`MARK`](crate::brief::MARK)).
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<&str>,
        size: PageSize,
    ) -> Result<Result<RecordPage, ListError>, StoreError> {
        let sort = match filter.judge() {
            Ok(sort) => sort,
            Err(unlistable) => return Ok(Err(unlistable)),
        };
        let place = match after {
            None => None,
            Some(text) => match self.place(sort, text).await? {
                Ok(place) => Some(place),
                Err(unlistable) => return Ok(Err(unlistable)),
            },
        };
        let now = match filter.older_than {
            Some(_) => ServerClock::asked(self.collections.database()).await?,
            None => DateTime::MIN,
        };
        let mut conditions = filter.conditions(now);
        conditions.extend(self.scope.condition());
        let chosen = ListQuery {
            inspector: self,
            status: filter.status(),
            conditions,
            has_key: filter.key.is_some(),
            size,
        };
        let page = match sort {
            Sort::Id => chosen.by_id(place.map(|place| place.id)).await,
            Sort::DeadAt | Sort::VisibleAt => chosen.by_date(sort, place).await,
            Sort::Seq | Sort::Attempt => chosen.sorted(sort, place).await,
        };
        page.map(Ok)
    }

    /// Parses a position.
    async fn place(
        &self,
        sort: Sort,
        text: &str,
    ) -> Result<Result<ListPosition, ListError>, StoreError> {
        let wrong = |detail: String| Ok(Err(ListError("after", detail)));
        if let Some(place) = text.strip_prefix(PLACE_PREFIX) {
            return match ListPosition::read(sort, place) {
                Some(place) => Ok(Ok(place)),
                None => wrong(format!(
                    "is not a position in a list sorted by {}; start without it",
                    sort.word()
                )),
            };
        }
        let mut ids = RawId::parse_candidates(text);
        if ids.is_empty() || text.is_empty() {
            return wrong("is neither an id nor the next position of a list".to_owned());
        }
        if sort == Sort::Id && ids.len() == 1 {
            return Ok(Ok(ListPosition { value: ids[0].clone(), id: ids.remove(0) }));
        }
        // Ids of different types sort apart: use the one that exists, else the likeliest.
        if let Some(record) = self.first_of(&ids).await? {
            return Ok(Ok(ListPosition::of(sort, &record)));
        }
        match sort {
            // The record may have been removed since the previous page.
            Sort::Id => Ok(Ok(ListPosition { value: ids[0].clone(), id: ids.remove(0) })),
            _ => wrong(format!(
                "the record with this id no longer exists, so its position by {} is unknown; \
                 use the position that the previous list printed, or start without it",
                sort.word()
            )),
        }
    }
}
