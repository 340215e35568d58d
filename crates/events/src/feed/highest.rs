//! The highest position that is stored.

use bson::doc;
use mongodb::options::Hint;
use postrider_store::{StoreError, limits, within};

use crate::context::{CollectionKind, Context};
use crate::feed::collections::StreamCollections;
use crate::integer::integral;
use crate::names::AggregateName;
use crate::schema::POSITION as INDEX;
use crate::stream::fields::{ID, POSITION};

/// Reads the highest position of all collections, by their indexes; 0 where there is none. Also returns
/// the names of the collections.
pub(super) async fn highest_position(
    context: &Context,
) -> Result<(i64, Vec<AggregateName>), StoreError> {
    let mut collections = StreamCollections::new(context.clone());
    collections.discover().await?;
    let mut highest = 0;
    for name in collections.ready() {
        let streams = context.collection(CollectionKind::Events, name.as_str());
        let finding = streams
            .find_one(doc! {})
            .sort(doc! { POSITION: -1 })
            .projection(doc! { POSITION: 1, ID: 0 })
            .hint(Hint::Name(INDEX.name.to_owned()));
        let found = within("read the last position", limits::REPORT_TIMEOUT, finding).await?;
        let position = found.as_ref().and_then(|found| integral(found.get(POSITION)?));
        highest = highest.max(position.unwrap_or(0));
    }
    Ok((highest, collections.ready().cloned().collect()))
}
