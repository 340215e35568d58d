//! The records that subscriptions have made of appends, for the erasure of their content.
//!
//! A worker may have read a page before its events were emptied, and copy it afterwards. So an erasure
//! first empties the events, then counts itself in the documents of the subscriptions that may hold such a
//! page, and then looks for records. Every transaction that copies events writes that document first. One
//! that was before the count has committed, and left records that the erasure finds. One that is behind it
//! sees the count, and reads which events are empty by now.

use postrider_store::StoreError;
use uuid::Uuid;

use crate::context::Context;
use crate::names::AggregateName;
use crate::subscriptions::records::copy_ids;
use crate::subscriptions::store::SubscriptionStore;
use crate::subscriptions::subscription::{Subscription, SubscriptionKind};

/// The ids of all records that the push subscriptions of a context may have made of these appends: each
/// the id of a stream document, and the number of its events. Deleted subscriptions are not known.
///
/// # Errors
///
/// [`StoreError`].
pub(crate) async fn copies_of(
    context: &Context,
    appends: &[(String, i64)],
) -> Result<Vec<Uuid>, StoreError> {
    let found = SubscriptionStore::new(context).all().await?;
    let found = found.into_iter().collect::<Result<Vec<Subscription>, _>>()?;
    let pushed = found.iter().filter(|one| one.kind == SubscriptionKind::Push);
    let ids = pushed.flat_map(|one| {
        appends.iter().flat_map(move |(stream_id, events)| copy_ids(one, stream_id, *events))
    });
    Ok(ids.collect())
}

/// Ends what push subscriptions have read of emptied events, up to a position of the feed: they read them
/// again before they copy them.
///
/// # Errors
///
/// [`StoreError`].
pub(crate) async fn count_erasure(
    context: &Context,
    name: &AggregateName,
    position: i64,
) -> Result<(), StoreError> {
    SubscriptionStore::new(context).count_erasure(name.as_str(), position).await
}
