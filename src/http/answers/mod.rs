//! What answers hold while their clients read them.
//!
//! ```text
//! a turn, one of TURNS     read a part from MongoDB and encode it: documents of few answers are in memory at a time
//! a place in the room      for an answer that is sent in pieces; requests have permits of their own
//! a share of the budget    for what of the text is larger than RESERVE: all texts together are bounded
//! pieces, one at a time    to the connection, by a task: a read that has begun ends, whether the client reads or not
//! ```
//!
//! An answer that its client does not take holds a text and a place: no turn, no permit of a request, no cursor and
//! no connection to MongoDB. A piece that is not taken for 30 s ends it. If there is no room, the answers of which
//! nothing is taken for 8 s end first, and what cannot be held by then is refused. Deliveries need no room, and answers
//! below 32 KB neither.

mod room;

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, warn};

use self::room::{DEFAULT_PATIENCE, Outgoing, Overloaded, Patience, Room, Share};
use crate::http::problem::Problem;
use crate::telemetry::chain;

pub use self::room::HeldTurn;

/// Parts that are read and encoded at a time. (Queries have turns of their own: `queries.max_concurrent`.)
const TURNS: usize = 4;

/// Reports that are made at a time. They may search for a minute, and delay no other answers.
const REPORT_TURNS: usize = 2;

/// The text of a part, at which it ends.
pub(super) use crate::store::page::PART_BYTES;

/// The largest piece that is given to a connection at a time. A smaller whole answer is given at once.
const PIECE_BYTES: usize = 32 << 10;

/// The turns and the room of all answers of a process.
#[derive(Debug)]
pub struct Answers {
    turns: Arc<Semaphore>,
    report_turns: Arc<Semaphore>,
    room: Arc<Room>,
}

impl Answers {
    /// Room for this many answers that are sent in pieces.
    pub(super) fn new(places: usize) -> Self {
        Self::with(places, DEFAULT_PATIENCE)
    }

    fn with(places: usize, patience: Patience) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(TURNS)),
            report_turns: Arc::new(Semaphore::new(REPORT_TURNS)),
            room: Arc::new(Room::new(places, patience)),
        }
    }

    /// Waits for a turn.
    async fn take(turns: &Arc<Semaphore>) -> HeldTurn {
        loop {
            // (They are never closed.)
            if let Ok(turn) = turns.clone().acquire_owned().await {
                return Arc::new(turn);
            }
        }
    }

    /// Sends a whole answer that is larger than a piece within the room of all.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub(super) async fn bound(&self, response: Response) -> Result<Response, Problem> {
        let (mut parts, body) = response.into_parts();
        let turn = parts.extensions.remove::<HeldTurn>();
        let is_large = |length: &u64| *length > PIECE_BYTES as u64;
        let Some(length) = body.size_hint().exact().filter(is_large) else {
            return Ok(Response::from_parts(parts, body));
        };
        let text = body.collect().await.map_err(|error| Problem::fault(&error))?.to_bytes();
        let outgoing = self.room.enter(turn.clone()).await?;
        let share = outgoing.hold(text.len(), turn).await?;
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
        let body = Sending { turns: self.turns.clone(), outgoing };
        let body = body.begin((text, share), Nothing, CancellationToken::new());
        Ok(Response::from_parts(parts, body))
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

    /// Waits for the right to read a part: by default one of the turns of all answers.
    fn turn<'a>(
        &'a mut self,
        turns: &'a Arc<Semaphore>,
    ) -> BoxFuture<'a, Result<HeldTurn, Self::Error>> {
        Answers::take(turns).map(Ok).boxed()
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

/// The answer of a request: how it may read, and how it is sent.
#[derive(Clone, Debug)]
pub struct Answering {
    answers: Arc<Answers>,
}

/// The right to read one answer.
#[derive(Debug)]
pub struct Turn(HeldTurn);

impl Answering {
    /// An answer within the turns and the room of all.
    pub(super) fn new(answers: Arc<Answers>) -> Self {
        Self { answers }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    ///
    /// None is free for a long time.
    pub async fn turn(&self) -> Result<Turn, Problem> {
        self.first(Answers::take(&self.answers.turns)).await.map(Turn)
    }

    /// Waits for a turn of a report: counts, and lists that may have to search.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub async fn report_turn(&self) -> Result<Turn, Problem> {
        self.first(Answers::take(&self.answers.report_turns)).await.map(Turn)
    }

    /// Waits for the first turn, but not for ever: nothing of the answer is sent yet.
    async fn first<T>(&self, turn: impl Future<Output = T>) -> Result<T, Problem> {
        timeout(self.answers.room.patience.wait, turn)
            .await
            .map_err(|_| Problem::overloaded("too many reads are waiting for MongoDB; retry later"))
    }

