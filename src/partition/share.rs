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
}

/// How often the time that is left is looked at.
const AGAIN: Duration = Duration::from_secs(1);

/// Keeps the relay's [`Share`] true, for ever.
///
/// A heartbeat that fails stops the taking at once. What is in hand goes on, by its leases; until
/// three quarters of `stale_after` have passed since the last heartbeat that was acknowledged was
/// sent. Then all partitions count as lost, before a peer can think so.
pub async fn keep(
    mut allotted: watch::Receiver<Allotted>,
    heartbeat: &Heartbeat,
    stale_after: Duration,
    share: watch::Sender<Share>,
) {
    let mut pulse = heartbeat.pulse();
    let mut proof = heartbeat.proof();
    loop {
        let proven = *proof.borrow_and_update();
        let now = Moment::now();
        let left = proven.map(|sent| (sent + stale_after * 3 / 4).since(now));
        let left = left.unwrap_or_default();
        let alive = *pulse.borrow_and_update() == Pulse::Alive;
        let lost = left.is_zero();
        let now = judge(&allotted.borrow_and_update(), alive, lost);
        let owned = if lost { 0 } else { allotted.borrow().partitions.len() };
        gauge!(PARTITIONS_OWNED).set(owned as f64);
        share.send_if_modified(|share| {
            let changed = *share != now;
            *share = now;
            changed
        });
        let gone = tokio::select! {
            changed = allotted.changed() => changed.is_err(),
            changed = pulse.changed() => changed.is_err(),
            changed = proof.changed() => changed.is_err(),
            // Asked again in between: the clock of a sleep may have stood still.
            () = tokio::time::sleep(left.min(AGAIN)), if !lost => false,
        };
        if gone {
            // Whoever knows more is gone, and the process with it.
            return std::future::pending().await;
        }
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

    #[test]
    fn a_lost_heartbeat_stops_the_taking_and_in_time_everything() {
        let allotted = Allotted { partitions: vec![1, 2], paused: false };

        assert_eq!(judge(&allotted, true, false), Share::of([1, 2]));
        let holding = Share { partitions: vec![1, 2], takes: false };
        assert_eq!(judge(&allotted, false, false), holding);
        assert_eq!(judge(&allotted, false, true), Share::default());
    }

    #[test]
    fn a_pause_stops_everything() {
        let allotted = Allotted { partitions: vec![1, 2], paused: true };

        assert_eq!(judge(&allotted, true, false), Share::default());
    }
}
