//! What this instance may deliver at the moment.

use std::time::Duration;

use metrics::gauge;
use tokio::sync::watch;

use crate::moment::Moment;
use crate::partition::heartbeat::{Heartbeat, Pulse};
use crate::telemetry::metrics::PARTITIONS_OWNED;

/// What the relay may do: where it may deliver, and whether it may take more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The partitions in which what is in hand may be published, in order.
    pub partitions: Vec<u8>,
    /// Whether more may be taken of them.
    pub takes: bool,
}

impl Share {
    /// These partitions, without restriction.
    pub fn of(partitions: impl IntoIterator<Item = u8>) -> Self {
        Self { partitions: partitions.into_iter().collect(), takes: true }
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
}

/// How often the time that is left is looked at.
const AGAIN: Duration = Duration::from_secs(1);

/// Keeps the relay's [`Share`] true, for ever.
///
/// A heartbeat that fails stops the taking at once. What is in hand goes on, by its leases; until
/// three quarters of `stale_after` have passed since the last heartbeat that was acknowledged was
/// sent. Then all partitions count as lost, before a peer can think so; and remain lost until the
/// fleet was asked again.
pub async fn keep(
    mut allotted: watch::Receiver<Allotted>,
    heartbeat: &Heartbeat,
    stale_after: Duration,
    share: watch::Sender<Share>,
) {
    let mut pulse = heartbeat.pulse();
    let mut proof = heartbeat.proof();
    let mut reckoning = Reckoning::new(stale_after * 3 / 4);
    loop {
        let proven = *proof.borrow_and_update();
        let alive = *pulse.borrow_and_update() == Pulse::Alive;
        let left = reckoning.left(proven, Moment::now());
        {
            let allotted = allotted.borrow_and_update();
            let lost = reckoning.is_lost(&allotted, left);
            gauge!(PARTITIONS_OWNED).set(if lost { 0.0 } else { allotted.partitions.len() as f64 });
            let now = judge(&allotted, alive, lost);
            share.send_if_modified(|share| {
                let changed = *share != now;
                *share = now;
                changed
            });
        }
        let gone = tokio::select! {
            changed = allotted.changed() => changed.is_err(),
            changed = pulse.changed() => changed.is_err(),
            changed = proof.changed() => changed.is_err(),
            // Asked again in between: the clock of a sleep may have stood still.
            () = tokio::time::sleep(left.min(AGAIN)), if !left.is_zero() => false,
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
    /// What was asked before is of a time before a loss.
    void_before: Option<Moment>,
}

impl Reckoning {
    fn new(holds: Duration) -> Self {
        Self { holds, proven: None, void_before: None }
    }

    /// How much is left of the latest heartbeat's time.
    fn left(&mut self, proven: Option<Moment>, now: Moment) -> Duration {
        // A process that stood still may see the next heartbeat before it sees that one was due.
        if let (Some(before), Some(latest)) = (self.proven, proven)
            && latest.since(before) >= self.holds
        {
            self.void_before = Some(latest);
        }
        self.proven = proven;
        let left = proven.map_or(Duration::ZERO, |sent| (sent + self.holds).since(now));
        if left.is_zero() {
            self.void_before = Some(now);
        }
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
    Share { partitions: allotted.partitions.clone(), takes: alive }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allotted(as_of: Moment) -> Allotted {
        Allotted { partitions: vec![1, 2], paused: false, as_of: Some(as_of) }
    }

    #[test]
    fn a_lost_heartbeat_stops_the_taking_and_in_time_everything() {
        let allotted = allotted(Moment::now());

        assert_eq!(judge(&allotted, true, false), Share::of([1, 2]));
        let holding = Share { partitions: vec![1, 2], takes: false };
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
        let mut reckoning = Reckoning::new(SECOND * 9);
        let mut lost = |asked: Moment, proven: Moment, now: Moment| {
            let left = reckoning.left(Some(proven), now);
            reckoning.is_lost(&allotted(asked), left)
        };

        assert!(!lost(start, start, start + SECOND * 8));
        assert!(lost(start, start, start + SECOND * 9));
        let back = start + SECOND * 10;
        assert!(lost(start, back, back), "what was asked before is of another time");
        assert!(!lost(back, back, back + SECOND));
    }

    /// It stood still, and sees the heartbeat of its awakening first.
    #[test]
    fn a_gap_between_two_heartbeats_is_a_loss_though_nobody_has_looked() {
        let start = Moment::now();
        let mut reckoning = Reckoning::new(SECOND * 9);
        reckoning.left(Some(start), start);
        let awake = start + SECOND * 60;

        let left = reckoning.left(Some(awake), awake);

        assert!(reckoning.is_lost(&allotted(start), left));
        assert!(!reckoning.is_lost(&allotted(awake), left));
    }

    #[test]
    fn before_the_first_answer_there_is_nothing() {
        let start = Moment::now();
        let mut reckoning = Reckoning::new(SECOND);
        let left = reckoning.left(Some(start), start);

        assert!(reckoning.is_lost(&Allotted::default(), left));
        assert!(Reckoning::new(SECOND).left(None, start).is_zero());
    }
}
