//! The first half of a take: one snapshot read, planned, and entered in the book.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::ids::RecordId;
use crate::outbox::position::Position;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Dead, Room, Snapshot, Stretch, first_keys, size_of};
use crate::partition;
use crate::relay::alone::Candidate;
use crate::relay::before::{Before, key_of};
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::hands::{Openings, Read};
use crate::relay::lane::Lane;
use crate::relay::plan::{Hold, Plan, Run, Sight, Way, plan};
use crate::relay::settings::Settings;
use crate::relay::shared::Shared;
use crate::relay::wake::Hint;
use crate::sink::Sink;
use crate::store::StoreError;

/// Where a take looks.
#[derive(Debug)]
pub enum Look {
    /// On from a place, through the owned partitions.
    Rotation(Position),
    /// At particular lanes.
    Targets(Vec<Target>),
}

/// One lane to look at.
#[derive(Clone, Debug)]
pub enum Target {
    /// Where something is said to be pending.
    At(Hint),
    /// A lane in hand that runs short.
    Refill(Arc<Lane>),
    /// A key of which it must be known what it has pending.
    Scan(LaneKey, Hint),
}

impl Target {
    /// What is to be read; `None` for a lane without a key, of which there is no more than it has.
    fn stretch(&self) -> Option<Stretch<'_>> {
        match self {
            Self::At(Hint::Key { partition, key })
            | Self::Scan(_, Hint::Key { partition, key }) => Some(Stretch::Lane(*partition, key)),
            Self::At(Hint::Record { partition, id })
            | Self::Scan(_, Hint::Record { partition, id }) => {
                Some(Stretch::Record(*partition, id))
            }
            Self::Refill(lane) => match &lane.key {
                LaneKey::Keyed(key) => Some(Stretch::Lane(lane.partition, key)),
                LaneKey::Single(_) => None,
            },
        }
    }

    /// Where it lies.
    fn partition(&self) -> u8 {
        match self {
            Self::At(hint) | Self::Scan(_, hint) => hint.partition(),
            Self::Refill(lane) => lane.partition,
        }
    }
}

impl Look {
    /// The lanes in hand that wait for what it finds.
    fn refills(&self) -> Vec<Arc<Lane>> {
        let Self::Targets(targets) = self else { return Vec::new() };
        let lanes = targets.iter().filter_map(|target| match target {
            Target::Refill(lane) => Some(lane.clone()),
            Target::At(_) | Target::Scan(..) => None,
        });
        lanes.collect()
    }

    /// The keys of which it must be known what they have pending.
    fn scans(&self) -> Vec<LaneKey> {
        let Self::Targets(targets) = self else { return Vec::new() };
        let keys = targets.iter().filter_map(|target| match target {
            Target::Scan(key, _) => Some(key.clone()),
            Target::At(_) | Target::Refill(_) => None,
        });
        keys.collect()
    }
}

/// What a look saw: runs whose keys are entered in the book, ready to be leased.
#[derive(Debug, Default)]
pub struct Seen {
    /// Where the rotation goes on; `None` after its end, or when it was none.
    pub next: Option<Position>,
    /// Whether the rotation read as much as it may at a time: there is more behind it.
    pub full: bool,
    /// Whether the bytes that it may read did not suffice for all its targets.
    pub short: bool,
    /// Whether all keys were read that the dead block, or that a record with an invalid partition
    /// holds back.
    pub is_all: bool,
    /// Keys that the rotation had to pass over.
    pub passed_over: usize,
    /// Keys of which it could not be said what they have pending.
    pub skipped: Vec<LaneKey>,
    /// Suspects that wait for their turn.
    pub candidates: Vec<Candidate>,
    /// What must be repaired, or made dead where it is.
    pub repairs: Repairing,
    pub(super) claims: Vec<Claim>,
}

/// Records that a look found unfit to be leased.
#[derive(Debug, Default)]
pub struct Repairing {
    /// With an invalid partition, or without a `seq`.
    pub(super) repairs: Vec<Record>,
    /// Without attempts left, or without a usable `_id`.
    pub(super) spent: Vec<Record>,
}

impl Repairing {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.repairs.is_empty() && self.spent.is_empty()
    }
}

impl Seen {
    /// Whether there is anything to lease. (A repair that changes something asks for another look
    /// itself; one that changes nothing must not.)
    pub fn is_something(&self) -> bool {
        self.claims.iter().any(|claim| !claim.records.is_empty())
    }

    /// Whether the lease stage has anything to do, even if only to report that there is nothing.
    pub fn wants_lease(&self) -> bool {
        !self.claims.is_empty()
    }
}

/// A run on its way to being leased.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) lane: Arc<Lane>,
    /// Empty where a refill found nothing.
    pub(super) records: Vec<Record>,
    pub(super) more: bool,
    pub(super) origin: Origin,
}

