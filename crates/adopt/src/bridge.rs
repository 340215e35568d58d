//! The loop: acquire the right to copy, scan, receive changes.

use std::collections::HashMap;
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

use crate::copy::{self, CopySession};
use crate::ids::IdKey;
use crate::mapping::Mapping;
use crate::metrics::AdoptMetrics;
use crate::read::{CopyCandidate, ReadOutcome, read};
use crate::report::{AdoptError, AdoptReport};
use crate::source::{
    BATCH_PAUSE, Source, SourceChange, SourceStream, StartPoint, StreamStart, change, is_lost,
    next_page,
};
use crate::source_check::SourceError;
use crate::state::{BridgeStore, LEASE};

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

/// The right to copy, with the session of this process.
pub(crate) struct Owned<'a> {
    pub(crate) epoch: i64,
    pub(crate) session: &'a mut CopySession,
    token: Option<Bson>,
    is_other_mapping: bool,
    start: Option<Timestamp>,
    pub(crate) kept_at: Instant,
}

/// How a part of the work ended.
pub(crate) enum Ended {
    /// `stop` was cancelled.
    Stopped,
    /// Another process copies.
    NotOwner,
    /// The resume token is lost.
    Lost,
}

/// What a scan would be for.
enum Scanning {
    AtStart,
    /// The operator asked for a new start.
    Forgotten,
    OfLostStream,
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
        let mut scan = self.source.scan(behind.as_ref()).await?;
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
        let mut kept = None;
        let Some(mut owned) = self.acquire(&mut kept).await? else {
            return Err(AdoptError::Owned { collection: self.mapping.source() });
        };
        let ended = self.scans(&mut owned, behind.as_ref(), stop, &mut report).await;
        self.release().await;
        match ended? {
            Some(Ended::NotOwner) => Err(AdoptError::Owned { collection: self.mapping.source() }),
            Some(Ended::Stopped | Ended::Lost) => Ok(AdoptReport { is_partial: true, ..report }),
            None => Ok(report),
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
        let mut kept = None;
        let mut failure_pause = FAILURE_PAUSE;
        let mut is_standby = false;
        let mut scanning =
            if forget_resume_token { Scanning::Forgotten } else { Scanning::AtStart };
        while !stop.is_cancelled() {
            let began = Instant::now();
            let ended = match self.acquire(&mut kept).await {
                Ok(Some(owned)) => {
                    is_standby = false;
                    self.work(owned, from, &mut scanning, stop, &mut report).await
                }
                Ok(None) => Ok(Ended::NotOwner),
                Err(error) => Err(error.into()),
            };
            self.metrics.owner.set(0.0);
            self.metrics.change_stream_up.set(0.0);
            let pause = match ended {
                Ok(Ended::Stopped) => break,
                Ok(Ended::NotOwner) if matches!(scanning, Scanning::Forgotten) => {
                    // Later it would remove the token of the process that copies now.
                    return Err(AdoptError::Owned { collection: self.mapping.source() });
                }
                Ok(Ended::NotOwner) => {
                    self.recovered();
                    if !std::mem::replace(&mut is_standby, true) {
                        info!(
                            source = self.mapping.source(),
                            "another process copies this source; waiting for the end of its lease"
                        );
                    }
                    STANDBY_PAUSE
                }
                Ok(Ended::Lost) => {
                    if !self.mapping.has_state() {
                        self.release().await;
                        return Err(AdoptError::LostResumeToken {
                            collection: self.mapping.source(),
                        });
                    }
                    scanning = Scanning::OfLostStream;
                    warn!(
                        "lost the change stream of the other outbox; scanning it in the order of its own time"
                    );
                    FAILURE_PAUSE
                }
                Err(AdoptError::Store(error)) if !error.is_permanent() => {
                    if self.failed(began, &error) {
                        failure_pause = FAILURE_PAUSE;
                    }
                    let pause = failure_pause;
                    failure_pause = MAX_FAILURE_PAUSE.min(pause * 2);
                    pause
                }
                Err(error) => {
                    self.release().await;
                    return Err(error);
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.release().await;
        Ok(report)
    }

    async fn work(
        &self,
        mut owned: Owned<'_>,
        from: Option<&StartPoint>,
        scanning: &mut Scanning,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Ended, AdoptError> {
        self.metrics.owner.set(1.0);
        if !matches!(scanning, Scanning::AtStart) {
            if !self.store.forget_resume_token(&self.owner, owned.epoch).await? {
                return Ok(Ended::NotOwner);
            }
            (owned.token, owned.start) = (None, None);
            if matches!(scanning, Scanning::Forgotten) {
                // Once: a token that is stored from now on is that of the new start.
                *scanning = Scanning::AtStart;
            }
        }
        if owned.is_other_mapping && self.mapping.has_state() && owned.token.take().is_some() {
            info!("the mapping is another one than before; scanning the other outbox with it");
        }
        // A stored token goes before the start that the operator names: so a restart with the same arguments
        // continues.
        let start = match owned.token.take() {
            Some(token) => StreamStart::Behind(token_of(token)?),
            None => match self.scan_and_start(&mut owned, from, scanning, stop, report).await? {
                Ok(start) => StreamStart::At(start),
                Err(ended) => return Ok(ended),
            },
        };
        let opening = self.source.watch(start);
        let mut stream = match self.while_owned(&mut owned, stop, opening).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(ended)) => return Ok(ended),
            Err(error) if is_lost(&error) => return Ok(Ended::Lost),
            Err(error) => return Err(error.into()),
        };
        *scanning = Scanning::AtStart;
        self.metrics.change_stream_up.set(1.0);
        self.recovered();
        info!(source = self.mapping.source(), "receiving changes of the other outbox");
        self.watch(&mut owned, &mut stream, stop, report).await
    }

    /// Copies what is there, if a status shows what was delivered. Returns the start of the change stream.
    async fn scan_and_start(
        &self,
        owned: &mut Owned<'_>,
        from: Option<&StartPoint>,
        scanning: &Scanning,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Result<Timestamp, Ended>, AdoptError> {
        let at = self.source.snapshot_time().await?;
        let mut start = cluster_time::next(at);
        if !self.mapping.has_state() {
            // (A process that died before it stored its first token is continued from its start: what was inserted
            // and deleted since then is in the change stream only.)
            start = match (owned.start, from) {
                (Some(start), _) => start,
                (None, Some(StartPoint::Time(time))) => self.start_at(*time).await?,
                (None, _) => start,
            };
            if owned.start.is_none() && !self.store.begin(&self.owner, owned.epoch, start).await? {
                return Ok(Err(Ended::NotOwner));
            }
        }
        // (The stream begins at the time of the scan: if that is no longer in the oplog at its end, opening fails.)
        let behind = match from {
            Some(StartPoint::Id(id)) => Some(self.id_of(id).await?),
            _ if self.mapping.has_state() => None,
            _ => return Ok(Ok(start)),
        };
        let reason = match scanning {
            Scanning::OfLostStream => &self.metrics.scans_of_lost_stream,
            Scanning::AtStart | Scanning::Forgotten => &self.metrics.scans_at_start,
        };
        reason.increment(1);
        Ok(match self.scan(owned, at, behind.as_ref(), stop, report).await? {
            None => Ok(start),
            Some(ended) => Err(ended),
        })
    }

    /// Acquires the right to copy, in the session of this process.
    ///
    /// An owner that was killed may have left a transaction open, and every write to the state would wait for its
    /// end: up to `transactionLifetimeLimitSeconds`.
    async fn acquire<'a>(
        &self,
        kept: &'a mut Option<CopySession>,
    ) -> Result<Option<Owned<'a>>, StoreError> {
        let client = self.outbox.client();
        let session = match kept {
            Some(session) => session,
            None => kept.insert(CopySession::start(client).await?),
        };
        session.end_open(client).await;
        if let Some(silent) = self.store.expired_session(&self.owner).await? {
            copy::end(client, &silent).await;
        }
        let mut state = self.store.acquire(&self.owner, session.session.id()).await?;
        if state.is_none() {
            // (Only one that is absent is created: a standby process writes nothing.)
            if self.store.exists().await? {
                return Ok(None);
            }
            self.store.create().await?;
            state = self.store.acquire(&self.owner, session.session.id()).await?;
        }
        Ok(state.map(|state| Owned {
            epoch: state.epoch,
            session,
            token: state.token,
            is_other_mapping: state.is_other_mapping,
            start: state.start,
            kept_at: Instant::now(),
        }))
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
        owned: &mut Owned<'_>,
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
                    () = stop.cancelled() => return Ok(Ended::Stopped),
                    next = within("read changes of the other outbox", limit, next) => next,
                };
                match next {
                    Ok(Some(event)) => match change(event) {
                        Some(SourceChange::Ended) => {
                            // (What was inserted before is copied first.)
                            has_ended = true;
                            break;
                        }
                        Some(SourceChange::Id(id)) => ids.push(id),
                        Some(SourceChange::Document(document)) => documents.push(document),
                        None => {}
                    },
                    Ok(None) => break,
                    Err(error) if is_lost(&error) => return Ok(Ended::Lost),
                    Err(error) => return Err(error.into()),
                }
            }
            let token = stream.resume_token().map(|token| bson_of(&token)).transpose()?;
            if ids.is_empty() && documents.is_empty() && !has_ended {
                if !self.keep(owned, token.as_ref()).await? {
                    return Ok(Ended::NotOwner);
                }
                continue;
            }
            match self.while_owned(owned, stop, self.documents(&ids)).await? {
                Ok(found) => documents.extend(found),
                Err(ended) => return Ok(ended),
            }
            let candidates = self.read_all(&documents, report).await?;
            // (A resume token behind the end of the collection would be of no use.)
            let token = token.as_ref().filter(|_| !has_ended);
            if let Some(ended) = self.copy(owned, candidates, token, stop, report).await? {
                return Ok(ended);
            }
            if has_ended {
                return Ok(Ended::Lost);
            }
        }
    }

    /// The documents of these ids as they are now, in the order of the first change of each: only those that the filter
    /// selects, because the filter and the handler cannot be conditions on a change.
    async fn documents(&self, ids: &[Bson]) -> Result<Vec<RawDocumentBuf>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.source.by_ids(ids).await?.into_iter();
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

    /// Renews the lease while this work lasts; the inner error is why it was given up.
    pub(crate) async fn while_owned<T>(
        &self,
        owned: &mut Owned<'_>,
        stop: &CancellationToken,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<Result<T, Ended>, StoreError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done.map(Ok),
                () = stop.cancelled() => return Ok(Err(Ended::Stopped)),
                () = tokio::time::sleep(LEASE / 3) => {}
            }
            if !self.keep(owned, None).await? {
                return Ok(Err(Ended::NotOwner));
            }
        }
    }

    /// Renews the lease when a third of it has passed, and stores the resume token; `false` if another process copies.
    pub(crate) async fn keep(
        &self,
        owned: &mut Owned<'_>,
        token: Option<&Bson>,
    ) -> Result<bool, StoreError> {
        if owned.kept_at.elapsed() < LEASE / 3 {
            return Ok(true);
        }
        owned.kept_at = Instant::now();
        self.store.keep(&self.owner, owned.epoch, token).await
    }
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
