//! Renews leases while a slow publish needs them.
//!
//! All due leases are renewed concurrently, and each renewal has a timeout of a third of the lease:
//! a connection that has gone silent must not cost any lease.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use postrider_outbox::ids::RecordId;
use postrider_outbox::lease::Leaser;
use postrider_store::StoreError;
use postrider_store::boot_instant::BootInstant;
use tracing::{info, warn};

use crate::lease::{Lease, LeaseEntry};
use crate::store_health::{StoreHealth, StoreWork, remedy, words};

/// The leases in use.
#[derive(Debug)]
pub struct ActiveLeases {
    active: Mutex<Vec<Weak<Lease>>>,
    store_health: Arc<StoreHealth>,
}

impl ActiveLeases {
    pub(crate) fn new(store_health: Arc<StoreHealth>) -> Self {
        Self { active: Mutex::default(), store_health }
    }

    /// Adds one lease.
    pub fn add(&self, lease: &Arc<Lease>) {
        self.active.lock().push(Arc::downgrade(lease));
    }

    /// Renews, forever, each lease of which a third is spent and something is in flight.
    pub async fn renew_forever(&self, leaser: &Leaser) {
        // Frequent enough for two attempts between a third and the end.
        let pause = (leaser.length() / 12).max(Duration::from_millis(20));
        loop {
            tokio::time::sleep(pause).await;
            self.renew_due(leaser).await;
        }
    }

    async fn renew_due(&self, leaser: &Leaser) {
        let now = BootInstant::now();
        let due: Vec<Arc<Lease>> = {
            let mut active = self.active.lock();
            active.retain(|lease| lease.strong_count() > 0);
            let in_use = active.iter().filter_map(Weak::upgrade);
            let in_use: Vec<Arc<Lease>> =
                in_use.filter(|one| !one.in_flight().is_empty()).collect();
            if in_use.is_empty() && self.store_health.succeeded(StoreWork::Renew).is_some() {
                // Their records are settled or lost.
                info!("the leases that were not renewed have expired");
            }
            in_use.into_iter().filter(|lease| lease.wants_renewal(now)).collect()
        };
        join_all(due.iter().map(|lease| self.renew_one(leaser, lease))).await;
    }

    async fn renew_one(&self, leaser: &Leaser, lease: &Lease) {
        let members = lease.in_flight();
        if members.is_empty() {
            return;
        }
        let began = Instant::now();
        let limit = leaser.length() / 3;
        let renewed = tokio::time::timeout(limit, renew(leaser, lease, &members)).await;
        match renewed.unwrap_or(Err(StoreError::TimedOut { action: "renew leases", limit })) {
            Ok(()) => {
                if self.store_health.succeeded(StoreWork::Renew).is_some() {
                    info!("renewing leases again");
                }
            }
            Err(error) => {
                if self.store_health.failed(StoreWork::Renew, began, &error) {
                    let remedy = remedy(&error);
                    let error = words(&error);
                    warn!(
                        error,
                        remedy, "failed to renew leases; they stay valid until they expire"
                    );
                }
            }
        }
    }
}

/// Renews one lease. Marks the records that it no longer holds as lost, which ends their lanes.
async fn renew(
    leaser: &Leaser,
    lease: &Lease,
    members: &[Arc<LeaseEntry>],
) -> Result<(), StoreError> {
    let ids: Vec<RecordId> = members.iter().map(|member| member.id().clone()).collect();
    let before_command = BootInstant::now();
    let matched = leaser.renew(lease.id, &ids).await?;
    if matched < ids.len() as u64 {
        // Fewer: settled in the meantime, or leased elsewhere.
        let held = leaser.held(lease.id, &ids).await?;
        for member in members.iter().filter(|member| !held.contains(member.id())) {
            // Ignores records whose outcome is already queued.
            member.lose();
        }
    }
    lease.renewed(before_command);
    Ok(())
}
