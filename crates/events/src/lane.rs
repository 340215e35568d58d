//! Group commit: a lane writes whatever waits for it in one transaction.
//!
//! Nobody waits for company: an append that comes while nothing is under way goes at once, alone.
//! Those that come meanwhile go together in the next transaction. So the lane adds nothing to an
//! idle store, and under load the cost of a transaction is shared.
//!
//! All appends to an aggregate come through one lane, in their order.

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
use crate::decide::{Next, Wish, decide};
use crate::error::AppendError;
use crate::heads::{Head, Heads, Knowledge};
use crate::lookup::{self, Fate};
use crate::metrics::AppendMetrics;
use crate::prepared::{Aggregate, Place, Prepared};
use crate::transaction::{Ended, Guard, end, pause, write};

/// Appends in one transaction: beyond this sharing saves nothing that could be measured, and
/// everybody waits for the whole.
const LARGEST_GROUP: usize = 128;

/// Their bytes, unless one alone has more.
const GROUP_BYTES: usize = 4 << 20;

/// How long appends are tried again where MongoDB, or others at the same aggregate, stand in
/// their way.
const PATIENCE: Duration = Duration::from_secs(10);

/// After so many tries without success one aggregate is tried at a time: what stands in its way
/// is then in nobody else's.
const TOGETHER: u32 = 2;

/// An append that waits for its answer.
pub(super) struct Waiting {
    pub(super) append: Prepared,
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Result<Appended, AppendError>>,
    /// Its part of what may wait at all.
    pub(super) _room: OwnedSemaphorePermit,
}

/// What all lanes, and units of work, share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) outbox: Collections,
    pub(super) clock: Arc<ServerClock>,
    pub(super) wake: Option<Wakeup>,
    pub(super) metrics: AppendMetrics,
}

/// One writer.
pub(super) struct Lane {
    shared: Shared,
    heads: Heads,
    /// Aggregates of which what is known from earlier did not hold.
    doubted: HashSet<Aggregate>,
    /// The session of a transaction that may be open on the server. The next one begins in it.
    left: Option<ClientSession>,
}

