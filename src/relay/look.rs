//! The first half of a take: one snapshot read, planned, and entered in the book.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bson::Bson;

use crate::outbox::position::Position;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Room, Snapshot, Stretch};
use crate::relay::before::{Before, key_of};
use crate::relay::hands::{HoldReason, Openings};
use crate::relay::lane::Lane;
use crate::relay::plan::{Plan, Run, Sight, plan};
use crate::relay::settings::Settings;
use crate::relay::shared::Shared;
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
    /// A key that is said to have something pending.
    Key {
        /// Its partition.
        partition: u8,
        /// The key.
        key: Arc<str>,
    },
    /// A lane in hand that runs short.
    Refill(Arc<Lane>),
}

impl Target {
    /// Its key; `None` for a lane without one, of which there is no more than it has.
    fn key(&self) -> Option<Arc<str>> {
        match self {
            Self::Key { key, .. } => Some(key.clone()),
            Self::Refill(lane) => match &lane.key {
                LaneKey::Keyed(key) => Some(key.clone()),
                LaneKey::Single(_) => None,
            },
        }
    }

    /// Where it lies.
    fn partition(&self) -> u8 {
        match self {
            Self::Key { partition, .. } => *partition,
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
            Target::Key { .. } => None,
        });
        lanes.collect()
    }
}

/// What a look saw: runs whose keys are entered in the book, ready to be leased.
#[derive(Debug, Default)]
pub struct Seen {
    /// Where the rotation goes on; `None` after its end, or when it was none.
    pub next: Option<Position>,
    /// Keys that the rotation had to pass over.
    pub passed_over: usize,
    /// Suspects that wait for their turn.
    pub suspects: Vec<Record>,
    pub(super) claims: Vec<Claim>,
    pub(super) repairs: Vec<Record>,
    pub(super) spent: Vec<Record>,
}

impl Seen {
    /// Whether there is anything to lease, to repair or to bury.
    pub fn is_something(&self) -> bool {
        let runs = self.claims.iter().any(|claim| !claim.records.is_empty());
        runs || !self.repairs.is_empty() || !self.spent.is_empty()
    }

    /// Whether the lease stage has anything to do, be it to say that there is nothing.
    pub fn wants_lease(&self) -> bool {
        self.is_something() || !self.claims.is_empty()
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
        let (before, unstamped) = self.before_lanes(&mut snapshot, None, room.records).await?;
        let (spent, repairs) = unstamped.into_iter().partition(|record| record.nameless);
        let mut seen = Seen { repairs, spent, ..Seen::default() };
        match look {
            Look::Rotation(from) => {
                self.hands.note_blocked(before.blocked_within(owned));
                let blocked: Vec<Bson> = before.blocked.iter().filter_map(key_of).collect();
                let mut from = from;
                let (records, before) = loop {
                    let over = self.hands.passed_over(&from);
                    seen.passed_over += over.keys.len();
                    let pass_over = [over.keys, blocked.clone()].concat();
                    let within =
                        owned.iter().filter(|own| over.last.is_none_or(|last| **own <= last));
                    let within: Vec<u8> = within.copied().collect();
                    let page = snapshot.page(&from, &within, &pass_over, room).await?;
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
                for target in targets {
                    let partition = target.partition();
                    let Some(key) = target.key().filter(|_| owned.contains(&partition)) else {
                        self.turn_down(target, &mut seen);
                        continue;
                    };
                    let (lane, cap, had) = match target {
                        Target::Key { .. } => (None, Settings::LANE, 0),
                        Target::Refill(lane) => {
                            let had = lane.had_count();
                            (Some(lane), self.share(), had)
                        }
                    };
                    let room = Room { records: had + cap + 1, bytes: room.bytes };
                    let stretch = Stretch::Lane(partition, &key);
                    let records = snapshot.read(&stretch, room).await?;
                    let before = before.clone();
                    let (records, before) =
                        self.view(records, before, &stretch, room, &mut snapshot).await?;
                    let records = self.prepared(records);
                    let plan =
                        self.plan(records, &before, &spoken_for, lane.as_deref(), (cap, cap));
                    planned.push((plan, lane));
                }
                // Not before the last read has succeeded: nobody would lease, or free, the rest.
                for (plan, lane) in planned {
                    self.note(plan, openings, lane, &mut seen);
                }
            }
        }
        Ok(seen)
    }

    /// Its partition is not ours (any more): nothing is read.
    fn turn_down(&self, target: Target, seen: &mut Seen) {
        match target {
            Target::Key { .. } => {}
            Target::Refill(lane) => {
                seen.claims.push(Claim { lane, records: Vec::new(), more: false, new: false });
            }
        }
    }

    /// Enters a plan's holds and runs in the book; the rest is for the second half.
    fn note(&self, plan: Plan, openings: Openings, refill: Option<Arc<Lane>>, seen: &mut Seen) {
        for (lane, reason, until) in plan.holds {
            if reason == HoldReason::SinkPaused {
                self.hands.hold_paused(lane, openings);
                continue;
            }
            let wait = until.map(|until| self.clock.until(until)).map(|wait| match reason {
                // A peer settles long before its lease ends: the key is read again by then.
                HoldReason::Leased => wait.min(self.settings.poll_interval),
                _ => wait,
            });
            let until = wait.map(|wait| Instant::now() + wait);
            self.hands.hold(lane, reason, until);
        }
        for record in plan.suspects {
            // One that waits for its turn already is read again where many keys are held.
            if self.hands.await_turn(&record.lane, record.partition.unwrap_or(0)) {
                seen.suspects.push(record);
            }
        }
        seen.repairs.extend(plan.repairs);
        seen.spent.extend(plan.spent);
        let mut runs = plan.runs.into_iter();
        if let Some(lane) = refill {
            let (records, more) =
                runs.next().map(|run| (run.records, run.more)).unwrap_or_default();
            seen.claims.push(self.reserved(Claim { lane, records, more, new: false }));
        }
        for Run { lane, records, more } in runs {
            let partition = records[0].partition.unwrap_or(0);
            let lane = Lane::new(lane, partition);
            if self.hands.claim(&lane) {
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
        match self.settings.ordered {
            true => records,
            false => records.into_iter().map(Record::without_order).collect(),
        }
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
        let in_hand = |record: &Record| match refill {
            Some(lane) => lane.had(record),
            // Whatever is entered in the book is somebody's turn already.
            None => spoken_for.contains(&record.lane) || self.hands.busy(&record.lane).is_some(),
        };
        let all_open = self.all_open();
        let paused = |record: &Record| !all_open && self.is_paused(record);
        let sight = Sight {
            now: self.clock.now(),
            lane_cap: cap,
            whole,
            max_attempts: self.settings.max_attempts,
            unstamped: before.unstamped.clone(),
            blocked: before.blocked.clone(),
            alone: &alone,
            in_hand: &in_hand,
            paused: &paused,
        };
        plan(records, &sight)
    }
}
