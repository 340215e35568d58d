//! What the owner of the feed does: it takes what was committed, and assigns positions.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bson::Document;
use mongodb::ClientSession;
use postrider_store::StoreError;
use postrider_store::text::chain;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::commits::CommittedAppend;
use crate::feed::assign::{Assigned, assign};
use crate::feed::audit::{Audit, Page};
use crate::feed::collections::StreamCollections;
use crate::feed::follow::{Followed, follow};
use crate::feed::lookup::{Early, chain as predecessors, reread};
use crate::feed::metrics::Source;
use crate::feed::planner::plan;
use crate::feed::process::{KnownHead, Process};
use crate::feed::recent::Recent;
use crate::feed::repeats::{Repeats, Reporter};
use crate::feed::settings::FeedConfig;
use crate::feed::state::{FeedState, LEASE};
use crate::feed::status::SequencerStatus;
use crate::names::AggregateKey;
use crate::transaction::backoff;

/// The most appends in one transaction.
const MAX_BATCH: usize = 500;

/// The shortest time from one transaction to the next, unless the batch is full: one for each append
/// would slow down the appends of a single client by a quarter.
const PACE: Duration = Duration::from_millis(5);

/// The reports of the change stream that wait.
const MAX_REPORTS: usize = 64;

/// The most reports in the queue of the sequencer; more wait where they are reported.
const MAX_QUEUED: usize = 10_000;

/// The most failures without success in between.
const MAX_FAILURES: u32 = 10;

/// What does not agree with a transaction that is tried again and again.
const STATE_DETAIL: &str = "the state of the feed is invalid, or other processes change it \
                            continuously";
const STREAMS_DETAIL: &str = "cannot assign positions to some appends";

/// The most streams with a missing version that are logged one by one.
const MAX_LOGGED_GAPS: usize = 20;

/// Why the owner stops to assign.
pub(super) enum Stopped {
    /// The process is ending.
    Asked,
    /// Another process is the owner.
    Replaced,
    Failed(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// The work of the owner.
pub(super) struct Work<'a> {
    process: &'a Process,
    state: FeedState,
    /// The names of its last positions.
    recent: Recent,
    collections: StreamCollections,
    repeats: Repeats,
    /// What was reported as committed.
    reported: VecDeque<CommittedAppend>,
    /// What a scan has found.
    scanned: VecDeque<CommittedAppend>,
    /// The streams with a missing version: it, of each. They are read again by the next scan.
    gaps: HashMap<AggregateKey, i64>,
    audit: Audit,
    open_session: &'a mut Option<ClientSession>,
    /// The id of that session, by which another process ends what this one leaves open.
    session: Document,
    /// Whether a transaction may be open on the server.
    pub(super) is_open: bool,
    failures: u32,
    /// When what was reported may get positions.
    next_at: Instant,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        process: &'a Process,
        settings: &FeedConfig,
        (state, recent): (FeedState, Recent),
        open_session: &'a mut Option<ClientSession>,
    ) -> Self {
        let context = process.context.clone();
        Self {
            process,
            state,
            recent,
            collections: StreamCollections::new(context.clone()),
            repeats: Repeats::default(),
            reported: VecDeque::new(),
            scanned: VecDeque::new(),
            gaps: HashMap::new(),
            audit: Audit::new(context, settings),
            session: open_session.as_ref().map(|session| session.id().clone()).unwrap_or_default(),
            open_session,
            is_open: false,
            failures: 0,
            next_at: Instant::now(),
        }
    }

    pub(super) async fn run(&mut self, stop: &CancellationToken) -> Stopped {
        let commits = self.process.context.commits();
        let (reports, mut followed) = mpsc::channel(MAX_REPORTS);
        let following = follow(self.process.context.clone(), reports);
        let _following = AbortOnDropHandle::new(tokio::spawn(following));
        let mut renewal = interval(LEASE / 3);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.announce();
        loop {
            let allowed_in = self.audit.allowed_in();
            tokio::select! {
                () = stop.cancelled() => return Stopped::Asked,
                _ = renewal.tick() => if let Err(stopped) = self.renew().await { return stopped },
                Some(report) = followed.recv(), if self.reported.len() < MAX_QUEUED => {
                    if let Err(stopped) = self.accept(report).await { return stopped }
                }
                () = commits.arrived(), if self.reported.len() < MAX_QUEUED => {
                    let taken = commits.take();
                    self.report(Reporter::Process, taken.appends);
                    if taken.is_overflowed {
                        self.audit.hasten();
                    }
                }
                page = self.audit.next(), if self.scanned.len() < MAX_BATCH => {
                    if let Err(error) = self.accept_page(page).await { return error.into() }
                }
                () = tokio::time::sleep_until(self.next_at.into()), if !self.reported.is_empty() => {}
                () = tokio::time::sleep(allowed_in), if !self.scanned.is_empty() => {}
            }
            if let Err(stopped) = self.assign_next().await {
                return stopped;
            }
            self.measure();
        }
    }

