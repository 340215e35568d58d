//! While the change stream carries the records: nothing is read to find them.
//!
//! A snapshot is knowledge of one moment; every later event, in the order of the stream, extends it.
//! So once everything was read ([a pass](Live::begins_pass)) that was pending since the stream was
//! opened, each key is in one of these states, and none is left in silence:
//!
//! - **free**: nothing of it is pending, as far as the stream was handled. Its next event is leased
//!   and goes.
//! - **in hand**: a lane delivers. A lane that is *complete* holds everything that its key has
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
use metrics::gauge;
use tracing::{debug, info};

use crate::outbox::record::Record;
use crate::relay::driver::{Driver, Event, TARGETS};
use crate::relay::hands::Known;
use crate::relay::lane::Lane;
use crate::relay::look::{Claim, Origin, Seen, Target};
use crate::relay::wake::{Change, Hint};
use crate::sink::Sink;
use crate::telemetry::metrics::PARTITIONS_LIVE;

/// Keys that are to be read, beyond which a rotation is cheaper.
const MAX_UNSCANNED: usize = 2_048;

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
pub(super) struct Live {
    mode: Mode,
    is_open: bool,
    /// No pass begins before.
    next_pass: Option<Instant>,
    pause: Option<Duration>,
    /// Since when the stream is behind.
    behind_since: Option<Instant>,
    /// Whether each look of the pass has seen all that it must.
    is_all: bool,
    /// What is to be leased next, in this order.
    claims: Vec<Claim>,
    /// The leases of such claims that are under way.
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

#[derive(Debug, Default)]
enum Mode {
    /// Rotations find the records, and events tell where to look.
    #[default]
    Scanning,
    /// A rotation reads everything; events are withheld.
    Passing,
    /// The stream carries the records.
    Live { since: Instant },
}

/// Why rotations are to find the records again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Partitions came or went, a pause or a stop began, or the stream was closed.
    OnPurpose,
    /// There was more than could be taken or remembered.
    Overloaded,
}

/// What a change means while rotations find the records.
pub(super) enum Hints {
    None,
    At(Hint),
    Somewhere,
}

impl Live {
    /// Whether the stream carries the records.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.mode, Mode::Live { .. })
    }

    /// Whether the rotation that is about to begin is to be a pass: the stream is open, so that what
    /// the rotation does not show, the stream will.
    pub(super) fn begins_pass(&mut self, now: Instant) -> bool {
        let begins = self.wants_pass(now);
        if begins {
            self.mode = Mode::Passing;
            self.is_all = true;
        }
        begins
    }

    fn wants_pass(&self, now: Instant) -> bool {
        let is_due = self.next_pass.is_none_or(|due| due <= now);
        matches!(self.mode, Mode::Scanning) && self.is_open && is_due
    }

    /// What a look found in keys that had to be read, to be leased with what the stream brings.
    pub(super) fn queue(&mut self, claims: Vec<Claim>) {
        claims.iter().for_each(|claim| claim.lane.queued());
        self.claims.extend(claims);
    }

    /// Whether the stream has been behind for too long, by an event of this moment that came now.
    fn is_behind(&mut self, at: Timestamp, server: DateTime, now: Instant) -> bool {
        let age = server.timestamp_millis() / 1_000 - i64::from(at.time);
        if u64::try_from(age).is_ok_and(|age| age >= BEHIND.as_secs()) {
            now.duration_since(*self.behind_since.get_or_insert(now)) > BEHIND_FOR
        } else {
            self.behind_since = None;
            false
        }
    }

    /// The lease of this number has come to something.
    pub(super) fn acquired(&mut self, number: u64) {
        self.acquiring.retain(|one| one.number != number);
    }

    /// Takes from what waits, in its order, what may be leased next: of lanes that no lease under way
    /// is about, up to so many records.
    fn next_claims(&mut self, limit: usize, now: Instant) -> Vec<Claim> {
        let is_slow = |one: &Acquiring| now.duration_since(one.began) > SLOW;
        if self.acquiring.len() >= MAX_ACQUIRING || !self.acquiring.iter().all(is_slow) {
            return Vec::new();
        }
        let is_in = |lane: &Arc<Lane>| {
            self.acquiring.iter().flat_map(|one| &one.lanes).any(|other| Arc::ptr_eq(lane, other))
        };
        let (mut next, mut left, mut records, mut is_full) = (Vec::new(), Vec::new(), 0, false);
        for claim in std::mem::take(&mut self.claims) {
            is_full |= !next.is_empty() && records + claim.records.len() > limit;
            // Behind one that is left come no others of its lane: there is one claim of each.
            if is_full || is_in(&claim.lane) {
                left.push(claim);
            } else {
                records += claim.records.len();
                next.push(claim);
            }
        }
        self.claims = left;
        next
    }

    /// Puts a record behind what is to be leased for its lane.
    fn add(&mut self, claim: Claim) {
        claim.lane.queued();
        let mut waiting = self.claims.iter_mut().filter(|one| one.origin != Origin::Refill);
        match waiting.find(|waiting| Arc::ptr_eq(&waiting.lane, &claim.lane)) {
            Some(waiting) => waiting.records.extend(claim.records),
            None => self.claims.push(claim),
        }
    }
}

