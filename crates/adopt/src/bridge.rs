//! The loop: own, scan, follow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document};
use futures_util::StreamExt;
use mongodb::ClientSession;
use mongodb::change_stream::event::ResumeToken;
use postrider_outbox::collections::{Collections, names};
use postrider_outbox::fields::ID;
use postrider_store::text::chain;
use postrider_store::{ServerClock, StoreError, limits, within};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::copy::{self, Copier, CopyOutcome};
use crate::mapping::Mapping;
use crate::metrics::AdoptMetrics;
use crate::read::{Candidate, LeftDocument, LeftReason, ReadOutcome, read};
use crate::source::{
    self, Source, SourceChange, SourceStream, StartPoint, StreamStart, change, is_lost,
};
use crate::state::{BridgeStore, LEASE};

/// The pause of a process that may not copy, until it asks again.
const STANDBY_PAUSE: Duration = Duration::from_secs(2);

/// The pause after an error.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// How often the transactions of a batch may fail.
const MAX_FAILURES: u32 = 20;

/// The most documents that a report lists.
const MAX_LISTED: usize = 1_000;

/// Why the bridge ended.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Of MongoDB.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Documents without a status may be missing.
    #[error(
        "the place in the change stream of {collection} is lost, and its documents have no status: what was inserted \
         since then cannot be told from what was delivered; find the last message that arrived, then begin again with \
         --forget-place and --from ID or --from now"
    )]
    LostPlace {
        /// The source.
        collection: String,
    },
    /// The operator must name the start.
    #[error(
        "the documents of {collection} have no status; name the start: --from now, --from TIME or --from ID"
    )]
    NoStart {
        /// The source.
        collection: String,
    },
    /// Another process copies.
    #[error(
        "another process copies {collection}; stop it, or wait for the end of its lease ({LEASE:?})"
    )]
    Owned {
        /// The source.
        collection: String,
    },
}

/// What a run has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdoptReport {
    /// Documents that were copied, or of a dry run, would be.
    pub copied: u64,
    /// Documents that stay as they are, by reason.
    pub left: BTreeMap<LeftReason, u64>,
    /// The first of them.
    pub listed: Vec<LeftDocument>,
    /// The first records, of a dry run.
    pub sample: Vec<Document>,
}

/// The bridge of one source.
pub struct Bridge {
    outbox: Collections,
    mapping: Mapping,
    source: Source,
    store: BridgeStore,
    owner: String,
    clock: ServerClock,
    metrics: AdoptMetrics,
}

/// The right to copy, with its session.
struct Owned {
    epoch: i64,
    session: ClientSession,
    token: Option<Bson>,
    kept_at: Instant,
}

/// How following ended.
enum Ended {
    Stopped,
    NotOwner,
    Lost,
}

impl Bridge {
    /// The bridge from the source of this mapping to this outbox.
    pub fn new(outbox: Collections, mapping: Mapping) -> Self {
        Self {
            source: Source::new(outbox.client(), &mapping),
            store: BridgeStore::new(&outbox, &mapping),
            outbox,
            mapping,
            owner: Uuid::new_v4().to_string(),
            clock: ServerClock::default(),
            metrics: AdoptMetrics::new(),
        }
    }

    /// Reads what would be copied. Writes nothing.
    ///
    /// # Errors
    ///
    /// Of MongoDB.
    pub async fn dry_run(&self, from: Option<&StartPoint>) -> Result<AdoptReport, AdoptError> {
        let mut report = AdoptReport::default();
        let at = self.source.snapshot_time().await?;
        let mut scan = self.source.scan(at, behind(from)).await?;
        while let Some(page) = next_page(&mut scan).await? {
            for candidate in self.read_all(&page, &mut report).await? {
                report.copied += 1;
                if report.sample.len() < 10 {
                    report.sample.push(candidate.record);
                }
            }
        }
        Ok(report)
    }

