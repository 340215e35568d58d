//! While the change stream carries the records: nothing is read to find them.
//!
//! A snapshot is knowledge of one moment; every later event, in the order of the stream, extends it.
//! So once everything was read ([a pass](Live::begins_pass)) that was pending since the stream was
//! opened, each key is in one of these states, and none is left in silence:
//!
//! - **free**: nothing of it is pending, as far as the stream was handled. Its next event is leased
//!   and goes.
//! - **in flight**: a lane delivers. A lane that is *complete* holds everything that its key has
//!   pending, so the next event is put behind the others. Otherwise events are *withheld*, and the
//!   key is read when the lane ends.
//! - **waiting** for its blocker. Events are withheld, and the key is read when the wait is over.
//! - **unscanned**: it is to be read. A read counts where its snapshot shows all withheld events.
//!
//! A key becomes free only by a complete lane of which everything is settled, or by a read that
//! finds nothing. Whatever loses the thread (the stream, a partition, more keys to be read than can
//! be) leads back to rotations, which find everything, and later to another pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{DateTime, Timestamp};
use tracing::info;

use crate::acquirer::{Acquisition, Origin};
use crate::lane::Lane;

/// Leases under way at once, of different lanes. As a rule there is one, and what comes meanwhile goes
/// with the next.
const MAX_ACQUIRING: usize = 3;

/// After so long a lease under way keeps the others waiting no more: it may wait for a transaction of
/// the users' own.
const SLOW: Duration = Duration::from_millis(100);

/// Pauses before another pass after the stream brought more than could be taken, from and to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The stream is behind when what it brings became pending so long ago; its moments are whole
/// seconds.
const BEHIND: Duration = Duration::from_secs(3);

/// How long it may be behind before rotations find the records.
const BEHIND_FOR: Duration = Duration::from_secs(2);

/// Where rotations end and the stream begins.
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
    /// What is to be leased next, in this order.
    acquisitions: Vec<Acquisition>,
    /// The leases of such acquisitions that are under way.
    acquiring: Vec<Acquiring>,
    /// How many there were.
    acquired: u64,
}

/// A lease under way.
#[derive(Debug)]
struct Acquiring {
    number: u64,
    began: Instant,
    /// Whose records it is about. No other one is about any of these, or a lane's records could come
    /// into it in the wrong order.
    lanes: Vec<Arc<Lane>>,
}

/// What finds the records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Phase {
    /// Rotations find the records, and events tell where to scan.
    #[default]
    Scanning,
    /// A rotation reads everything; events are withheld.
    Passing,
    /// The stream carries the records.
    Live { since: Instant },
}

/// Why rotations are to find the records again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveReason {
    /// Partitions came or went, a pause or a stop began, or the stream was closed.
    OnPurpose,
    /// There was more than could be taken or remembered.
    Overloaded,
}

impl LiveMode {
    /// What finds the records.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// The stream is open; a pass may begin if it `carries` the records.
    pub(super) fn opened(&mut self, carries: bool) {
        self.is_open = carries;
    }

    /// The stream is closed.
    pub(super) fn closed(&mut self) {
        self.is_open = false;
    }

