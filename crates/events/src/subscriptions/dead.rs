//! The dead records of a push subscription: its parked events.

use bson::{Bson, DateTime, Document, doc};
use mongodb::options::Hint;
use postrider_outbox::brief::{brief, with_beginnings};
use postrider_outbox::collections::Collections;
use postrider_outbox::fields::{DEAD, DEAD_AT, DEAD_REASON, HEADERS, ID, STATUS, TYPE, exactly};
use postrider_outbox::ids::RecordId;
use postrider_outbox::inspect::DEAD_INDEX;
use postrider_store::page::{Gathered, PageSize};
use postrider_store::{StoreError, limits, within};

use crate::decode::decode_any;
use crate::integer::integral;
use crate::subscriptions::parked::{ParkedEvent, ParkedPage, page_of};
use crate::subscriptions::records::header;

/// Dead records of one position in a list: a replay copies an event again.
const MAX_AT_POSITION: u32 = 100;

/// The events behind a position whose records are dead, ascending.
///
/// A replay may have copied an event twice, so the last position is complete, whatever the size.
pub(super) async fn dead_events(
    outbox: &Collections,
    subscription: &str,
    after: i64,
    size: PageSize,
) -> Result<ParkedPage, StoreError> {
    let found = find(outbox, subscription, doc! { "$gt": after }, size).await?;
    let mut page = ParkedPage { events: events(&found), next: None, note: None };
    let last = page.events.last().map(|event| event.position);
    if let Some(last) = last.filter(|_| found.is_full) {
        page.events.retain(|event| event.position < last);
        let most = PageSize::of_answer(MAX_AT_POSITION);
        let at_last = find(outbox, subscription, doc! { "$eq": last }, most).await?;
        page.events.extend(events(&at_last));
        page.note = at_last.is_full.then(|| {
            let listed = at_last.documents.len();
            format!(
                "position {last} has more than {listed} dead records, of which {listed} are listed; \
                 list all with `postrider outbox list --status dead`"
            )
        });
        let behind = find(outbox, subscription, doc! { "$gt": last }, PageSize::of_answer(1));
        page.next = (!behind.await?.documents.is_empty()).then_some(last);
    }
    Ok(page)
}

async fn find(
    outbox: &Collections,
    subscription: &str,
    position: Document,
    size: PageSize,
) -> Result<Gathered, StoreError> {
    let header = |name: &str| format!("{HEADERS}.{name}");
    let at = header(header::POSITION);
    let filter = doc! {
        STATUS: exactly(DEAD),
        header(header::SUBSCRIPTION): exactly(subscription),
        &at: position,
    };
    let headers = [
        header::POSITION,
        header::AGGREGATE_NAME,
        header::AGGREGATE_ID,
        header::AGGREGATE_VERSION,
        header::EVENT_INDEX,
    ];
    let fields = [TYPE, DEAD_AT, DEAD_REASON].map(str::to_owned).into_iter();
    let fields: Vec<String> = fields.chain(headers.map(header)).collect();
    let records = outbox.records();
    let found = with_beginnings(|long| {
        let fields = fields.iter().map(|field| (field.clone(), brief(field, long).into()));
        let finding = records
            .find(filter.clone())
            .projection(Document::from_iter(fields))
            .sort(doc! { &at: 1, ID: 1 })
            .hint(Hint::Name(DEAD_INDEX.to_owned()));
        within("read dead records", limits::REPORT_TIMEOUT, page_of(finding, size))
    });
    outbox.by_index(DEAD_INDEX, found).await
}

fn events(found: &Gathered) -> Vec<ParkedEvent> {
    found.documents.iter().map(|found| parked(&decode_any(found).0)).collect()
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
