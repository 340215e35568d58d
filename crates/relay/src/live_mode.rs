//! Live mode: the change stream carries the records, and nothing is read to find them.
//!
//! A snapshot shows one moment; every later event extends it, in the order of the stream. Once a
//! *pass* has read everything that was pending since the stream was opened, and all dead records
//! that block keys, each key is in one of these states:
//!
//! - **free**: nothing of it is pending, as far as the stream was handled. Its next event is leased
//!   and delivered.
//! - **in flight**: a lane delivers. A *complete* lane holds all pending records of its key, so the
//!   next event is added behind the others. Otherwise events are *withheld*, and the key is read when
//!   the lane ends.
//! - **waiting** for its blocker. Events are withheld, and the key is read when the wait is over.
//! - **unscanned**: it must be read. A read counts if its snapshot shows all withheld events.
//!
//! A key becomes free only by a complete lane of which everything is settled, or by a read that
//! finds nothing. A lost stream, a lost partition or too many keys to read lead back to rotations,
//! which find everything, and later to another pass. Keys are read during a pass already: it may
//! take long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{DateTime, Timestamp};
use tracing::info;

use crate::acquirer::{Acquisition, Origin};
use crate::lane::Lane;

/// Concurrent leases, of different lanes. Usually there is one, and events that come meanwhile go
/// with the next.
const MAX_ACQUIRING: usize = 3;

/// Age after which a lease under way no longer delays the others: it may wait for a transaction of
/// the application.
const SLOW_LEASE: Duration = Duration::from_millis(100);

/// Shortest and longest pause before another pass after an overload of the stream.
const PASS_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Age of an event from which the stream counts as behind; event times are whole seconds.
const BEHIND_AGE: Duration = Duration::from_secs(3);

/// How long the stream may be behind before rotations find the records.
const BEHIND_GRACE: Duration = Duration::from_secs(2);

/// The transitions between rotations and the stream.
#[derive(Debug, Default)]
pub(super) struct LiveMode {
    phase: Phase,
    is_open: bool,
    /// No pass begins before.
    next_pass: Option<Instant>,
    pause: Option<Duration>,
    /// Since when the stream is behind.
    behind_since: Option<Instant>,
    /// Whether each scan of the pass has seen all that it must.
    is_all: bool,
    /// What is leased next, in this order.
    acquisitions: Vec<Acquisition>,
    /// The leases of such acquisitions that are under way.
    acquiring: Vec<Acquiring>,
    /// How many leases began.
    acquired: u64,
}

/// A lease under way.
#[derive(Debug)]
struct Acquiring {
    number: u64,
    began: Instant,
    /// The lanes of its records. No concurrent lease covers any of these, or the records of a lane
    /// could be added in the wrong order.
    lanes: Vec<Arc<Lane>>,
}

/// What finds the records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Phase {
    /// Rotations find the records, and events only name where to scan.
    #[default]
    Scanning,
    /// A rotation reads everything pending, and another scan the dead records that block; events
    /// are withheld. One of the two may have ended.
    Passing(Option<PassPart>),
    /// The stream carries the records.
    Live { since: Instant },
}

/// A part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassPart {
    /// What is pending.
    Pending,
    /// The dead records that block keys.
    Dead,
}

/// Why rotations find the records again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveReason {
    /// Partitions were added or lost, a pause or a stop began, or the stream was closed.
    OnPurpose,
    /// More came from the stream than could be handled.
    Overloaded,
    /// More keys must be read than is worth it one by one.
    ManyUnscanned,
    /// More keys are blocked than are remembered.
    ManyBlocked,
    /// The scans of a pass could not read everything.
    Incomplete,
}

impl LeaveReason {
    /// Describes what the log reports, and what another pass must wait for; `None` if nothing is
    /// wrong.
    fn trouble(self) -> Option<&'static str> {
        match self {
            Self::OnPurpose => None,
            Self::Overloaded => Some("received more from the change stream than can be leased"),
            Self::ManyUnscanned => Some("too many keys must be read one by one"),
            Self::ManyBlocked => Some("more keys are blocked than can be remembered"),
            Self::Incomplete => Some("some pending records cannot be read yet"),
        }
    }
}