/// Whence a claim comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The lane is entered for this run.
    New,
    /// The lane asked for more of its key.
    Refill,
    /// The change stream brought them, for a lane that is complete.
    Stream,
}

impl<S: Sink> Shared<S> {
    /// The first half of a take: reads one snapshot, plans, and enters the keys of what may
    /// go in the book, so that the next look can begin while this one is leased.
    ///
    /// # Errors
    ///
    /// Those of the store. Nothing has changed then, and as little where a stop came first: it
    /// has seen nothing.
    pub async fn look(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        let (refilled, scanned) = (look.refills(), look.scans());
        let seen = tokio::select! {
            biased;
            seen = self.read(look, owned, room) => Some(seen),
            // Nobody waits at a stop for a MongoDB that does not answer.
            () = self.stopping() => None,
        };
        if !matches!(seen, Some(Ok(_))) {
            // Nothing more for now; the next rotation finds it.
            for lane in refilled {
                lane.add(Vec::new(), false);
            }
            for key in scanned {
                self.hands.scanned(&key, None);
            }
        }
        seen.unwrap_or_else(|| Ok(Seen::default()))
    }

    async fn read(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        // Noted before the snapshot: a lane that ends meanwhile has settled what it shows as leased,
        // and one that waits its turn to go alone may have had it.
        let spoken_for = self.hands.spoken_for();
        let openings = self.hands.openings();
        let begun = self.hands.begun();
        let mut snapshot = Snapshot::begin(&self.collections).await?;
        if !self.settings.ordered {
            snapshot.go_on_within_keys();
        }
        let (before, misplaced) = self.before_lanes(&mut snapshot, room.records).await?;
        let (spent, repairs) = misplaced.into_iter().partition(|record| record.nameless);
        let mut seen = Seen { repairs: Repairing { repairs, spent }, ..Seen::default() };
        // They lie in no range of the index where their keys are read.
        self.hands.hold_for_repair(before.misplaced_within(owned));
        match look {
            Look::Rotation(from) => {
                seen.is_all = before.all_blocked && before.all_misplaced;
                self.hands.note_blocked(before.blocked_within(owned));
                // What is not passed over is read, and left.
                let blocked = first_keys(before.blocked.keys().filter_map(key_of));
                let run = (Settings::LANE, Settings::WHOLE);
                let (mut from, mut left) = (from, room);
                let (mut plans, mut shown) = (Vec::new(), Vec::new());
                // Up to where there is something; from the records without a partition to the others
                // all the same, so that a round of a quiet outbox is one look.
                loop {
                    let mut over = self.hands.passed_over(&from);
                    seen.passed_over += over.keys.len();
                    over.keys.extend_from_slice(&blocked);
                    let page = snapshot.page(&from, owned, &over, left).await?;
                    seen.skipped.extend(page.skipped);
                    // (A new primary may not know yet what the stream has shown.)
                    seen.is_all &= page.is_all && begun.heard <= snapshot.moment();
                    seen.full |= page.is_full;
                    left.records -= page.records.len().min(left.records / 2);
                    left.bytes = left.bytes.saturating_sub(size_of(&page.records));
                    let stretch = Stretch::Page(&from, owned, &over);
                    let (records, before, skipped) = self
                        .view(page.records, before.clone(), &stretch, left, &mut snapshot)
                        .await?;
                    seen.skipped.extend(skipped);
                    self.note_places(&records, &before);
                    let records = self.prepared(records);
                    // (Where rotations go on, they meet it again.)
                    let read = records.iter().filter(|_| begun.follows);
                    shown.extend(
                        read.map(|record| {
                            (record.lane.clone(), record.partition, record.id.clone())
                        }),
                    );
                    plans.push(self.plan(records, &before, &spoken_for, None, run));
                    let is_found = plans.iter().any(|plan| !plan.runs.is_empty());
                    match page.next {
                        Some(next) if !page.is_full && (!is_found || next.begins_side()) => {
                            from = next;
                        }
                        next => {
                            seen.next = next;
                            break;
                        }
                    }
                }
                // Not before the last read has succeeded: nobody would lease, or free, the rest.
                for plan in plans {
                    self.note(plan, openings, None, None, &mut seen);
                }
                // A lane that ended since the page was read has left none of it in silence.
                for (lane, partition, id) in shown {
                    self.hands.must_scan(lane, partition, id);
                }
                for key in std::mem::take(&mut seen.skipped) {
                    let partition = partition::of_key(key.as_str());
                    self.hands.must_scan(key, partition, RecordId::from(bson::Bson::Null));
                }
            }
            Look::Targets(targets) => {
                let mut planned = Vec::with_capacity(targets.len());
                let mut left = room.bytes;
                for target in targets {
                    let is_ours = owned.contains(&target.partition());
                    seen.short |= is_ours && left == 0;
                    let reads = is_ours && left > 0;
                    let places = match &target {
                        Target::Scan(key, _) => self.hands.places_of(key),
                        Target::At(_) | Target::Refill(_) => Vec::new(),
                    };
                    let stretch = match &target {
                        Target::Scan(LaneKey::Keyed(key), _) => Some(Stretch::Key(&places, key)),
                        _ => target.stretch(),
                    };
                    let Some(stretch) = stretch.filter(|_| reads) else {
                        self.turn_down(target, &mut seen);
                        continue;
                    };
                    let (lane, cap, had) = match &target {
                        Target::At(_) | Target::Scan(..) => (None, Settings::LANE, 0),
                        Target::Refill(lane) => (Some(lane), self.share(), lane.had_count()),
                    };
                    let room = Room { records: had + cap + 1, bytes: left };
                    let records = snapshot.read(&stretch, room).await?;
                    let is_cut = room.is_filled_by(&records);
                    left = left.saturating_sub(size_of(&records));
                    let before = before.clone();
                    let (records, before, unknown) =
                        self.view(records, before, &stretch, room, &mut snapshot).await?;
                    self.note_places(&records, &before);
                    let records = self.prepared(records);
                    let is_empty = records.is_empty();
                    let refill = lane.map(Arc::as_ref);
                    let plan = self.plan(records, &before, &spoken_for, refill, (cap, cap));
                    let scan = match &target {
                        Target::Scan(key, _) => {
                            let dead = before.blocked.get(key).cloned();
                            // (Narrowed down for the keys of what was read alone.)
                            let is_known = unknown.is_empty()
                                && !before.misplaced.contains_key(key)
                                && (before.all_misplaced || !is_empty)
                                && (before.all_blocked || !is_empty);
                            Some((key.clone(), dead, is_cut, is_known, target.partition()))
                        }
                        Target::At(_) | Target::Refill(_) => None,
                    };
                    planned.push((plan, lane.cloned(), scan, is_empty));
                }
                let read = snapshot.moment().map(|at| Read { at, begun });
                // Not before the last read has succeeded: nobody would lease, or free, the rest.
                for (plan, lane, scan, is_empty) in planned {
                    let Some((key, dead, is_cut, is_known, partition)) = scan else {
                        self.note(plan, openings, lane, None, &mut seen);
                        continue;
                    };
                    if !is_known {
                        let unseen = Blocker::unseen(partition);
                        self.hands.hold_for_repair(vec![(key.clone(), unseen)]);
                    }
                    let read = read.filter(|_| is_known);
                    self.note(plan, openings, None, read.filter(|_| !is_cut), &mut seen);
                    let blocked = dead.map(|dead| (key.clone(), dead));
                    self.hands.hold_blocked(blocked.into_iter().collect());
                    // What was found is entered, or it is read again.
                    self.hands.scanned(&key, read.filter(|_| is_empty));
                }
            }
        }
        Ok(seen)
    }

