//! Replaces the producers when they do not reach a destination that other ones reach.
//!
//! librdkafka ignores the leader of a partition with an older epoch than it knows. A topic that was deleted and
//! created again begins with the first epoch: if another broker leads it now, producers that knew the topic
//! send its records to the wrong one until they end. So the sink opens other producers for the next records.
//! Those under way keep the old ones until they have an outcome, whatever their topic is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::{debug, info};

use crate::growing_pause::GrowingPause;
use crate::kafka::Kafka;
use crate::kafka::link::Link;

/// The time limit for opening other producers, and the first pause until they may be replaced too.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest pause between two replacements: other producers may have the same fault.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The links that were replaced, and when the next one may be.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    pause: GrowingPause,
    replaced: Vec<Weak<Link>>,
}

impl Renewals {
    /// Returns the replaced links that still have records.
    pub(super) fn replaced(&self) -> Vec<Arc<Link>> {
        self.replaced.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Kafka {
    /// Opens other producers for the next records, unless that was done a short time ago, or the sink connects
    /// anyway.
    pub(super) async fn renew_link(&self) {
        let Ok(_opening) = self.link.opening.try_lock() else { return };
        let Some(link) = self.link.get() else { return };
        {
            let mut renewals = self.renewals.lock();
            if !renewals.pause.is_over() {
                return;
            }
            renewals.pause.begin(OPEN_TIMEOUT, MAX_PAUSE);
        }
        let settings = self.settings.without_declarations();
        let opening = Link::open(&settings, self.metrics.clone(), self.partitions.clone());
        match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(other)) => self.replace(&link, other),
            Ok(Err(down)) => debug!(cause = down.detail, "cannot open other producers for Kafka"),
            Err(_) => debug!("Kafka did not accept other producers in time"),
        }
    }

    fn replace(&self, link: &Arc<Link>, other: Link) {
        // Locked until everything is noted, so that a close does not come in between.
        let mut renewals = self.renewals.lock();
        if self.link.replace(link, other).is_none() {
            return;
        }
        link.mark_replaced();
        renewals.replaced.retain(|link| link.strong_count() > 0);
        renewals.replaced.push(Arc::downgrade(link));
        if self.metrics.is_some() {
            let sink = &self.settings.name;
            info!(%sink, "opened other producers, because those in use did not reach a topic that an isolated one reaches");
        }
    }
}
