//! What the driver does when it is woken, above all with the changes that the stream brings.

use std::time::Instant;

use bson::Timestamp;
use metrics::gauge;
use tracing::debug;

use crate::outbox::record::{LaneKey, Record};
use crate::relay::blocker::Blocker;
use crate::relay::driver::{Driver, Event, TARGETS};
use crate::relay::hands::Known;
use crate::relay::lane::Lane;
use crate::relay::live::{Leaves, Mode};
use crate::relay::look::{Claim, Origin, Seen, Target};
use crate::relay::wake::{Change, Hint, Reasons};
use crate::sink::Sink;
use crate::telemetry::metrics::PARTITIONS_LIVE;

/// Keys that are to be read, beyond which a rotation is cheaper.
const MAX_UNSCANNED: usize = 2_048;

/// What a change means while rotations find the records.
enum Hints {
    None,
    At(Hint),
    Somewhere,
}

impl<S: Sink> Driver<S> {
    /// Changes came, or other reasons to look.
    pub(super) fn on_wake(&mut self) {
        let Reasons { mut all, mut hints } = self.wake.take();
        for change in self.wake.take_changes() {
            match self.on_change(change) {
                Hints::None => {}
                Hints::At(hint) => hints.push(hint),
                Hints::Somewhere => all = true,
            }
        }
        if self.live.is_live() {
            // It knows what there is.
            return;
        }
        let targets: Vec<Target> = {
            let share = self.share.borrow();
            let is_ours = |hint: &Hint| share.partitions.contains(&hint.partition());
            let ours = hints.into_iter().filter(is_ours);
            ours.map(Target::At).filter(|target| !self.is_in_hand(target)).collect()
        };
        if self.targets.len() + targets.len() <= TARGETS && self.has_room() {
            self.targets.extend(targets);
        } else if !targets.is_empty() {
            // What there is no room for is found when there is.
            all = true;
        }
        if all {
            self.look_now();
        }
    }

    /// Whether its key is in hand: the look that follows the end of its lane shows the rest.
    fn is_in_hand(&self, target: &Target) -> bool {
        match target {
            Target::At(Hint::Key { key, .. }) => {
                self.shared.hands.busy(&LaneKey::Keyed(key.clone())).is_some()
            }
            Target::At(Hint::Record { .. }) | Target::Refill(_) | Target::Scan(..) => false,
        }
    }

    /// Takes, notes or passes on one change.
    fn on_change(&mut self, change: Change) -> Hints {
        if let Some(at) = change.at() {
            self.shared.hands.passed(at);
            let now = (self.shared.clock.now(), Instant::now());
            if self.live.is_live() && self.live.is_behind(at, now.0, now.1) {
                self.leave_live(Leaves::Overloaded);
                return Hints::Somewhere;
            }
        }
        match (change, self.live.mode()) {
            (Change::Opened(_), _) => {
                // (Over shards an event comes when the slowest of them has said something: there it
                // is a reason to look, and no more.)
                self.live.opened(!self.shared.collections.is_sharded());
                Hints::Somewhere
            }
            (Change::Closed, _) => {
                self.live.closed();
                self.leave_live(Leaves::OnPurpose);
                Hints::Somewhere
            }
            (Change::Somewhere, _) => {
                self.leave_live(Leaves::OnPurpose);
                Hints::Somewhere
            }
            (Change::Misplaced(record, at), mode) => {
                let record = self.shared.in_its_lane(*record);
                let hint = Hint::of(record.partition, record.lane.clone(), record.id.clone());
                self.take_misplaced(record, at);
                if matches!(mode, Mode::Scanning) { Hints::At(hint) } else { Hints::None }
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

    /// It is corrected first, and its key waits until then: a look might not find it.
    fn take_misplaced(&mut self, record: Record, at: Timestamp) {
        let is_ours = self.share.borrow().partitions.contains(&record.partition);
        if !is_ours {
            return;
        }
        let (lane, partition, id) = (record.lane.clone(), record.partition, record.id.clone());
        self.shared.hands.withhold(lane.clone(), partition, id, at);
        self.shared.hands.hold_for_repair(vec![(lane, Blocker::unseen(partition))]);
        if !self.shared.misplaced.note(record) {
            // A pass begins with what can be found.
            self.leave_live(Leaves::Overloaded);
        }
    }

    fn take_change(&mut self, record: Record, at: Timestamp) {
        let shared = self.shared.clone();
        shared.hands.note_place(&record);
        let record = shared.in_its_lane(record);
        let (key, partition, id) = (record.lane.clone(), record.partition, record.id.clone());
        let withhold = || shared.hands.withhold(key.clone(), partition, id.clone(), at);
        if self.schedule.is_store_failing() || !shared.has_room() {
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
                shared.enter_plan(plan, openings, None, None, &mut seen);
                self.on_seen(seen);
                if !shared.hands.is_entered(&key) {
                    withhold();
                }
            }
        }
    }

    /// Reads the keys that must be read, leases what came, and sees to it that a pass begins.
    pub(super) fn serve_live(&mut self, now: Instant) {
        if self.live.wants_pass(now) && !self.schedule.is_store_failing() {
            self.schedule.due_now(now);
        }
        let hands = &self.shared.hands;
        let is_following = !matches!(self.live.mode(), Mode::Scanning);
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
        if !self.live.has_claims() {
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
        let number = self.live.acquire(&claims, now);
        let shared = self.shared.clone();
        let seen = Seen { claims, ..Seen::default() };
        self.tasks.spawn(async move { Event::Acquired(number, shared.lease(seen).await) });
    }

    /// A look of a rotation is over, the last one where there is no `more`. Where it was a pass, the
    /// stream carries the records then.
    pub(super) fn after_look(&mut self, is_all: bool, more: bool) {
        let is_all = self.live.page_seen(is_all);
        if !matches!(self.live.mode(), Mode::Passing) || more {
            return;
        }
        let hands = &self.shared.hands;
        let unscanned = hands.unscanned();
        if !is_all || hands.is_overfull() || unscanned > MAX_UNSCANNED {
            return self.leave_live(Leaves::Overloaded);
        }
        hands.live();
        self.live.went_live(Instant::now());
        let partitions = self.share.borrow().partitions.len();
        gauge!(PARTITIONS_LIVE).set(partitions as f64);
        debug!(partitions, unscanned, "the change stream carries the records");
    }

    /// Back to rotations, before the next change is handled.
    pub(super) fn leave_live(&mut self, why: Leaves) {
        let Some(claims) = self.live.leave(why, Instant::now()) else { return };
        gauge!(PARTITIONS_LIVE).set(0.0);
        self.shared.hands.unfollow();
        claims.into_iter().for_each(|claim| self.shared.give_up(claim));
        self.targets.retain(|target| !matches!(target, Target::Scan(..)));
        self.look_now();
    }
}
