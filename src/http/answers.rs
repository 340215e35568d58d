//! What answers hold while their clients read them.
//!
//! ```text
//! a turn, one of TURNS      read a part from MongoDB and encode it: documents of few answers are in memory at a time
//! a share of the budget     for what of the text is larger than RESERVE: all texts together are bounded
//! pieces, one at a time     to the connection, by a task: a read that has begun ends, whether the client reads or not
//! ```
//!
//! An answer that its client does not take holds a text: no turn, no cursor and no connection to MongoDB. A
//! piece that is not taken for 30 s ends it. If the budget is used up, the answers that are taken
//! most slowly end first, and what cannot be held by then is refused. Appends and deliveries need no share.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, warn};

use crate::http::problem::Problem;
use crate::telemetry::chain;

/// Parts that are read and encoded at a time.
const TURNS: usize = 4;

/// Pages of queries that are read and encoded at a time. Slow queries delay no other answers.
const QUERY_TURNS: usize = 4;

/// What all answers may hold together above their reserves.
const BUDGET_BYTES: usize = 64 << 20;

/// What each answer may hold in any case. Parts are made so that few are larger.
const RESERVE_BYTES: usize = 128 << 10;

/// The text of a part, at which it ends.
pub(super) const PART_BYTES: usize = 96 << 10;

/// The largest piece that is given to a connection at a time. A smaller whole answer is given at once.
const PIECE_BYTES: usize = 32 << 10;

/// An answer may end for others if fewer bytes a second than these are taken of it. (The buffers of a connection hide a
/// part of what a client reads.)
const SLOW_BYTES_PER_SECOND: u64 = 8 << 10;

/// How long answers and their clients may wait.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// The longest time until a piece is taken. A client that reads 16 KB/s takes one every few seconds: the buffer of a
    /// connection ([`SEND_BUFFER_BYTES`](crate::listener::SEND_BUFFER_BYTES)) accepts more when a third of it is free.
    stalled: Duration,
    /// How long an answer is read until its rate is judged.
    measured: Duration,
    /// The longest wait for a turn or a share: longer than `measured`, so that slow answers end before.
    wait: Duration,
}

const DEFAULT_PATIENCE: Patience = Patience {
    stalled: Duration::from_secs(30),
    measured: Duration::from_secs(16),
    wait: Duration::from_secs(20),
};

/// The texts that wait for a share at a time, beyond the budget.
const WAITING: usize = 4;

/// The interval at which an answer that waits for a share ends the slowest one.
const PRESS: Duration = Duration::from_millis(250);

/// The unit of the budget.
const UNIT: usize = 1 << 10;

/// The turns and the budget of all answers of a process.
#[derive(Debug)]
pub struct Answers {
    turns: Arc<Semaphore>,
    query_turns: Arc<Semaphore>,
    budget: Arc<Semaphore>,
    waiting: Semaphore,
    holders: Mutex<Vec<Arc<Holder>>>,
    patience: Patience,
}

/// An answer that holds a share.
#[derive(Debug)]
struct Holder {
    since: Instant,
    taken: AtomicU64,
    /// Ends the answer.
    over: CancellationToken,
}

impl Holder {
    /// The bytes a second that are taken, if the answer has been read for long enough.
    fn rate(&self, now: Instant, measured: Duration) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.since);
        (elapsed >= measured).then(|| self.taken.load(Ordering::Relaxed) / elapsed.as_secs().max(1))
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self::with(DEFAULT_PATIENCE)
    }
}

impl Answers {
    fn with(patience: Patience) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(TURNS)),
            query_turns: Arc::new(Semaphore::new(QUERY_TURNS)),
            budget: Arc::new(Semaphore::new(BUDGET_BYTES / UNIT)),
            waiting: Semaphore::new(WAITING),
            holders: Mutex::default(),
            patience,
        }
    }
}

/// The budget stays used up by answers that are taken.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("clients take the answers of this process too slowly; retry later")]
struct Overloaded;

impl From<Overloaded> for Problem {
    fn from(error: Overloaded) -> Self {
        Self::overloaded(error.to_string())
    }
}