/// Why a round got nowhere.
enum Trouble {
    /// MongoDB.
    Store(StoreError),
    /// Others, who came first.
    Contended,
    /// One of several aggregates, and it is not known which.
    OneOfThem,
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Lane {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared, heads: Heads::default(), doubted: HashSet::new(), left: None }
    }

    /// Writes what comes; from `closing` on what is there already.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Waiting>,
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
            while group.len() < LARGEST_GROUP && bytes < GROUP_BYTES {
                let Ok(next) = queue.try_recv() else { break };
                bytes += next.append.bytes;
                group.push(next);
            }
            failpoint::hit("events::group");
            self.work(group).await;
        }
    }

    async fn work(&mut self, mut waiting: Vec<Waiting>) {
        let began = Instant::now();
        let (mut failures, mut alone) = (0, false);
        self.heads.begin_group();
        self.doubted.clear();
        while !waiting.is_empty() {
            let Err(trouble) = self.round(&mut waiting, alone).await else {
                failures = 0;
                continue;
            };
            failures += 1;
            if began.elapsed() > PATIENCE {
                return self.give_up(waiting, trouble).await;
            }
            if failures > TOGETHER || matches!(trouble, Trouble::OneOfThem) {
                alone = true;
            }
            tokio::time::sleep(pause(failures)).await;
        }
        // Where the last of them were answered without another transaction.
        end(&mut self.left).await;
    }

    /// One step towards an answer for each.
    async fn round(&mut self, waiting: &mut Vec<Waiting>, alone: bool) -> Result<(), Trouble> {
        self.learn(waiting).await?;
        let now = self.now().await?;
        let wishes: Vec<Wish<'_>> = waiting.iter().map(wish).collect();
        let decisions = decide(&wishes, &self.heads, now, alone);
        let (mut going, mut conflicts) = (Vec::new(), Vec::new());
        for (at, next) in decisions.into_iter().enumerate() {
            match next {
                Next::Goes(place) => going.push((at, place)),
                Next::Conflicts { actual } => conflicts.push((at, actual)),
                Next::Unknown => _ = self.doubted.insert(wishes[at].aggregate.clone()),
                Next::Later => {}
            }
        }
        if !conflicts.is_empty() {
            return self.answer_conflicts(waiting, &conflicts).await;
        }
        if going.is_empty() {
            // What is doubted is read in the next round.
            return Ok(());
        }
        let appends: Vec<(&Prepared, Place)> =
            going.iter().map(|(at, place)| (&waiting[*at].append, *place)).collect();
        let Shared { context, outbox, .. } = &self.shared;
        match write(context, outbox, &appends, &mut self.left).await {
            Ended::Committed => self.on_committed(waiting, &going),
            Ended::Refused { at, by } => self.on_refused(waiting, going[at].0, by).await?,
            Ended::Again(error) => {
                self.doubt(waiting);
                return Err(Trouble::Store(error));
            }
            Ended::Failed(_) if wishes_of_several(&appends) => return Err(Trouble::OneOfThem),
            Ended::Failed(error) => {
                end(&mut self.left).await;
                self.fail(waiting, &going, AppendError::Unavailable(Arc::new(error)));
            }
            Ended::Unknown(error) => {
                warn!(error = chain(&error), "whether appends were committed is not known");
                end(&mut self.left).await;
                self.fail(waiting, &going, AppendError::Unknown(Arc::new(error)));
            }
        }
        Ok(())
    }

    /// Reads the versions that an append of these must know: those that nothing is known of, and
    /// those that are doubted.
    async fn learn(&mut self, waiting: &[Waiting]) -> Result<(), StoreError> {
        let mut asked = std::mem::take(&mut self.doubted);
        for waiting in waiting {
            let aggregate = waiting.append.aggregate();
            let is_first = waiting.append.append.expected.is_none();
            if !is_first && self.heads.of(&aggregate) == Knowledge::Nothing {
                asked.insert(aggregate);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let read = lookup::heads(&self.shared.context, asked.iter().cloned().collect()).await;
        match read {
            Ok(read) => {
                for (aggregate, head) in read {
                    self.heads.learn(aggregate, head);
                }
                Ok(())
            }
            Err(error) => {
                self.doubted = asked;
                Err(error)
            }
        }
    }

    async fn now(&self) -> Result<i64, StoreError> {
        let clock = &self.shared.clock;
        clock.keep_fresh(self.shared.outbox.database()).await?;
        Ok(clock.now().timestamp_millis())
    }

    fn on_committed(&mut self, waiting: &mut Vec<Waiting>, going: &[(usize, Place)]) {
        debug!(appends = going.len(), "committed appends");
        for ((_, place), gone) in going.iter().zip(take(waiting, going)) {
            let Place { version, create_time } = *place;
            self.heads.learn(gone.append.aggregate(), Head { version, create_time });
            if let Some(wake) = &self.shared.wake {
                wake.at(ScanHint::of_key(gone.append.append.id.as_str()));
            }
            let answer = gone.append.appended(*place);
            self.answer(gone, Ok(answer));
        }
    }

    /// A unique index, or something else, would not have one of them.
    async fn on_refused(
        &mut self,
        waiting: &mut Vec<Waiting>,
        at: usize,
        by: Guard,
    ) -> Result<(), Trouble> {
        if let Guard::Other(refusal) = by {
            let refused = waiting.remove(at);
            self.answer(refused, Err(AppendError::refused(&refusal)));
            return Ok(());
        }
        self.doubt(waiting);
        // All that may have the same in store for the next try are asked about at once.
        let all: Vec<(usize, Option<i64>)> = (0..waiting.len()).map(|at| (at, None)).collect();
        match self.answer_known(waiting, &all).await? {
            0 => Err(Trouble::Contended),
            _ => Ok(()),
        }
    }

    /// Those that do not fit: a request that was appended before is no conflict (it is judged
    /// first).
    async fn answer_conflicts(
        &mut self,
        waiting: &mut Vec<Waiting>,
        conflicts: &[(usize, i64)],
    ) -> Result<(), Trouble> {
        let asked: Vec<(usize, Option<i64>)> =
            conflicts.iter().map(|(at, actual)| (*at, Some(*actual))).collect();
        self.answer_known(waiting, &asked).await?;
        Ok(())
    }

    /// Answers those whose requests were appended before, and those that are in conflict with the
    /// given version; how many these were.
    async fn answer_known(
        &mut self,
        waiting: &mut Vec<Waiting>,
        asked: &[(usize, Option<i64>)],
    ) -> Result<usize, Trouble> {
        let appends: Vec<&Prepared> = asked.iter().map(|(at, _)| &waiting[*at].append).collect();
        let mut fates = lookup::fates(&self.shared.context, &appends).await?;
        let mut answers = Vec::new();
        for (position, (at, actual)) in asked.iter().enumerate() {
            let expected = appends[position].append.expected;
            let answer = match (fates.remove(&position), actual) {
                (Some(Fate::Replayed(first)), _) => Ok(first),
                (Some(Fate::Elsewhere(aggregate_id)), _) => {
                    Err(AppendError::DuplicateRequest { aggregate_id })
                }
                (None, None) => continue,
                (None, Some(actual)) => Err(AppendError::conflict(expected, *actual)),
            };
            answers.push((*at, answer));
        }
        let count = answers.len();
        let taken = take(waiting, &answers);
        for (answered, (_, answer)) in taken.into_iter().zip(answers) {
            self.answer(answered, answer);
        }
        Ok(count)
    }

    /// Nothing that is known from earlier is to be trusted.
    fn doubt(&mut self, waiting: &[Waiting]) {
        for waiting in waiting {
            let aggregate = waiting.append.aggregate();
            self.heads.forget(&aggregate);
            self.doubted.insert(aggregate);
        }
    }

    fn fail(&mut self, waiting: &mut Vec<Waiting>, going: &[(usize, Place)], error: AppendError) {
        for failed in take(waiting, going) {
            self.heads.forget(&failed.append.aggregate());
            self.answer(failed, Err(error.clone()));
        }
    }

    async fn give_up(&mut self, waiting: Vec<Waiting>, trouble: Trouble) {
        end(&mut self.left).await;
        let error = match trouble {
            Trouble::Store(error) => error,
            Trouble::Contended | Trouble::OneOfThem => StoreError::Answer {
                action: "append events",
                detail: format!("others came first, again and again, for {PATIENCE:?}"),
            },
        };
        warn!(error = chain(&error), appends = waiting.len(), "appends are given up");
        let error = Arc::new(error);
        for waiting in waiting {
            self.heads.forget(&waiting.append.aggregate());
            self.answer(waiting, Err(AppendError::Unavailable(error.clone())));
        }
    }

    fn answer(&self, waiting: Waiting, answer: Result<Appended, AppendError>) {
        self.shared.metrics.answered(waiting.since, answer.as_ref());
        // Who asked may be gone; what was appended stays so.
        let _ = waiting.answer.send(answer);
    }
}

fn wish(waiting: &Waiting) -> Wish<'_> {
    let append = &waiting.append.append;
    Wish {
        aggregate: waiting.append.aggregate(),
        request_id: &append.request_id,
        expected: append.expected,
    }
}

fn wishes_of_several(appends: &[(&Prepared, Place)]) -> bool {
    let first = appends[0].0.aggregate();
    appends.iter().any(|(append, _)| append.aggregate() != first)
}

/// Takes those at these (ascending) positions out, in their order.
fn take<T>(waiting: &mut Vec<Waiting>, positions: &[(usize, T)]) -> Vec<Waiting> {
    let mut wanted = positions.iter().map(|(at, _)| *at).peekable();
    let (mut taken, mut left) = (Vec::with_capacity(positions.len()), Vec::new());
    for (at, one) in std::mem::take(waiting).into_iter().enumerate() {
        match wanted.next_if_eq(&at) {
            Some(_) => taken.push(one),
            None => left.push(one),
        }
    }
    *waiting = left;
    taken
}