    async fn accept(&mut self, report: Followed) -> Result<(), Stopped> {
        match report {
            Followed::Opened => {
                self.process.metrics.change_stream_up.set(1.0);
                self.audit.follows(true);
            }
            Followed::Lost => {
                self.process.metrics.change_stream_up.set(0.0);
                self.audit.follows(false);
            }
            Followed::Names(names) => {
                if names.iter().any(|name| !self.collections.is_ready(name)) {
                    self.discover().await?;
                }
            }
            Followed::Appends(appends) => self.report(Reporter::ChangeStream, appends),
        }
        Ok(())
    }

    fn report(&mut self, reporter: Reporter, mut appends: Vec<CommittedAppend>) {
        // (A report of a name that is not known yet counts for nothing: the second one, or a scan, brings it.)
        let is_known = |append: &CommittedAppend| self.state.names.contains(&append.aggregate.0);
        appends.retain(|append| is_known(append) && !self.repeats.is_repeat(reporter, append));
        self.reported.extend(appends);
    }

    async fn accept_page(&mut self, page: Result<Page, StoreError>) -> Result<(), StoreError> {
        match page? {
            Page::Begins => {
                self.discover().await?;
                self.gaps.clear();
                let names = self.collections.ready().cloned().collect();
                self.audit.begin(names);
            }
            Page::Found(found) => self.scanned.extend(found),
            Page::Ended { invalid } => {
                self.process.metrics.invalid.set(invalid as f64);
                self.succeed();
            }
        }
        Ok(())
    }

    /// Finds new collections, and names them in the document of the feed before any position is assigned.
    async fn discover(&mut self) -> Result<(), StoreError> {
        self.collections.discover().await?;
        self.process.metrics.unusable.set(self.collections.unusable() as f64);
        let known = &self.state.names;
        let new: Vec<_> =
            self.collections.ready().filter(|name| !known.contains(name)).cloned().collect();
        if !new.is_empty() {
            self.process.store.add_names(&new).await?;
            self.recent = Recent::default();
            self.state.names.extend(new);
        }
        Ok(())
    }

    /// Renews the lease, and follows a change of the feed by an operator.
    async fn renew(&mut self) -> Result<(), Stopped> {
        let owned = self.process.own(&self.session).await?;
        let Some(owned) = owned else { return Err(Stopped::Replaced) };
        (self.state, self.recent) = owned;
        self.announce();
        Ok(())
    }

    fn announce(&self) {
        let FeedState { feed, head, .. } = &self.state;
        self.process.metrics.head.set(*head as f64);
        let known = KnownHead { feed: feed.clone(), head: *head, is_own: true };
        self.process.head.send_replace(known);
    }

    /// Positions are assigned, or no append waits for one.
    fn succeed(&self) {
        let Process { status, metrics, .. } = self.process;
        let follows = self.audit.follows_now();
        let now = if follows { SequencerStatus::Up } else { SequencerStatus::Scanning };
        status.set(now, metrics);
    }

    fn measure(&self) {
        let oldest = self.reported.front().or_else(|| self.scanned.front());
        self.process.metrics.waits_since(oldest.map(|append| append.create_time));
        self.process.metrics.gaps.set(self.gaps.len() as f64);
    }

    /// Assigns one batch of what was reported, and one of what was scanned.
    async fn assign_next(&mut self) -> Result<(), Stopped> {
        self.assign_reported().await?;
        self.assign_scanned().await
    }

    async fn assign_reported(&mut self) -> Result<(), Stopped> {
        let now = Instant::now();
        if self.reported.is_empty() || now < self.next_at && self.reported.len() < MAX_BATCH {
            return Ok(());
        }
        self.next_at = now + PACE;
        let mut reported = std::mem::take(&mut self.reported);
        let done = self.assign_from(&mut reported, MAX_BATCH, Source::Report).await;
        reported.append(&mut self.reported);
        self.reported = reported;
        done.map(|_| ())
    }

    async fn assign_scanned(&mut self) -> Result<(), Stopped> {
        let allowed = self.audit.allowance().min(MAX_BATCH);
        if self.scanned.is_empty() || allowed == 0 {
            return Ok(());
        }
        let source = self.audit.source();
        let mut scanned = std::mem::take(&mut self.scanned);
        let done = self.assign_from(&mut scanned, allowed, source).await;
        scanned.append(&mut self.scanned);
        self.scanned = scanned;
        self.audit.spend(done?);
        Ok(())
    }

