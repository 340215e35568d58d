//! The change stream: it brings the relay what becomes pending.
//!
//! Its moment is known before the relay reads a snapshot, so that the two together show everything.
//! No place in it is kept: after a loss it begins at a new moment, and the relay reads everything
//! again.
//!
//! Each stream reads every lease and every settle of the outbox on the server, if only to leave
//! them out. While batches are full the relay need not be woken: it is closed until they are so no more.
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | where the follower stands, and what follows from what happens |
//! | `stream` | the change stream itself: what it asks for, what it answers |

mod state;
mod stream;

use std::time::{Duration, Instant};

use metrics::gauge;
use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::{StreamEvent, Wakeup};
use postrider_store::StoreError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::change_stream::state::{Happened, State};
use crate::change_stream::stream::ChangeStream;
use crate::metrics::FOLLOW_UP;

/// The pause after an answer with news. A question that is open is looked at by the server at each
/// write, and what follows news are our own: the lease and the settlement.
const REST: Duration = Duration::from_millis(5);

/// Whether the relay is woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Following {
    /// No stream was opened yet.
    Starting,
    /// There is a stream, or it is closed on purpose.
    Up,
    /// There is none, for this reason: the relay polls.
    Lost(String),
}

/// Keeps one change stream on the records, and wakes the relay.
#[derive(Debug)]
pub struct Follower {
    collections: Collections,
    wake: Wakeup,
    following: watch::Sender<Following>,
}

impl Follower {
    /// A follower of these records, who wakes by `wake`.
    pub fn new(collections: Collections, wake: Wakeup) -> Self {
        let (following, _) = watch::channel(Following::Starting);
        gauge!(FOLLOW_UP).set(0.0);
        Self { collections, wake, following }
    }

    /// Whether the relay is woken, as it changes.
    pub fn following(&self) -> watch::Receiver<Following> {
        self.following.subscribe()
    }

    /// Follows until the stop, and does not end then either: whoever sees it end knows that it
    /// was not asked to.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
        std::future::pending().await
    }

    async fn follow(&self) {
        if self.collections.is_standalone() {
            // In no line of its own: the start has told what a server without replication lacks.
            let why = "MongoDB is a standalone server: the relay polls";
            self.following.send_replace(Following::Lost(why.to_owned()));
            return std::future::pending().await;
        }
        let mut state = State::start(Instant::now());
        loop {
            state = self.step(state).await;
        }
    }

    /// Waits for what happens next in a state, and tells what is new.
    async fn step(&self, mut state: State<ChangeStream>) -> State<ChangeStream> {
        let happened = match &mut state {
            State::Lost { until, .. } => {
                tokio::time::sleep_until((*until).into()).await;
                Ok(Happened::Due)
            }
            State::Opening { .. } => {
                ChangeStream::open(&self.collections).await.map(Happened::Opened)
            }
            State::Open { stream, .. } => self.wake_from(stream).await,
            State::Resting { .. } => {
                self.wake.until_saturated(false).await;
                Ok(Happened::Quiet)
            }
        };
        let (happened, why) = match happened {
            Ok(happened) => (happened, None),
            Err(error) => (Happened::Failed, Some(error)),
        };
        let state = state.after(happened, Instant::now());
        self.note(&state, why);
        state
    }

    /// Passes on what comes, until there is no need to or it breaks.
    async fn wake_from(
        &self,
        stream: &mut ChangeStream,
    ) -> Result<Happened<ChangeStream>, StoreError> {
        loop {
            let changes = tokio::select! {
                () = self.wake.until_saturated(true) => return Ok(Happened::Crowded),
                changes = stream.next(&self.collections) => changes?,
            };
            let has_news = !changes.is_empty();
            changes.into_iter().for_each(|change| self.wake.tell(change));
            let rest = async {
                if has_news {
                    tokio::time::sleep(REST).await;
                }
                self.wake.until_room().await;
            };
            tokio::select! {
                () = self.wake.until_saturated(true) => return Ok(Happened::Crowded),
                () = rest => {}
            }
        }
    }

    fn note(&self, state: &State<ChangeStream>, why: Option<StoreError>) {
        let opened = match state {
            State::Open { stream, .. } => Some(stream.opened_at()),
            _ => None,
        };
        let is_open = opened.is_some();
        if self.wake.is_followed() != is_open {
            self.wake.tell(opened.map_or(StreamEvent::Closed, StreamEvent::Opened));
        }
        self.wake.set_followed(is_open);
        if is_open || why.is_some() {
            // Opened: what came before the stream's moment is seen by whatever is read from now
            // on. Lost: as well by the rounds of polling that begin here.
            self.wake.all();
        }
        if let Some(error) = why {
            self.set(Following::Lost(error.brief()));
        } else if state.is_up() {
            self.set(Following::Up);
        }
        if let State::Resting { .. } = state {
            debug!("the change stream is closed: batches are full");
        }
    }

    fn set(&self, now: Following) {
        gauge!(FOLLOW_UP).set(if now == Following::Up { 1.0 } else { 0.0 });
        // One line per change of state, not per try.
        let before = self.following.send_replace(now.clone());
        match (before, now) {
            (Following::Up, Following::Up) | (Following::Lost(_), Following::Lost(_)) => {}
            (_, Following::Up) => info!("following the outbox by a change stream"),
            (_, Following::Lost(why)) => {
                warn!(cause = why, "the change stream is lost: the relay polls");
            }
            (_, Following::Starting) => {}
        }
    }
}
