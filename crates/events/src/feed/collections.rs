//! The collections of event streams that exist, and their index of positions.

use std::collections::BTreeSet;

use bson::doc;
use postrider_store::schema::SchemaError;
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, within};
use tracing::warn;

use crate::context::{CollectionKind, Context};
use crate::names::AggregateName;

/// The end of a collection's name.
pub(super) const SUFFIX: &str = "_event_stream";

/// The collections whose streams can get positions.
#[derive(Debug)]
pub(super) struct StreamCollections {
    context: Context,
    ready: BTreeSet<AggregateName>,
    /// Those without an index, which cannot be created; reported once.
    unusable: BTreeSet<AggregateName>,
}

impl StreamCollections {
    /// Knows no collection yet. A new one sees that an index was dropped, which a scan fails on.
    pub(super) fn new(context: Context) -> Self {
        context.forget_feed_ready();
        Self { context, ready: BTreeSet::new(), unusable: BTreeSet::new() }
    }

    /// Those with an index of positions.
    pub(super) fn ready(&self) -> impl Iterator<Item = &AggregateName> {
        self.ready.iter()
    }

    /// The number of those that cannot be used.
    pub(super) fn unusable(&self) -> usize {
        self.unusable.len()
    }

    pub(super) fn is_ready(&self, name: &AggregateName) -> bool {
        self.ready.contains(name)
    }

    /// Finds the collections, and creates missing indexes of positions. Returns the names that are new.
    ///
    /// A collection without the index is reported, and stops no other one.
    pub(super) async fn discover(&mut self) -> Result<Vec<AggregateName>, StoreError> {
        let found = aggregate_names(&self.context).await?;
        if !self.ready.is_subset(&found) {
            // A collection that is created again has no index.
            self.context.forget_feed_ready();
        }
        self.ready.retain(|name| found.contains(name));
        self.unusable.retain(|name| found.contains(name));
        let mut new = Vec::new();
        for name in found {
            if self.ready.contains(&name) {
                continue;
            }
            match self.context.feed_ready(name.as_str()).await {
                Ok(()) => {
                    self.unusable.remove(&name);
                    self.ready.insert(name.clone());
                    new.push(name);
                }
                Err(SchemaError::Store(error)) if !error.is_permanent() => return Err(error),
                Err(error) => {
                    if self.unusable.insert(name.clone()) {
                        let error = chain(&error);
                        warn!(error, name = %name, "events of this aggregate name get no positions");
                    }
                }
            }
        }
        Ok(new)
    }
}

/// The aggregate names of all event streams.
pub(super) async fn aggregate_names(
    context: &Context,
) -> Result<BTreeSet<AggregateName>, StoreError> {
    let database = context.database(CollectionKind::Events);
    let filter = doc! { "type": "collection", "name": { "$regex": format!("{SUFFIX}$") } };
    let listing = database.list_collection_names().filter(filter);
    let found = within("list the event streams", limits::BATCH_TIMEOUT, listing).await?;
    Ok(found.iter().filter_map(|collection| name_of(collection)).collect())
}

/// The aggregate name of a collection of event streams.
pub(super) fn name_of(collection: &str) -> Option<AggregateName> {
    AggregateName::new(collection.strip_suffix(SUFFIX)?).ok()
}