impl<S: Sink> Driver<S> {
    /// Takes, notes or passes on one change.
    pub(super) fn on_change(&mut self, change: Change) -> Hints {
        if let Some(at) = change.at() {
            self.shared.hands.passed(at);
            let now = (self.shared.clock.now(), Instant::now());
            if self.live.is_live() && self.live.is_behind(at, now.0, now.1) {
                self.leave_live(Leaves::Overloaded);
                return Hints::Somewhere;
            }
        }
        match (change, &self.live.mode) {
            (Change::Opened(_), _) => {
                // (Over shards an event comes when the slowest of them has said something: there it
                // is a reason to look, and no more.)
                let is_late = self.shared.collections.is_sharded();
                self.live.is_open = !is_late;
                Hints::Somewhere
            }
            (Change::Closed, _) => {
                self.live.is_open = false;
                self.leave_live(Leaves::OnPurpose);
                Hints::Somewhere
            }
            (Change::Somewhere, _) => {
                self.leave_live(Leaves::OnPurpose);
                Hints::Somewhere
            }
            (change, Mode::Scanning) => change.hint().map_or(Hints::None, Hints::At),
            (Change::Pending(record, at), Mode::Passing) => {
                self.shared.hands.note_place(&record);
                let record = self.shared.in_its_lane(*record);
                self.shared.hands.withhold(record.lane, record.partition, record.id, at);
                Hints::None
            }
            (Change::Touched { partition, lane, id, at }, _) => {
                self.shared.hands.withhold(self.shared.lane_of(lane, &id), partition, id, at);
                Hints::None
            }
            (Change::Pending(record, at), Mode::Live { .. }) => {
                if self.share.borrow().partitions.contains(&record.partition) {
                    self.take_change(*record, at);
                }
                Hints::None
            }
        }
    }

    fn take_change(&mut self, record: Record, at: Timestamp) {
        let shared = self.shared.clone();
        shared.hands.note_place(&record);
        let record = shared.in_its_lane(record);
        let (key, partition, id) = (record.lane.clone(), record.partition, record.id.clone());
        let withhold = || shared.hands.withhold(key.clone(), partition, id.clone(), at);
        if self.store_pause.is_some() || !shared.has_room() {
            return withhold();
        }
        match shared.hands.known(&record, at) {
            Known::Covered => {}
            Known::Waits => withhold(),
            Known::Busy(lane) => {
                let run = shared.plan_one(record).runs.pop();
                match run.filter(|_| lane.offer(&id)) {
                    Some(run) => {
                        let (records, origin) = (run.records, Origin::Stream);
                        let claim = Claim { lane, records, more: false, origin };
                        self.live.add(shared.reserved(claim));
                    }
                    None => withhold(),
                }
            }
            Known::Free => {
                let openings = shared.hands.openings();
                let mut plan = shared.plan_one(record);
                if let Some(run) = plan.runs.pop() {
                    let lane = Lane::new(key.clone(), partition);
                    lane.begin(&run.records, true);
                    if !shared.hands.claim_free(&lane, &run.records[0]) {
                        return withhold();
                    }
                    let (records, origin) = (run.records, Origin::New);
                    let claim = Claim { lane, records, more: false, origin };
                    return self.live.add(shared.reserved(claim));
                }
                let mut seen = Seen::default();
                shared.note(plan, openings, None, None, &mut seen);
                self.on_seen(seen);
                if !shared.hands.is_entered(&key) {
                    withhold();
                }
            }
        }
    }

    /// Reads the keys that must be read, leases what came, and sees to it that a pass begins.
    pub(super) fn serve_live(&mut self, now: Instant) {
        if self.live.wants_pass(now) && self.store_pause.is_none() {
            self.next_rotation = now;
        }
        let hands = &self.shared.hands;
        let is_following = !matches!(self.live.mode, Mode::Scanning);
        if is_following && (hands.unscanned() > MAX_UNSCANNED || hands.is_overfull()) {
            return self.leave_live(Leaves::Overloaded);
        }
        if !self.live.is_live() {
            return;
        }
        if !self.looking && self.targets.len() < TARGETS && self.shared.has_room() {
            let asked = hands.ask_unscanned(TARGETS - self.targets.len()).into_iter();
            self.targets.extend(asked.map(|(key, partition, id)| {
                Target::Scan(key.clone(), Hint::of(partition, key, id))
            }));
        }
        self.acquire();
    }