impl LiveMode {
    /// Returns what finds the records.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Notes that the stream is open; a pass may begin if it `carries` the records.
    pub(super) fn opened(&mut self, carries: bool) {
        self.is_open = carries;
    }

    /// Notes that the stream is closed.
    pub(super) fn closed(&mut self) {
        self.is_open = false;
    }

    /// Returns whether the stream carries the records.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live { .. })
    }

    /// Returns whether rotations find the records: not once a pass has read everything pending.
    pub(super) fn needs_rotations(&self) -> bool {
        !matches!(self.phase, Phase::Live { .. } | Phase::Passing(Some(PassPart::Pending)))
    }

    /// Returns whether the rotation that is about to begin is a pass: the stream is open, and shows
    /// what the rotation does not.
    pub(super) fn begins_pass(&mut self, now: Instant) -> bool {
        let begins = self.wants_pass(now);
        if begins {
            self.phase = Phase::Passing(None);
            self.is_all = true;
        }
        begins
    }

    /// Returns whether a pass is due.
    pub(super) fn wants_pass(&self, now: Instant) -> bool {
        let is_due = self.next_pass.is_none_or(|due| due <= now);
        matches!(self.phase, Phase::Scanning) && self.is_open && is_due
    }

    /// Queues what a scan found in keys that had to be read, to be leased with the records of the
    /// stream.
    pub(super) fn queue(&mut self, acquisitions: Vec<Acquisition>) {
        acquisitions.iter().for_each(|acquisition| acquisition.lane.queued());
        self.acquisitions.extend(acquisitions);
    }

    /// Returns whether the stream has been behind for too long, given an event of this moment.
    pub(super) fn is_behind(&mut self, at: Timestamp, server: DateTime, now: Instant) -> bool {
        let age = server.timestamp_millis() / 1_000 - i64::from(at.time);
        if u64::try_from(age).is_ok_and(|age| age >= BEHIND_AGE.as_secs()) {
            now.duration_since(*self.behind_since.get_or_insert(now)) > BEHIND_GRACE
        } else {
            self.behind_since = None;
            false
        }
    }

    /// Notes the end of a scan of the pass. Returns whether all scans have seen all that they
    /// must.
    pub(super) fn page_seen(&mut self, is_all: bool) -> bool {
        self.is_all &= is_all;
        self.is_all
    }

    /// Notes that a part of the pass has ended. Returns whether the other one had.
    pub(super) fn part_ended(&mut self, part: PassPart) -> bool {
        match &mut self.phase {
            Phase::Passing(Some(other)) => *other != part,
            Phase::Passing(none) => {
                *none = Some(part);
                false
            }
            Phase::Scanning | Phase::Live { .. } => false,
        }
    }

    /// Notes that the pass has succeeded: the stream carries the records.
    pub(super) fn went_live(&mut self, now: Instant) {
        self.phase = Phase::Live { since: now };
    }

    /// Returns to rotations. Returns the queued acquisitions; `None` if rotations find the records
    /// already.
    pub(super) fn leave(&mut self, why: LeaveReason, now: Instant) -> Option<Vec<Acquisition>> {
        let lasted = match self.phase {
            Phase::Scanning => return None,
            Phase::Passing(_) => Duration::ZERO,
            Phase::Live { since } => now.duration_since(since),
        };
        self.phase = Phase::Scanning;
        self.behind_since = None;
        if let Some(trouble) = why.trouble() {
            let pause = match self.pause.filter(|_| lasted < PASS_PAUSE.1) {
                Some(pause) => (pause * 2).min(PASS_PAUSE.1),
                None => PASS_PAUSE.0,
            };
            self.pause = Some(pause);
            self.next_pass = Some(now + pause);
            info!(
                lasted = ?lasted,
                pause = ?pause,
                "{trouble}; scans find the remaining records"
            );
        }
        Some(std::mem::take(&mut self.acquisitions))
    }

    /// Returns whether acquisitions are queued.
    pub(super) fn has_acquisitions(&self) -> bool {
        !self.acquisitions.is_empty()
    }

    /// Notes that a lease of these begins. Returns its number.
    pub(super) fn acquire(&mut self, acquisitions: &[Acquisition], began: Instant) -> u64 {
        let number = self.acquired;
        self.acquired += 1;
        let lanes = acquisitions.iter().map(|acquisition| acquisition.lane.clone()).collect();
        self.acquiring.push(Acquiring { number, began, lanes });
        number
    }

    /// Notes that the lease of this number has ended.
    pub(super) fn acquired(&mut self, number: u64) {
        self.acquiring.retain(|one| one.number != number);
    }

    /// Takes the next acquisitions from the queue, in order, up to so many records: only of lanes
    /// that no lease under way covers.
    pub(super) fn next_acquisitions(&mut self, limit: usize, now: Instant) -> Vec<Acquisition> {
        let is_slow = |one: &Acquiring| now.duration_since(one.began) > SLOW_LEASE;
        if self.acquiring.len() >= MAX_ACQUIRING || !self.acquiring.iter().all(is_slow) {
            return Vec::new();
        }
        let is_in = |lane: &Arc<Lane>| {
            self.acquiring.iter().flat_map(|one| &one.lanes).any(|other| Arc::ptr_eq(lane, other))
        };
        let (mut next, mut left, mut records, mut is_full) = (Vec::new(), Vec::new(), 0, false);
        for acquisition in std::mem::take(&mut self.acquisitions) {
            is_full |= !next.is_empty() && records + acquisition.records.len() > limit;
            // No other acquisition of its lane follows: there is one of each lane.
            if is_full || is_in(&acquisition.lane) {
                left.push(acquisition);
            } else {
                records += acquisition.records.len();
                next.push(acquisition);
            }
        }
        self.acquisitions = left;
        next
    }

    /// Adds a record behind the queued acquisition of its lane.
    pub(super) fn add(&mut self, acquisition: Acquisition) {
        acquisition.lane.queued();
        let mut waiting = self.acquisitions.iter_mut().filter(|one| one.origin != Origin::Refill);
        match waiting.find(|waiting| Arc::ptr_eq(&waiting.lane, &acquisition.lane)) {
            Some(waiting) => waiting.records.extend(acquisition.records),
            None => self.acquisitions.push(acquisition),
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider_outbox::record::LaneKey;

    use super::*;

    fn acquisition(lane: &Arc<Lane>) -> Acquisition {
        let (records, origin) = (Vec::new(), Origin::Stream);
        Acquisition { lane: lane.clone(), records, more: false, origin }
    }

    #[test]
    fn slow_lease_delays_only_its_own_lanes() {
        let lanes: Vec<Arc<Lane>> =
            (0..3).map(|n| Lane::new(LaneKey::Keyed(n.to_string().into()), 0)).collect();
        let names = |acquisitions: Vec<Acquisition>| -> Vec<String> {
            acquisitions
                .iter()
                .map(|acquisition| acquisition.lane.key.as_str().to_owned())
                .collect()
        };
        let (mut live, began) = (LiveMode::default(), Instant::now());
        let lease = |live: &mut LiveMode, of: &[usize], began| {
            let acquisitions: Vec<Acquisition> =
                of.iter().map(|n| acquisition(&lanes[*n])).collect();
            live.acquire(&acquisitions, began)
        };
        let first = lease(&mut live, &[0], began);
        lanes.iter().for_each(|lane| live.add(acquisition(lane)));

        assert!(live.next_acquisitions(9, began).is_empty(), "they go with the next lease");
        let later = began + 2 * SLOW_LEASE;
        assert_eq!(names(live.next_acquisitions(9, later)), ["1", "2"]);
        lease(&mut live, &[1, 2], later);
        assert!(live.next_acquisitions(9, later + 2 * SLOW_LEASE).is_empty());
        live.acquired(first);

        assert!(live.next_acquisitions(9, later).is_empty(), "the other one is under way");
        assert_eq!(names(live.next_acquisitions(9, later + 2 * SLOW_LEASE)), ["0"]);
    }

    #[test]
    fn stream_is_left_only_when_it_stays_behind() {
        let mut live = LiveMode::default();
        let server = |second: i64| DateTime::from_millis(second * 1_000 + 999);
        let event = |time| Timestamp { time, increment: 1 };
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);

        assert!(!live.is_behind(event(100), server(102), after(0)), "seconds are whole");
        assert!(!live.is_behind(event(100), server(103), after(1)), "it may catch up");
        assert!(!live.is_behind(event(101), server(104), after(3)));
        assert!(!live.is_behind(event(103), server(105), after(4)), "as it does");
        assert!(!live.is_behind(event(103), server(106), after(5)));
        assert!(live.is_behind(event(104), server(109), after(8)));
        // Its clock may be ahead of ours.
        assert!(!live.is_behind(event(200), server(109), after(8)));
    }

    #[test]
    fn pass_after_overload_waits_for_growing_pauses() {
        let (mut live, mut now) = (LiveMode::default(), Instant::now());
        live.opened(true);
        let mut pauses = Vec::new();
        for lasted in [1, 1, 1, 1, 1, 1, 1, 1, 60] {
            assert!(live.begins_pass(now));
            live.went_live(now);
            now += Duration::from_secs(lasted);
            assert!(live.leave(LeaveReason::Overloaded, now).is_some());
            assert!(live.leave(LeaveReason::Overloaded, now).is_none(), "already");
            let began = now;
            while !live.wants_pass(now) {
                now += Duration::from_millis(100);
            }
            pauses.push(now.duration_since(began).as_millis());
        }

        let seconds = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
        assert_eq!(pauses, [&[500][..], &seconds, &[500]].concat(), "one that lasted was worth it");
        assert!(live.begins_pass(now));
        live.leave(LeaveReason::OnPurpose, now);
        assert!(live.wants_pass(now), "at once");
        live.closed();
        assert!(!live.wants_pass(now));
    }

    #[test]
    fn pass_ends_with_the_second_of_its_parts() {
        let (mut live, now) = (LiveMode::default(), Instant::now());
        live.opened(true);
        for (first, second) in
            [(PassPart::Pending, PassPart::Dead), (PassPart::Dead, PassPart::Pending)]
        {
            assert!(!live.part_ended(first), "there is no pass");
            assert!(live.begins_pass(now));
            assert!(!live.part_ended(first));
            assert_eq!(live.needs_rotations(), first == PassPart::Dead);

            assert!(live.part_ended(second));

            live.leave(LeaveReason::OnPurpose, now);
        }
    }

    #[test]
    fn incomplete_page_fails_the_pass_and_the_next_starts_over() {
        let (mut live, now) = (LiveMode::default(), Instant::now());
        live.opened(true);
        assert!(live.begins_pass(now));

        assert!(live.page_seen(true));
        assert!(!live.page_seen(false));
        assert!(!live.page_seen(true));
        let lane = Lane::new(LaneKey::Keyed("k".into()), 0);
        live.add(acquisition(&lane));
        assert_eq!(live.leave(LeaveReason::OnPurpose, now).unwrap().len(), 1);
        assert!(!live.has_acquisitions());

        assert!(live.begins_pass(now));
        assert!(live.page_seen(true));
        live.opened(false);
        live.leave(LeaveReason::OnPurpose, now);
        assert!(
            !live.begins_pass(now),
            "a stream that comes late is a reason to look, and no more"
        );
    }
}
