//! Searches the collections of a context for settings of others by which documents are lost.

use bson::doc;
use postrider_store::schema::index::Index;
use postrider_store::schema::{Hazards, SchemaError};
use postrider_store::{StoreError, limits, within};

use crate::context::{CollectionKind, Context, guard};
use crate::schema::{indexes, plainly};
use crate::subscriptions::{PARKED_EVENTS, SUBSCRIPTIONS};
use crate::{ending, feed};

/// The collections of a context, next to those of its aggregates and keys.
const OTHERS: [&str; 5] =
    [SUBSCRIPTIONS, PARKED_EVENTS, feed::COLLECTION, ending::COLLECTION, guard::COLLECTION];

/// Searches the event streams, snapshots, prepare keys and subscriptions of a context for hazards.
/// Changes nothing.
///
/// # Errors
///
/// [`StoreError`], except for missing privileges, which the result names.
pub async fn hazards(context: &Context) -> Result<Hazards, StoreError> {
    let mut hazards = Hazards::default();
    for kind in CollectionKind::ALL {
        match hazards_of(context, kind).await {
            Ok(found) => hazards.extend(found),
            Err(error) if error.is_refusal() => {
                hazards.unlisted.push(format!("database {}", context.settings().database(kind)));
            }
            Err(error) => return Err(error),
        }
    }
    hazards.unlisted.dedup();
    Ok(hazards)
}

async fn hazards_of(context: &Context, kind: CollectionKind) -> Result<Hazards, StoreError> {
    let settings = context.settings();
    let with_indexes = |collection: String| -> (String, Vec<&'static Index>) {
        (collection, indexes(kind, settings.request_ids, settings.feed))
    };
    let collections: Vec<_> = match kind {
        CollectionKind::Events => {
            let streams = feed::aggregate_names(context).await?;
            let streams = streams.iter().map(|name| with_indexes(kind.collection(name.as_str())));
            streams.chain(OTHERS.map(|name| (name.to_owned(), Vec::new()))).collect()
        }
        // Other collections may have such names too.
        CollectionKind::Snapshots => {
            let streams = feed::aggregate_names(context).await?;
            streams.iter().map(|name| with_indexes(kind.collection(name.as_str()))).collect()
        }
        CollectionKind::Prepare => {
            prepare_keys(context).await?.into_iter().map(with_indexes).collect()
        }
    };
    plainly(context.database(kind), kind, collections).hazards().await
}

/// The collections of prepare keys: those that have their index.
async fn prepare_keys(context: &Context) -> Result<Vec<String>, StoreError> {
    let kind = CollectionKind::Prepare;
    let prefix = kind.collection("");
    let filter = doc! { "type": "collection", "name": { "$regex": format!("^{prefix}") } };
    let database = context.database(kind);
    let listing = database.list_collection_names().filter(filter);
    let found = within("list the prepare keys", limits::BATCH_TIMEOUT, listing).await?;
    let mut ours = Vec::new();
    for collection in found {
        let expected = indexes(kind, context.settings().request_ids, false);
        let expected = expected.into_iter().filter(|index| index.expiry.is_some()).collect();
        let layout = plainly(context.database(kind), kind, vec![(collection.clone(), expected)]);
        match layout.verify().await {
            Ok(differences) if differences.is_empty() => ours.push(collection),
            Err(SchemaError::Store(error)) if !error.is_refusal() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(ours)
}