impl Answers {
    /// Holds a text of this size. One that is larger than the budget takes all of it.
    async fn hold(self: &Arc<Self>, bytes: usize) -> Result<Share, Overloaded> {
        let units = bytes.saturating_sub(RESERVE_BYTES).div_ceil(UNIT).min(BUDGET_BYTES / UNIT);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        if units == 0 {
            return Ok(Share { held: None });
        }
        let permit = match self.budget.clone().try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => {
                let _place = self.waiting.try_acquire().map_err(|_| Overloaded)?;
                timeout(self.patience.wait, self.press(units)).await.map_err(|_| Overloaded)?
            }
        };
        let holder = Holder {
            since: Instant::now(),
            taken: AtomicU64::new(0),
            over: CancellationToken::new(),
        };
        let holder = Arc::new(holder);
        self.holders.lock().push(holder.clone());
        Ok(Share { held: Some(Held { answers: self.clone(), holder, _permit: permit }) })
    }

    /// Waits for a part of the budget, and ends slow answers meanwhile.
    async fn press(&self, units: u32) -> OwnedSemaphorePermit {
        let mut acquiring = std::pin::pin!(self.budget.clone().acquire_many_owned(units));
        loop {
            tokio::select! {
                Ok(permit) = &mut acquiring => return permit,
                () = sleep(PRESS) => self.end_slowest(),
            }
        }
    }

    fn end_slowest(&self) {
        let holders = self.holders.lock();
        if let Some(slowest) = slowest(&holders, Instant::now(), self.patience.measured) {
            slowest.over.cancel();
        }
    }
}

/// The answer that is taken most slowly, if it is too slow.
fn slowest(holders: &[Arc<Holder>], now: Instant, measured: Duration) -> Option<&Arc<Holder>> {
    let going = holders.iter().filter(|holder| !holder.over.is_cancelled());
    let rates = going.filter_map(|holder| Some((holder.rate(now, measured)?, holder)));
    let slow = rates.filter(|(rate, _)| *rate < SLOW_BYTES_PER_SECOND);
    slow.min_by_key(|(rate, _)| *rate).map(|(_, slowest)| slowest)
}

/// Waits for a turn.
async fn take(turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    // (They are never closed.)
    turns.clone().acquire_owned().await.ok()
}

/// What an answer holds of the budget.
struct Share {
    held: Option<Held>,
}

struct Held {
    answers: Arc<Answers>,
    holder: Arc<Holder>,
    _permit: OwnedSemaphorePermit,
}

impl Share {
    /// Ends when others need the share more.
    async fn over(&self) {
        match &self.held {
            Some(held) => held.holder.over.cancelled().await,
            None => std::future::pending().await,
        }
    }

    fn note_taken(&self, bytes: usize) {
        if let Some(held) = &self.held {
            held.holder.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.answers.holders.lock().retain(|holder| !Arc::ptr_eq(holder, &self.holder));
    }
}

/// Why the next part cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum PartError<E> {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] E),
    /// An item has no JSON. (A client would take it for read.)
    #[error("cannot encode an item")]
    Encode(#[source] serde_json::Error),
}

impl<E: Into<Problem>> From<PartError<E>> for Problem {
    fn from(error: PartError<E>) -> Self {
        match error {
            PartError::Read(error) => error.into(),
            PartError::Encode(error) => Self::fault(&error),
        }
    }
}

/// The text of a part; `None` behind the last one.
pub type PartText<E> = Result<Option<String>, PartError<E>>;

/// What an answer does before its next part.
#[derive(Debug)]
pub enum Next {
    /// It reads the part.
    Part,
    /// It sends this text.
    Text(&'static str),
}

/// An answer that is read and encoded a part at a time.
pub trait Parts: Send + 'static {
    /// Why a part cannot be read.
    type Error: Error + Into<Problem> + Send + Sync + 'static;

    /// Waits for the next part, without a turn.
    fn wait(&mut self) -> BoxFuture<'_, Next> {
        std::future::ready(Next::Part).boxed()
    }

