//! Gives every committed append its position.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::ClientSession;
use postrider_store::StoreError;
use postrider_store::connect::ask;
use postrider_store::text::chain;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::commits::CommittedAppend;
use crate::context::Context;
use crate::feed::assign::{Assigned, assign};
use crate::feed::audit::{Audit, Page};
use crate::feed::collections::StreamCollections;
use crate::feed::follow::{Followed, follow};
use crate::feed::highest::highest_position;
use crate::feed::lookup::{Predecessors, predecessors, reread};
use crate::feed::metrics::{FeedMetrics, Source};
use crate::feed::planner::{Lookup, Planned, Positioned, plan};
use crate::feed::settings::FeedConfig;
use crate::feed::state::{FeedState, LEASE, StateStore};
use crate::feed::status::{SequencerStatus, StatusReport};
use crate::names::AggregateKey;
use crate::transaction::{backoff, end, session};

/// The most appends in one transaction.
const MAX_BATCH: usize = 500;

/// The reports of the change stream that wait.
const MAX_REPORTS: usize = 64;

/// The pause of a process that may not assign positions, until it asks again.
const STANDBY_PAUSE: Duration = Duration::from_secs(2);

/// The pause after a failure that a retry does not resolve.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// The most reports in the queue of the sequencer; more wait where they are reported.
const MAX_QUEUED: usize = 10_000;

/// The most failures without success in between.
const MAX_FAILURES: u32 = 10;

/// What does not agree with a transaction that is tried again and again.
const STATE_DETAIL: &str = "the state of the feed changes all the time, or is invalid";
const STREAMS_DETAIL: &str = "appends without a position could not be changed";

/// The most streams with a missing version that are logged one by one.
const MAX_LOGGED_GAPS: usize = 20;

/// The head of the feed, as far as this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownHead {
    pub(super) feed: String,
    pub(super) head: i64,
    /// Whether this process assigns the positions, so that it knows every change at once.
    pub(super) is_own: bool,
}

/// Assigns positions to appends after their commit, in one process at a time.
pub struct Sequencer {
    context: Context,
    settings: FeedConfig,
    head: watch::Sender<KnownHead>,
    /// Identifies this process to the others.
    owner: String,
    store: StateStore,
    metrics: FeedMetrics,
    status: StatusReport,
}

/// Why the owner stops to assign.
enum Stopped {
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

impl Sequencer {
    pub(super) fn new(
        context: Context,
        settings: FeedConfig,
        head: watch::Sender<KnownHead>,
    ) -> Self {
        let store = StateStore::new(&context);
        let owner = Uuid::new_v4().to_string();
        let (metrics, status) = (FeedMetrics::new(), StatusReport::new());
        Self { context, settings, head, owner, store, metrics, status }
    }

    /// What it does, from now on.
    pub fn status(&self) -> watch::Receiver<SequencerStatus> {
        self.status.subscribe()
    }

