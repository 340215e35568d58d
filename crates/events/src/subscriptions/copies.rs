//! The records that subscriptions have made of appends, for the erasure of their content.
//!
//! A worker may have read a page before its events were emptied, and copy it afterwards. So an erasure
//! first empties the events, then ends the epoch of each owner that may hold such a page, and then looks
//! for records. A transaction of that epoch that has committed before has left records that it finds; a
//! later one finds another epoch, and the next owner reads empty events.

use postrider_store::StoreError;
use uuid::Uuid;

use crate::context::Context;
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

/// Ends the epoch of the push subscriptions that have not copied all up to a position of the feed. What they
/// have read of events up to there is not copied any more: they read it again.
///
/// Others have no such page: a replay begins an epoch of its own.
///
/// # Errors
///
/// [`StoreError`].
pub(crate) async fn forget_pages_up_to(context: &Context, position: i64) -> Result<(), StoreError> {
    SubscriptionStore::new(context).end_epochs_behind(position).await
}