    /// Notes of what was read which keys lie in other partitions than their own, and which the dead
    /// block.
    fn note_places(&self, records: &[Record], before: &Before) {
        let mut blocked = Vec::new();
        for record in records {
            self.hands.note_place(record);
            if let Some(dead) = before.blocked.get(&record.lane) {
                let dead = Dead { id: dead.id.clone(), partition: record.partition };
                blocked.push((record.lane.clone(), dead));
            }
        }
        self.hands.hold_blocked(blocked);
    }

    /// Its partition is not ours (any more), or there is no room: nothing is read.
    fn turn_down(&self, target: Target, seen: &mut Seen) {
        match target {
            Target::At(_) => {}
            Target::Scan(key, _) => self.hands.scanned(&key, None),
            Target::Refill(lane) => {
                let (records, more) = (Vec::new(), false);
                seen.claims.push(Claim { lane, records, more, origin: Origin::Refill });
            }
        }
    }

    /// Enters a plan's holds and runs in the book; the rest is for the second half.
    /// `read`: what it is about is all that its key had pending then, so that the change stream
    /// may bring what comes behind it.
    pub(super) fn note(
        &self,
        plan: Plan,
        openings: Openings,
        refill: Option<Arc<Lane>>,
        read: Option<Read>,
        seen: &mut Seen,
    ) {
        let heads = plan.repairs.iter().chain(&plan.spent).chain(&plan.stopped);
        let stopped = heads.map(|record| (record.lane.clone(), Blocker::of(record)));
        let stopped: Vec<(LaneKey, Blocker)> = stopped.collect();
        for Hold { head, reason, until } in plan.holds {
            let until = until.map(|until| Instant::now() + self.clock.until(until));
            let mut wait = Wait::new(reason, Blocker::of(&head), until);
            if reason == HoldReason::DestinationPaused {
                self.hold_for_destination(&head);
            } else if reason == HoldReason::SinkPaused {
                wait.sink = self.sink_of(&head).map(Into::into);
                self.hands.hold_paused(head.lane, wait, openings);
            } else {
                self.hands.hold(head.lane, wait);
            }
        }
        for record in plan.suspects {
            // One that waits for its turn already is read again where many keys are blocked.
            if self.hands.await_turn(&record.lane, Blocker::of(&record)) {
                seen.candidates.push(self.candidate(&record));
            }
        }
        for record in plan.repairs {
            match self.refusals.rests_until(&record.id) {
                None => seen.repairs.repairs.push(record),
                until => {
                    let wait = Wait::new(HoldReason::Refused, Blocker::of(&record), until);
                    self.hands.hold(record.lane, wait);
                }
            }
        }
        seen.repairs.spent.extend(plan.spent);
        let mut runs = plan.runs.into_iter();
        if let Some(lane) = refill {
            let (records, more) =
                runs.next().map(|run| (run.records, run.more)).unwrap_or_default();
            let claim = Claim { lane, records, more, origin: Origin::Refill };
            seen.claims.push(self.reserved(claim));
        }
        for Run { lane, records, more, is_whole } in runs {
            let lane = Lane::new(lane, records[0].partition);
            lane.begin(&records, read.is_some() && is_whole);
            let is_claimed = match read {
                Some(read) if is_whole => self.hands.claim_scanned(&lane, &records[0], read),
                _ => self.hands.claim(&lane, &records[0]),
            };
            if is_claimed {
                let claim = Claim { lane, records, more, origin: Origin::New };
                seen.claims.push(self.reserved(claim));
            }
        }
        self.hands.hold_for_repair(stopped);
    }