    /// Reads and encodes the next part; `None` behind the last one. Called in a turn.
    ///
    /// Each part continues behind the one before, by a read of its own: between two of them the client may
    /// pause for any time.
    fn read(&mut self) -> BoxFuture<'_, PartText<Self::Error>>;
}

/// A whole answer has no second part.
struct Nothing;

impl Parts for Nothing {
    type Error = Never;

    fn read(&mut self) -> BoxFuture<'_, PartText<Never>> {
        std::future::ready(Ok(None)).boxed()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never(Infallible);

impl From<Never> for Problem {
    fn from(Never(never): Never) -> Self {
        match never {}
    }
}

/// Why an answer ends early.
#[derive(Debug, thiserror::Error)]
enum Cut<E> {
    #[error("failed to read the rest of a response")]
    Part(#[source] PartError<E>),
    #[error("the client took nothing of a response for {0:?}")]
    Stalled(Duration),
    #[error("the client took a response too slowly while other responses waited")]
    Slow,
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
}

/// The permit of a concurrent request. A streamed answer holds it until its end.
#[derive(Clone, Debug)]
pub struct RequestPermit(#[expect(dead_code, reason = "held, not read")] Arc<OwnedSemaphorePermit>);

impl RequestPermit {
    /// Shares a permit.
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(permit))
    }
}

/// The answer of a request: how it may read, and how it is sent.
#[derive(Clone, Debug)]
pub struct Answering {
    answers: Arc<Answers>,
    /// Held until the answer's end.
    _permit: RequestPermit,
}

impl Answering {
    /// The answer of a request with this permit.
    pub(super) fn new(answers: Arc<Answers>, permit: RequestPermit) -> Self {
        Self { answers, _permit: permit }
    }

    /// An answer by turns and a budget of a test.
    #[cfg(test)]
    pub(super) fn of_test(answers: Arc<Answers>) -> Self {
        let semaphore = Arc::new(Semaphore::new(1));
        let permit = semaphore.try_acquire_owned().map(RequestPermit::new);
        Self::new(answers, permit.unwrap())
    }
}

/// The right to read one answer, or a part of it.
#[derive(Debug)]
pub struct Turn {
    answering: Answering,
    _permit: OwnedSemaphorePermit,
}

impl Answering {
    /// Waits for a turn.
    ///
    /// # Errors
    ///
    /// None is free for a long time.
    pub async fn turn(&self) -> Result<Turn, Problem> {
        self.turn_of(&self.answers.turns).await
    }

    /// Waits for a turn of a query.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub async fn query_turn(&self) -> Result<Turn, Problem> {
        self.turn_of(&self.answers.query_turns).await
    }

    async fn turn_of(&self, turns: &Arc<Semaphore>) -> Result<Turn, Problem> {
        let waiting = timeout(self.answers.patience.wait, take(turns)).await;
        let permit = waiting.ok().flatten().ok_or_else(|| {
            Problem::overloaded("too many reads are waiting for MongoDB; retry later")
        })?;
        Ok(Turn { answering: self.clone(), _permit: permit })
    }

    /// Answers with all parts. They end without an error at `until`.
    ///
    /// # Errors
    ///
    /// Those of the first part. A later error cuts the connection: the answer began with 200.
    pub async fn stream<P: Parts>(
        self,
        kind: &'static str,
        mut parts: P,
        until: CancellationToken,
    ) -> Result<Response, Problem> {
        let turn = self.turn().await?;
        // Read before the status is sent, so that an early error is a problem.
        let first = parts.read().await?;
        drop(turn);
        let Some(first) = first else {
            return Ok(([(header::CONTENT_TYPE, kind)], Body::empty()).into_response());
        };
        let share = self.answers.hold(first.len()).await?;
        let body = self.body(first, share, parts, until);
        Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
    }