    /// Copies what is there, once.
    ///
    /// # Errors
    ///
    /// [`AdoptError`].
    pub async fn once(&self, from: Option<&StartPoint>) -> Result<AdoptReport, AdoptError> {
        if !self.mapping.has_state() && !matches!(from, Some(StartPoint::Id(_))) {
            return Err(AdoptError::NoStart { collection: self.mapping.source() });
        }
        let mut report = AdoptReport::default();
        let Some(mut owned) = self.own().await? else {
            return Err(AdoptError::Owned { collection: self.mapping.source() });
        };
        let stop = CancellationToken::new();
        self.metrics.scans_at_start.increment(1);
        let at = self.source.snapshot_time().await?;
        let ended = self.scan(&mut owned, at, behind(from), &stop, &mut report).await;
        self.leave().await;
        match ended? {
            Ended::NotOwner => Err(AdoptError::Owned { collection: self.mapping.source() }),
            Ended::Stopped | Ended::Lost => Ok(report),
        }
    }

    /// Copies what is there and what comes, until `stop`.
    ///
    /// # Errors
    ///
    /// [`AdoptError`], where an operator must decide. Other errors are logged, and it tries again.
    pub async fn run(
        &self,
        from: Option<&StartPoint>,
        forget_place: bool,
        stop: &CancellationToken,
    ) -> Result<AdoptReport, AdoptError> {
        let mut report = AdoptReport::default();
        if !self.mapping.has_state()
            && from.is_none()
            && (forget_place || !self.store.has_place().await?)
        {
            return Err(AdoptError::NoStart { collection: self.mapping.source() });
        }
        // A place that is stored goes before the start that the operator names: so a restart with the same arguments
        // continues.
        let mut has_lost = forget_place;
        let mut is_first = true;
        while !stop.is_cancelled() {
            let ended = self
                .work(if is_first { from } else { None }, &mut has_lost, stop, &mut report)
                .await;
            self.metrics.owner.set(0.0);
            self.metrics.change_stream_up.set(0.0);
            let pause = match ended {
                Ok(Ended::Stopped) => break,
                Ok(Ended::NotOwner) => STANDBY_PAUSE,
                Ok(Ended::Lost) => {
                    if !self.mapping.has_state() {
                        self.leave().await;
                        return Err(AdoptError::LostPlace { collection: self.mapping.source() });
                    }
                    has_lost = true;
                    is_first = false;
                    warn!(
                        "lost the change stream of the other outbox; scanning it by its own time"
                    );
                    FAILURE_PAUSE
                }
                Err(AdoptError::Store(error)) if is_lost(&error) && self.mapping.has_state() => {
                    has_lost = true;
                    FAILURE_PAUSE
                }
                Err(AdoptError::Store(error)) if !error.is_permanent() => {
                    warn!(error = chain(&error), "failed to copy documents; trying again");
                    FAILURE_PAUSE
                }
                Err(error) => {
                    self.leave().await;
                    return Err(error);
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.leave().await;
        Ok(report)
    }

    async fn work(
        &self,
        from: Option<&StartPoint>,
        has_lost: &mut bool,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Ended, AdoptError> {
        let Some(mut owned) = self.own().await? else { return Ok(Ended::NotOwner) };
        self.metrics.owner.set(1.0);
        if *has_lost && !self.store.forget_place(&self.owner, owned.epoch).await? {
            return Ok(Ended::NotOwner);
        }
        let place = owned.token.take().filter(|_| !*has_lost).map(token_of).transpose()?;
        let start = match place {
            Some(token) => StreamStart::Behind(token),
            None => {
                let at = self.source.snapshot_time().await?;
                // Opened before the scan, so that a place that is gone when the scan ends is noticed.
                let scans = self.mapping.has_state() || matches!(from, Some(StartPoint::Id(_)));
                if scans {
                    let reason = if *has_lost {
                        &self.metrics.scans_of_lost_stream
                    } else {
                        &self.metrics.scans_at_start
                    };
                    reason.increment(1);
                    match self.scan(&mut owned, at, behind(from), stop, report).await? {
                        Ended::Lost => {}
                        other => return Ok(other),
                    }
                }
                match from {
                    Some(StartPoint::Time(time)) => StreamStart::At(bson::Timestamp {
                        time: u32::try_from(time.timestamp_millis() / 1_000).unwrap_or(0),
                        increment: 1,
                    }),
                    _ => StreamStart::At(source::next(at)),
                }
            }
        };
        let mut stream = match self.source.follow(start).await {
            Ok(stream) => stream,
            Err(error) if is_lost(&error) => return Ok(Ended::Lost),
            Err(error) => return Err(error.into()),
        };
        *has_lost = false;
        self.metrics.change_stream_up.set(1.0);
        info!(source = self.mapping.source(), "following the other outbox");
        self.follow(&mut owned, &mut stream, stop, report).await
    }

    /// Takes the right to copy.
    async fn own(&self) -> Result<Option<Owned>, StoreError> {
        let action = "copy documents";
        let driver = |source| StoreError::Driver { action, source: Box::new(source) };
        let session = self.outbox.client().start_session().causal_consistency(false);
        let session = session.await.map_err(driver)?;
        let Some(state) = self.store.own(&self.owner, session.id()).await? else { return Ok(None) };
        if let Some(earlier) = &state.earlier_session {
            copy::end(self.outbox.client(), earlier).await;
        }
        Ok(Some(Owned { epoch: state.epoch, session, token: state.token, kept_at: Instant::now() }))
    }

    async fn leave(&self) {
        if let Err(error) = self.store.disown(&self.owner).await {
            warn!(error = chain(&error), "failed to leave the bridge; its lease ends by itself");
        }
    }

    /// Copies what was committed at this time; [`Ended::Lost`] at its end, since what comes is not followed yet.
    async fn scan(
        &self,
        owned: &mut Owned,
        at: bson::Timestamp,
        behind: Option<&Bson>,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Ended, AdoptError> {
        let mut scan = self.source.scan(at, behind).await?;
        while let Some(page) = next_page(&mut scan).await? {
            let candidates = self.read_all(&page, report).await?;
            for batch in candidates.chunks(self.mapping.batch_size) {
                if stop.is_cancelled() {
                    return Ok(Ended::Stopped);
                }
                if !self.copy(owned, batch.to_vec(), None, report).await? {
                    return Ok(Ended::NotOwner);
                }
            }
            if !self.keep(owned, None).await? {
                return Ok(Ended::NotOwner);
            }
        }
        Ok(Ended::Lost)
    }

    async fn follow(
        &self,
        owned: &mut Owned,
        stream: &mut SourceStream,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Ended, AdoptError> {
        if let Some(token) = stream.resume_token() {
            owned.kept_at = Instant::now();
            if !self.store.keep(&self.owner, owned.epoch, Some(&bson_of(&token)?)).await? {
                return Ok(Ended::NotOwner);
            }
        }
        loop {
            let mut changes = Vec::new();
            while changes.len() < self.mapping.batch_size {
                let next = async { stream.next_if_any().await };
                let limit = limits::BATCH_TIMEOUT;
                let next = tokio::select! {
                    () = stop.cancelled() => return Ok(Ended::Stopped),
                    next = within("follow the other outbox", limit, next) => next,
                };
                match next {
                    Ok(Some(event)) => match change(event) {
                        Some(SourceChange::Ended) => return Ok(Ended::Lost),
                        Some(change) => changes.push(change),
                        None => {}
                    },
                    Ok(None) => break,
                    Err(error) if is_lost(&error) => return Ok(Ended::Lost),
                    Err(error) => return Err(error.into()),
                }
            }
            let token = stream.resume_token().map(|token| bson_of(&token)).transpose()?;
            if changes.is_empty() {
                if !self.keep(owned, token.as_ref()).await? {
                    return Ok(Ended::NotOwner);
                }
                continue;
            }
            let documents = self.documents(changes).await?;
            let candidates = self.read_all(&documents, report).await?;
            if !self.copy(owned, candidates, token.as_ref(), report).await? {
                return Ok(Ended::NotOwner);
            }
        }
    }

    /// The documents of changes, in the order of the first change of each.
    async fn documents(
        &self,
        changes: Vec<SourceChange>,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let changed = changes.iter().filter_map(|change| match change {
            SourceChange::Changed(id) => Some(id.clone()),
            _ => None,
        });
        let changed: Vec<Bson> = changed.collect();
        let mut found = BTreeMap::new();
        if !changed.is_empty() {
            for document in self.source.by_ids(&changed).await? {
                found.insert(id_text(&document), document);
            }
        }
        let mut documents: Vec<RawDocumentBuf> = Vec::new();
        let mut places = BTreeMap::new();
        for change in changes {
            let document = match change {
                SourceChange::Inserted(document) => Some(document),
                SourceChange::Changed(id) => found.remove(&id.to_string()),
                SourceChange::Ended => None,
            };
            let Some(document) = document else { continue };
            match places.get(&id_text(&document)) {
                Some(place) => documents[*place] = document,
                None => {
                    places.insert(id_text(&document), documents.len());
                    documents.push(document);
                }
            }
        }
        Ok(documents)
    }

    /// Reads documents; counts those that stay as they are.
    async fn read_all(
        &self,
        documents: &[RawDocumentBuf],
        report: &mut AdoptReport,
    ) -> Result<Vec<Candidate>, StoreError> {
        self.clock.keep_fresh(self.outbox.database()).await?;
        let now = self.clock.now();
        let mut candidates = Vec::new();
        for document in documents {
            match read(&self.mapping, document, now) {
                ReadOutcome::Copy(candidate) => candidates.push(*candidate),
                ReadOutcome::Delivered => {}
                ReadOutcome::Left(left) => self.leave_document(left, report),
            }
        }
        Ok(candidates)
    }

    fn leave_document(&self, left: LeftDocument, report: &mut AdoptReport) {
        self.metrics.left(left.reason);
        *report.left.entry(left.reason).or_default() += 1;
        if report.listed.len() < MAX_LISTED {
            warn!(
                id = left.id,
                reason = left.reason.label(),
                detail = left.detail,
                "left a document as it is"
            );
            report.listed.push(left);
        }
    }

    /// Copies a batch in its order; `false` if another process copies. A document that changed, or that MongoDB
    /// refuses, stays as it is.
    async fn copy(
        &self,
        owned: &mut Owned,
        batch: Vec<Candidate>,
        token: Option<&Bson>,
        report: &mut AdoptReport,
    ) -> Result<bool, AdoptError> {
        let copier = Copier {
            outbox: &self.outbox,
            mapping: &self.mapping,
            store: &self.store,
            owner: &self.owner,
            epoch: owned.epoch,
        };
        let last = batch.len();
        // The parts that are still to be copied; only behind the last of them is the place that of the batch.
        let mut parts = vec![batch];
        let mut failures = 0;
        if last == 0 {
            return self.keep(owned, token).await.map_err(AdoptError::from);
        }
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let place = token.filter(|_| parts.is_empty());
            match copier.copy(&mut owned.session, &part, place).await {
                CopyOutcome::All => {
                    owned.kept_at = Instant::now();
                    let count = u64::try_from(part.len()).unwrap_or(0);
                    report.copied += count;
                    self.metrics.copied.increment(count);
                }
                CopyOutcome::NotOwner => return Ok(false),
                CopyOutcome::Changed if part.len() == 1 => {
                    let detail = "its status changed meanwhile".to_owned();
                    self.leave_candidate(&part[0], LeftReason::Changed, detail, report);
                }
                CopyOutcome::Changed => {
                    let behind = part.split_off(part.len() / 2);
                    parts.push(behind);
                    parts.push(part);
                }
                CopyOutcome::Refused { reason: LeftReason::Duplicate, .. } => {
                    let existing = self.existing(&part).await?;
                    let (known, rest): (Vec<Candidate>, Vec<Candidate>) = part
                        .into_iter()
                        .partition(|candidate| existing.contains(&record_id(candidate)));
                    for candidate in &known {
                        let detail = "the outbox has a record of this id".to_owned();
                        self.leave_candidate(candidate, LeftReason::Duplicate, detail, report);
                    }
                    parts.push(rest);
                }
                CopyOutcome::Refused { at, reason, detail } => {
                    let candidate = part.remove(at.min(part.len() - 1));
                    self.leave_candidate(&candidate, reason, detail, report);
                    parts.push(part);
                }
                CopyOutcome::Again(error) => {
                    failures += 1;
                    if failures > MAX_FAILURES {
                        return Err(error.into());
                    }
                    debug!(error = chain(&error), "a transaction failed; trying again");
                    tokio::time::sleep(FAILURE_PAUSE / 10).await;
                    parts.push(part);
                }
                CopyOutcome::Failed(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn leave_candidate(
        &self,
        candidate: &Candidate,
        reason: LeftReason,
        detail: String,
        report: &mut AdoptReport,
    ) {
        let id = postrider_outbox::ids::RecordId::from(candidate.id.clone()).to_string();
        self.leave_document(LeftDocument { id, reason, detail }, report);
    }

    /// The ids of these records that the outbox has.
    async fn existing(&self, part: &[Candidate]) -> Result<Vec<String>, StoreError> {
        use futures_util::TryStreamExt;
        let ids: Vec<Bson> = part.iter().filter_map(|it| it.record.get(ID).cloned()).collect();
        let records = self.outbox.collection(names::RECORDS);
        let filter = bson::doc! { ID: { "$in": ids } };
        let reading = async {
            records.find(filter).projection(bson::doc! { ID: 1 }).await?.try_collect().await
        };
        let found: Vec<Document> = within("read records", limits::BATCH_TIMEOUT, reading).await?;
        Ok(found.iter().filter_map(|found| found.get(ID)).map(comparable).collect())
    }

    /// Renews the lease when a third of it has passed, and stores the place; `false` if another process copies.
    async fn keep(&self, owned: &mut Owned, token: Option<&Bson>) -> Result<bool, StoreError> {
        if owned.kept_at.elapsed() < LEASE / 3 {
            return Ok(true);
        }
        owned.kept_at = Instant::now();
        self.store.keep(&self.owner, owned.epoch, token).await
    }
}

fn behind(from: Option<&StartPoint>) -> Option<&Bson> {
    match from {
        Some(StartPoint::Id(id)) => Some(id),
        _ => None,
    }
}

/// As MongoDB compares ids: an integer of 32 bits is that of 64.
fn comparable(id: &Bson) -> String {
    postrider_outbox::ids::RecordId::from(id.clone()).to_string()
}

fn record_id(candidate: &Candidate) -> String {
    candidate.record.get(ID).map(comparable).unwrap_or_default()
}

fn id_text(document: &RawDocumentBuf) -> String {
    let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
    id.map(|id| id.to_string()).unwrap_or_default()
}

fn token_of(token: Bson) -> Result<ResumeToken, StoreError> {
    bson::deserialize_from_bson(token).map_err(unreadable)
}

fn bson_of(token: &ResumeToken) -> Result<Bson, StoreError> {
    bson::serialize_to_bson(token).map_err(unreadable)
}

fn unreadable(error: bson::error::Error) -> StoreError {
    StoreError::Answer { action: "read the place in the change stream", detail: error.to_string() }
}

/// The next page of a scan.
async fn next_page(
    scan: &mut mongodb::raw_batch_cursor::RawBatchCursor,
) -> Result<Option<Vec<RawDocumentBuf>>, StoreError> {
    let action = "scan the other outbox";
    let next = async { scan.next().await.transpose() };
    let Some(batch) = within(action, limits::REPORT_TIMEOUT, next).await? else { return Ok(None) };
    let broken = |detail: String| StoreError::Answer { action, detail };
    let documents = batch.doc_slices().map_err(|error| broken(error.to_string()))?;
    let mut page = Vec::new();
    for document in documents {
        let document = document.map_err(|error| broken(error.to_string()))?;
        page.extend(document.as_document().map(|document| document.to_owned()));
    }
    Ok(Some(page))
}
