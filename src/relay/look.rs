//! The first half of a take: one snapshot read, planned, and entered in the book.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::outbox::position::Position;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Room, Snapshot, Stretch};
use crate::relay::alone::Candidate;
use crate::relay::before::{Before, first_keys, key_of};
use crate::relay::blocker::Blocker;
use crate::relay::hands::{HoldReason, Openings, Wait};
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
}

impl Target {
    /// What is to be read; `None` for a lane without a key, of which there is no more than it has.
    fn stretch(&self) -> Option<Stretch<'_>> {
        match self {
            Self::At(Hint::Key { partition, key }) => Some(Stretch::Lane(*partition, key)),
            Self::At(Hint::Record { partition, id }) => Some(Stretch::Record(*partition, id)),
            Self::Refill(lane) => match &lane.key {
                LaneKey::Keyed(key) => Some(Stretch::Lane(lane.partition, key)),
                LaneKey::Single(_) => None,
            },
        }
    }

    /// Where it lies.
    fn partition(&self) -> u8 {
        match self {
            Self::At(hint) => hint.partition(),
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
            Target::At(_) => None,
        });
        lanes.collect()
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
    /// Keys that the rotation had to pass over.
    pub passed_over: usize,
    /// Suspects that wait for their turn.
    pub candidates: Vec<Candidate>,
    /// What must be repaired, or made dead where it is.
    pub repairs: Repairing,
    pub(super) claims: Vec<Claim>,
}

/// Records that a look found unfit to be leased.
#[derive(Debug, Default)]
pub struct Repairing {
    /// Without a partition or a `seq`.
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
    /// Whether the lane is entered for this run, or was in hand before.
    pub(super) new: bool,
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
        let refilled = look.refills();
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
        }
        seen.unwrap_or_else(|| Ok(Seen::default()))
    }

    async fn read(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        // Noted before the snapshot: a lane that ends meanwhile has settled what it shows as leased,
        // and one that waits its turn to go alone may have had it.
        let spoken_for = self.hands.spoken_for();
        let openings = self.hands.openings();
        let mut snapshot = Snapshot::begin(&self.collections).await?;
        if !self.settings.ordered {
            snapshot.go_on_within_keys();
        }
        let (before, unstamped) = self.before_lanes(&mut snapshot, room.records).await?;
        let (spent, repairs) = unstamped.into_iter().partition(|record| record.nameless);
        let mut seen = Seen { repairs: Repairing { repairs, spent }, ..Seen::default() };
        match look {
            Look::Rotation(from) => {
                self.hands.note_blocked(before.blocked_within(owned));
                // What is not passed over is read, and left.
                let blocked = first_keys(before.blocked.keys().filter_map(key_of));
                let mut from = from;
                let (records, before) = loop {
                    let over = self.hands.passed_over(&from);
                    seen.passed_over += over.keys.len();
                    let pass_over = [over.keys, blocked.clone()].concat();
                    let within =
                        owned.iter().filter(|own| over.last.is_none_or(|last| **own <= last));
                    let within: Vec<u8> = within.copied().collect();
                    let page = snapshot.page(&from, &within, &pass_over, room).await?;
                    seen.full = page.next.is_some();
                    seen.next = page.next.or(over.last.map(Position::behind));
                    match &seen.next {
                        // Nothing but what is known to wait: on to where something may be.
                        Some(next) if page.records.is_empty() => from = next.clone(),
                        _ => {
                            let stretch = Stretch::Page(&from, &within, &pass_over);
                            let records = page.records;
                            break self
                                .view(records, before, &stretch, room, &mut snapshot)
                                .await?;
                        }
                    }
                };
                let run = (Settings::LANE, Settings::WHOLE);
                let plan = self.plan(self.prepared(records), &before, &spoken_for, None, run);
                self.note(plan, openings, None, &mut seen);
            }
            Look::Targets(targets) => {
                let mut planned = Vec::with_capacity(targets.len());
                let mut left = room.bytes;
                for target in targets {
                    let is_ours = owned.contains(&target.partition());
                    seen.short |= is_ours && left == 0;
                    let reads = is_ours && left > 0;
                    let Some(stretch) = target.stretch().filter(|_| reads) else {
                        self.turn_down(target, &mut seen);
                        continue;
                    };
                    let (lane, cap, had) = match &target {
                        Target::At(_) => (None, Settings::LANE, 0),
                        Target::Refill(lane) => (Some(lane), self.share(), lane.had_count()),
                    };
                    let room = Room { records: had + cap + 1, bytes: left };
                    let records = snapshot.read(&stretch, room).await?;
                    left = left.saturating_sub(records.iter().map(Record::size).sum());
                    let before = before.clone();
                    let (records, before) =
                        self.view(records, before, &stretch, room, &mut snapshot).await?;
                    let records = self.prepared(records);
                    let refill = lane.map(Arc::as_ref);
                    let plan = self.plan(records, &before, &spoken_for, refill, (cap, cap));
                    planned.push((plan, lane.cloned()));
                }
                // Not before the last read has succeeded: nobody would lease, or free, the rest.
                for (plan, lane) in planned {
                    self.note(plan, openings, lane, &mut seen);
                }
            }
        }
        Ok(seen)
    }

    /// Its partition is not ours (any more), or there is no room: nothing is read.
    fn turn_down(&self, target: Target, seen: &mut Seen) {
        match target {
            Target::At(_) => {}
            Target::Refill(lane) => {
                seen.claims.push(Claim { lane, records: Vec::new(), more: false, new: false });
            }
        }
    }

    /// Enters a plan's holds and runs in the book; the rest is for the second half.
    fn note(&self, plan: Plan, openings: Openings, refill: Option<Arc<Lane>>, seen: &mut Seen) {
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
            seen.claims.push(self.reserved(Claim { lane, records, more, new: false }));
        }
        for Run { lane, records, more } in runs {
            let partition = records[0].partition.unwrap_or(0);
            let lane = Lane::new(lane, partition);
            if self.hands.claim(&lane, &records[0]) {
                seen.claims.push(self.reserved(Claim { lane, records, more, new: true }));
            }
        }
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

    /// The record in the lane that the setting of ordering gives it.
    pub(super) fn in_its_lane(&self, record: Record) -> Record {
        if self.settings.ordered { record } else { record.without_order() }
    }

    fn plan(
        &self,
        records: Vec<Record>,
        before: &Before,
        spoken_for: &HashSet<LaneKey>,
        refill: Option<&Lane>,
        (cap, whole): (usize, usize),
    ) -> Plan {
        let alone = self.losses.alone();
        // Decided once for each key, and after the reads: a lane that ended while the plan is made
        // would let what is behind a passed-over record go before it.
        let lanes: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
        let is_taken =
            |lane: &LaneKey| spoken_for.contains(lane) || self.hands.busy(lane).is_some();
        let taken: HashSet<LaneKey> = match refill {
            Some(_) => HashSet::new(),
            None => lanes.into_iter().filter(|lane| is_taken(lane)).cloned().collect(),
        };
        let in_hand = |record: &Record| refill.is_some_and(|lane| lane.had(record));
        let all_well = self.all_open() && self.all_confirm();
        let way = |record: &Record| if all_well { Way::Open } else { self.way(record) };
        let sight = Sight {
            now: self.clock.now(),
            lane_cap: cap,
            whole,
            max_attempts: self.settings.max_attempts,
            unstamped: before.unstamped.clone(),
            blocked: before.blocked.keys().cloned().collect(),
            taken,
            alone: &alone,
            in_hand: &in_hand,
            way: &way,
        };
        plan(records, &sight)
    }
}