    fn body<P: Parts>(
        self,
        first: String,
        share: Share,
        parts: P,
        until: CancellationToken,
    ) -> Body {
        let (pieces, taken) = mpsc::channel(1);
        let sending = async move {
            let sent = tokio::select! {
                sent = self.send(first, share, parts, pieces) => sent,
                () = until.cancelled() => Ok(()),
            };
            if let Err(error) = &sent {
                warn!(error = chain(error), "cut a response");
            }
            sent
        };
        let task = AbortOnDropHandle::new(tokio::spawn(sending.instrument(Span::current())));
        Body::from_stream(stream::unfold((taken, Some(task)), |(mut taken, task)| async move {
            if let Some(piece) = taken.recv().await {
                return Some((Ok::<Bytes, Box<dyn Error + Send + Sync>>(piece), (taken, task)));
            }
            match task?.await {
                Ok(Ok(())) => None,
                Ok(Err(cut)) => Some((Err(Box::new(cut) as _), (taken, None))),
                Err(panic) => Some((Err(Box::new(panic) as _), (taken, None))),
            }
        }))
    }

    async fn send<P: Parts>(
        self,
        first: String,
        share: Share,
        mut parts: P,
        pieces: mpsc::Sender<Bytes>,
    ) -> Result<(), Cut<P::Error>> {
        let stalled = self.answers.patience.stalled;
        let mut part = (first, share);
        loop {
            let (text, share) = part;
            send_text(text.into(), &share, &pieces, stalled).await?;
            drop(share);
            while let Next::Text(text) = parts.wait().await {
                send_text(text.into(), &Share { held: None }, &pieces, stalled).await?;
            }
            let turn = take(&self.answers.turns).await;
            let Some(text) = parts.read().await.map_err(Cut::Part)? else { return Ok(()) };
            drop(turn);
            let share = self.answers.hold(text.len()).await?;
            part = (text, share);
        }
    }
}

/// Gives a text to the connection, a piece at a time.
async fn send_text<E>(
    mut text: Bytes,
    share: &Share,
    pieces: &mpsc::Sender<Bytes>,
    stalled: Duration,
) -> Result<(), Cut<E>> {
    while !text.is_empty() {
        let room = tokio::select! {
            room = timeout(stalled, pieces.reserve()) => room.map_err(|_| Cut::Stalled(stalled))?,
            () = share.over() => return Err(Cut::Slow),
        };
        // Without a receiver this task is being aborted.
        let Ok(room) = room else { return Ok(()) };
        let piece = text.split_to(text.len().min(PIECE_BYTES));
        share.note_taken(piece.len());
        room.send(piece);
    }
    Ok(())
}

impl Turn {
    /// Answers with a value as JSON.
    ///
    /// # Errors
    ///
    /// A value without JSON; too many large answers are not taken by their clients.
    pub async fn json(self, value: &impl Serialize) -> Result<Response, Problem> {
        let text = serde_json::to_string(value).map_err(|error| Problem::fault(&error))?;
        let Self { answering, _permit: permit } = self;
        drop(permit);
        let length = text.len();
        let body = if length <= PIECE_BYTES {
            Body::from(text)
        } else {
            let share = answering.answers.hold(length).await?;
            answering.body(text, share, Nothing, CancellationToken::new())
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_LENGTH, length.into());
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of these lengths.
    struct Lengths(std::vec::IntoIter<usize>);

    impl Parts for Lengths {
        type Error = Never;

        fn read(&mut self) -> BoxFuture<'_, PartText<Never>> {
            std::future::ready(Ok(self.0.next().map(|length| "x".repeat(length)))).boxed()
        }
    }

    fn answering(answers: &Arc<Answers>) -> Answering {
        Answering::of_test(answers.clone())
    }

    async fn answer(answers: &Arc<Answers>, lengths: Vec<usize>) -> Result<Response, Problem> {
        let parts = Lengths(lengths.into_iter());
        answering(answers).stream("text/plain", parts, CancellationToken::new()).await
    }

    async fn read(response: Response) -> Result<usize, axum::Error> {
        axum::body::to_bytes(response.into_body(), usize::MAX).await.map(|bytes| bytes.len())
    }

