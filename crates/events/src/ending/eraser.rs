//! Erases the content of a stream, in pages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use postrider_outbox::collections::Collections;
use postrider_outbox::erase::RecordEraser;
use postrider_store::{StoreError, connect, failpoint, limits, within};
use tracing::{info, warn};
use uuid::Uuid;

use super::answer::{ErasureCounts, ErasureState, Progress};
use super::work::{
    ATTEMPTS, CLAIM_MILLIS, DISCARDED, DUE_AT, EMPTIED_TO, EVENTS, NewWork, RECORDS, RECORDS_TO,
    SNAPSHOT, VERSIONS, Work, counts, pending_records, work_id,
};
use crate::context::{CollectionKind, Context};
use crate::decode::{decode_any, id_text};
use crate::integer::integral;
use crate::metrics::ErasureMetrics;
use crate::names::AggregateKey;
use crate::open_erasures::{COLLECTION, INVALID};
use crate::stream::fields::{
    AGGREGATE_ID, BODY, CREATE_TIME, ERASED, ERASURE, HEADER, ID, POSITION, SIZE, VERSION,
};
use crate::stream::{count_of, record_ids};
use crate::subscriptions::{Copies, copies_of, count_erasure};

/// The appends of one page.
const PAGE_APPENDS: u32 = 100;

/// How long one attempt works before it returns. Another one continues.
const ATTEMPT_TIME: Duration = Duration::from_secs(10);

/// The longest pause between two attempts, in milliseconds; the first one is a second.
const MAX_PAUSE_MILLIS: i64 = 60_000;

/// Erases streams, and knows the erasures that are not complete.
#[derive(Clone)]
pub(super) struct Eraser {
    context: Context,
    records: RecordEraser,
    metrics: ErasureMetrics,
}

/// One append of a page.
struct ErasedAppend {
    /// The id of its document, as text.
    id: String,
    version: i64,
    size: u64,
}

impl Eraser {
    pub(super) fn new(context: Context, outbox: Collections) -> Self {
        let metrics = ErasureMetrics::new();
        Self { context, records: RecordEraser::new(outbox), metrics }
    }

    pub(super) fn metrics(&self) -> &ErasureMetrics {
        &self.metrics
    }

    /// Continues the erasure that this stream document has begun, and says how far it is.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was erased stays erased.
    pub(super) async fn advance(
        &self,
        aggregate: &AggregateKey,
        stream_id: &str,
    ) -> Result<Progress, StoreError> {
        for _ in 0..2 {
            if let Some(progress) = self.attempt(aggregate).await? {
                return Ok(progress);
            }
            // It is complete, or a restore has lost the work document.
            let streams = self.streams(aggregate);
            let finding =
                streams.find_one(doc! { ID: stream_id, AGGREGATE_ID: aggregate.1.as_str() });
            let found = within("read an erasure", limits::BATCH_TIMEOUT, finding).await?;
            let erasure = found.as_ref().and_then(|found| found.get_document(ERASURE).ok());
            let (Some(found), Some(erasure)) = (&found, erasure) else { break };
            if erasure.contains_key(VERSIONS) {
                return Ok(Progress::new(ErasureState::Complete, counts(erasure)));
            }
            self.begin_again(aggregate, stream_id, found, erasure).await?;
        }
        Err(StoreError::Answer {
            action: "read an erasure",
            detail: "the stream does not contain this erasure".to_owned(),
        })
    }

    async fn begin_again(
        &self,
        (name, id): &AggregateKey,
        stream_id: &str,
        found: &Document,
        erasure: &Document,
    ) -> Result<(), StoreError> {
        let integer = |field| found.get(field).and_then(integral).unwrap_or(0);
        let work = NewWork {
            name,
            id,
            stream_id: stream_id.to_owned(),
            version: integer(VERSION),
            pending: pending_records(erasure),
            snapshot: false,
            time: integer(CREATE_TIME),
        };
        let works = self.works();
        let filter = doc! { ID: work_id(name, id) };
        let replacing = works.replace_one(filter, work.document()).upsert(true);
        within("start an erasure", limits::BATCH_TIMEOUT, replacing).await?;
        Ok(())
    }

    /// Works on an erasure for up to [`ATTEMPT_TIME`]. `None` if it has no work document.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was erased stays erased.
    pub(super) async fn attempt(
        &self,
        aggregate: &AggregateKey,
    ) -> Result<Option<Progress>, StoreError> {
        let began = Instant::now();
        let progress = self.work(aggregate, began).await?;
        if let Some(progress) = &progress
            && progress.state != ErasureState::Complete
        {
            self.defer(aggregate, progress).await?;
        }
        Ok(progress)
    }

