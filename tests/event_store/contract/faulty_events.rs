//! Event stores that each break one promise, which the suite must notice.

use std::sync::atomic::{AtomicUsize, Ordering};

use postrider::events::{
    Append, AppendError, Appended, EventStream, Expected, LoadError, NewEvent, Range,
};
use postrider::names::{AggregateId, AggregateName};
use uuid::Uuid;

use crate::contract::stores::Events;

/// The fault of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ForgetsTheVersion,
    TakesAnAggregateTwice,
    LetsSeveralWin,
    TakesARequestTwice,
    JudgesTheVersionFirst,
    KeepsRequestsForAll,
    FindsRequestsAnywhere,
    TakesEmptyAppends,
    LosesAnEvent,
    LosesOneOfManyAppends,
    IgnoresTheTenant,
    EndsBeforeTheLastVersion,
    BeginsBehindTheFirstVersion,
    EndsBeforeTheLastTime,
    IgnoresTheLimit,
    LoadsBackwards,
    RepairsRanges,
    FindsWhatIsNotThere,
    TakesTheFirstForTheLast,
    TakesTheNearestVersion,
    ScansTheCursorToo,
    ScansOthersToo,
    ScansByLength,
}

pub struct Faulty<S> {
    store: S,
    fault: Fault,
    appends: AtomicUsize,
}

impl<S> Faulty<S> {
    pub fn new(store: S, fault: Fault) -> Self {
        Self { store, fault, appends: AtomicUsize::new(0) }
    }
}

impl<S: Events> Faulty<S> {
    fn tenant<'a>(&self, tenant: Option<&'a str>) -> Option<&'a str> {
        tenant.filter(|_| self.fault != Fault::IgnoresTheTenant)
    }
}

impl<S: Events> Events for Faulty<S> {
    async fn append(&self, mut append: Append) -> Result<Appended, AppendError> {
        let expected = append.expected;
        match self.fault {
            Fault::ForgetsTheVersion if !expected.is_none() => append.expected = Expected::Any,
            Fault::TakesAnAggregateTwice if expected.is_none() => append.expected = Expected::Any,
            Fault::TakesARequestTwice => append.request_id += &Uuid::new_v4().to_string(),
            Fault::KeepsRequestsForAll => {
                let ids = self.store.aggregate_ids(&append.name, None, 99, None).await.unwrap();
                for id in ids.iter().map(|id| AggregateId::new(id).unwrap()) {
                    let request = &append.request_id;
                    if self.store.exists_request_id(&append.name, &id, request).await.unwrap() {
                        return Err(AppendError::DuplicateRequest { aggregate_id: id.to_string() });
                    }
                }
            }
            Fault::JudgesTheVersionFirst => {
                let last = self.store.last(&append.name, &append.id, None).await.unwrap();
                let actual = last.map_or(0, |last| last.version);
                if !expected.fits(actual) {
                    return Err(AppendError::VersionConflict { expected, actual });
                }
            }
            Fault::TakesEmptyAppends if append.events.is_empty() => {
                append.events.push(NewEvent::new("Nothing", Default::default()));
            }
            Fault::LosesAnEvent if append.events.len() > 1 => drop(append.events.pop()),
            Fault::LosesOneOfManyAppends if self.appends.fetch_add(1, Ordering::Relaxed) == 50 => {
                append.id = AggregateId::new("lost").unwrap();
            }
            _ => {}
        }
        match self.store.append(append.clone()).await {
            Err(AppendError::VersionConflict { .. }) if self.fault == Fault::LetsSeveralWin => {
                self.store.append(append.expecting(Expected::Any)).await
            }
            answer => answer,
        }
    }

    async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        range: &Range,
    ) -> Result<Vec<EventStream>, LoadError> {
        let mut range = range.clone();
        range.tenant_id = self.tenant(range.tenant_id.as_deref()).map(str::to_owned);
        match self.fault {
            Fault::EndsBeforeTheLastVersion => range.to_version = range.to_version.map(|to| to - 1),
            Fault::BeginsBehindTheFirstVersion => {
                range.from_version = range.from_version.map(|from| from + 1);
            }
            Fault::EndsBeforeTheLastTime => range.to_time = range.to_time.map(|to| to - 1),
            Fault::IgnoresTheLimit => range.limit = None,
            Fault::RepairsRanges if !range.flaws().is_empty() => range = Range::default(),
            _ => {}
        }
        let mut loaded = self.store.load(name, id, &range).await?;
        if self.fault == Fault::LoadsBackwards {
            loaded.reverse();
        }
        Ok(loaded)
    }

    async fn single(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        version: i64,
        tenant: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError> {
        let tenant = self.tenant(tenant);
        match self.store.single(name, id, version, tenant).await? {
            None if self.fault == Fault::TakesTheNearestVersion => {
                self.store.last(name, id, tenant).await
            }
            found => Ok(found),
        }
    }

    async fn last(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError> {
        let tenant = self.tenant(tenant);
        match self.fault {
            Fault::TakesTheFirstForTheLast => self.store.single(name, id, 1, tenant).await,
            Fault::FindsWhatIsNotThere => {
                let ids = self.store.aggregate_ids(name, None, 1, None).await?;
                let id = ids.first().map_or(id.clone(), |id| AggregateId::new(id).unwrap());
                self.store.last(name, &id, tenant).await
            }
            _ => self.store.last(name, id, tenant).await,
        }
    }

    async fn exists_request_id(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request: &str,
    ) -> Result<bool, LoadError> {
        if self.fault != Fault::FindsRequestsAnywhere {
            return self.store.exists_request_id(name, id, request).await;
        }
        for id in self.store.aggregate_ids(name, None, 99, None).await? {
            let id = AggregateId::new(&id).unwrap();
            if self.store.exists_request_id(name, &id, request).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn aggregate_ids(
        &self,
        name: &AggregateName,
        after: Option<&str>,
        limit: u32,
        tenant: Option<&str>,
    ) -> Result<Vec<String>, LoadError> {
        let mut ids = self.store.aggregate_ids(name, after, limit, self.tenant(tenant)).await?;
        match self.fault {
            Fault::ScansTheCursorToo => ids.splice(0..0, after.map(str::to_owned)).for_each(drop),
            Fault::ScansOthersToo => {
                let other = AggregateName::new(&format!("{name}.other")).unwrap();
                ids.extend(self.store.aggregate_ids(&other, after, limit, tenant).await?);
                ids.sort();
            }
            Fault::ScansByLength => ids.sort_by_key(String::len),
            _ => {}
        }
        Ok(ids)
    }
}
