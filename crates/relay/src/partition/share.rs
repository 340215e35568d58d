//! Computes the partitions in which this instance may deliver now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use postrider_outbox::ids::InstanceId;
use postrider_store::boot_instant::BootInstant;
use tokio::sync::watch;
use tracing::warn;

use crate::partition::heartbeat::{Heartbeat, Proof, Pulse};
use crate::partition::metrics::PARTITIONS_OWNED;
use crate::partition::vigil::{TICK_INTERVAL, Vigil};

/// The partitions in which the relay may deliver, and whether it may acquire records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The partitions in which records in flight may be published, in order.
    pub partitions: Vec<u8>,
    /// Whether the relay may acquire records in them.
    pub takes: bool,
    /// The live instances from the same read; `None` before the first read.
    pub alive: Option<Alive>,
}

/// The live instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Their owner ids.
    pub owners: Arc<BTreeSet<InstanceId>>,
    /// When the read was sent.
    pub as_of: BootInstant,
}

impl Share {
    /// Returns a share of these partitions in which the relay may acquire records.
    pub fn of(partitions: impl IntoIterator<Item = u8>) -> Self {
        Self { partitions: partitions.into_iter().collect(), takes: true, alive: None }
    }
}

/// The assignment of this instance as read, without regard to its heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allotted {
    /// Its partitions, in order.
    pub partitions: Vec<u8>,
    /// Whether the fleet is paused.
    pub paused: bool,
    /// When the read was sent; `None` before the first.
    pub as_of: Option<BootInstant>,
    /// The owner ids of the live instances from the same read.
    pub alive: Arc<BTreeSet<InstanceId>>,
}