    /// Leases what is next.
    fn acquire(&mut self) {
        if self.live.claims.is_empty() {
            return;
        }
        let now = Instant::now();
        let claims = self.live.next_claims(self.shared.settings.batch_size, now);
        // What was to come behind the first record of a lane that was not to be had.
        let (ended, claims): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|claim| claim.lane.is_closed());
        ended.into_iter().for_each(|claim| self.shared.give_up(claim));
        if claims.is_empty() {
            return;
        }
        let number = self.live.acquired;
        self.live.acquired += 1;
        let lanes = claims.iter().map(|claim| claim.lane.clone()).collect();
        self.live.acquiring.push(Acquiring { number, began: now, lanes });
        let shared = self.shared.clone();
        let seen = Seen { claims, ..Seen::default() };
        self.tasks.spawn(async move { Event::Acquired(number, shared.lease(seen).await) });
    }

    /// A look of a rotation is over, the last one where there is no `more`. Where it was a pass, the
    /// stream carries the records then.
    pub(super) fn after_look(&mut self, is_all: bool, more: bool) {
        self.live.is_all &= is_all;
        let is_all = self.live.is_all;
        if !matches!(self.live.mode, Mode::Passing) || more {
            return;
        }
        let hands = &self.shared.hands;
        let unscanned = hands.unscanned();
        if !is_all || hands.is_overfull() || unscanned > MAX_UNSCANNED {
            return self.leave_live(Leaves::Overloaded);
        }
        hands.live();
        self.live.mode = Mode::Live { since: Instant::now() };
        let partitions = self.share.borrow().partitions.len();
        gauge!(PARTITIONS_LIVE).set(partitions as f64);
        debug!(partitions, unscanned, "the change stream carries the records");
    }

    /// Back to rotations, before the next change is handled.
    pub(super) fn leave_live(&mut self, why: Leaves) {
        let lasted = match self.live.mode {
            Mode::Scanning => return,
            Mode::Passing => Duration::ZERO,
            Mode::Live { since } => since.elapsed(),
        };
        self.live.mode = Mode::Scanning;
        self.live.behind_since = None;
        gauge!(PARTITIONS_LIVE).set(0.0);
        self.shared.hands.unfollow();
        for claim in std::mem::take(&mut self.live.claims) {
            self.shared.give_up(claim);
        }
        self.targets.retain(|target| !matches!(target, Target::Scan(..)));
        if why == Leaves::Overloaded {
            let pause = match self.live.pause.filter(|_| lasted < PAUSE.1) {
                Some(pause) => (pause * 2).min(PAUSE.1),
                None => PAUSE.0,
            };
            self.live.pause = Some(pause);
            self.live.next_pass = Some(Instant::now() + pause);
            info!(
                lasted = ?lasted,
                pause = ?pause,
                "the change stream brings more than can be taken: rotations find the records"
            );
        }
        self.look_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::record::LaneKey;

    fn claim(lane: &Arc<Lane>) -> Claim {
        let (records, origin) = (Vec::new(), Origin::Stream);
        Claim { lane: lane.clone(), records, more: false, origin }
    }

    #[test]
    fn a_lease_that_takes_long_holds_up_its_own_lanes_alone() {
        let lanes: Vec<Arc<Lane>> =
            (0..3).map(|n| Lane::new(LaneKey::Keyed(n.to_string().into()), 0)).collect();
        let names = |claims: Vec<Claim>| -> Vec<String> {
            claims.iter().map(|claim| claim.lane.key.as_str().to_owned()).collect()
        };
        let (mut live, began) = (Live::default(), Instant::now());
        let lease = |live: &mut Live, number, of: &[usize], began| {
            let lanes = of.iter().map(|n| lanes[*n].clone()).collect();
            live.acquiring.push(Acquiring { number, began, lanes });
        };
        lease(&mut live, 0, &[0], began);
        lanes.iter().for_each(|lane| live.add(claim(lane)));

        assert!(live.next_claims(9, began).is_empty(), "they go with the next lease");
        let later = began + 2 * SLOW;
        assert_eq!(names(live.next_claims(9, later)), ["1", "2"]);
        lease(&mut live, 1, &[1, 2], later);
        assert!(live.next_claims(9, later + 2 * SLOW).is_empty());
        live.acquired(0);

        assert!(live.next_claims(9, later).is_empty(), "the other one is under way");
        assert_eq!(names(live.next_claims(9, later + 2 * SLOW)), ["0"]);
    }

    #[test]
    fn a_stream_that_stays_behind_is_left_and_one_that_catches_up_is_not() {
        let mut live = Live::default();
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
}
