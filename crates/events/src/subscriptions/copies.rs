//! The records that subscriptions have made of appends, for the erasure of their content.

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
