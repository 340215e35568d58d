//! What the transaction of an end writes in addition to its stream and its record.

use bson::{Document, doc};
use mongodb::ClientSession;
use postrider_store::{StoreError, limits, within};

use super::work::NewWork;
use crate::context::{CollectionKind, Context};
use crate::names::AggregateId;
use crate::open_erasures::COLLECTION;
use crate::prepared::{Place, PreparedAppend};
use crate::snapshot::mark_ended;
use crate::state::EndKind;
use crate::stream::fields::ID;

/// Marks the snapshot as deleted, and empties it and inserts the work document for an erasure.
pub(crate) async fn write(
    session: &mut ClientSession,
    context: &Context,
    append: &PreparedAppend,
    place: Place,
    ending: EndKind,
) -> Result<(), StoreError> {
    let (name, id) = (&append.append.name, &append.append.id);
    let erases = matches!(ending, EndKind::Erase(_));
    // Handles without concerns: those are the transaction's.
    let database =
        context.client().database(context.settings().database(CollectionKind::Snapshots));
    let snapshots =
        database.collection::<Document>(&CollectionKind::Snapshots.collection(name.as_str()));
    let marking = snapshots.update_one(with_id(id), mark_ended(place.version, erases));
    let marking = marking.session(&mut *session);
    let marked =
        within("mark the snapshot of an ended stream", limits::BATCH_TIMEOUT, marking).await?;
    let EndKind::Erase(pending) = ending else { return Ok(()) };
    let work = NewWork {
        name,
        id,
        stream_id: append.id.to_string(),
        version: place.version,
        pending,
        snapshot: marked.matched_count > 0,
        time: place.create_time,
    };
    let document = work.document();
    let database = context.client().database(context.settings().database(CollectionKind::Events));
    let works = database.collection::<Document>(COLLECTION);
    let filter = doc! { ID: document.get(ID) };
    // Not an insertion: a restored database may have an old one.
    let replacing = works.replace_one(filter, document).upsert(true).session(&mut *session);
    within("start an erasure", limits::BATCH_TIMEOUT, replacing).await?;
    Ok(())
}

fn with_id(id: &AggregateId) -> Document {
    doc! { ID: id.as_str() }
}
