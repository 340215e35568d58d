//! The loop: acquire the right to copy, scan, receive changes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, Timestamp};
use mongodb::change_stream::event::ResumeToken;
use postrider_outbox::collections::Collections;
use postrider_store::text::chain;
use postrider_store::{OutageLog, ServerClock, StoreError, cluster_time, limits, within};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::copy::CopySession;
use crate::ids::IdKey;
use crate::lease::{BridgeLease, Interrupt, Step};
use crate::mapping::Mapping;
use crate::metrics::AdoptMetrics;
use crate::read::{CopyCandidate, ReadOutcome, read};
use crate::report::{AdoptError, AdoptReport};
use crate::source::{
    BATCH_PAUSE, READ_CHANGES, Source, SourceChange, SourceStream, StartPoint, StreamStart, change,
    is_lost, next_page,
};
use crate::source_check::SourceError;
use crate::state::BridgeStore;

/// The pause of a process that may not copy, until it asks again.
const STANDBY_PAUSE: Duration = Duration::from_secs(2);

/// The pause after an error.
pub(crate) const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// The longest pause after errors in a row, each of which doubles it.
const MAX_FAILURE_PAUSE: Duration = Duration::from_secs(15);

/// The bridge of one source.
pub struct Bridge {
    pub(crate) outbox: Collections,
    pub(crate) mapping: Mapping,
    pub(crate) source: Source,
    pub(crate) store: BridgeStore,
    pub(crate) owner: String,
    pub(crate) clock: ServerClock,
    pub(crate) metrics: AdoptMetrics,
    outage: OutageLog,
    trouble: Mutex<Option<String>>,
}

/// What a scan would be for.
enum Scanning {
    AtStart,
    /// The operator asked for a new start.
    Forgotten,
    OfLostStream,
}

