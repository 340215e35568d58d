//! Computes the partitions in which this instance may deliver now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use postrider_outbox::ids::InstanceId;
use postrider_store::boot_instant::BootInstant;
use tokio::sync::watch;
use tracing::warn;

use crate::partition::heartbeat::{AcknowledgedHeartbeat, Heartbeat, Pulse};
use crate::partition::metrics::PARTITIONS_OWNED;
use crate::partition::suspension::{SuspensionDetector, TICK_INTERVAL};

/// The partitions in which the relay may deliver, and whether it may acquire records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedPartitions {
    /// The partitions in which records in flight may be published, in order.
    pub partitions: Vec<u8>,
    /// Whether the relay may acquire records in them.
    pub may_acquire: bool,
    /// The live instances from the same read; `None` before the first read.
    pub alive: Option<LiveOwners>,
}

/// The live instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOwners {
    /// Their owner ids.
    pub owners: Arc<BTreeSet<InstanceId>>,
    /// When the read was sent.
    pub as_of: BootInstant,
}

impl OwnedPartitions {
    /// Owns these partitions, in which the relay may acquire records.
    pub fn of(partitions: impl IntoIterator<Item = u8>) -> Self {
        Self { partitions: partitions.into_iter().collect(), may_acquire: true, alive: None }
    }
}

/// The assignment of this instance as read, without regard to its heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignedPartitions {
    /// Its partitions, in order.
    pub partitions: Vec<u8>,
    /// Whether the fleet is paused.
    pub paused: bool,
    /// When the read was sent; `None` before the first.
    pub as_of: Option<BootInstant>,
    /// The owner ids of the live instances from the same read.
    pub alive: Arc<BTreeSet<InstanceId>>,
}

/// Updates the relay's [`OwnedPartitions`]; never returns.
///
/// A failed heartbeat stops acquisition at once; records in flight are still published. All partitions
/// are lost when three quarters of `stale_after` have passed since the last acknowledged heartbeat was
/// sent: before a peer finds it stale. They stay lost until the next read of the assignments, and the
/// instance leases under another owner id from then on.
///
/// A process that was suspended also loses its partitions until the next read, but keeps its owner id.
pub async fn keep_updated(
    mut assigned: watch::Receiver<AssignedPartitions>,
    heartbeat: &Heartbeat,
    suspension: &SuspensionDetector,
    stale_after: Duration,
    owned: watch::Sender<OwnedPartitions>,
) {
    let mut pulse = heartbeat.pulse();
    let mut proof = heartbeat.proof();
    let mut validity = HeartbeatValidity::new(stale_after * 3 / 4);
    loop {
        let proven = *proof.borrow_and_update();
        let alive = *pulse.borrow_and_update() == Pulse::Alive;
        let now = BootInstant::now();
        if suspension.tick(now) {
            warn!("this process was suspended; it reads its partitions again before it publishes");
            validity.void_reads_before(now);
        }
        let mut left = validity.remaining(proven, heartbeat.owner(), now);
        if validity.take_lapse() {
            // The next heartbeat announces it; until then no partition counts as owned.
            heartbeat.replace_owner();
            left = validity.remaining(proven, heartbeat.owner(), now);
        }
        {
            let assigned = assigned.borrow_and_update();
            let lost = validity.is_lost(&assigned, left);
            if !lost {
                suspension.read_again();
            }
            gauge!(PARTITIONS_OWNED).set(if lost { 0.0 } else { assigned.partitions.len() as f64 });
            let now = deliverable(&assigned, alive, lost);
            owned.send_if_modified(|owned| {
                let changed = *owned != now;
                *owned = now;
                changed
            });
        }
        let pause = if left.is_zero() { TICK_INTERVAL } else { left.min(TICK_INTERVAL) };
        let gone = tokio::select! {
            changed = assigned.changed() => changed.is_err(),
            changed = pulse.changed() => changed.is_err(),
            changed = proof.changed() => changed.is_err(),
            // Checks again in between: the clock of a sleep may stop while the machine is suspended.
            () = tokio::time::sleep(pause) => false,
        };
        if gone {
            // A sender was dropped: the process is ending.
            return std::future::pending().await;
        }
    }
}

/// Computes how long this instance may regard its partitions as its own.
#[derive(Debug)]
struct HeartbeatValidity {
    /// How long an acknowledged heartbeat is valid.
    valid_for: Duration,
    /// When the latest acknowledged heartbeat was sent.
    proven: Option<BootInstant>,
    /// Whether a heartbeat is valid.
    is_valid: bool,
    /// Whether a valid heartbeat has expired since the last call of `take_lapse`.
    has_expired: bool,
    /// Reads that were sent before this moment are void.
    void_before: Option<BootInstant>,
}

impl HeartbeatValidity {
    fn new(valid_for: Duration) -> Self {
        Self { valid_for, proven: None, is_valid: false, has_expired: false, void_before: None }
    }

    /// Voids the reads that were sent before this moment.
    fn void_reads_before(&mut self, now: BootInstant) {
        self.void_before = Some(now);
    }

    /// Returns whether the partitions were lost since the last call.
    fn take_lapse(&mut self) -> bool {
        std::mem::take(&mut self.has_expired)
    }

