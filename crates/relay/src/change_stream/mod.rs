//! The change stream: it reports to the relay which records become pending.
//!
//! The stream opens at a known cluster time, before the relay reads a snapshot: together they show every
//! record. No resume token is kept: after a loss the stream opens at a new time, and the relay scans again.
//!
//! The server evaluates every lease and settle for each stream, only to filter them out. While batches are
//! full the relay does not need the stream, and it is closed.
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | the state machine of the follower |
//! | `stream` | the change stream: its stages and its events |
//! | `unblocking` | another stream, for `crate::dead_blockers`: changes of dead records |
//! | `cursor` | a cursor of change events, for both |

mod cursor;
mod state;
mod stream;
mod unblocking;

use std::time::{Duration, Instant};

use metrics::gauge;
use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::{StreamEvent, Wakeup};
use postrider_store::StoreError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::change_stream::state::{FollowerEvent, State};
use crate::change_stream::stream::ChangeStream;
use crate::metrics::CHANGE_STREAM_UP;

pub(crate) use unblocking::Unblockings;

/// The pause after a batch with events. The server evaluates an open `getMore` at each write, and the next
/// writes are the relay's own: the lease and the settlement.
const BATCH_PAUSE: Duration = Duration::from_millis(5);

/// Whether a change stream wakes the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerStatus {
    /// No stream was opened yet.
    Starting,
    /// A stream is open, or closed on purpose.
    Up,
    /// There is no stream, for this reason: the relay polls.
    Lost(String),
}

/// Keeps one change stream open, and wakes the relay.
#[derive(Debug)]
pub struct Follower {
    collections: Collections,
    wake: Wakeup,
    status: watch::Sender<FollowerStatus>,
}

impl Follower {
    /// Creates a follower of these records that wakes the relay by `wake`.
    pub fn new(collections: Collections, wake: Wakeup) -> Self {
        let (status, _) = watch::channel(FollowerStatus::Starting);
        gauge!(CHANGE_STREAM_UP).set(0.0);
        Self { collections, wake, status }
    }

    /// Watches whether a change stream wakes the relay.
    pub fn status(&self) -> watch::Receiver<FollowerStatus> {
        self.status.subscribe()
    }

    /// Follows until the stop; never returns. A task that ends has failed.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
        std::future::pending().await
    }

    async fn follow(&self) {
        if self.collections.is_standalone() {
            // Not logged: the start has logged what a standalone server lacks.
            let why = "MongoDB is a standalone server without change streams; the relay polls";
            self.status.send_replace(FollowerStatus::Lost(why.to_owned()));
            return std::future::pending().await;
        }
        let mut state = State::start(Instant::now());
        loop {
            state = self.step(state).await;
        }
    }

    /// Waits for the next event of a state, and reports the new state.
    async fn step(&self, mut state: State<ChangeStream>) -> State<ChangeStream> {
        let event = match &mut state {
            State::Lost { until, .. } => {
                tokio::time::sleep_until((*until).into()).await;
                Ok(FollowerEvent::Due)
            }
            State::Opening { .. } => {
                ChangeStream::open(&self.collections).await.map(FollowerEvent::Opened)
            }
            State::Open { stream, .. } => self.pass_events(stream).await,
            State::Suspended { .. } => {
                self.wake.until_saturated(false).await;
                Ok(FollowerEvent::Unsaturated)
            }
        };
        let (event, why) = match event {
            Ok(event) => (event, None),
            Err(error) => (FollowerEvent::Failed, Some(error)),
        };
        let state = state.after(event, Instant::now());
        self.publish(&state, why);
        state
    }

    /// Passes events on until batches are full or the stream fails.
    async fn pass_events(
        &self,
        stream: &mut ChangeStream,
    ) -> Result<FollowerEvent<ChangeStream>, StoreError> {
        loop {
            let changes = tokio::select! {
                () = self.wake.until_saturated(true) => return Ok(FollowerEvent::Saturated),
                changes = stream.next(&self.collections) => changes?,
            };
            let has_news = !changes.is_empty();
            changes.into_iter().for_each(|change| self.wake.push_event(change));
            let rest = async {
                if has_news {
                    tokio::time::sleep(BATCH_PAUSE).await;
                }
                self.wake.until_room().await;
            };
            tokio::select! {
                () = self.wake.until_saturated(true) => return Ok(FollowerEvent::Saturated),
                () = rest => {}
            }
        }
    }

    fn publish(&self, state: &State<ChangeStream>, why: Option<StoreError>) {
        let opened = match state {
            State::Open { stream, .. } => Some(stream.opened_at()),
            _ => None,
        };
        let is_open = opened.is_some();
        if self.wake.is_followed() != is_open {
            self.wake.push_event(opened.map_or(StreamEvent::Closed, StreamEvent::Opened));
        }
        self.wake.set_followed(is_open);
        if is_open || why.is_some() {
            // Reads from now on show everything before the stream's time. After a loss polling starts.
            self.wake.all();
        }
        if let Some(error) = why {
            self.set_status(FollowerStatus::Lost(error.brief()));
        } else if state.is_up() {
            self.set_status(FollowerStatus::Up);
        }
        if let State::Suspended { .. } = state {
            debug!("closed the change stream, since batches are full");
        }
    }

    fn set_status(&self, now: FollowerStatus) {
        gauge!(CHANGE_STREAM_UP).set(if now == FollowerStatus::Up { 1.0 } else { 0.0 });
        // One log line per change of state, not per attempt.
        let before = self.status.send_replace(now.clone());
        match (before, now) {
            (FollowerStatus::Up, FollowerStatus::Up)
            | (FollowerStatus::Lost(_), FollowerStatus::Lost(_)) => {}
            (_, FollowerStatus::Up) => info!("opened the change stream of the outbox"),
            (_, FollowerStatus::Lost(why)) => {
                warn!(cause = why, "lost the change stream; the relay polls");
            }
            (_, FollowerStatus::Starting) => {}
        }
    }
}
