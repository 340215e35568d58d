//! Completes erasures in the background.

use std::time::Duration;

use postrider_store::StoreError;
use postrider_store::text::chain;
use tracing::{debug, warn};

use super::eraser::Eraser;
use crate::store::EventStore;

/// The pause while no erasure is open: one count of an empty collection.
const IDLE_PAUSE: Duration = Duration::from_secs(60);

/// The pause while one is.
const OPEN_PAUSE: Duration = Duration::from_secs(2);

/// The pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

impl EventStore {
    /// Completes the erasures of this context, those of other processes too, until it is dropped.
    ///
    /// One that begins in this process is continued within seconds, one of another process within a
    /// minute.
    pub async fn complete_erasures(&self) {
        let eraser = self.eraser();
        loop {
            let pause = match complete_due(&eraser).await {
                Ok(0) => IDLE_PAUSE,
                Ok(_) => OPEN_PAUSE,
                Err(error) => {
                    eraser.metrics().set_open(None);
                    log_failure(&error);
                    FAILURE_PAUSE
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.erasure_begun().notified() => {}
            }
        }
    }
}

/// Makes one attempt at each erasure that is due, and returns how many are open afterwards.
async fn complete_due(eraser: &Eraser) -> Result<u64, StoreError> {
    let mut open = eraser.count_open().await?;
    if open > 0 {
        while let Some(aggregate) = eraser.claim().await? {
            let (name, id) = &aggregate;
            match eraser.attempt(&aggregate).await {
                Ok(Some(progress)) => {
                    debug!(stream = %name, aggregate = %id, ?progress, "continued an erasure");
                }
                Ok(None) => {}
                Err(error) => {
                    let error = chain(&error);
                    warn!(stream = %name, aggregate = %id, error, "failed to continue an erasure");
                }
            }
        }
        open = eraser.count_open().await?;
    }
    eraser.metrics().set_open(Some(open));
    Ok(open)
}

fn log_failure(error: &StoreError) {
    let text = chain(error);
    if error.is_refusal() {
        // A process without the privileges of the append path has no erasures.
        debug!(error = text, "failed to read erasures");
    } else {
        warn!(error = text, "failed to read open erasures");
    }
}
