//! Gives every committed append its position.

use std::time::{Duration, Instant};

use mongodb::ClientSession;
use postrider_store::text::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::context::Context;
use crate::feed::process::{KnownHead, Process};
use crate::feed::settings::FeedConfig;
use crate::feed::state::LEASE;
use crate::feed::status::SequencerStatus;
use crate::feed::work::{Stopped, Work};
use crate::transaction::{backoff, end_transaction};

/// The pause of a process that may not assign positions, until it asks again.
const STANDBY_PAUSE: Duration = Duration::from_secs(2);

/// The pause after a failure that a retry does not resolve.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// Assigns positions to appends after their commit, in one process at a time.
pub struct Sequencer {
    process: Process,
    settings: FeedConfig,
}

impl Sequencer {
    pub(super) fn new(
        context: Context,
        settings: FeedConfig,
        head: watch::Sender<KnownHead>,
    ) -> Self {
        Self { process: Process::new(context, head), settings }
    }

    /// What it does, from now on.
    pub fn status(&self) -> watch::Receiver<SequencerStatus> {
        self.process.status.subscribe()
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
                    self.process.status.set(SequencerStatus::Standby, &self.process.metrics);
                    STANDBY_PAUSE
                }
                Stopped::Failed(error) => {
                    if began.elapsed() > LEASE {
                        failures = 0;
                    }
                    failures += 1;
                    let error = chain(&error);
                    self.process
                        .status
                        .set(SequencerStatus::Failing(error.clone()), &self.process.metrics);
                    if failures == 1 {
                        warn!(error, "failed to assign positions; retrying");
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
        let process = &self.process;
        let owned = tokio::select! {
            owned = process.take_over(kept) => owned,
            () = stop.cancelled() => return Stopped::Asked,
        };
        let (state, recent) = match owned {
            Ok(Some(owned)) => owned,
            Ok(None) => return Stopped::Replaced,
            Err(error) => return error.into(),
        };
        info!(
            feed = state.feed,
            head = state.head,
            "this process now assigns the positions of the feed"
        );
        process.metrics.owner.set(1.0);
        process.context.commits().listen();
        let mut work = Work::new(process, &self.settings, (state, recent), kept);
        let stopped = work.run(stop).await;
        let is_open = work.is_open;
        // (The session stays here, since the state may still name it.)
        let is_ended = match kept {
            Some(session) if is_open => end_transaction(session).await,
            _ => true,
        };
        process.context.commits().ignore();
        process.metrics.resign();
        process.head.send_modify(|head| head.is_own = false);
        if !matches!(stopped, Stopped::Replaced)
            && let Err(error) = process.store.disown(&process.owner, is_ended).await
        {
            let error = chain(&error);
            info!(error, "failed to release the feed; another process takes over after {LEASE:?}");
        }
        stopped
    }
}