    async fn work(
        &self,
        aggregate: &AggregateKey,
        began: Instant,
    ) -> Result<Option<Progress>, StoreError> {
        // Bodies and headers. The work is read again after each page: another process may be at it too.
        let mut work = loop {
            let Some(work) = self.find(aggregate).await? else { return Ok(None) };
            let page = self.page(&work, work.emptied_to).await?;
            let Some(last) = page.last() else { break work };
            if began.elapsed() > ATTEMPT_TIME {
                return Ok(Some(Progress::new(ErasureState::Running, work.counts)));
            }
            self.empty(&work, last.version).await?;
            let events: u64 = page.iter().map(|append| append.size).sum();
            let added = [(VERSIONS, page.len() as u64), (EVENTS, events)];
            self.note(&work, (EMPTIED_TO, work.emptied_to, last.version), &added).await?;
            failpoint::hit("events::erased_page");
        };
        // (A subscription has read an append only if it had a position by then.)
        if let Some(position) = self.last_position(&work).await? {
            count_erasure(&self.context, &aggregate.0, position).await?;
        }
        // Records. The cursor stops at the first page in which one is left.
        let (mut cursor, mut is_passed) = (work.records_to, true);
        let (mut pending, mut invalid) = (0, BTreeSet::new());
        loop {
            let page = self.page(&work, cursor).await?;
            let Some(last) = page.last() else { break };
            if began.elapsed() > ATTEMPT_TIME {
                let (state, counts) = (ErasureState::Running, work.counts);
                return Ok(Some(Progress { state, pending, invalid, counts }));
            }
            let copies = self.copies(&page).await?;
            let erased = self.records.erase(&copies.ids, work.pending).await?;
            if erased.discarded > 0 {
                self.count_discarded(&work, erased.discarded).await?;
                work.counts.discarded += erased.discarded;
            }
            is_passed &= erased.left == 0 && copies.invalid.is_empty();
            invalid.extend(copies.invalid);
            if is_passed {
                let added = [(RECORDS, erased.emptied)];
                self.note(&work, (RECORDS_TO, cursor, last.version), &added).await?;
            }
            work.counts.records += erased.emptied;
            pending += erased.left;
            cursor = last.version;
            failpoint::hit("events::erased_records");
        }
        if pending > 0 || !invalid.is_empty() {
            let (state, counts) = (ErasureState::Waiting, work.counts);
            return Ok(Some(Progress { state, pending, invalid, counts }));
        }
        self.complete(aggregate).await
    }

    /// Writes the counts into the erasure's stream document, and removes the work document.
    async fn complete(&self, aggregate: &AggregateKey) -> Result<Option<Progress>, StoreError> {
        let Some(work) = self.find(aggregate).await? else { return Ok(None) };
        let ErasureCounts { versions, events, snapshot, records, discarded } = work.counts;
        let mut set = doc! { format!("{ERASURE}.{SNAPSHOT}"): snapshot };
        for (field, count) in
            [(VERSIONS, versions), (EVENTS, events), (RECORDS, records), (DISCARDED, discarded)]
        {
            set.insert(format!("{ERASURE}.{field}"), signed(count));
        }
        let streams = self.streams(aggregate);
        let filter = doc! { ID: &work.stream_id, AGGREGATE_ID: aggregate.1.as_str() };
        let writing = streams.update_one(filter, doc! { "$set": set });
        within("complete an erasure", limits::BATCH_TIMEOUT, writing).await?;
        let works = self.works();
        let removing = works.delete_one(work.filter());
        let removed = within("complete an erasure", limits::BATCH_TIMEOUT, removing).await?;
        if removed.deleted_count > 0 {
            self.metrics.completed();
            let (name, id) = aggregate;
            info!(
                stream = %name, aggregate = %id, version = work.version, versions, events, snapshot,
                records, discarded, "completed the erasure of a stream"
            );
        }
        Ok(Some(Progress::new(ErasureState::Complete, work.counts)))
    }

