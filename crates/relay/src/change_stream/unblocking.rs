//! The stream of changes after which a dead record may no longer block its key.
//!
//! A deletion names only the `_id`, and the server cannot know which of them mattered: the stream also
//! passes those of delivered records, after their retention. So it is open only while many keys are
//! blocked, apart from the stream that carries the records, whose events must not wait behind these.

use std::time::Duration;

use bson::raw::RawDocument;
use bson::{Bson, Document, Timestamp, doc};
use postrider_outbox::collections::Collections;
use postrider_outbox::fields::{BLOCKS, DEAD, ID, KEY, LEASE_ID, STATUS};
use postrider_outbox::ids::RecordId;
use postrider_store::StoreError;

use crate::change_stream::cursor::{EventCursor, Reading, broken};

/// The stream is read at intervals: a waiting `getMore` would be evaluated at each write. The reply comes at
/// once, with up to 1.5 MB.
const READING: Reading = Reading { max_await: Duration::from_millis(1), batch_size: 5_000 };

/// An open stream of such changes.
pub(crate) struct Unblockings {
    cursor: EventCursor,
    /// The latest event.
    read_until: Timestamp,
}

impl Unblockings {
    /// Opens the stream: it shows every such change that a later snapshot does not show.
    pub(crate) async fn open(collections: &Collections) -> Result<Self, StoreError> {
        let cursor = EventCursor::open(collections, stages(), READING).await?;
        let read_until = cursor.opened_at();
        Ok(Self { cursor, read_until })
    }

    /// Returns the ids of records that have changed since.
    pub(crate) async fn next(&mut self) -> Result<Vec<RecordId>, StoreError> {
        let events = self.cursor.next(read).await?;
        let mut ids = Vec::with_capacity(events.len());
        for event in events {
            let (id, at) = event.ok_or_else(|| broken("an event has no record".to_owned()))?;
            self.read_until = self.read_until.max(at);
            ids.push(id);
        }
        Ok(ids)
    }

    /// Returns the time of the latest event: a snapshot that does not show it says nothing.
    pub(crate) fn read_until(&self) -> Timestamp {
        self.read_until
    }
}

fn stages() -> Vec<Document> {
    const REMOVED: &str = "updateDescription.removedFields";
    let changed = |name: &str| format!("updateDescription.updatedFields.{name}");
    // A settlement changes the status too, and ends a lease: a dead record has none.
    let left_dead = doc! {
        changed(STATUS): { "$exists": true, "$ne": DEAD },
        REMOVED: { "$ne": LEASE_ID },
    };
    let updated = doc! {
        "operationType": "update",
        "$or": [
            left_dead,
            { changed(BLOCKS): { "$exists": true, "$ne": true } },
            { changed(KEY): { "$exists": true } },
            { REMOVED: { "$in": [BLOCKS, KEY] } },
        ],
    };
    let gone = doc! { "operationType": { "$in": ["delete", "replace"] } };
    vec![
        doc! { "$match": { "$or": [gone, updated] } },
        doc! { "$project": { "clusterTime": 1, "documentKey": 1 } },
    ]
}

fn read(event: Option<&RawDocument>) -> Option<(RecordId, Timestamp)> {
    let event = event?;
    let id = event.get_document("documentKey").ok()?.get(ID);
    // One that cannot be read is null, as in a record.
    let id = id.ok().flatten().and_then(|id| Bson::try_from(id).ok()).unwrap_or(Bson::Null);
    Some((RecordId::from(id), event.get_timestamp("clusterTime").ok()?))
}

#[cfg(test)]
mod tests {
    use bson::raw::RawDocumentBuf;

    use super::*;

    const AT: Timestamp = Timestamp { time: 9, increment: 1 };

    /// One that is not UTF-8 is null, as in a record: it must not end the stream.
    #[test]
    fn event_names_its_record_or_null_if_its_id_is_unreadable() {
        for (id, expected) in [("a", Bson::from("a")), ("MARK", Bson::Null)] {
            let event = doc! { "clusterTime": AT, "documentKey": { "key": "k", "_id": id } };
            let mut bytes = RawDocumentBuf::try_from(&event).unwrap().into_bytes();
            if let Some(at) = bytes.windows(4).position(|four| four == b"MARK") {
                bytes[at] = 0xff;
            }
            let event = RawDocumentBuf::from_bytes(bytes).unwrap();

            assert_eq!(read(Some(&event)), Some((RecordId::from(expected), AT)));
        }
        let nameless = RawDocumentBuf::try_from(&doc! { "clusterTime": AT }).unwrap();
        assert_eq!(read(Some(&nameless)), None);
    }
}
