//! The collections of event streams that exist, and their index of positions.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::IndexModel;
use postrider_store::schema::SchemaError;
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, within};
use tracing::warn;

use crate::context::{CollectionKind, Context};
use crate::names::AggregateName;
use crate::stream::fields::{AGGREGATE_ID, VERSION};

/// The end of a collection's name.
pub(super) const SUFFIX: &str = "_event_stream";

/// The collections whose streams can get positions.
#[derive(Debug)]
pub(super) struct StreamCollections {
    context: Context,
    /// Those with an index of positions, and whether they have the index of versions too.
    ready: BTreeMap<AggregateName, bool>,
    /// Those without an index, which cannot be created; reported once.
    unusable: BTreeSet<AggregateName>,
}

impl StreamCollections {
    /// Knows no collection yet. A new one sees that an index was dropped, which a scan fails on.
    pub(super) fn new(context: Context) -> Self {
        context.forget_feed_ready();
        Self { context, ready: BTreeMap::new(), unusable: BTreeSet::new() }
    }

    /// Those with an index of positions.
    pub(super) fn ready(&self) -> impl Iterator<Item = &AggregateName> {
        self.ready.keys()
    }

    /// The number of those that cannot be used.
    pub(super) fn unusable(&self) -> usize {
        self.unusable.len()
    }

    pub(super) fn is_ready(&self, name: &AggregateName) -> bool {
        self.ready.contains_key(name)
    }

    /// Whether MongoDB can find versions by an index. Postrider creates it with the collection; in one of
    /// another program it may be missing, and then each lookup is a scan.
    pub(super) fn is_indexed_by_version(&self, name: &AggregateName) -> bool {
        self.ready.get(name).copied().unwrap_or(false)
    }

    /// Finds the collections, and creates missing indexes of positions. Returns the names that are new.
    ///
    /// A collection without the index is reported, and stops no other one.
    pub(super) async fn discover(&mut self) -> Result<Vec<AggregateName>, StoreError> {
        let found = aggregate_names(&self.context).await?;
        if self.ready.keys().any(|name| !found.contains(name)) {
            // A collection that is created again has no index.
            self.context.forget_feed_ready();
        }
        self.ready.retain(|name, _| found.contains(name));
        self.unusable.retain(|name| found.contains(name));
        let mut new = Vec::new();
        for name in found {
            match self.ready.get_mut(&name) {
                Some(true) => continue,
                Some(is_indexed) => {
                    *is_indexed = has_version_index(&self.context, &name).await?;
                    continue;
                }
                None => {}
            }
            match self.context.feed_ready(name.as_str()).await {
                Ok(()) => {
                    self.unusable.remove(&name);
                    let is_indexed = has_version_index(&self.context, &name).await?;
                    self.ready.insert(name.clone(), is_indexed);
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

/// The fields of the index of versions.
pub(super) fn version_keys() -> Document {
    doc! { AGGREGATE_ID: 1, VERSION: 1 }
}

async fn has_version_index(context: &Context, name: &AggregateName) -> Result<bool, StoreError> {
    let streams = context.collection(CollectionKind::Events, name.as_str());
    let listing = async { streams.list_indexes().await?.try_collect::<Vec<IndexModel>>().await };
    let found = within("list the indexes of a stream", limits::BATCH_TIMEOUT, listing).await;
    let found = match found {
        Ok(found) => found,
        // Without the right to ask: the same queries, planned by MongoDB.
        Err(error) if error.is_permanent() => return Ok(false),
        Err(error) => return Err(error),
    };
    let is_of_all = |index: &IndexModel| {
        let options = index.options.as_ref();
        options.is_none_or(|options| options.partial_filter_expression.is_none())
    };
    Ok(found.iter().any(|index| index.keys == version_keys() && is_of_all(index)))
}

/// The aggregate names of all event streams.
pub(crate) async fn aggregate_names(
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
