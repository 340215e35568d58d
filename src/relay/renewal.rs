//! Keeps leases alive while a slow publish needs them.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::ids::RecordId;
use crate::outbox::lease::Leaser;
use crate::relay::held::Lease;

/// The leases in use.
#[derive(Debug, Default)]
pub struct Leases {
    active: Mutex<Vec<Weak<Lease>>>,
}

impl Leases {
    /// Watches over one more lease.
    pub fn add(&self, lease: &Arc<Lease>) {
        self.active().push(Arc::downgrade(lease));
    }

    /// Renews, for ever, every lease of which a third is spent and something is in hand.
    pub async fn keep(&self, leaser: &Leaser) {
        // Often enough that two tries fit between a third and the end.
        let pause = (leaser.length() / 12).max(Duration::from_millis(20));
        loop {
            tokio::time::sleep(pause).await;
            self.renew_due(leaser).await;
        }
    }

    async fn renew_due(&self, leaser: &Leaser) {
        let now = Instant::now();
        let due: Vec<Arc<Lease>> = {
            let mut active = self.active();
            active.retain(|lease| lease.strong_count() > 0);
            let due = active.iter().filter_map(Weak::upgrade);
            due.filter(|lease| lease.wants_renewal(now)).collect()
        };
        for lease in due {
            renew(leaser, &lease).await;
        }
    }

    fn active(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Lease>>> {
        self.active.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Renews one lease; what it no longer holds is marked lost, and its lane stops there.
async fn renew(leaser: &Leaser, lease: &Arc<Lease>) {
    let members = lease.in_hand();
    let ids: Vec<RecordId> = members.iter().map(|member| member.id().clone()).collect();
    if ids.is_empty() {
        return;
    }
    let before_command = Instant::now();
    let renewed = async {
        let matched = leaser.renew(lease.id, &ids).await?;
        if matched == ids.len() as u64 {
            return Ok(None);
        }
        // Fewer: settled in the meantime, or in other hands.
        leaser.held(lease.id, &ids).await.map(Some)
    };
    match renewed.await {
        Ok(None) => lease.renewed(before_command),
        Ok(Some(held)) => {
            for member in members.iter().filter(|member| !held.contains(member.id())) {
                // Leaves alone whose outcome is already on its way.
                member.lose();
            }
            lease.renewed(before_command);
        }
        Err(error) => {
            let error = crate::telemetry::chain(&error);
            warn!(error, "a lease was not renewed: it ends in its time");
        }
    }
}
