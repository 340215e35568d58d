//! Replaces the producers when they do not reach a destination that other ones reach.
//!
//! librdkafka ignores the leader of a partition with an older epoch than it knows. A topic that was deleted and
//! created again begins with the first epoch: if another broker leads it now, producers that knew the topic
//! send its records to the wrong one until they end. So the sink opens other producers for the next records.
//! Those under way keep the old ones until they have an outcome, whatever their topic is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use postrider_relay::sink::SinkDown;
use tracing::debug;

use crate::active_link::ActiveLink;
use crate::growing_pause::GrowingPause;
use crate::kafka::link::Link;

/// The time limit for opening other producers, and the first pause until they may be replaced too.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest pause between two replacements: other producers may have the same fault.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The links that were replaced, and when the next one may be.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pause: GrowingPause,
    replaced: Vec<Weak<Link>>,
}

impl Renewals {
    /// Returns the replaced links that still have records.
    pub(super) fn replaced(&self) -> Vec<Arc<Link>> {
        self.0.lock().replaced.iter().filter_map(Weak::upgrade).collect()
    }

    /// Opens other producers for the next records, unless that was done a short time ago, or the sink connects
    /// anyway. Returns whether they are in use now.
    pub(super) async fn renew(
        &self,
        active: &ActiveLink<Link>,
        open: impl Future<Output = Result<Link, SinkDown>>,
    ) -> bool {
        let Ok(_opening) = active.opening.try_lock() else { return false };
        let Some(link) = active.get() else { return false };
        {
            let mut state = self.0.lock();
            if !state.pause.is_over() {
                return false;
            }
            state.pause.begin(OPEN_TIMEOUT, MAX_PAUSE);
        }
        match tokio::time::timeout(OPEN_TIMEOUT, open).await {
            Ok(Ok(other)) => return self.replace(active, &link, other),
            Ok(Err(down)) => debug!(cause = down.detail, "cannot open other producers for Kafka"),
            Err(_) => debug!("Kafka did not accept other producers in time"),
        }
        false
    }

    fn replace(&self, active: &ActiveLink<Link>, link: &Arc<Link>, other: Link) -> bool {
        // Locked until everything is noted, so that a close does not come in between.
        let mut state = self.0.lock();
        if active.replace(link, other).is_none() {
            return false;
        }
        link.mark_replaced();
        state.replaced.retain(|link| link.strong_count() > 0);
        state.replaced.push(Arc::downgrade(link));
        true
    }
}