    /// Counts a claim as in hand: there may not be room for another.
    pub(super) fn reserved(&self, claim: Claim) -> Claim {
        for record in &claim.records {
            self.in_hand.add(record);
        }
        claim
    }

    /// Where ordering is off every record is its own lane.
    fn prepared(&self, records: Vec<Record>) -> Vec<Record> {
        records.into_iter().map(|record| self.in_its_lane(record)).collect()
    }

    /// The lane that the setting of ordering gives a record of this one.
    pub(super) fn lane_of(&self, lane: LaneKey, id: &RecordId) -> LaneKey {
        if self.settings.ordered { lane } else { LaneKey::Single(id.to_string().into()) }
    }

    /// The record in the lane that the setting of ordering gives it.
    pub(super) fn in_its_lane(&self, record: Record) -> Record {
        if self.settings.ordered { record } else { record.without_order() }
    }

    /// What to do about a record that the change stream has brought, by itself.
    pub(super) fn plan_one(&self, record: Record) -> Plan {
        let run = (Settings::LANE, Settings::WHOLE);
        self.plan_beside(vec![record], &Before::nothing(), HashSet::new(), None, run)
    }

    fn plan(
        &self,
        records: Vec<Record>,
        before: &Before,
        spoken_for: &HashSet<LaneKey>,
        refill: Option<&Lane>,
        (cap, whole): (usize, usize),
    ) -> Plan {
        // Decided once for each key, and after the reads: a lane that ended while the plan is made
        // would let what is behind a passed-over record go before it.
        let lanes: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
        let is_taken =
            |lane: &LaneKey| spoken_for.contains(lane) || self.hands.busy(lane).is_some();
        let taken: HashSet<LaneKey> = match refill {
            Some(_) => HashSet::new(),
            None => lanes.into_iter().filter(|lane| is_taken(lane)).cloned().collect(),
        };
        self.plan_beside(records, before, taken, refill, (cap, whole))
    }

    fn plan_beside(
        &self,
        records: Vec<Record>,
        before: &Before,
        taken: HashSet<LaneKey>,
        refill: Option<&Lane>,
        (cap, whole): (usize, usize),
    ) -> Plan {
        let goes_alone = |id: &RecordId| self.losses.goes_alone(id);
        let in_hand = |record: &Record| refill.is_some_and(|lane| lane.had(record));
        let all_well = self.all_open() && self.all_confirm();
        let way = |record: &Record| if all_well { Way::Open } else { self.way(record) };
        let sight = Sight {
            now: self.clock.now(),
            lane_cap: cap,
            whole,
            max_attempts: self.settings.max_attempts,
            misplaced: before.misplaced.clone(),
            blocked: before.blocked.keys().cloned().collect(),
            taken,
            goes_alone: &goes_alone,
            in_hand: &in_hand,
            way: &way,
        };
        plan(records, &sight)
    }
}
