//! Where the copying of documents begins.

use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use postrider_outbox::ids::RecordId;
use postrider_store::{StoreError, limits, within};

use crate::bridge::Bridge;
use crate::report::AdoptError;
use crate::source::{Source, StartPoint};

impl Bridge {
    /// Behind which document a scan begins; documents without a status need one.
    pub(crate) async fn behind(
        &self,
        from: Option<&StartPoint>,
    ) -> Result<Option<Bson>, AdoptError> {
        match from {
            Some(StartPoint::Id(id)) => self.id_of(id).await.map(Some),
            _ if self.mapping.has_state() => Ok(None),
            _ => Err(AdoptError::NoDocument { collection: self.mapping.source() }),
        }
    }

    pub(crate) async fn id_of(&self, id: &str) -> Result<Bson, AdoptError> {
        let found = self.source.id_of(id).await?;
        found.map_err(|detail| AdoptError::WrongStart { start: id.to_owned(), detail })
    }

    /// The first cluster time of this time.
    pub(crate) async fn start_at(&self, time: DateTime) -> Result<Timestamp, AdoptError> {
        self.clock.keep_fresh(self.outbox.database()).await?;
        let now = self.clock.now();
        if time <= now {
            return Ok(at_time(time));
        }
        let shown = |time: DateTime| time.try_to_rfc3339_string().unwrap_or_default();
        let detail = format!(
            "lies in the future (it is {} by MongoDB's clock), so that nothing would be copied until then; write now, or \
             when the last message arrived",
            shown(now)
        );
        Err(AdoptError::WrongStart { start: shown(time), detail })
    }
}

impl Source {
    /// The `_id` that this text means. Several types have the same text: the one that a document has, else the one that the
    /// source's ids have.
    pub(crate) async fn id_of(&self, text: &str) -> Result<Result<Bson, String>, StoreError> {
        let candidates: Vec<Bson> =
            RecordId::parse_candidates(text).iter().map(Bson::from).collect();
        let found = self.ids(doc! { "_id": { "$in": &candidates } }, 1).await?;
        match found.as_slice() {
            [_] | [] => {}
            _ => {
                let detail = "documents with an _id of several types have this text; write uuid:, oid:, int: or str: \
                              before it";
                return Ok(Err(detail.to_owned()));
            }
        }
        let mut used = self.ids(doc! {}, 1).await?;
        used.extend(self.ids(doc! {}, -1).await?);
        // MongoDB compares ids of one type only.
        if let Some(first) = used.first()
            && let Some(other) = used.iter().find(|id| !is_alike(first, id))
        {
            let shown = |id: &Bson| RecordId::from(id.clone()).to_string();
            let detail = format!(
                "the ids of {} have several types (such as {} and {}), and only those of one can be compared with \
                 this; write now or a time",
                self.documents.name(),
                shown(first),
                shown(other),
            );
            return Ok(Err(detail));
        }
        if let [found] = found.as_slice() {
            return Ok(Ok(found.clone()));
        }
        // It may be deleted.
        let is_forced = candidates.len() == 1 && text.contains(':');
        let fitting = candidates.iter().find(|candidate| {
            let is_text = matches!(candidate, Bson::String(_));
            used.iter().all(|id| is_alike(id, candidate)) && (is_forced || !is_text)
        });
        Ok(fitting.cloned().ok_or_else(|| {
            let example = used.first().map(|id| RecordId::from(id.clone()).to_string());
            let example = example.map(|id| format!(" (one of them is {id})")).unwrap_or_default();
            format!(
                "no document has this _id, nor are the ids of {} of its type{example}; write now, a time such as \
                 2026-01-31T12:00:00Z, or the _id of the last message that arrived, with str: before a text whose \
                 document is deleted",
                self.documents.name()
            )
        }))
    }

    /// The first ids of two types that match, in this order.
    async fn ids(&self, filter: Document, order: i32) -> Result<Vec<Bson>, StoreError> {
        let documents = self.documents.clone_with_type::<Document>();
        let reading = async {
            let finding = documents.find(filter).projection(doc! { "_id": 1 });
            finding.sort(doc! { "_id": order }).limit(2).await?.try_collect().await
        };
        let action = "read the ids of the other outbox";
        let found: Vec<Document> = within(action, limits::BATCH_TIMEOUT, reading).await?;
        Ok(found.into_iter().filter_map(|mut found| found.remove("_id")).collect())
    }
}

/// Whether MongoDB compares both ids by value, not by their types.
fn is_alike(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Int32(_) | Bson::Int64(_), Bson::Int32(_) | Bson::Int64(_)) => true,
        (Bson::Binary(one), Bson::Binary(other)) => one.subtype == other.subtype,
        (one, other) => one.element_type() == other.element_type(),
    }
}

/// The first cluster time of a second.
fn at_time(time: DateTime) -> Timestamp {
    let time = u32::try_from(time.timestamp_millis() / 1_000).unwrap_or(0);
    Timestamp { time, increment: 1 }
}