    /// The next appends of an erasure behind a version.
    async fn page(&self, work: &Work, after: i64) -> Result<Vec<ErasedAppend>, StoreError> {
        let streams = self.streams(&work.aggregate).clone_with_type::<RawDocumentBuf>();
        let filter = doc! {
            AGGREGATE_ID: work.aggregate.1.as_str(),
            VERSION: { "$gt": after, "$lt": work.version },
        };
        let finding = streams
            .find(filter)
            .sort(doc! { VERSION: 1 })
            .limit(PAGE_APPENDS.into())
            // (Not the stored size, which another program may have written.)
            .projection(doc! { ID: 1, VERSION: 1, SIZE: count_of(&format!("${BODY}")) });
        let reading = async { finding.await?.try_collect::<Vec<RawDocumentBuf>>().await };
        let found = within("read a stream to erase", limits::BATCH_TIMEOUT, reading).await?;
        let append = |raw: RawDocumentBuf| {
            let (found, _) = decode_any(&raw);
            let integer = |field| found.get(field).and_then(integral);
            ErasedAppend {
                id: id_text(&raw),
                version: integer(VERSION).unwrap_or(0),
                size: u64::try_from(integer(SIZE).unwrap_or(0)).unwrap_or(0),
            }
        };
        Ok(found.into_iter().map(append).collect())
    }

    /// The highest position of the appends of an erasure, if any has one.
    async fn last_position(&self, work: &Work) -> Result<Option<i64>, StoreError> {
        let streams = self.streams(&work.aggregate);
        let ours = doc! {
            AGGREGATE_ID: work.aggregate.1.as_str(),
            VERSION: { "$lt": work.version },
            POSITION: { "$type": ["int", "long"] },
        };
        // (Positions may not be in the order of versions: an earlier build assigned them so in streams that began
        // again.)
        let highest = doc! { ID: null, POSITION: { "$max": format!("${POSITION}") } };
        let finding = streams.aggregate([doc! { "$match": ours }, doc! { "$group": highest }]);
        let reading = async { finding.await?.try_next().await };
        let found = within("read a stream to erase", limits::BATCH_TIMEOUT, reading).await?;
        Ok(found.and_then(|found| found.get(POSITION).and_then(integral)))
    }

    /// Empties the bodies and headers of the page behind what is emptied, up to this version.
    async fn empty(&self, work: &Work, last: i64) -> Result<(), StoreError> {
        // (Not by ids, which may be no text.)
        let filter = doc! {
            AGGREGATE_ID: work.aggregate.1.as_str(),
            VERSION: { "$gt": work.emptied_to, "$lte": last },
        };
        let nothing = || doc! { "$literal": {} };
        let body = format!("${BODY}");
        let event = doc! { "$cond": [
            { "$eq": [{ "$type": "$$this" }, "object"] },
            { "$mergeObjects": ["$$this", { BODY: nothing() }] },
            nothing(),
        ] };
        let events = doc! { "$cond": [
            { "$isArray": &body },
            { "$map": { "input": &body, "in": event } },
            [],
        ] };
        let change = vec![doc! { "$set": { HEADER: nothing(), BODY: events, ERASED: true } }];
        let streams = self.streams(&work.aggregate);
        let writing = streams.update_many(filter, change);
        within("erase events", limits::BATCH_TIMEOUT, writing).await?;
        Ok(())
    }

    /// Moves a cursor of the work, and adds to its counts; nothing where another process has moved it.
    async fn note(
        &self,
        work: &Work,
        (field, from, to): (&str, i64, i64),
        added: &[(&str, u64)],
    ) -> Result<(), StoreError> {
        let mut filter = work.filter();
        filter.insert(field, from);
        let mut set = doc! { field: to, DUE_AT: { "$add": ["$$NOW", CLAIM_MILLIS] } };
        for (count, more) in added {
            set.insert(*count, doc! { "$add": [format!("${count}"), signed(*more)] });
        }
        let works = self.works();
        let writing = works.update_one(filter, vec![doc! { "$set": set }]);
        within("store the progress of an erasure", limits::BATCH_TIMEOUT, writing).await?;
        Ok(())
    }

    async fn count_discarded(&self, work: &Work, discarded: u64) -> Result<(), StoreError> {
        let works = self.works();
        let more = doc! { "$inc": { DISCARDED: signed(discarded) } };
        let writing = works.update_one(work.filter(), more);
        within("store the progress of an erasure", limits::BATCH_TIMEOUT, writing).await?;
        Ok(())
    }

