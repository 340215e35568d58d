//! The documents that changed since a time.
//!
//! A scan reads while producers commit. Of two documents of a key that are committed meanwhile it may see the later one
//! alone, and would copy it before the earlier one. So the scan leaves every document that was inserted since its
//! beginning, or got another status, to the change stream, which has the order of the commits. A document of which
//! another field changed was there before, and has its place in the scan.

use std::collections::HashSet;
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Document, Timestamp};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use postrider_store::{StoreError, limits, within};

use crate::ids::IdKey;
use crate::source::Source;

const ACTION: &str = "read what changed in the other outbox";

/// How long MongoDB waits for a change before it answers that there is none.
const MAX_AWAIT: Duration = Duration::from_millis(5);

/// The ids of the documents that were inserted since a time, or got another status.
pub(crate) struct ChangedSince<'a> {
    source: &'a Source,
    stream: ChangeStream<Document>,
    ids: HashSet<IdKey>,
}

impl<'a> ChangedSince<'a> {
    /// Opens the change stream at this time.
    pub(crate) async fn open(source: &'a Source, start: Timestamp) -> Result<Self, StoreError> {
        let stream = source.watch_ids(start, MAX_AWAIT).await?;
        Ok(Self { source, stream, ids: HashSet::new() })
    }

    /// Reads until every change that was committed before this call is known.
    pub(crate) async fn catch_up(&mut self) -> Result<(), StoreError> {
        let now = self.source.operation_time().await?;
        loop {
            let next = async { self.stream.next_if_any().await };
            let change: Option<Document> = within(ACTION, limits::BATCH_TIMEOUT, next).await?;
            if let Some(change) = change {
                if self.source.is_new(&change)
                    && let Some(id) =
                        change.get_document("documentKey").ok().and_then(|key| key.get("_id"))
                {
                    self.ids.insert(IdKey::of(id));
                }
                continue;
            }
            let broken =
                |detail: &str| StoreError::Answer { action: ACTION, detail: detail.to_owned() };
            if !self.stream.is_alive() {
                return Err(broken("the collection was dropped or renamed"));
            }
            let token = self.stream.resume_token();
            let passed = token.as_ref().and_then(time_of);
            if passed.ok_or_else(|| broken("the resume token shows no time"))? >= now {
                return Ok(());
            }
        }
    }

    /// Whether a document changed.
    pub(crate) fn contains(&self, document: &RawDocumentBuf) -> bool {
        !self.ids.is_empty() && self.ids.contains(&IdKey::of_document(document))
    }
}

/// The time in a resume token: `{_data: "82…"}` is the hexadecimal form of a key of MongoDB's (`KeyString`), whose first
/// part is the cluster time: the byte 0x82 for the type, then seconds and increment.
fn time_of(token: &ResumeToken) -> Option<Timestamp> {
    let token = bson::serialize_to_bson(token).ok()?;
    let data = token.as_document()?.get_str("_data").ok()?.strip_prefix("82")?;
    let part = |range: std::ops::Range<usize>| u32::from_str_radix(data.get(range)?, 16).ok();
    Some(Timestamp { time: part(0..8)?, increment: part(8..16)? })
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn resume_token_shows_its_time() {
        let token = doc! { "_data": "826916F5D4000000072B0429296E1404" };
        let token: ResumeToken = bson::deserialize_from_document(token).unwrap();

        assert_eq!(time_of(&token), Some(Timestamp { time: 0x6916_F5D4, increment: 7 }));
        let other: ResumeToken = bson::deserialize_from_document(doc! { "_data": "83" }).unwrap();
        assert_eq!(time_of(&other), None);
    }
}