/// Updates the relay's [`Share`]; never returns.
///
/// A failed heartbeat stops acquisition at once; records in flight are still published. All partitions
/// are lost when three quarters of `stale_after` have passed since the last acknowledged heartbeat was
/// sent: before a peer finds it stale. They stay lost until the next read of the assignments, and the
/// instance leases under another owner id from then on.
///
/// A process that was suspended also loses its partitions until the next read, but keeps its owner id.
pub async fn keep(
    mut allotted: watch::Receiver<Allotted>,
    heartbeat: &Heartbeat,
    vigil: &Vigil,
    stale_after: Duration,
    share: watch::Sender<Share>,
) {
    let mut pulse = heartbeat.pulse();
    let mut proof = heartbeat.proof();
    let mut reckoning = Reckoning::new(stale_after * 3 / 4);
    loop {
        let proven = *proof.borrow_and_update();
        let alive = *pulse.borrow_and_update() == Pulse::Alive;
        let now = BootInstant::now();
        if vigil.tick(now) {
            warn!("this process stood still; it reads its partitions again before it publishes");
            reckoning.stood_still(now);
        }
        let mut left = reckoning.left(proven, heartbeat.owner(), now);
        if reckoning.has_lapsed() {
            // The next heartbeat announces it; until then no partition counts as owned.
            heartbeat.replace_owner();
            left = reckoning.left(proven, heartbeat.owner(), now);
        }
        {
            let allotted = allotted.borrow_and_update();
            let lost = reckoning.is_lost(&allotted, left);
            if !lost {
                vigil.read_again();
            }
            gauge!(PARTITIONS_OWNED).set(if lost { 0.0 } else { allotted.partitions.len() as f64 });
            let now = judge(&allotted, alive, lost);
            share.send_if_modified(|share| {
                let changed = *share != now;
                *share = now;
                changed
            });
        }
        let pause = if left.is_zero() { TICK_INTERVAL } else { left.min(TICK_INTERVAL) };
        let gone = tokio::select! {
            changed = allotted.changed() => changed.is_err(),
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
struct Reckoning {
    /// How long an acknowledged heartbeat is valid.
    holds: Duration,
    /// When the latest acknowledged heartbeat was sent.
    proven: Option<BootInstant>,
    /// Whether a heartbeat is valid.
    holding: bool,
    /// Whether a valid heartbeat has expired since the last call of `has_lapsed`.
    lapsed: bool,
    /// Reads that were sent before this moment are void.
    void_before: Option<BootInstant>,
}

impl Reckoning {
    fn new(holds: Duration) -> Self {
        Self { holds, proven: None, holding: false, lapsed: false, void_before: None }
    }

    /// Voids the reads that were sent before this moment.
    fn stood_still(&mut self, now: BootInstant) {
        self.void_before = Some(now);
    }

    /// Returns whether the partitions were lost since the last call.
    fn has_lapsed(&mut self) -> bool {
        std::mem::take(&mut self.lapsed)
    }

    /// Returns how long the latest heartbeat is still valid. A heartbeat that announced another owner id
    /// than the current one is not valid.
    fn left(&mut self, proof: Option<Proof>, owner: InstanceId, now: BootInstant) -> Duration {
        let proven = proof.filter(|proof| proof.owner == owner).map(|proof| proof.sent);
        // A process that was suspended may see the next heartbeat before it notices the gap.
        if let (Some(before), Some(latest)) = (self.proven, proven)
            && latest.since(before) >= self.holds
        {
            self.void_before = Some(latest);
            self.lapsed |= self.holding;
        }
        self.proven = proven;
        let left = proven.map_or(Duration::ZERO, |sent| (sent + self.holds).since(now));
        if left.is_zero() {
            self.void_before = Some(now);
        }
        self.lapsed |= self.holding && left.is_zero();
        self.holding = !left.is_zero();
        left
    }

    fn is_lost(&self, allotted: &Allotted, left: Duration) -> bool {
        left.is_zero() || allotted.as_of.is_none() || allotted.as_of < self.void_before
    }
}

fn judge(allotted: &Allotted, alive: bool, lost: bool) -> Share {
    if lost || allotted.paused {
        return Share::default();
    }
    let (partitions, owners) = (allotted.partitions.clone(), allotted.alive.clone());
    let alive_owners = allotted.as_of.map(|as_of| Alive { owners, as_of });
    Share { partitions, takes: alive, alive: alive_owners }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allotted(as_of: BootInstant) -> Allotted {
        let alive = Arc::default();
        Allotted { partitions: vec![1, 2], paused: false, as_of: Some(as_of), alive }
    }

    #[test]
    fn lost_heartbeat_stops_acquisition_and_later_publishing() {
        let allotted = allotted(BootInstant::now());

        let as_of = allotted.as_of.unwrap();
        let alive = Some(Alive { owners: Arc::default(), as_of });
        let owning = Share { alive, ..Share::of([1, 2]) };
        assert_eq!(judge(&allotted, true, false), owning);
        let holding = Share { takes: false, ..owning };
        assert_eq!(judge(&allotted, false, false), holding);
        assert_eq!(judge(&allotted, false, true), Share::default());
    }

    #[test]
    fn pause_empties_the_share() {
        let paused = Allotted { paused: true, ..allotted(BootInstant::now()) };

        assert_eq!(judge(&paused, true, false), Share::default());
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn partitions_are_lost_from_expiry_until_the_next_read() {
        let start = BootInstant::now();
        let (mut reckoning, owner) = (Reckoning::new(SECOND * 9), InstanceId::fresh());
        let mut lost = |asked: BootInstant, sent: BootInstant, now: BootInstant| {
            let left = reckoning.left(Some(Proof { sent, owner }), owner, now);
            (reckoning.is_lost(&allotted(asked), left), reckoning.has_lapsed())
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
        let (mut reckoning, now) = (Reckoning::new(SECOND * 9), BootInstant::now());
        let [before, after] = [InstanceId::fresh(), InstanceId::fresh()];
        let proof = |owner| Some(Proof { sent: now, owner });

        assert!(reckoning.left(proof(before), after, now).is_zero());
        assert_eq!(reckoning.left(proof(after), after, now), SECOND * 9);
    }

    #[test]
    fn read_before_a_suspension_is_void_without_a_lapse() {
        let (mut reckoning, start) = (Reckoning::new(SECOND * 9), BootInstant::now());
        let owner = InstanceId::fresh();
        let (proof, woken) = (Some(Proof { sent: start, owner }), start + SECOND * 5);
        reckoning.left(proof, owner, start);

        reckoning.stood_still(woken);

        let left = reckoning.left(proof, owner, woken);
        assert!(reckoning.is_lost(&allotted(start), left));
        assert!(!reckoning.is_lost(&allotted(woken), left));
        assert!(!reckoning.has_lapsed());
    }

    /// The process was suspended, and sees the first heartbeat after that first.
    #[test]
    fn gap_between_heartbeats_is_a_lapse_without_a_check() {
        let start = BootInstant::now();
        let (mut reckoning, owner) = (Reckoning::new(SECOND * 9), InstanceId::fresh());
        let proof = |sent| Some(Proof { sent, owner });
        reckoning.left(proof(start), owner, start);
        let awake = start + SECOND * 60;

        let left = reckoning.left(proof(awake), owner, awake);

        assert!(reckoning.is_lost(&allotted(start), left));
        assert!(!reckoning.is_lost(&allotted(awake), left));
        assert!(reckoning.has_lapsed());
    }

    #[test]
    fn share_is_empty_before_the_first_read() {
        let start = BootInstant::now();
        let (mut reckoning, owner) = (Reckoning::new(SECOND), InstanceId::fresh());
        let left = reckoning.left(Some(Proof { sent: start, owner }), owner, start);

        assert!(reckoning.is_lost(&Allotted::default(), left));
        let mut unproven = Reckoning::new(SECOND);
        assert!(unproven.left(None, owner, start).is_zero());
        assert!(!unproven.has_lapsed(), "nothing was lost");
    }
}