/// What the loop of a bridge knows.
struct Progress {
    scanning: Scanning,
    is_standby: bool,
    failure_pause: Duration,
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
            outage: OutageLog::default(),
            trouble: Mutex::default(),
        }
    }

    /// Checks the source.
    ///
    /// # Errors
    ///
    /// Of MongoDB; the inner one says what is wrong with the source.
    pub async fn check_source(&self) -> Result<Result<(), SourceError>, StoreError> {
        self.source.check().await
    }

    /// Why nothing is copied at the moment, in one line.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads what would be copied. Writes nothing.
    ///
    /// # Errors
    ///
    /// [`AdoptError`].
    pub async fn dry_run(&self, from: Option<&StartPoint>) -> Result<AdoptReport, AdoptError> {
        let behind = self.behind(from).await?;
        let mut report = AdoptReport::default();
        let at = self.source.snapshot_time().await?;
        let mut scan = self.source.scan(at, behind.as_ref()).await?;
        while let Some(page) = next_page(&mut scan).await? {
            let candidates = self.read_all(&page, &mut report).await?;
            let (known, candidates) = self.split_known(candidates).await?;
            self.skip_known(&known, &mut report);
            for candidate in candidates {
                report.copied += 1;
                if report.sample.len() < 10 {
                    report.sample.extend(Document::try_from(candidate.record.as_ref()));
                }
            }
        }
        Ok(report)
    }

    /// Copies what is there, once, or until `stop`.
    ///
    /// # Errors
    ///
    /// [`AdoptError`].
    pub async fn once(
        &self,
        from: Option<&StartPoint>,
        stop: &CancellationToken,
    ) -> Result<AdoptReport, AdoptError> {
        let behind = self.behind(from).await?;
        let mut report = AdoptReport::default();
        let mut session = None;
        let copied = async {
            let mut lease = self.acquire(&mut session).await?;
            self.scans(&mut lease, behind.as_ref(), stop, &mut report).await
        };
        let copied = copied.await;
        self.release().await;
        match copied {
            Ok(()) => Ok(report),
            Err(Interrupt::Stopped | Interrupt::Lost) => {
                Ok(AdoptReport { is_partial: true, ..report })
            }
            Err(Interrupt::NotOwner) => {
                Err(AdoptError::Owned { collection: self.mapping.source() })
            }
            Err(Interrupt::Failed(error)) => Err(error),
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
        forget_resume_token: bool,
        stop: &CancellationToken,
    ) -> Result<AdoptReport, AdoptError> {
        let mut report = AdoptReport::default();
        let needs_start = !self.mapping.has_state();
        let may_continue = (needs_start || from.is_some()) && !forget_resume_token;
        let continues = may_continue && self.store.has_resume_point().await?;
        if needs_start && from.is_none() && !continues {
            return Err(AdoptError::NoStart { collection: self.mapping.source() });
        }
        if from.is_some() && continues {
            info!(
                "continuing where the last process ended; --from is used only together with --restart"
            );
        }
        if let Some(StartPoint::Time(time)) = from {
            self.start_at(*time).await?;
        }
        let mut session = None;
        let mut progress = Progress {
            scanning: if forget_resume_token { Scanning::Forgotten } else { Scanning::AtStart },
            is_standby: false,
            failure_pause: FAILURE_PAUSE,
        };
        let ended = loop {
            let began = Instant::now();
            let Err(interrupt) =
                self.work(&mut session, from, &mut progress, stop, &mut report).await;
            self.metrics.owner.set(0.0);
            self.metrics.change_stream_up.set(0.0);
            let pause = match self.pause_after(interrupt, began, &mut progress) {
                Ok(Some(pause)) => pause,
                Ok(None) => break Ok(report),
                Err(error) => break Err(error),
            };
            tokio::select! {
                () = stop.cancelled() => break Ok(report),
                () = tokio::time::sleep(pause) => {}
            }
        };
        self.release().await;
        ended
    }

    /// How long the loop pauses after this interrupt; `None` at the end.
    fn pause_after(
        &self,
        interrupt: Interrupt,
        began: Instant,
        progress: &mut Progress,
    ) -> Result<Option<Duration>, AdoptError> {
        let collection = self.mapping.source();
        Ok(Some(match interrupt {
            Interrupt::Stopped => return Ok(None),
            // Later it would remove the token of the process that copies now.
            Interrupt::NotOwner if matches!(progress.scanning, Scanning::Forgotten) => {
                return Err(AdoptError::Owned { collection });
            }
            Interrupt::NotOwner => {
                self.recovered();
                if !std::mem::replace(&mut progress.is_standby, true) {
                    info!(
                        source = collection,
                        "another process copies this source; waiting for the end of its lease"
                    );
                }
                STANDBY_PAUSE
            }
            Interrupt::Lost if !self.mapping.has_state() => {
                return Err(AdoptError::LostResumeToken { collection });
            }
            Interrupt::Lost => {
                progress.scanning = Scanning::OfLostStream;
                warn!(
                    "lost the change stream of the other outbox; scanning it in the order of its own time"
                );
                FAILURE_PAUSE
            }
            Interrupt::Failed(AdoptError::Store(error)) if !error.is_permanent() => {
                if self.failed(began, &error) {
                    progress.failure_pause = FAILURE_PAUSE;
                }
                let pause = progress.failure_pause;
                progress.failure_pause = MAX_FAILURE_PAUSE.min(pause * 2);
                pause
            }
            Interrupt::Failed(error) => return Err(error),
        }))
    }

    async fn work(
        &self,
        session: &mut Option<CopySession>,
        from: Option<&StartPoint>,
        progress: &mut Progress,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Step<Infallible> {
        let mut lease = self.acquire(session).await?;
        self.metrics.owner.set(1.0);
        progress.is_standby = false;
        if !matches!(progress.scanning, Scanning::AtStart) {
            lease.forget_resume_token().await?;
            if matches!(progress.scanning, Scanning::Forgotten) {
                // Once: a token that is stored from now on is that of the new start.
                progress.scanning = Scanning::AtStart;
            }
        }
        let state = &mut lease.state;
        if state.is_other_mapping && self.mapping.has_state() && state.token.take().is_some() {
            info!("the mapping is another one than before; scanning the other outbox with it");
        }
        // A stored token goes before the start that the operator names: so a restart with the same arguments
        // continues.
        let start = match state.token.take() {
            Some(token) => StreamStart::Behind(token_of(token)?),
            None => {
                let scanning = &progress.scanning;
                let start = self.scan_and_start(&mut lease, from, scanning, stop, report);
                StreamStart::At(start.await?)
            }
        };
        let opening = async { self.source.watch(start).await.map_err(of_stream) };
        let mut stream = lease.during(stop, opening).await?;
        progress.scanning = Scanning::AtStart;
        self.metrics.change_stream_up.set(1.0);
        self.recovered();
        info!(source = self.mapping.source(), "receiving changes of the other outbox");
        self.watch(&mut lease, &mut stream, stop, report).await
    }

    /// Copies what is there, if a status shows what was delivered. Returns the start of the change stream.
    async fn scan_and_start(
        &self,
        lease: &mut BridgeLease<'_>,
        from: Option<&StartPoint>,
        scanning: &Scanning,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Step<Timestamp> {
        let at = self.source.snapshot_time().await?;
        let mut start = cluster_time::next(at);
        if !self.mapping.has_state() {
            // (A process that died before it stored its first token is continued from its start: what was inserted
            // and deleted since then is in the change stream only.)
            start = match (lease.state.start, from) {
                (Some(start), _) => start,
                (None, Some(StartPoint::Time(time))) => self.start_at(*time).await?,
                (None, _) => start,
            };
            if lease.state.start.is_none() {
                lease.begin(start).await?;
            }
        }
        // (The stream begins at the time of the scan: if that is no longer in the oplog at its end, opening fails.)
        let behind = match from {
            Some(StartPoint::Id(id)) => Some(self.id_of(id).await?),
            _ if self.mapping.has_state() => None,
            _ => return Ok(start),
        };
        let reason = match scanning {
            Scanning::OfLostStream => &self.metrics.scans_of_lost_stream,
            Scanning::AtStart | Scanning::Forgotten => &self.metrics.scans_at_start,
        };
        reason.increment(1);
        self.scan(lease, at, behind.as_ref(), stop, report).await?;
        Ok(start)
    }

    async fn acquire<'a>(&'a self, session: &'a mut Option<CopySession>) -> Step<BridgeLease<'a>> {
        BridgeLease::acquire(self.outbox.client(), &self.store, &self.owner, session).await
    }

    async fn release(&self) {
        if let Err(error) = self.store.release(&self.owner).await {
            warn!(
                error = chain(&error),
                "failed to release the lease of the bridge; it expires by itself"
            );
        }
    }

    /// Reports an error; `true` if it is the first one since copying succeeded.
    fn failed(&self, began: Instant, error: &StoreError) -> bool {
        let is_first = self.outage.failed(began);
        if is_first {
            warn!(error = chain(error), "failed to copy documents; trying again");
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.brief());
        is_first
    }

    fn recovered(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(tries) = self.outage.succeeded() {
            info!(tries, "copying documents again");
        }
    }

    async fn watch(
        &self,
        lease: &mut BridgeLease<'_>,
        stream: &mut SourceStream,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Step<Infallible> {
        if let Some(token) = stream.resume_token() {
            lease.renew_now(Some(&bson_of(&token)?)).await?;
        }
        loop {
            let (mut ids, mut documents) = (Vec::new(), Vec::new());
            let mut has_ended = false;
            let began = Instant::now();
            // (A change at a time would never end a batch that only an empty reply ends.)
            while ids.len() + documents.len() < self.mapping.batch_size
                && began.elapsed() < BATCH_PAUSE
            {
                let next = async { stream.next_if_any().await };
                let limit = limits::BATCH_TIMEOUT;
                let next = tokio::select! {
                    () = stop.cancelled() => return Err(Interrupt::Stopped),
                    next = within(READ_CHANGES, limit, next) => next,
                };
                let Some(event) = next.map_err(of_stream)? else { break };
                match change(event)? {
                    SourceChange::Ended => {
                        // (What was inserted before is copied first.)
                        has_ended = true;
                        break;
                    }
                    SourceChange::Id(id, at) => ids.push((id, at)),
                    SourceChange::Document(document) => documents.push(document),
                }
            }
            let token = stream.resume_token().map(|token| bson_of(&token)).transpose()?;
            if ids.is_empty() && documents.is_empty() && !has_ended {
                lease.renew(token.as_ref()).await?;
                continue;
            }
            documents.extend(lease.during(stop, self.documents(ids)).await?);
            let candidates = self.read_all(&documents, report).await?;
            // (A resume token behind the end of the collection would be of no use.)
            let token = token.as_ref().filter(|_| !has_ended);
            self.copy(lease, candidates, token, stop, report).await?;
            if has_ended {
                return Err(Interrupt::Lost);
            }
        }
    }

    /// The documents of these changes as they are behind the last one, in the order of the first change of each: only
    /// those that the filter selects, because the filter and the handler cannot be conditions on a change.
    async fn documents(
        &self,
        changes: Vec<(Bson, Timestamp)>,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let (ids, times): (Vec<Bson>, Vec<Timestamp>) = changes.into_iter().unzip();
        let Some(last) = times.into_iter().max() else { return Ok(Vec::new()) };
        let found = self.source.by_ids(&ids, last).await?.into_iter();
        let mut found: HashMap<IdKey, RawDocumentBuf> =
            found.map(|document| (IdKey::of_document(&document), document)).collect();
        Ok(ids.iter().filter_map(|id| found.remove(&IdKey::of(id))).collect())
    }

    /// Reads documents; counts those that stay as they are.
    pub(crate) async fn read_all(
        &self,
        documents: &[RawDocumentBuf],
        report: &mut AdoptReport,
    ) -> Result<Vec<CopyCandidate>, StoreError> {
        self.clock.keep_fresh(self.outbox.database()).await?;
        let now = self.clock.now();
        let mut candidates = Vec::new();
        for document in documents {
            match read(&self.mapping, document, now) {
                ReadOutcome::Copy(candidate) => candidates.push(*candidate),
                ReadOutcome::Delivered => {}
                ReadOutcome::Skip(skipped) => self.skip_document(skipped, report),
            }
        }
        Ok(candidates)
    }
}

/// What an error of the change stream means.
fn of_stream(error: StoreError) -> Interrupt {
    if is_lost(&error) { Interrupt::Lost } else { error.into() }
}

fn token_of(token: Bson) -> Result<ResumeToken, StoreError> {
    bson::deserialize_from_bson(token).map_err(unreadable)
}

fn bson_of(token: &ResumeToken) -> Result<Bson, StoreError> {
    bson::serialize_to_bson(token).map_err(unreadable)
}

fn unreadable(error: bson::error::Error) -> StoreError {
    StoreError::Answer { action: "read the resume token", detail: error.to_string() }
}
