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
use crate::subscriptions::subscription::{InvalidSubscription, Subscription, SubscriptionKind};

/// The records that subscriptions may have made of appends.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Their ids.
    pub(crate) ids: Vec<Uuid>,
    /// The names of invalid subscriptions, whose records are not known.
    pub(crate) invalid: Vec<String>,
}

/// The records that the push subscriptions of a context may have made of these appends: each the id of a
/// stream document, and the number of its events. Deleted subscriptions are not known.
///
/// # Errors
///
/// [`StoreError`].
pub(crate) async fn copies_of(
    context: &Context,
    appends: &[(String, i64)],
) -> Result<Copies, StoreError> {
    let mut copies = Copies::default();
    for found in SubscriptionStore::new(context).all().await? {
        let (uid, replay) = match found {
            Ok(Subscription { kind: SubscriptionKind::Pull, .. })
            | Err(InvalidSubscription { kind: Some(SubscriptionKind::Pull), .. }) => continue,
            Ok(Subscription { uid, replay, .. })
            // (Its other fields have no part in the ids.)
            | Err(InvalidSubscription {
                kind: Some(SubscriptionKind::Push),
                uid: Some(uid),
                replay: Some(replay),
                ..
            }) => (uid, replay),
            Err(InvalidSubscription { name, .. }) => {
                copies.invalid.push(name);
                continue;
            }
        };
        for (stream_id, events) in appends {
            copies.ids.extend(copy_ids(&uid, replay, stream_id, *events));
        }
    }
    Ok(copies)
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
