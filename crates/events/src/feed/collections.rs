//! The collections of event streams that exist, and their index of positions.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, doc};
use postrider_store::schema::{SchemaError, list_indexes};
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, within};
use tracing::warn;

use crate::context::{CollectionKind, Context};
use crate::integer::integral;
use crate::names::AggregateName;
use crate::stream::fields::{AGGREGATE_ID, VERSION};

/// The end of a collection's name.
pub(super) const SUFFIX: &str = "_event_stream";

/// The collections whose streams can get positions.
#[derive(Debug)]
pub(super) struct StreamCollections {
    context: Context,
    /// Those with an index of positions, and the name of their index of versions.
    ready: BTreeMap<AggregateName, Option<String>>,
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

    /// The index by which MongoDB can find versions. Postrider creates it with the collection; in one of
    /// another program it may be missing, and then each lookup is a scan.
    pub(super) fn version_index(&self, name: &AggregateName) -> Option<&str> {
        self.ready.get(name)?.as_deref()
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
                Some(Some(_)) => continue,
                Some(index) => {
                    *index = version_index(&self.context, &name).await?;
                    continue;
                }
                None => {}
            }
            match self.context.feed_ready(name.as_str()).await {
                Ok(()) => {
                    self.unusable.remove(&name);
                    let index = version_index(&self.context, &name).await?;
                    self.ready.insert(name.clone(), index);
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

/// Returns the name of an index that finds the versions of every stream.
async fn version_index(
    context: &Context,
    name: &AggregateName,
) -> Result<Option<String>, StoreError> {
    let database = context.database(CollectionKind::Events);
    let collection = CollectionKind::Events.collection(name.as_str());
    let found = match list_indexes(&database, &collection).await {
        Ok(found) => found,
        // Without the right to ask, or with one that cannot be decoded: the same queries, planned by MongoDB.
        Err(error) if error.is_permanent() => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_usable = |index: &&Document| {
        let has = |option: &str| index.contains_key(option);
        let is_hidden = index.get_bool("hidden").unwrap_or(false);
        is_of_versions(index) && !is_hidden && !has("partialFilterExpression") && !has("collation")
    };
    let index = found.iter().find(is_usable);
    Ok(index.and_then(|index| index.get_str("name").ok()).map(str::to_owned))
}

fn is_of_versions(index: &Document) -> bool {
    let Ok(keys) = index.get_document("key") else { return false };
    // Other programs store the directions as doubles.
    let ascending = keys.iter().all(|(_, direction)| integral(direction) == Some(1));
    ascending && keys.keys().eq([AGGREGATE_ID, VERSION])
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