    /// Answers with all parts. They end without an error at `until`.
    ///
    /// # Errors
    ///
    /// There is no room; those of the first part. A later error cuts the connection: the answer began with 200.
    pub async fn stream<P: Parts>(
        self,
        kind: &'static str,
        mut parts: P,
        until: CancellationToken,
    ) -> Result<Response, Problem> {
        let outgoing = self.answers.room.enter(None).await?;
        let turns = &self.answers.turns;
        let turn = self.first(parts.turn(turns)).await?.map_err(Into::into)?;
        // Read before the status is sent, so that an early error is a problem.
        let first = parts.read().await?;
        let kind = [(header::CONTENT_TYPE, kind)];
        let Some(first) = first else { return Ok((kind, Body::empty()).into_response()) };
        let first = held(&outgoing, first, turn).await?;
        let sending = Sending { turns: turns.clone(), outgoing };
        Ok((kind, sending.begin(first, parts, until)).into_response())
    }
}

/// Answers with a text of which all answers are slices: it needs no room.
pub fn constant(kind: &'static str, text: Bytes) -> Response {
    let length = text.len();
    let pieces = stream::unfold(text, |mut text| async move {
        let piece = text.split_to(text.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), text))
    });
    let mut response = ([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response();
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}

/// Makes room for a text.
async fn held(
    outgoing: &Outgoing,
    mut text: String,
    turn: HeldTurn,
) -> Result<(Bytes, Share), Overloaded> {
    text.shrink_to_fit();
    let share = outgoing.hold(text.len(), Some(turn)).await?;
    Ok((text.into(), share))
}

/// Sends an answer in pieces.
struct Sending {
    turns: Arc<Semaphore>,
    outgoing: Outgoing,
}

impl Sending {
    fn begin<P: Parts>(self, first: (Bytes, Share), parts: P, until: CancellationToken) -> Body {
        let (pieces, taken) = mpsc::channel(1);
        let sending = async move {
            let sent = tokio::select! {
                sent = self.send(first, parts, pieces) => sent,
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
        first: (Bytes, Share),
        mut parts: P,
        pieces: mpsc::Sender<Bytes>,
    ) -> Result<(), Cut<P::Error>> {
        let mut part = first;
        loop {
            let (text, share) = part;
            self.send_text(&text, &pieces).await?;
            drop((text, share));
            while let Next::Text(text) = parts.wait().await {
                self.send_text(text.as_bytes(), &pieces).await?;
            }
            let turn =
                parts.turn(&self.turns).await.map_err(|error| Cut::Part(PartError::Read(error)))?;
            let Some(text) = parts.read().await.map_err(Cut::Part)? else { return Ok(()) };
            part = held(&self.outgoing, text, turn).await?;
        }
    }

    /// Gives a text to the connection, a piece at a time. (A copy: what a connection keeps of a text would keep all of
    /// it.)
    async fn send_text<E>(&self, text: &[u8], pieces: &mpsc::Sender<Bytes>) -> Result<(), Cut<E>> {
        let stalled = self.outgoing.patience().stalled;
        for piece in text.chunks(PIECE_BYTES) {
            self.outgoing.offer();
            let room = tokio::select! {
                room = timeout(stalled, pieces.reserve()) => room.map_err(|_| Cut::Stalled(stalled))?,
                () = self.outgoing.over() => return Err(Cut::Slow),
            };
            // Without a receiver this task is being aborted.
            let Ok(room) = room else { return Ok(()) };
            room.send(Bytes::copy_from_slice(piece));
        }
        self.outgoing.rest();
        Ok(())
    }
}

impl Turn {
    /// Answers with a value as JSON.
    ///
    /// # Errors
    ///
    /// A value without JSON.
    pub fn json(self, value: &impl Serialize) -> Result<Response, Problem> {
        json_in(self.0, value)
    }
}

/// Answers with a value as JSON, which was read in this turn.
///
/// # Errors
///
/// A value without JSON.
pub fn json_in(turn: HeldTurn, value: &impl Serialize) -> Result<Response, Problem> {
    let mut text = serde_json::to_string(value).map_err(|error| Problem::fault(&error))?;
    text.shrink_to_fit();
    let mut response = Response::new(Body::from(text));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    // Until there is room for it ([`Answers::bound`]).
    response.extensions_mut().insert(turn);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::room::{BUDGET_BYTES, RESERVE_BYTES};
    use super::*;

    const PLACES: usize = 100;

    /// Texts of these lengths.
    struct Lengths(std::vec::IntoIter<usize>);

    impl Parts for Lengths {
        type Error = Never;

        fn read(&mut self) -> BoxFuture<'_, PartText<Never>> {
            std::future::ready(Ok(self.0.next().map(|length| "x".repeat(length)))).boxed()
        }
    }

    fn answers(patience: Patience) -> Arc<Answers> {
        Arc::new(Answers::with(PLACES, patience))
    }

    async fn answer(answers: &Arc<Answers>, lengths: Vec<usize>) -> Result<Response, Problem> {
        let parts = Lengths(lengths.into_iter());
        Answering::new(answers.clone()).stream("text/plain", parts, CancellationToken::new()).await
    }

    /// A whole answer of this length.
    async fn whole(answers: &Arc<Answers>, length: usize) -> Result<Response, Problem> {
        let turn = Answering::new(answers.clone()).turn().await?;
        answers.bound(turn.json(&"x".repeat(length - 2))?).await
    }

    async fn read(response: Response) -> Result<usize, axum::Error> {
        axum::body::to_bytes(response.into_body(), usize::MAX).await.map(|bytes| bytes.len())
    }

    async fn until_free(answers: &Answers) {
        while answers.room.free() != (PLACES, BUDGET_BYTES) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn answer_is_whole_whatever_the_sizes_of_its_parts() {
        let answers = answers(DEFAULT_PATIENCE);

        for lengths in [vec![], vec![1], vec![PIECE_BYTES, PIECE_BYTES + 1, 0, BUDGET_BYTES + 9]] {
            let total = lengths.iter().sum::<usize>();
            assert_eq!(read(answer(&answers, lengths).await.unwrap()).await.unwrap(), total);
        }
        until_free(&answers).await;
    }

    #[tokio::test]
    async fn unread_answer_holds_no_turn_and_ends_when_nothing_is_taken() {
        let stalled = Duration::from_millis(100);
        let answers = answers(Patience { stalled, ..DEFAULT_PATIENCE });
        let part = 2 * RESERVE_BYTES;
        let mut unread = Vec::new();
        for _ in 0..3 * TURNS {
            unread.push(answer(&answers, vec![part, part]).await.unwrap());
            unread.push(whole(&answers, part).await.unwrap());
        }
        assert_eq!(answers.turns.available_permits(), TURNS);

        until_free(&answers).await;

        for response in unread {
            assert!(read(response).await.is_err());
        }
    }

    /// Nothing is taken of an answer any more when others need its room.
    const AT_ONCE: Patience = Patience { pressed: Duration::ZERO, ..DEFAULT_PATIENCE };

    #[tokio::test]
    async fn unread_answer_ends_when_others_need_its_share() {
        let answers = answers(AT_ONCE);
        let unread = answer(&answers, vec![BUDGET_BYTES]).await.unwrap();

        let other = answer(&answers, vec![BUDGET_BYTES]).await.unwrap();

        assert!(read(unread).await.is_err());
        drop(other);
    }

    #[tokio::test]
    async fn unread_answer_ends_when_others_need_its_place() {
        let answers = answers(AT_ONCE);
        let mut unread = Vec::new();
        for _ in 0..PLACES {
            unread.push(answer(&answers, vec![2 * PIECE_BYTES, 1]).await.unwrap());
        }

        let other = whole(&answers, 2 * PIECE_BYTES).await.unwrap();

        assert_eq!(read(other).await.unwrap(), 2 * PIECE_BYTES);
        assert!(read(unread.remove(0)).await.is_err());
    }

    /// What a connection keeps of an answer keeps nothing else of it.
    #[tokio::test]
    async fn last_piece_holds_no_text() {
        let answers = answers(DEFAULT_PATIENCE);
        let text = Bytes::from("x".repeat(3 * PIECE_BYTES));
        let response = answers.bound(Response::new(Body::from(text.clone()))).await.unwrap();

        let mut body = response.into_body();
        for _ in 0..2 {
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), PIECE_BYTES);
        }

        until_free(&answers).await;
        assert!(text.is_unique());
        drop(body);
    }

    #[tokio::test]
    async fn answer_is_refused_while_there_is_no_room() {
        let wait = Duration::from_millis(100);
        let answers = answers(Patience { wait, ..DEFAULT_PATIENCE });
        let unread = answer(&answers, vec![BUDGET_BYTES + RESERVE_BYTES]).await.unwrap();

        let refused = answer(&answers, vec![2 * RESERVE_BYTES]).await.unwrap_err();
        let small = answer(&answers, vec![RESERVE_BYTES]).await.unwrap();

        assert_eq!(refused.status.as_u16(), 503);
        // It was executed: the client must learn what to do.
        let refused = refused.render("r", "read it").into_body();
        let refused = axum::body::to_bytes(refused, usize::MAX).await.unwrap();
        assert!(String::from_utf8_lossy(&refused).contains("too slowly; read it"));
        assert_eq!(read(small).await.unwrap(), RESERVE_BYTES);
        drop(unread);
    }

    #[tokio::test]
    async fn whole_answer_has_its_length_and_is_held_as_a_part() {
        let answers = answers(DEFAULT_PATIENCE);

        let large = whole(&answers, BUDGET_BYTES).await.unwrap();
        let small = whole(&answers, 7).await.unwrap();

        assert!(answers.room.free().1 < BUDGET_BYTES);
        assert_eq!(answers.turns.available_permits(), TURNS);
        assert_eq!(large.headers()[header::CONTENT_LENGTH], BUDGET_BYTES.to_string());
        assert_eq!(read(large).await.unwrap(), BUDGET_BYTES);
        assert_eq!(read(small).await.unwrap(), 7);
    }
}
