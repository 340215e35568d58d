//! The dead records of a push subscription: its parked events.

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;
use postrider_outbox::collections::Collections;
use postrider_outbox::fields::{DEAD, DEAD_AT, DEAD_REASON, HEADERS, ID, STATUS, TYPE, exactly};
use postrider_outbox::ids::RecordId;
use postrider_outbox::inspect::DEAD_INDEX;
use postrider_store::{StoreError, limits, within};

use crate::decode::decode_any;
use crate::integer::integral;
use crate::subscriptions::parked::ParkedEvent;
use crate::subscriptions::records::header;

/// The events behind a position whose records are dead, ascending.
///
/// A replay may have copied an event twice, so the last position is complete, whatever the limit.
pub(super) async fn dead_events(
    outbox: &Collections,
    subscription: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<ParkedEvent>, StoreError> {
    let mut events = find(outbox, subscription, doc! { "$gt": after }, limit).await?;
    if events.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
        && let Some(last) = events.last().map(|event| event.position)
    {
        events.retain(|event| event.position < last);
        events.extend(find(outbox, subscription, doc! { "$eq": last }, 0).await?);
    }
    Ok(events)
}

async fn find(
    outbox: &Collections,
    subscription: &str,
    position: Document,
    limit: i64,
) -> Result<Vec<ParkedEvent>, StoreError> {
    let at = format!("{HEADERS}.{}", header::POSITION);
    let filter = doc! {
        STATUS: exactly(DEAD),
        format!("{HEADERS}.{}", header::SUBSCRIPTION): exactly(subscription),
        &at: position,
    };
    let records = outbox.records();
    let finding = records
        .find(filter)
        .projection(doc! { TYPE: 1, HEADERS: 1, DEAD_AT: 1, DEAD_REASON: 1 })
        .sort(doc! { at: 1, ID: 1 })
        .limit(limit)
        .hint(Hint::Name(DEAD_INDEX.to_owned()));
    let reading = async { finding.await?.try_collect().await };
    let reading = within("read dead records", limits::REPORT_TIMEOUT, reading);
    let found: Vec<RawDocumentBuf> = outbox.by_index(DEAD_INDEX, reading).await?;
    Ok(found.iter().map(|found| parked(&decode_any(found).0)).collect())
}

fn parked(record: &Document) -> ParkedEvent {
    let headers = record.get_document(HEADERS).ok();
    let header = |name: &str| headers.and_then(|headers| headers.get(name));
    let number = |name| header(name).and_then(integral).unwrap_or_default();
    let text = |name| header(name).and_then(Bson::as_str).unwrap_or_default().to_owned();
    let own = |name| record.get_str(name).unwrap_or_default().to_owned();
    let dead_at = record.get_datetime(DEAD_AT);
    ParkedEvent {
        position: number(header::POSITION),
        aggregate_name: text(header::AGGREGATE_NAME),
        aggregate_id: text(header::AGGREGATE_ID),
        version: number(header::AGGREGATE_VERSION),
        index: number(header::EVENT_INDEX),
        name: own(TYPE),
        reason: own(DEAD_REASON),
        parked_at: dead_at.map_or(0, |at| DateTime::timestamp_millis(*at)),
        member: None,
        record_id: record.get(ID).cloned().map(|id| RecordId::from(id).to_string()),
    }
}