    /// Stores for which invalid subscriptions an erasure waits, and the time of the next attempt: at once, or after a
    /// pause that doubles.
    async fn defer(
        &self,
        (name, id): &AggregateKey,
        progress: &Progress,
    ) -> Result<(), StoreError> {
        let is_waiting = progress.state == ErasureState::Waiting;
        for subscription in &progress.invalid {
            warn!(
                stream = %name,
                aggregate = %id,
                subscription,
                remedy = "correct the document in postrider_subscriptions, or postrider subscriptions delete",
                "an erasure waits for an invalid subscription, whose records are not known"
            );
        }
        let invalid: Vec<&String> = progress.invalid.iter().collect();
        let doubled = doc! { "$multiply": [
            1_000_i64,
            { "$pow": [2_i64, { "$min": [format!("${ATTEMPTS}"), 10] }] },
        ] };
        let pause = if is_waiting {
            Bson::from(doc! { "$min": [MAX_PAUSE_MILLIS, doubled] })
        } else {
            Bson::Int64(0)
        };
        let set = doc! {
            DUE_AT: { "$add": ["$$NOW", pause] },
            ATTEMPTS: { "$add": [format!("${ATTEMPTS}"), i32::from(is_waiting)] },
            INVALID: { "$literal": invalid },
        };
        let works = self.works();
        let writing = works.update_one(doc! { ID: work_id(name, id) }, vec![doc! { "$set": set }]);
        within("defer an erasure", limits::BATCH_TIMEOUT, writing).await?;
        Ok(())
    }

    /// Takes an erasure whose attempt is due: no other process takes it meanwhile.
    pub(super) async fn claim(&self) -> Result<Option<AggregateKey>, StoreError> {
        let due = doc! { "$expr": { "$lte": [format!("${DUE_AT}"), "$$NOW"] } };
        let taken = vec![doc! { "$set": { DUE_AT: { "$add": ["$$NOW", CLAIM_MILLIS] } } }];
        let works = self.works().clone_with_type::<RawDocumentBuf>();
        loop {
            let claiming = works.find_one_and_update(due.clone(), taken.clone());
            let claiming = claiming.sort(doc! { DUE_AT: 1 });
            let found = within("read open erasures", limits::BATCH_TIMEOUT, claiming).await?;
            let Some(found) = found else { return Ok(None) };
            if let Some(work) = Work::read(&decode_any(&found).0) {
                return Ok(Some(work.aggregate));
            }
            // (It is due again later, and so no reason not to continue the others.)
            let id = id_text(&found);
            warn!(id, "ignored an invalid document of an erasure in {COLLECTION}");
        }
    }

    /// Counts the erasures that are not complete.
    pub(super) async fn count_open(&self) -> Result<u64, StoreError> {
        let works = self.works();
        let counting = works.count_documents(doc! {});
        within("read open erasures", limits::BATCH_TIMEOUT, counting).await
    }

    /// Creates the collection of the work documents. Without the privilege, the first transaction does.
    pub(super) async fn prepare(&self) {
        let database = self.context.database(CollectionKind::Events);
        let creating =
            connect::ask(&database, "create a collection", doc! { "create": COLLECTION });
        if let Err(error) = creating.await {
            let error = postrider_store::text::chain(&error);
            tracing::debug!(error, "failed to create the collection of erasures");
        }
    }

    async fn find(&self, (name, id): &AggregateKey) -> Result<Option<Work>, StoreError> {
        let works = self.works();
        let finding = works.find_one(doc! { ID: work_id(name, id) });
        let found = within("read an erasure", limits::BATCH_TIMEOUT, finding).await?;
        Ok(found.and_then(|found| Work::read(&found)))
    }

    /// The ids of all outbox records that may have the content of these appends: their own, and those of
    /// subscriptions.
    ///
    /// No others are added: the page is empty, and no subscription copies it as it was.
    async fn copies(&self, page: &[ErasedAppend]) -> Result<Copies, StoreError> {
        let appends: Vec<(String, i64)> =
            page.iter().map(|append| (append.id.clone(), signed(append.size))).collect();
        let mut copies = copies_of(&self.context, &appends).await?;
        copies.ids.extend(records(page));
        Ok(copies)
    }

    fn works(&self) -> Collection<Document> {
        connect::collection(&self.context.database(CollectionKind::Events), COLLECTION)
    }

    fn streams(&self, (name, _): &AggregateKey) -> Collection<Document> {
        self.context.collection(CollectionKind::Events, name.as_str())
    }
}

/// The ids of the records of these appends. (Appends of other programs have none, unless their ids are
/// UUIDs.)
fn records(page: &[ErasedAppend]) -> Vec<Uuid> {
    let of_append = |append: &ErasedAppend| {
        let stream = Uuid::parse_str(&append.id).ok()?;
        Some(record_ids(&stream, usize::try_from(append.size).unwrap_or(0)))
    };
    page.iter().filter_map(of_append).flatten().collect()
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
