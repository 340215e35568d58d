//! Group commit: a lane writes all appends that wait for it in one transaction.
//!
//! No append waits for others: one that arrives while the lane is idle is written at once, alone.
//! Those that arrive meanwhile share the next transaction. So the lane adds no latency to an idle
//! store, and under load the cost of a transaction is shared.
//!
//! All appends to an aggregate go through one lane, in the order of their arrival.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::ClientSession;
use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::{ScanHint, Wakeup};
use postrider_store::failpoint;
use postrider_store::text::chain;
use postrider_store::{ServerClock, StoreError};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::append::Appended;
use crate::context::Context;
use crate::decide::{Candidate, Decision, decide};
use crate::error::AppendError;
use crate::lookup::{self, Certainty, PriorAppend};
use crate::metrics::AppendMetrics;
use crate::names::AggregateKey;
use crate::prepared::{Place, PreparedAppend};
use crate::state::StreamState;
use crate::transaction::{RefusedBy, TransactionOutcome, backoff, end, write};
use crate::version_cache::{Cached, LatestVersion, VersionCache};

/// The most appends in one transaction: sharing among more saves nothing that can be measured, and all
/// of them wait for the whole.
const MAX_GROUP_APPENDS: usize = 128;

/// The most bytes in one transaction, unless one append alone has more.
const MAX_GROUP_BYTES: usize = 4 << 20;

/// How long appends are retried while MongoDB fails, or other appends to the same aggregate win.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The failures after which one aggregate is written at a time, so that what blocks it blocks no other.
const MAX_GROUP_FAILURES: u32 = 2;

/// An append that waits for its answer.
pub(super) struct QueuedAppend {
    pub(super) append: PreparedAppend,
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Result<Appended, AppendError>>,
    /// Its part of the memory of all queues.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl QueuedAppend {
    fn candidate(&self) -> Candidate<'_> {
        Candidate { append: &self.append.append, ending: self.append.ending }
    }
}

/// What all lanes and units of work use.
#[derive(Clone)]
pub(super) struct StoreParts {
    pub(super) context: Context,
    pub(super) outbox: Collections,
    pub(super) clock: Arc<ServerClock>,
    pub(super) wake: Option<Wakeup>,
    pub(super) metrics: AppendMetrics,
}

/// A writer of appends.
pub(super) struct Lane {
    parts: StoreParts,
    versions: VersionCache,
    /// Aggregates whose version must be read before the next decision.
    invalidated: HashSet<AggregateKey>,
    /// Aggregates whose version a majority has confirmed for this group.
    confirmed: HashSet<AggregateKey>,
    /// The session of a transaction that may be open on the server. The next one begins in it.
    open_session: Option<ClientSession>,
}

/// Why a round wrote nothing.
enum RoundFailure {
    /// MongoDB failed.
    Store(StoreError),
    /// Other appends came first.
    Contended,
    /// One of several aggregates cannot be written, and which one is unknown.
    OneAggregate,
}

impl From<StoreError> for RoundFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Lane {
    pub(super) fn new(parts: StoreParts) -> Self {
        Self {
            parts,
            versions: VersionCache::default(),
            invalidated: HashSet::new(),
            confirmed: HashSet::new(),
            open_session: None,
        }
    }

