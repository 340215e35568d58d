//! The erasures that are not complete, as subscriptions see them.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use postrider_store::{StoreError, connect, limits, within};

use crate::context::{CollectionKind, Context};
use crate::stream::fields::ID;

/// The collection of the work documents of erasures, in the database of the events.
pub const COLLECTION: &str = "postrider_erasures";

/// The names of the invalid subscriptions for which an erasure waits.
pub(crate) const INVALID: &str = "invalidSubscriptions";

/// The most erasures that are named.
const MAX_NAMED: i64 = 20;

/// The first erasures that wait for an invalid subscription, by the ids of their work documents.
///
/// # Errors
///
/// [`StoreError`].
pub(crate) async fn erasures_waiting_for(
    context: &Context,
    subscription: &str,
) -> Result<Vec<String>, StoreError> {
    let database = context.database(CollectionKind::Events);
    let works = connect::collection(&database, COLLECTION);
    let finding = works.find(doc! { INVALID: subscription });
    let finding = finding.projection(doc! { ID: 1 }).sort(doc! { ID: 1 }).limit(MAX_NAMED);
    let reading = async { finding.await?.try_collect::<Vec<Document>>().await };
    let found = within("read open erasures", limits::BATCH_TIMEOUT, reading).await?;
    Ok(found.iter().filter_map(|found| found.get_str(ID).ok()).map(str::to_owned).collect())
}