    /// Assigns one batch from the front of a queue. Returns its size.
    async fn assign_from(
        &mut self,
        queue: &mut VecDeque<CommittedAppend>,
        limit: usize,
        source: Source,
    ) -> Result<usize, Stopped> {
        if queue.is_empty() {
            return Ok(0);
        }
        let usable = |append: &CommittedAppend| {
            let is_behind_gap =
                self.gaps.get(&append.aggregate).is_some_and(|missing| append.version > *missing);
            // (A collection without its index is reported, and found by a later scan.)
            !is_behind_gap && self.state.names.contains(&append.aggregate.0)
        };
        queue.retain(usable);
        let batch = plan(queue, limit);
        if batch.is_empty() {
            return Ok(0);
        }
        let Process { context, store, owner, metrics, .. } = self.process;
        let known = (owner.as_str(), &self.state, &self.recent);
        let collections = &self.collections;
        let assigned = assign(context, store, collections, known, &batch, self.open_session).await;
        self.is_open = !matches!(assigned, Assigned::All(..));
        match assigned {
            Assigned::All(head, recent) => {
                self.failures = 0;
                for append in &batch {
                    if self.gaps.get(&append.aggregate) == Some(&append.version) {
                        self.gaps.remove(&append.aggregate);
                        // What follows the version that was missing is found by a scan.
                        self.audit.hasten();
                    }
                }
                (self.state.head, self.recent) = (head, recent);
                self.succeed();
                metrics.sequenced(source, batch.len());
                self.announce();
                return Ok(batch.len());
            }
            Assigned::StateChanged => {
                restore(queue, batch);
                self.renew().await?;
                self.fail(unchanged(STATE_DETAIL)).await?;
            }
            Assigned::StreamsChanged => {
                let planned = batch.len();
                if self.drop_positioned(queue, batch).await? == planned {
                    self.fail(unchanged(STREAMS_DETAIL)).await?;
                }
            }
            Assigned::TooEarly(early) => {
                restore(queue, batch);
                if !self.wait_for_predecessors(queue, early).await? {
                    self.fail(unchanged(STREAMS_DETAIL)).await?;
                }
            }
            Assigned::Refused { at, error } => {
                self.refuse(queue, batch, at, &error);
            }
            Assigned::Again(error) => {
                restore(queue, batch);
                self.fail(error).await?;
            }
            Assigned::Unknown(error) => return Err(error.into()),
        }
        Ok(0)
    }

    /// Waits after a failure; after many without success in between it is an error.
    async fn fail(&mut self, error: StoreError) -> Result<(), Stopped> {
        self.failures += 1;
        if self.failures > MAX_FAILURES {
            return Err(error.into());
        }
        tokio::time::sleep(backoff(self.failures)).await;
        Ok(())
    }

    /// Sets an aggregate aside, of which MongoDB does not change a document. The next scan tries again.
    fn refuse(
        &mut self,
        queue: &mut VecDeque<CommittedAppend>,
        mut batch: Vec<CommittedAppend>,
        at: usize,
        error: &StoreError,
    ) {
        let CommittedAppend { aggregate, version, .. } = batch.remove(at);
        restore(queue, batch);
        if self.gaps.len() < MAX_LOGGED_GAPS {
            let error = chain(error);
            warn!(
                error,
                name = %aggregate.0,
                aggregate = %aggregate.1,
                version,
                "MongoDB rejects the change of an append; this aggregate gets no positions"
            );
        }
        // (As if the version itself were behind a missing one.)
        self.gaps.insert(aggregate, version - 1);
    }

    /// Puts what precedes these appends in front of them, and sets aside the streams where it is missing or
    /// cannot be read. Returns whether there is anything of that.
    async fn wait_for_predecessors(
        &mut self,
        queue: &mut VecDeque<CommittedAppend>,
        early: Vec<Early>,
    ) -> Result<bool, Stopped> {
        let mut has_changed = false;
        for Early { aggregate, version, is_missing } in early {
            if !is_missing {
                let chain = predecessors(&self.process.context, &aggregate, version).await?;
                if !chain.is_empty() {
                    has_changed = true;
                    restore(queue, chain);
                    continue;
                }
                // It has a position by now, which the next scan finds, or can have none.
            }
            let missing = version - 1;
            if self.gaps.len() < MAX_LOGGED_GAPS && !self.gaps.contains_key(&aggregate) {
                warn!(
                    name = %aggregate.0,
                    aggregate = %aggregate.1,
                    missing,
                    "a version is missing; later ones of this aggregate get no positions"
                );
            }
            self.gaps.insert(aggregate, missing);
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Keeps of a batch what exists and has no position. Returns how many are left.
    async fn drop_positioned(
        &mut self,
        queue: &mut VecDeque<CommittedAppend>,
        batch: Vec<CommittedAppend>,
    ) -> Result<usize, Stopped> {
        let found = reread(&self.process.context, &batch).await?;
        let mut without: HashMap<(AggregateKey, i64), CommittedAppend> = found
            .into_iter()
            .filter(|found| found.position.is_none())
            .map(|found| ((found.append.aggregate.clone(), found.append.version), found.append))
            .collect();
        let left: Vec<CommittedAppend> = batch
            .into_iter()
            .filter_map(|append| without.remove(&(append.aggregate, append.version)))
            .collect();
        let count = left.len();
        restore(queue, left);
        Ok(count)
    }
}

fn unchanged(detail: &str) -> StoreError {
    StoreError::Answer { action: "assign positions", detail: detail.to_owned() }
}

/// Puts appends back to the front of a queue.
fn restore(queue: &mut VecDeque<CommittedAppend>, batch: Vec<CommittedAppend>) {
    for append in batch.into_iter().rev() {
        queue.push_front(append);
    }
}