    /// Writes appends as they arrive; from `closing` on, those that are queued.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<QueuedAppend>,
        closing: CancellationToken,
    ) {
        loop {
            let first = tokio::select! {
                first = queue.recv() => first,
                () = closing.cancelled(), if !queue.is_closed() => {
                    queue.close();
                    continue;
                }
            };
            let Some(first) = first else { return };
            let mut bytes = first.append.bytes;
            let mut group = vec![first];
            while group.len() < MAX_GROUP_APPENDS && bytes < MAX_GROUP_BYTES {
                let Ok(next) = queue.try_recv() else { break };
                bytes += next.append.bytes;
                group.push(next);
            }
            failpoint::hit("events::group");
            self.write_group(group).await;
        }
    }

    async fn write_group(&mut self, mut group: Vec<QueuedAppend>) {
        let began = Instant::now();
        let (mut failures, mut one_aggregate) = (0, false);
        self.versions.begin_group();
        self.invalidated.clear();
        self.confirmed.clear();
        while !group.is_empty() {
            let Err(failure) = self.write_round(&mut group, one_aggregate, failures).await else {
                failures = 0;
                continue;
            };
            failures += 1;
            if began.elapsed() > RETRY_TIMEOUT {
                return self.give_up(group, failure).await;
            }
            if failures > MAX_GROUP_FAILURES || matches!(failure, RoundFailure::OneAggregate) {
                one_aggregate = true;
            }
            tokio::time::sleep(backoff(failures)).await;
        }
        // The last ones may have been answered without another transaction.
        end(&mut self.open_session).await;
    }

    /// Answers some of the appends, or reads what the next round needs.
    async fn write_round(
        &mut self,
        group: &mut Vec<QueuedAppend>,
        one_aggregate: bool,
        failures: u32,
    ) -> Result<(), RoundFailure> {
        self.read_versions(group).await?;
        let now = self.now().await?;
        let appends: Vec<Candidate<'_>> = group.iter().map(QueuedAppend::candidate).collect();
        let decisions = decide(&appends, &self.versions, now, one_aggregate);
        let (mut writes, mut conflicts) = (Vec::new(), Vec::new());
        for (at, decision) in decisions.into_iter().enumerate() {
            match decision {
                Decision::Write(place) => writes.push((at, place)),
                Decision::Conflict { actual } => {
                    let conflict = AppendError::conflict(appends[at].append.expected, actual);
                    conflicts.push((at, Some(conflict)));
                }
                Decision::Ended { actual } => {
                    conflicts.push((at, Some(AppendError::StreamEnded { version: actual })));
                }
                Decision::ReadFirst => {
                    _ = self.invalidated.insert(appends[at].append.aggregate());
                }
                Decision::Wait => {}
            }
        }
        if !conflicts.is_empty() {
            let in_conflict = conflicts.iter().map(|(at, _)| group[*at].append.aggregate());
            let unsure: Vec<_> = in_conflict.filter(|it| !self.confirmed.contains(it)).collect();
            if !unsure.is_empty() {
                self.confirm(unsure).await?;
                return Ok(());
            }
            // A request that was appended before is a replay and no conflict.
            self.answer_known(group, conflicts, Certainty::Confirmed).await?;
            return Ok(());
        }
        if writes.is_empty() {
            // The next round reads the versions first.
            return Ok(());
        }
        let appends: Vec<(&PreparedAppend, Place)> =
            writes.iter().map(|(at, place)| (&group[*at].append, *place)).collect();
        let StoreParts { context, outbox, .. } = &self.parts;
        match write(context, outbox, &appends, &mut self.open_session).await {
            TransactionOutcome::Committed => self.on_committed(group, &writes),
            TransactionOutcome::Refused { at, by } => {
                self.on_refused(group, writes[at].0, by, failures > 0).await?;
            }
            TransactionOutcome::Again(error) => {
                self.invalidate(group);
                return Err(RoundFailure::Store(error));
            }
            TransactionOutcome::Failed(_) if has_several_aggregates(&appends) => {
                return Err(RoundFailure::OneAggregate);
            }
            TransactionOutcome::Failed(error) => {
                end(&mut self.open_session).await;
                self.fail(group, &writes, AppendError::Unavailable(Arc::new(error)));
            }
            TransactionOutcome::Unknown(error) => {
                warn!(error = chain(&error), "unknown whether appends were committed");
                end(&mut self.open_session).await;
                self.fail(group, &writes, AppendError::Unknown(Arc::new(error)));
            }
        }
        Ok(())
    }

    /// Reads the versions that are missing or invalidated.
    async fn read_versions(&mut self, group: &[QueuedAppend]) -> Result<(), StoreError> {
        let mut aggregates = std::mem::take(&mut self.invalidated);
        for queued in group {
            let aggregate = queued.append.aggregate();
            let is_first = queued.append.append.expected.is_none();
            if !is_first && self.versions.get(&aggregate) == Cached::Missing {
                aggregates.insert(aggregate);
            }
        }
        if aggregates.is_empty() {
            return Ok(());
        }
        let context = &self.parts.context;
        let reading = aggregates.iter().cloned().collect();
        match lookup::latest_versions(context, reading, Certainty::Majority).await {
            Ok(found) => {
                for (aggregate, latest) in found {
                    self.versions.insert(aggregate, latest);
                }
                Ok(())
            }
            Err(error) => {
                self.invalidated = aggregates;
                Err(error)
            }
        }
    }

    /// Reads the versions of aggregates that appends do not fit: after an election, those of before may be
    /// older than what the clients have seen.
    async fn confirm(&mut self, aggregates: Vec<AggregateKey>) -> Result<(), StoreError> {
        let context = &self.parts.context;
        let found = lookup::latest_versions(context, aggregates, Certainty::Confirmed).await?;
        for (aggregate, latest) in found {
            self.invalidated.remove(&aggregate);
            self.versions.insert(aggregate.clone(), latest);
            self.confirmed.insert(aggregate);
        }
        Ok(())
    }

    async fn now(&self) -> Result<i64, StoreError> {
        let clock = &self.parts.clock;
        clock.keep_fresh(self.parts.outbox.database()).await?;
        Ok(clock.now().timestamp_millis())
    }

    fn on_committed(&mut self, group: &mut Vec<QueuedAppend>, writes: &[(usize, Place)]) {
        debug!(appends = writes.len(), "committed appends");
        let commits = self.parts.context.commits();
        if commits.is_active() {
            commits.report(writes.iter().map(|(at, place)| group[*at].append.committed(*place)));
        }
        for ((_, place), queued) in writes.iter().zip(take(group, writes)) {
            let Place { version, create_time } = *place;
            let state = StreamState::after(queued.append.ending);
            let latest = LatestVersion { version, create_time, state };
            self.versions.insert(queued.append.aggregate(), latest);
            if let Some(wake) = &self.parts.wake {
                wake.at(ScanHint::of_key(queued.append.append.id.as_str()));
            }
            let answer = queued.append.appended(*place);
            self.answer(queued, Ok(answer));
        }
    }

    /// Handles an append that MongoDB refused, so that nothing was written.
    async fn on_refused(
        &mut self,
        group: &mut Vec<QueuedAppend>,
        at: usize,
        by: RefusedBy,
        is_repeated: bool,
    ) -> Result<(), RoundFailure> {
        if let RefusedBy::Other(refusal) = by {
            let refused = group.remove(at);
            self.answer(refused, Err(AppendError::refused(&refusal)));
            return Ok(());
        }
        self.invalidate(group);
        // Any of them may be refused for the same reason next: one query finds all replays.
        let count = group.len();
        let all = || (0..count).map(|at| (at, None)).collect();
        if self.answer_known(group, all(), Certainty::Majority).await? > 0 {
            return Ok(());
        }
        if is_repeated {
            // An index has what a majority read does not show: after an election it may be behind.
            if self.answer_known(group, all(), Certainty::Confirmed).await? > 0 {
                return Ok(());
            }
            self.confirm(vec![group[at].append.aggregate()]).await?;
        }
        Err(RoundFailure::Contended)
    }

    /// Answers the appends whose requests were appended before, and the others that have an error with
    /// it. Returns how many it answered.
    async fn answer_known(
        &mut self,
        group: &mut Vec<QueuedAppend>,
        candidates: Vec<(usize, Option<AppendError>)>,
        certainty: Certainty,
    ) -> Result<usize, RoundFailure> {
        let appends: Vec<_> = candidates.iter().map(|(at, _)| &group[*at].append).collect();
        let context = &self.parts.context;
        let mut prior = lookup::prior_appends(context, &appends, certainty).await?;
        let mut answers = Vec::new();
        for (position, (at, error)) in candidates.into_iter().enumerate() {
            let answer = match (prior.remove(&position), error) {
                (Some(PriorAppend::Replayed(first)), _) => Ok(first),
                (Some(PriorAppend::Elsewhere(aggregate_id)), _) => {
                    Err(AppendError::DuplicateRequest { aggregate_id })
                }
                (None, None) => continue,
                (None, Some(error)) => Err(error),
            };
            answers.push((at, answer));
        }
        let count = answers.len();
        let taken = take(group, &answers);
        for (queued, (_, answer)) in taken.into_iter().zip(answers) {
            self.answer(queued, answer);
        }
        Ok(count)
    }

    /// Drops the cached versions of these aggregates.
    fn invalidate(&mut self, group: &[QueuedAppend]) {
        for queued in group {
            let aggregate = queued.append.aggregate();
            self.versions.remove(&aggregate);
            self.invalidated.insert(aggregate);
        }
    }

    fn fail(
        &mut self,
        group: &mut Vec<QueuedAppend>,
        writes: &[(usize, Place)],
        error: AppendError,
    ) {
        for failed in take(group, writes) {
            self.versions.remove(&failed.append.aggregate());
            self.answer(failed, Err(error.clone()));
        }
    }

    async fn give_up(&mut self, group: Vec<QueuedAppend>, failure: RoundFailure) {
        end(&mut self.open_session).await;
        let error = match failure {
            RoundFailure::Store(error) => error,
            RoundFailure::Contended | RoundFailure::OneAggregate => StoreError::Answer {
                action: "append events",
                detail: format!("concurrent appends conflicted repeatedly for {RETRY_TIMEOUT:?}"),
            },
        };
        warn!(error = chain(&error), appends = group.len(), "failed to append");
        let error = AppendError::Unavailable(Arc::new(error));
        for queued in group {
            self.versions.remove(&queued.append.aggregate());
            self.answer(queued, Err(error.clone()));
        }
    }

    fn answer(&self, queued: QueuedAppend, answer: Result<Appended, AppendError>) {
        self.parts.metrics.answered(queued.since, answer.as_ref());
        // The caller may be gone; what was appended stays.
        let _ = queued.answer.send(answer);
    }
}

fn has_several_aggregates(appends: &[(&PreparedAppend, Place)]) -> bool {
    let first = appends[0].0.aggregate();
    appends.iter().any(|(append, _)| append.aggregate() != first)
}

/// Takes the appends at these ascending positions out of the group, in their order.
fn take<T>(group: &mut Vec<QueuedAppend>, positions: &[(usize, T)]) -> Vec<QueuedAppend> {
    let mut positions = positions.iter().map(|(at, _)| *at).peekable();
    let (mut taken, mut rest) = (Vec::new(), Vec::new());
    for (at, queued) in std::mem::take(group).into_iter().enumerate() {
        let list = if positions.next_if_eq(&at).is_some() { &mut taken } else { &mut rest };
        list.push(queued);
    }
    *group = rest;
    taken
}