    /// Whether the stream carries the records.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live { .. })
    }

    /// Whether the rotation that is about to begin is to be a pass: the stream is open, so that what
    /// the rotation does not show, the stream will.
    pub(super) fn begins_pass(&mut self, now: Instant) -> bool {
        let begins = self.wants_pass(now);
        if begins {
            self.phase = Phase::Passing;
            self.is_all = true;
        }
        begins
    }

    /// Whether a pass is to begin.
    pub(super) fn wants_pass(&self, now: Instant) -> bool {
        let is_due = self.next_pass.is_none_or(|due| due <= now);
        matches!(self.phase, Phase::Scanning) && self.is_open && is_due
    }

    /// What a scan found in keys that had to be read, to be leased with what the stream brings.
    pub(super) fn queue(&mut self, acquisitions: Vec<Acquisition>) {
        acquisitions.iter().for_each(|acquisition| acquisition.lane.queued());
        self.acquisitions.extend(acquisitions);
    }

    /// Whether the stream has been behind for too long, by an event of this moment that came now.
    pub(super) fn is_behind(&mut self, at: Timestamp, server: DateTime, now: Instant) -> bool {
        let age = server.timestamp_millis() / 1_000 - i64::from(at.time);
        if u64::try_from(age).is_ok_and(|age| age >= BEHIND.as_secs()) {
            now.duration_since(*self.behind_since.get_or_insert(now)) > BEHIND_FOR
        } else {
            self.behind_since = None;
            false
        }
    }

    /// A scan of the pass is over; returns whether all of them have seen all that they must.
    pub(super) fn page_seen(&mut self, is_all: bool) -> bool {
        self.is_all &= is_all;
        self.is_all
    }

    /// The pass has succeeded: the stream carries the records.
    pub(super) fn went_live(&mut self, now: Instant) {
        self.phase = Phase::Live { since: now };
    }

    /// Rotations find the records again; returns what was to be leased. `None` where they do so
    /// already.
    pub(super) fn leave(&mut self, why: LeaveReason, now: Instant) -> Option<Vec<Acquisition>> {
        let lasted = match self.phase {
            Phase::Scanning => return None,
            Phase::Passing => Duration::ZERO,
            Phase::Live { since } => now.duration_since(since),
        };
        self.phase = Phase::Scanning;
        self.behind_since = None;
        if why == LeaveReason::Overloaded {
            let pause = match self.pause.filter(|_| lasted < PAUSE.1) {
                Some(pause) => (pause * 2).min(PAUSE.1),
                None => PAUSE.0,
            };
            self.pause = Some(pause);
            self.next_pass = Some(now + pause);
            info!(
                lasted = ?lasted,
                pause = ?pause,
                "the change stream brings more than can be taken: rotations find the records"
            );
        }
        Some(std::mem::take(&mut self.acquisitions))
    }

    /// Whether anything is to be leased.
    pub(super) fn has_acquisitions(&self) -> bool {
        !self.acquisitions.is_empty()
    }

    /// A lease of these begins; returns its number.
    pub(super) fn acquire(&mut self, acquisitions: &[Acquisition], began: Instant) -> u64 {
        let number = self.acquired;
        self.acquired += 1;
        let lanes = acquisitions.iter().map(|acquisition| acquisition.lane.clone()).collect();
        self.acquiring.push(Acquiring { number, began, lanes });
        number
    }

    /// The lease of this number has come to something.
    pub(super) fn acquired(&mut self, number: u64) {
        self.acquiring.retain(|one| one.number != number);
    }

    /// Takes from what waits, in its order, what may be leased next: of lanes that no lease under way
    /// is about, up to so many records.
    pub(super) fn next_acquisitions(&mut self, limit: usize, now: Instant) -> Vec<Acquisition> {
        let is_slow = |one: &Acquiring| now.duration_since(one.began) > SLOW;
        if self.acquiring.len() >= MAX_ACQUIRING || !self.acquiring.iter().all(is_slow) {
            return Vec::new();
        }
        let is_in = |lane: &Arc<Lane>| {
            self.acquiring.iter().flat_map(|one| &one.lanes).any(|other| Arc::ptr_eq(lane, other))
        };
        let (mut next, mut left, mut records, mut is_full) = (Vec::new(), Vec::new(), 0, false);
        for acquisition in std::mem::take(&mut self.acquisitions) {
            is_full |= !next.is_empty() && records + acquisition.records.len() > limit;
            // Behind one that is left come no others of its lane: there is one acquisition of each.
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

    /// Puts a record behind what is to be leased for its lane.
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
    fn a_lease_that_takes_long_holds_up_its_own_lanes_alone() {
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
        let later = began + 2 * SLOW;
        assert_eq!(names(live.next_acquisitions(9, later)), ["1", "2"]);
        lease(&mut live, &[1, 2], later);
        assert!(live.next_acquisitions(9, later + 2 * SLOW).is_empty());
        live.acquired(first);

        assert!(live.next_acquisitions(9, later).is_empty(), "the other one is under way");
        assert_eq!(names(live.next_acquisitions(9, later + 2 * SLOW)), ["0"]);
    }

    #[test]
    fn a_stream_that_stays_behind_is_left_and_one_that_catches_up_is_not() {
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
    fn what_is_left_for_want_of_room_is_tried_again_after_growing_pauses() {
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
    fn one_page_that_has_not_seen_all_makes_a_pass_void_and_the_next_begins_anew() {
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