    #[tokio::test]
    async fn answer_is_whole_whatever_the_sizes_of_its_parts() {
        let answers = Arc::default();

        for lengths in [vec![], vec![1], vec![PIECE_BYTES, PIECE_BYTES + 1, 0, BUDGET_BYTES + 9]] {
            let total = lengths.iter().sum::<usize>();
            assert_eq!(read(answer(&answers, lengths).await.unwrap()).await.unwrap(), total);
        }
        assert_eq!(answers.budget.available_permits(), BUDGET_BYTES / UNIT);
        assert!(answers.holders.lock().is_empty());
    }

    #[tokio::test]
    async fn unread_answer_holds_no_turn_and_ends_when_nothing_is_taken() {
        let stalled = Duration::from_millis(100);
        let answers = Arc::new(Answers::with(Patience { stalled, ..DEFAULT_PATIENCE }));
        let part = 2 * RESERVE_BYTES;
        let mut unread = Vec::new();
        for _ in 0..3 * TURNS {
            unread.push(answer(&answers, vec![part, part]).await.unwrap());
        }
        assert_eq!(answers.turns.available_permits(), TURNS);

        while !answers.holders.lock().is_empty() {
            sleep(stalled).await;
        }

        assert_eq!(answers.budget.available_permits(), BUDGET_BYTES / UNIT);
        for response in unread {
            assert!(read(response).await.is_err());
        }
    }

    #[tokio::test]
    async fn unread_answer_ends_when_others_need_its_share() {
        let answers =
            Arc::new(Answers::with(Patience { measured: Duration::ZERO, ..DEFAULT_PATIENCE }));
        let unread = answer(&answers, vec![BUDGET_BYTES]).await.unwrap();

        let other = answer(&answers, vec![BUDGET_BYTES]).await.unwrap();

        assert!(read(unread).await.is_err());
        drop(other);
    }

    #[test]
    fn slowest_answer_ends_unless_it_is_fast_or_new() {
        let now = Instant::now();
        let holder = |seconds, taken| {
            let since = now - Duration::from_secs(seconds);
            let over = CancellationToken::new();
            Arc::new(Holder { since, taken: AtomicU64::new(taken), over })
        };
        let (slow, slower) = (holder(20, 50 << 10), holder(40, 50 << 10));
        let (fast, new) = (holder(16, 128 << 10), holder(15, 0));
        let holders = [slow.clone(), slower.clone(), fast, new];
        let next = || slowest(&holders, now, DEFAULT_PATIENCE.measured);

        assert!(Arc::ptr_eq(next().unwrap(), &slower));
        slower.over.cancel();
        assert!(Arc::ptr_eq(next().unwrap(), &slow));
        slow.over.cancel();
        assert!(next().is_none());
    }

    #[tokio::test]
    async fn answer_is_refused_while_the_budget_is_used_up() {
        let wait = Duration::from_millis(100);
        let answers = Arc::new(Answers::with(Patience { wait, ..DEFAULT_PATIENCE }));
        let unread = answer(&answers, vec![BUDGET_BYTES + RESERVE_BYTES]).await.unwrap();

        let refused = answer(&answers, vec![2 * RESERVE_BYTES]).await.unwrap_err();
        let small = answer(&answers, vec![RESERVE_BYTES]).await.unwrap();

        assert_eq!(refused.status.as_u16(), 503);
        assert_eq!(read(small).await.unwrap(), RESERVE_BYTES);
        drop(unread);
    }

    #[tokio::test]
    async fn whole_answer_has_its_length_and_is_held_as_a_part() {
        let answers = Arc::default();
        let value = "x".repeat(BUDGET_BYTES);

        let turn = answering(&answers).turn().await.unwrap();
        let large = turn.json(&value).await.unwrap();
        let small = answering(&answers).turn().await.unwrap().json(&7).await.unwrap();

        assert!(answers.budget.available_permits() < BUDGET_BYTES / UNIT);
        assert_eq!(answers.turns.available_permits(), TURNS);
        assert_eq!(large.headers()[header::CONTENT_LENGTH], (value.len() + 2).to_string());
        assert_eq!(read(large).await.unwrap(), value.len() + 2);
        assert_eq!(read(small).await.unwrap(), 1);
    }
}