    /// Assigns positions whenever this process is the owner, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut failures = 0;
        let mut session = None;
        while !stop.is_cancelled() {
            let began = Instant::now();
            let pause = match self.run_once(&mut session, &stop).await {
                Stopped::Asked => break,
                Stopped::Replaced => {
                    failures = 0;
                    self.status.set(SequencerStatus::Standby, &self.metrics);
                    STANDBY_PAUSE
                }
                Stopped::Failed(error) => {
                    if began.elapsed() > LEASE {
                        failures = 0;
                    }
                    failures += 1;
                    let error = chain(&error);
                    self.status.set(SequencerStatus::Failing(error.clone()), &self.metrics);
                    if failures == 1 {
                        warn!(error, "the feed stands still: no position was assigned");
                    }
                    backoff(failures).max(FAILURE_PAUSE * failures.saturating_sub(3).min(3))
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// `kept` is the session of this process. While the state may name it, the driver must not give it to
    /// other operations, which a successor would end.
    async fn run_once(
        &self,
        kept: &mut Option<ClientSession>,
        stop: &CancellationToken,
    ) -> Stopped {
        let owned = tokio::select! {
            owned = self.take_over(kept) => owned,
            () = stop.cancelled() => return Stopped::Asked,
        };
        let state = match owned {
            Ok(Some(state)) => state,
            Ok(None) => return Stopped::Replaced,
            Err(error) => return error.into(),
        };
        info!(
            feed = state.feed,
            head = state.head,
            "this process assigns the positions of the feed"
        );
        self.metrics.owner.set(1.0);
        self.context.commits().listen();
        let mut work = Work::new(self, state, kept);
        let stopped = work.run(stop).await;
        let is_open = work.is_open;
        if is_open {
            end(kept).await;
        }
        let is_ended = !is_open || kept.is_none();
        self.context.commits().ignore();
        self.metrics.resign();
        self.head.send_modify(|head| head.is_own = false);
        if !matches!(stopped, Stopped::Replaced)
            && let Err(error) = self.store.disown(&self.owner, is_ended).await
        {
            let error = chain(&error);
            info!(error, "the right to assign positions was not given up; it ends after {LEASE:?}");
        }
        stopped
    }

    /// Takes the right to assign positions, in the session of this process.
    ///
    /// A former owner that was killed or is suspended may have left a transaction open, and every write
    /// to the state would wait for its end: up to `transactionLifetimeLimitSeconds`.
    async fn take_over(
        &self,
        kept: &mut Option<ClientSession>,
    ) -> Result<Option<FeedState>, StoreError> {
        if let Some(silent) = self.store.silent_session(&self.owner).await? {
            let admin = self.context.client().database("admin");
            let kill = doc! { "killSessions": [silent] };
            if let Err(error) = ask(&admin, "end the transaction of a former owner", kill).await {
                debug!(error = chain(&error), "failed to end the transaction of a former owner");
            }
        }
        let session = match kept {
            Some(session) => session,
            None => kept.insert(session(&self.context).await?),
        };
        self.own(session.id()).await
    }

    /// Takes or renews the right to assign positions. Creates the feed if there is none.
    async fn own(&self, session: &Document) -> Result<Option<FeedState>, StoreError> {
        if let Some(state) = self.store.own(&self.owner, session).await? {
            return Ok(Some(state));
        }
        if self.store.load().await?.is_some() {
            return Ok(None);
        }
        // Positions without a head are from a feed whose document was lost.
        let (head, names) = highest_position(&self.context).await?;
        self.store.create(head, &names).await?;
        self.store.own(&self.owner, session).await
    }
}

/// The work of the owner.
struct Work<'a> {
    sequencer: &'a Sequencer,
    state: FeedState,
    collections: StreamCollections,
    positioned: Positioned,
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
    is_open: bool,
    failures: u32,
}

impl<'a> Work<'a> {
    fn new(
        sequencer: &'a Sequencer,
        state: FeedState,
        open_session: &'a mut Option<ClientSession>,
    ) -> Self {
        let context = sequencer.context.clone();
        Self {
            sequencer,
            state,
            collections: StreamCollections::new(context.clone()),
            positioned: Positioned::default(),
            reported: VecDeque::new(),
            scanned: VecDeque::new(),
            gaps: HashMap::new(),
            audit: Audit::new(context, &sequencer.settings),
            session: open_session.as_ref().map(|session| session.id().clone()).unwrap_or_default(),
            open_session,
            is_open: false,
            failures: 0,
        }
    }

    async fn run(&mut self, stop: &CancellationToken) -> Stopped {
        let commits = self.sequencer.context.commits();
        let (reports, mut followed) = mpsc::channel(MAX_REPORTS);
        let following = follow(self.sequencer.context.clone(), reports);
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
                    self.reported.extend(taken.appends);
                    if taken.is_overflowed {
                        self.audit.hasten();
                    }
                }
                page = self.audit.next(), if self.scanned.len() < MAX_BATCH => {
                    if let Err(error) = self.accept_page(page).await { return error.into() }
                }
                () = std::future::ready(()), if !self.reported.is_empty() => {}
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
                self.sequencer.metrics.change_stream_up.set(1.0);
                self.audit.follows(true);
            }
            Followed::Lost => {
                self.sequencer.metrics.change_stream_up.set(0.0);
                self.audit.follows(false);
            }
            Followed::Names(names) => {
                if names.iter().any(|name| !self.collections.is_ready(name)) {
                    self.discover().await?;
                }
            }
            Followed::Appends(appends) => self.reported.extend(appends),
        }
        Ok(())
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
                self.sequencer.metrics.invalid.set(invalid as f64);
                self.succeed();
            }
        }
        Ok(())
    }

    /// Finds new collections, and names them in the document of the feed before any position is assigned.
    async fn discover(&mut self) -> Result<(), StoreError> {
        self.collections.discover().await?;
        self.sequencer.metrics.unusable.set(self.collections.unusable() as f64);
        let known = &self.state.names;
        let new: Vec<_> =
            self.collections.ready().filter(|name| !known.contains(name)).cloned().collect();
        if !new.is_empty() {
            self.sequencer.store.add_names(&new).await?;
            self.state.names.extend(new);
        }
        Ok(())
    }

    /// Renews the lease, and follows a change of the feed by an operator.
    async fn renew(&mut self) -> Result<(), Stopped> {
        let owned = self.sequencer.own(&self.session).await?;
        let Some(state) = owned else { return Err(Stopped::Replaced) };
        if (&state.feed, state.head) != (&self.state.feed, self.state.head) {
            self.positioned.clear();
        }
        self.state = state;
        self.announce();
        Ok(())
    }

    fn announce(&self) {
        let FeedState { feed, head, .. } = &self.state;
        self.sequencer.metrics.head.set(*head as f64);
        let known = KnownHead { feed: feed.clone(), head: *head, is_own: true };
        self.sequencer.head.send_replace(known);
    }

    /// Positions are assigned, or no append waits for one.
    fn succeed(&self) {
        let Sequencer { status, metrics, .. } = self.sequencer;
        let follows = self.audit.follows_now();
        let now = if follows { SequencerStatus::Up } else { SequencerStatus::Scanning };
        status.set(now, metrics);
    }

    fn measure(&self) {
        let oldest = self.reported.front().or_else(|| self.scanned.front());
        self.sequencer.metrics.waits_since(oldest.map(|append| append.create_time));
        self.sequencer.metrics.gaps.set(self.gaps.len() as f64);
    }

    /// Assigns one batch of what was reported, and one of what was scanned.
    async fn assign_next(&mut self) -> Result<(), Stopped> {
        let mut reported = std::mem::take(&mut self.reported);
        let done = self.assign_from(&mut reported, MAX_BATCH, Source::Report).await;
        reported.append(&mut self.reported);
        self.reported = reported;
        done?;
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
        let Planned { batch, lookups } = plan(queue, &self.positioned, limit);
        if !lookups.is_empty() {
            self.look_up(queue, &lookups).await?;
        }
        if batch.is_empty() {
            return Ok(0);
        }
        let Sequencer { context, store, owner, metrics, .. } = self.sequencer;
        let assigned = assign(context, store, owner, &self.state, &batch, self.open_session).await;
        self.is_open = !matches!(assigned, Assigned::All(_));
        match assigned {
            Assigned::All(head) => {
                self.failures = 0;
                for append in &batch {
                    self.positioned.insert(&append.aggregate, append.version);
                    if self.gaps.get(&append.aggregate) == Some(&append.version) {
                        self.gaps.remove(&append.aggregate);
                        // What follows the version that was missing is found by a scan.
                        self.audit.hasten();
                    }
                }
                self.state.head = head;
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
                "MongoDB does not change an append; this aggregate gets no positions"
            );
        }
        // (As if the version itself were behind a missing one.)
        self.gaps.insert(aggregate, version - 1);
    }

    /// Reads what precedes these versions, and puts what has no position in front of them.
    async fn look_up(
        &mut self,
        queue: &mut VecDeque<CommittedAppend>,
        lookups: &[Lookup],
    ) -> Result<(), Stopped> {
        for (aggregate, before, found) in predecessors(&self.sequencer.context, lookups).await? {
            match found {
                Predecessors::Positioned => self.positioned.insert(&aggregate, before - 1),
                Predecessors::Without(chain) => {
                    if let Some(first) = chain.first() {
                        self.positioned.insert(&aggregate, first.version - 1);
                    }
                    restore(queue, chain);
                }
                Predecessors::Missing(missing) => {
                    if self.gaps.len() < MAX_LOGGED_GAPS && !self.gaps.contains_key(&aggregate) {
                        warn!(
                            name = %aggregate.0,
                            aggregate = %aggregate.1,
                            missing,
                            "a version is missing; later ones of this aggregate get no positions"
                        );
                    }
                    self.gaps.insert(aggregate, missing);
                }
            }
        }
        Ok(())
    }

    /// Keeps of a batch what has no position, and forgets what was believed of its aggregates. Returns
    /// how many are left.
    async fn drop_positioned(
        &mut self,
        queue: &mut VecDeque<CommittedAppend>,
        mut batch: Vec<CommittedAppend>,
    ) -> Result<usize, Stopped> {
        let found = reread(&self.sequencer.context, &batch).await?;
        let without: HashMap<_, _> = found
            .iter()
            .filter(|found| found.position.is_none())
            .map(|found| ((&found.append.aggregate, found.append.version), ()))
            .collect();
        batch.retain(|append| without.contains_key(&(&append.aggregate, append.version)));
        for append in &found {
            self.positioned.remove(&append.append.aggregate);
        }
        let left = batch.len();
        restore(queue, batch);
        Ok(left)
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
