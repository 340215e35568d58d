//! Records that this relay has leased, and the lease that proves it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use postrider_outbox::ids::{LeaseId, RecordId};
use postrider_outbox::record::Record;
use postrider_store::boot_instant::BootInstant;

/// One lease on the records of one acquisition.
#[derive(Debug)]
pub struct Lease {
    /// The proof that settling writes carry.
    pub id: LeaseId,
    length: Duration,
    /// When it was acquired or last renewed: the time before the command was sent.
    since: Mutex<BootInstant>,
    members: OnceLock<Vec<Arc<LeaseEntry>>>,
}

/// One leased record, as seen by its lease.
#[derive(Debug)]
pub struct LeaseEntry {
    id: RecordId,
    phase: AtomicU8,
}

/// Waiting or being published.
const IN_FLIGHT: u8 = 0;
/// A renewal found it leased elsewhere.
const LOST: u8 = 1;
/// Its outcome is queued for the settlement writer.
const SETTLING: u8 = 2;

impl Lease {
    /// Creates a lease whose command is about to be sent.
    pub fn new(id: LeaseId, length: Duration, before_command: BootInstant) -> Arc<Self> {
        let since = Mutex::new(before_command);
        Arc::new(Self { id, length, since, members: OnceLock::new() })
    }

    /// Notes what the lease holds. Must be called once.
    pub fn hold(self: &Arc<Self>, records: impl IntoIterator<Item = Record>) -> Vec<LeasedRecord> {
        let held: Vec<LeasedRecord> = records
            .into_iter()
            .map(|record| {
                let member = LeaseEntry { id: record.id.clone(), phase: AtomicU8::new(IN_FLIGHT) };
                LeasedRecord { record, lease: self.clone(), member: Arc::new(member) }
            })
            .collect();
        let members = held.iter().map(|held| held.member.clone()).collect();
        let _ = self.members.set(members);
        held
    }

    /// Returns the time left in which a publish may start; zero once spent.
    ///
    /// Counted on this host's clock (one that runs during a suspension) from *before* the command
    /// was sent, so it ends no later than the server's `leaseUntil`.
    pub fn budget(&self, now: BootInstant) -> Duration {
        (self.since() + self.length).since(now)
    }

    /// Returns whether a third of the lease is spent: time to renew what is still in flight.
    pub fn wants_renewal(&self, now: BootInstant) -> bool {
        self.budget(now) < self.length * 2 / 3
    }

    /// Notes a renewal whose command was sent at `before_command`.
    pub fn renewed(&self, before_command: BootInstant) {
        *self.since.lock() = before_command;
    }

    /// Returns the records that are still in flight: neither lost nor being settled.
    pub fn in_flight(&self) -> Vec<Arc<LeaseEntry>> {
        let members = self.members.get().into_iter().flatten();
        members.filter(|member| member.is(IN_FLIGHT)).cloned().collect()
    }

    fn since(&self) -> BootInstant {
        *self.since.lock()
    }
}

impl LeaseEntry {
    /// The record.
    pub fn id(&self) -> &RecordId {
        &self.id
    }

    /// Marks the record lost, unless its outcome is already queued.
    pub fn lose(&self) {
        let _ = self.phase.compare_exchange(IN_FLIGHT, LOST, Ordering::AcqRel, Ordering::Acquire);
    }

    fn is(&self, phase: u8) -> bool {
        self.phase.load(Ordering::Acquire) == phase
    }
}

/// A leased record. It may be published while its lease has budget.
#[must_use = "an unsettled record waits out its lease"]
#[derive(Debug)]
pub struct LeasedRecord {
    /// The record as it was read.
    pub record: Record,
    /// The lease that holds it.
    pub lease: Arc<Lease>,
    member: Arc<LeaseEntry>,
}

impl LeasedRecord {
    /// Returns whether a publish may start now.
    pub fn may_start(&self) -> bool {
        self.member.is(IN_FLIGHT) && !self.lease.budget(BootInstant::now()).is_zero()
    }

    /// Returns whether a renewal found it leased elsewhere.
    pub fn is_lost(&self) -> bool {
        self.member.is(LOST)
    }

    /// Returns the counted deliveries, including this one.
    pub fn attempt(&self) -> u32 {
        // A lease of this instance that expired is the same attempt.
        let is_repeated = self.record.is_lease_own && self.record.lease_until.is_some();
        self.record.attempt + u32::from(!is_repeated)
    }

    /// Notes that its outcome is queued: from now on a renewal ignores it.
    pub fn settling(&self) {
        self.member.phase.store(SETTLING, Ordering::Release);
    }
}