    /// Returns how long the latest heartbeat is still valid. A heartbeat that announced another owner id
    /// than the current one is not valid.
    fn remaining(
        &mut self,
        proof: Option<AcknowledgedHeartbeat>,
        owner: InstanceId,
        now: BootInstant,
    ) -> Duration {
        let proven = proof.filter(|proof| proof.owner == owner).map(|proof| proof.sent);
        // A process that was suspended may see the next heartbeat before it notices the gap.
        if let (Some(before), Some(latest)) = (self.proven, proven)
            && latest.since(before) >= self.valid_for
        {
            self.void_before = Some(latest);
            self.has_expired |= self.is_valid;
        }
        self.proven = proven;
        let left = proven.map_or(Duration::ZERO, |sent| (sent + self.valid_for).since(now));
        if left.is_zero() {
            self.void_before = Some(now);
        }
        self.has_expired |= self.is_valid && left.is_zero();
        self.is_valid = !left.is_zero();
        left
    }

    fn is_lost(&self, assigned: &AssignedPartitions, left: Duration) -> bool {
        left.is_zero() || assigned.as_of.is_none() || assigned.as_of < self.void_before
    }
}

fn deliverable(assigned: &AssignedPartitions, alive: bool, lost: bool) -> OwnedPartitions {
    if lost || assigned.paused {
        return OwnedPartitions::default();
    }
    let (partitions, owners) = (assigned.partitions.clone(), assigned.alive.clone());
    let alive_owners = assigned.as_of.map(|as_of| LiveOwners { owners, as_of });
    OwnedPartitions { partitions, may_acquire: alive, alive: alive_owners }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(as_of: BootInstant) -> AssignedPartitions {
        let alive = Arc::default();
        AssignedPartitions { partitions: vec![1, 2], paused: false, as_of: Some(as_of), alive }
    }

    #[test]
    fn lost_heartbeat_stops_acquisition_and_later_publishing() {
        let assigned = assigned(BootInstant::now());

        let as_of = assigned.as_of.unwrap();
        let alive = Some(LiveOwners { owners: Arc::default(), as_of });
        let owning = OwnedPartitions { alive, ..OwnedPartitions::of([1, 2]) };
        assert_eq!(deliverable(&assigned, true, false), owning);
        let holding = OwnedPartitions { may_acquire: false, ..owning };
        assert_eq!(deliverable(&assigned, false, false), holding);
        assert_eq!(deliverable(&assigned, false, true), OwnedPartitions::default());
    }

    #[test]
    fn pause_empties_the_owned_partitions() {
        let paused = AssignedPartitions { paused: true, ..assigned(BootInstant::now()) };

        assert_eq!(deliverable(&paused, true, false), OwnedPartitions::default());
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn partitions_are_lost_from_expiry_until_the_next_read() {
        let start = BootInstant::now();
        let (mut validity, owner) = (HeartbeatValidity::new(SECOND * 9), InstanceId::fresh());
        let mut lost = |asked: BootInstant, sent: BootInstant, now: BootInstant| {
            let left = validity.remaining(Some(AcknowledgedHeartbeat { sent, owner }), owner, now);
            (validity.is_lost(&assigned(asked), left), validity.take_lapse())
        };

        assert_eq!(lost(start, start, start + SECOND * 8), (false, false));
        assert_eq!(lost(start, start, start + SECOND * 9), (true, true));
        assert_eq!(lost(start, start, start + SECOND * 9), (true, false), "a loss is one");
        let back = start + SECOND * 10;
        assert_eq!(lost(start, back, back), (true, false), "what was asked is of another time");
        assert_eq!(lost(back, back, back + SECOND), (false, false));
    }

    #[test]
    fn heartbeat_of_another_owner_id_is_not_valid() {
        let (mut validity, now) = (HeartbeatValidity::new(SECOND * 9), BootInstant::now());
        let [before, after] = [InstanceId::fresh(), InstanceId::fresh()];
        let proof = |owner| Some(AcknowledgedHeartbeat { sent: now, owner });

        assert!(validity.remaining(proof(before), after, now).is_zero());
        assert_eq!(validity.remaining(proof(after), after, now), SECOND * 9);
    }

    #[test]
    fn read_before_a_suspension_is_void_without_a_lapse() {
        let (mut validity, start) = (HeartbeatValidity::new(SECOND * 9), BootInstant::now());
        let owner = InstanceId::fresh();
        let (proof, woken) =
            (Some(AcknowledgedHeartbeat { sent: start, owner }), start + SECOND * 5);
        validity.remaining(proof, owner, start);

        validity.void_reads_before(woken);

        let left = validity.remaining(proof, owner, woken);
        assert!(validity.is_lost(&assigned(start), left));
        assert!(!validity.is_lost(&assigned(woken), left));
        assert!(!validity.take_lapse());
    }

    /// The process was suspended, and sees the first heartbeat after that first.
    #[test]
    fn gap_between_heartbeats_is_a_lapse_without_a_check() {
        let start = BootInstant::now();
        let (mut validity, owner) = (HeartbeatValidity::new(SECOND * 9), InstanceId::fresh());
        let proof = |sent| Some(AcknowledgedHeartbeat { sent, owner });
        validity.remaining(proof(start), owner, start);
        let awake = start + SECOND * 60;

        let left = validity.remaining(proof(awake), owner, awake);

        assert!(validity.is_lost(&assigned(start), left));
        assert!(!validity.is_lost(&assigned(awake), left));
        assert!(validity.take_lapse());
    }

    #[test]
    fn no_partition_is_owned_before_the_first_read() {
        let start = BootInstant::now();
        let (mut validity, owner) = (HeartbeatValidity::new(SECOND), InstanceId::fresh());
        let left =
            validity.remaining(Some(AcknowledgedHeartbeat { sent: start, owner }), owner, start);

        assert!(validity.is_lost(&AssignedPartitions::default(), left));
        let mut unproven = HeartbeatValidity::new(SECOND);
        assert!(unproven.remaining(None, owner, start).is_zero());
        assert!(!unproven.take_lapse(), "nothing was lost");
    }
}
