//! What an operator sees of a feed. Reads only.

use std::collections::BTreeMap;

use bson::{Bson, DateTime, doc};
use mongodb::options::Hint;
use postrider_store::schema::{Difference, SchemaError};
use postrider_store::{StoreError, limits, within};

use crate::context::{CollectionKind, Context};
use crate::feed::collections::aggregate_names;
use crate::feed::state::{FeedState, StateStore};
use crate::integer::integral;
use crate::names::AggregateName;
use crate::schema::POSITION as INDEX;
use crate::stream::fields::{CREATE_TIME, ID, POSITION};

/// The most appends that are counted for each aggregate name.
const MAX_COUNTED: u64 = 10_000;

/// The state of a feed and of its collections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedReport {
    /// Its document; `None` before a sequencer has created it.
    pub state: Option<FeedState>,
    /// Whether a process may assign positions now: its owner.
    pub is_owned: bool,
    /// The event streams of each aggregate name, with the difference of those without the index of positions.
    pub collections: BTreeMap<AggregateName, Option<Difference>>,
}

/// The appends that wait for a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedBacklog {
    /// Their number, or the least that it can be.
    pub appends: u64,
    /// Whether there may be more.
    pub is_at_least: bool,
    /// The `createTime` of the oldest.
    pub oldest: Option<DateTime>,
}

impl FeedReport {
    /// Reads it.
    pub(super) async fn read(context: &Context) -> Result<Self, SchemaError> {
        let owned = StateStore::new(context).load_owned().await?;
        let mut collections = BTreeMap::new();
        for name in aggregate_names(context).await? {
            let difference = context.verify_positions(name.as_str()).await?;
            collections.insert(name, difference);
        }
        let is_owned = owned.as_ref().is_some_and(|(_, is_owned)| *is_owned);
        Ok(Self { state: owned.map(|(state, _)| state), is_owned, collections })
    }

    /// The aggregate names with an index of positions.
    pub fn indexed(&self) -> impl Iterator<Item = &AggregateName> {
        self.collections.iter().filter(|(_, difference)| difference.is_none()).map(|(name, _)| name)
    }
}

impl FeedBacklog {
    /// Reads it from the indexes of these names.
    pub(super) async fn read<'a>(
        context: &Context,
        names: impl Iterator<Item = &'a AggregateName>,
    ) -> Result<Self, StoreError> {
        let mut backlog = Self::default();
        for name in names {
            let streams = context.collection(CollectionKind::Events, name.as_str());
            let hint = Hint::Name(INDEX.name.to_owned());
            let waiting = doc! { POSITION: Bson::Null };
            let counting =
                streams.count_documents(waiting.clone()).hint(hint.clone()).limit(MAX_COUNTED + 1);
            let count =
                within("count appends without a position", limits::REPORT_TIMEOUT, counting)
                    .await?;
            backlog.appends += count.min(MAX_COUNTED);
            backlog.is_at_least |= count > MAX_COUNTED;
            let finding = streams
                .find_one(waiting)
                .sort(doc! { POSITION: 1, CREATE_TIME: 1 })
                .projection(doc! { CREATE_TIME: 1, ID: 0 })
                .hint(hint);
            let oldest =
                within("read appends without a position", limits::REPORT_TIMEOUT, finding).await?;
            let oldest = oldest.as_ref().and_then(|oldest| integral(oldest.get(CREATE_TIME)?));
            let oldest = oldest.map(DateTime::from_millis);
            backlog.oldest = [backlog.oldest, oldest].into_iter().flatten().min();
        }
        Ok(backlog)
    }
}
