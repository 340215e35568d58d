//! What this instance may deliver at the moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use postrider_outbox::ids::InstanceId;
use postrider_store::moment::Moment;
use tokio::sync::watch;
use tracing::warn;

use crate::partition::heartbeat::{Heartbeat, Proof, Pulse};
use crate::partition::metrics::PARTITIONS_OWNED;
use crate::partition::vigil::{TICK_INTERVAL, Vigil};

/// What the relay may do: where it may deliver, and whether it may take more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The partitions in which what is in hand may be published, in order.
    pub partitions: Vec<u8>,
    /// Whether more may be taken of them.
    pub takes: bool,
    /// The instances that are alive, by the same read; `None` where there was none.
    pub alive: Option<Alive>,
}

/// The instances that are alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Their owner ids.
    pub owners: Arc<BTreeSet<InstanceId>>,
    /// When the read was sent that showed them.
    pub as_of: Moment,
}

impl Share {
    /// These partitions, without restriction.
    pub fn of(partitions: impl IntoIterator<Item = u8>) -> Self {
        Self { partitions: partitions.into_iter().collect(), takes: true, alive: None }
    }
}

/// What the fleet leaves to this instance, before its own heartbeat has a say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allotted {
    /// Its partitions, in order.
    pub partitions: Vec<u8>,
    /// Whether the fleet is paused.
    pub paused: bool,
    /// When the question was sent to which this is the answer; `None` before the first.
    pub as_of: Option<Moment>,
    /// The owner ids of the instances that are alive, of the same read.
    pub alive: Arc<BTreeSet<InstanceId>>,
}

/// Keeps the relay's [`Share`] true, for ever.
///
/// A heartbeat that fails stops the taking at once. What is in hand goes on, by its leases; until
/// three quarters of `stale_after` have passed since the last heartbeat that was acknowledged was
/// sent. Then all partitions count as lost, before a peer can think so; and remain lost until the
/// fleet was asked again. From then on this instance leases under another owner id.
///
/// A process that stood still has lost its partitions until the next read, too, and keeps its id.
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
        let now = Moment::now();
        if vigil.tick(now) {
            warn!("this process stood still; it reads its partitions again before it publishes");
            reckoning.stood_still(now);
        }
        let mut left = reckoning.left(proven, heartbeat.owner(), now);
        if reckoning.has_lapsed() {
            // Announced by the next heartbeat, before which no partition counts as owned.
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
            // Asked again in between: the clock of a sleep may have stood still.
            () = tokio::time::sleep(pause) => false,
        };
        if gone {
            // Whoever knows more is gone, and the process with it.
            return std::future::pending().await;
        }
    }
}

/// For how long this instance may take its partitions for its own.
#[derive(Debug)]
struct Reckoning {
    /// How long a heartbeat that was acknowledged holds.
    holds: Duration,
    /// When the latest was sent.
    proven: Option<Moment>,
    /// Whether a heartbeat holds.
    holding: bool,
    /// Whether one that held has ended, or stood still for as long, since this was last asked.
    lapsed: bool,
    /// What was asked before is of a time before a loss.
    void_before: Option<Moment>,
}

impl Reckoning {
    fn new(holds: Duration) -> Self {
        Self { holds, proven: None, holding: false, lapsed: false, void_before: None }
    }

    /// What was asked before this moment is void.
    fn stood_still(&mut self, now: Moment) {
        self.void_before = Some(now);
    }

    /// Whether the partitions were lost since this was last asked.
    fn has_lapsed(&mut self) -> bool {
        std::mem::take(&mut self.lapsed)
    }

    /// How much is left of the latest heartbeat's time. One that announced another owner id than that
    /// in use counts for nothing.
    fn left(&mut self, proof: Option<Proof>, owner: InstanceId, now: Moment) -> Duration {
        let proven = proof.filter(|proof| proof.owner == owner).map(|proof| proof.sent);
        // A process that stood still may see the next heartbeat before it sees that one was due.
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

    fn allotted(as_of: Moment) -> Allotted {
        let alive = Arc::default();
        Allotted { partitions: vec![1, 2], paused: false, as_of: Some(as_of), alive }
    }

    #[test]
    fn a_lost_heartbeat_stops_the_taking_and_in_time_everything() {
        let allotted = allotted(Moment::now());

        let as_of = allotted.as_of.unwrap();
        let alive = Some(Alive { owners: Arc::default(), as_of });
        let owning = Share { alive, ..Share::of([1, 2]) };
        assert_eq!(judge(&allotted, true, false), owning);
        let holding = Share { takes: false, ..owning };
        assert_eq!(judge(&allotted, false, false), holding);
        assert_eq!(judge(&allotted, false, true), Share::default());
    }

    #[test]
    fn a_pause_stops_everything() {
        let paused = Allotted { paused: true, ..allotted(Moment::now()) };

        assert_eq!(judge(&paused, true, false), Share::default());
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn partitions_are_lost_when_a_heartbeat_holds_no_more_until_the_fleet_was_asked_again() {
        let start = Moment::now();
        let (mut reckoning, owner) = (Reckoning::new(SECOND * 9), InstanceId::fresh());
        let mut lost = |asked: Moment, sent: Moment, now: Moment| {
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
    fn a_heartbeat_that_announced_another_owner_holds_nothing() {
        let (mut reckoning, now) = (Reckoning::new(SECOND * 9), Moment::now());
        let [before, after] = [InstanceId::fresh(), InstanceId::fresh()];
        let proof = |owner| Some(Proof { sent: now, owner });

        assert!(reckoning.left(proof(before), after, now).is_zero());
        assert_eq!(reckoning.left(proof(after), after, now), SECOND * 9);
    }

    #[test]
    fn what_was_read_before_a_standstill_counts_for_nothing_and_is_no_lapse() {
        let (mut reckoning, start) = (Reckoning::new(SECOND * 9), Moment::now());
        let owner = InstanceId::fresh();
        let (proof, woken) = (Some(Proof { sent: start, owner }), start + SECOND * 5);
        reckoning.left(proof, owner, start);

        reckoning.stood_still(woken);

        let left = reckoning.left(proof, owner, woken);
        assert!(reckoning.is_lost(&allotted(start), left));
        assert!(!reckoning.is_lost(&allotted(woken), left));
        assert!(!reckoning.has_lapsed());
    }

    /// It stood still, and sees the heartbeat of its awakening first.
    #[test]
    fn a_gap_between_two_heartbeats_is_a_loss_though_nobody_has_looked() {
        let start = Moment::now();
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
    fn before_the_first_answer_there_is_nothing() {
        let start = Moment::now();
        let (mut reckoning, owner) = (Reckoning::new(SECOND), InstanceId::fresh());
        let left = reckoning.left(Some(Proof { sent: start, owner }), owner, start);

        assert!(reckoning.is_lost(&Allotted::default(), left));
        let mut unproven = Reckoning::new(SECOND);
        assert!(unproven.left(None, owner, start).is_zero());
        assert!(!unproven.has_lapsed(), "nothing was lost");
    }
}
