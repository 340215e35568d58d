//! Taking: snapshot read → plan → lease → lanes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bson::{Bson, Timestamp};
use tracing::warn;

use crate::failpoint;
use crate::ids::{LeaseId, RecordId};
use crate::outbox::position::Position;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Room, Snapshot};
use crate::relay::hands::HoldReason;
use crate::relay::held::{Held, Lease};
use crate::relay::lane::Lane;
use crate::relay::plan::{Plan, Run, Sight, plan};
use crate::relay::settings::Settings;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// Blocked keys that one take reads; beyond, it asks for those of its candidates alone.
const BLOCKED: usize = 2_000;

/// A limit for what is few by its nature: the records of one page's keys. (A batch size is
/// an int32, and one more is asked for.)
const EVERY: usize = i32::MAX as usize - 1;

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
    /// A suspect, whose turn it is to go alone.
    Alone(Box<Record>),
    /// A lane in hand that runs short.
    Refill(Arc<Lane>),
}

/// What a take came to.
#[derive(Debug, Default)]
pub struct Taken {
    /// New lanes, to be run.
    pub lanes: Vec<Arc<Lane>>,
    /// Where the rotation goes on; `None` after its end, or when it was none.
    pub next: Option<Position>,
    /// Whether records were leased, repaired or buried.
    pub found: bool,
    /// Suspects that wait for their turn.
    pub suspects: Vec<Record>,
}

impl<S: Sink> Shared<S> {
    /// One take. Nothing is published here; the lanes that come back hold what is leased.
    ///
    /// # Errors
    ///
    /// Those of the store. Whatever was leased then waits out its lease.
    pub async fn take(&self, look: Look, owned: &[u8], room: Room) -> Result<Taken, StoreError> {
        let refilled: Vec<Arc<Lane>> = match &look {
            Look::Rotation(_) => Vec::new(),
            Look::Targets(targets) => targets
                .iter()
                .filter_map(|target| match target {
                    Target::Refill(lane) => Some(lane.clone()),
                    _ => None,
                })
                .collect(),
        };
        let taken = self.read_and_lease(look, owned, room).await;
        if taken.is_err() {
            // Nothing more for now; the next rotation finds it.
            for lane in refilled {
                lane.add(Vec::new(), false);
            }
        }
        taken
    }

    async fn read_and_lease(
        &self,
        look: Look,
        owned: &[u8],
        room: Room,
    ) -> Result<Taken, StoreError> {
        let mut snapshot = Snapshot::begin(&self.collections).await?;
        let (before, unstamped) = self.before_lanes(&mut snapshot, None, room.records).await?;
        let mut taken = Taken::default();
        let mut plans = Plan::default();
        let mut refills: Vec<(Arc<Lane>, Option<Run>)> = Vec::new();
        match look {
            Look::Rotation(from) => {
                let mut pass_over = self.hands.passed_over();
                pass_over.extend(before.blocked.iter().filter_map(key_of));
                let page = snapshot.page(&from, owned, &pass_over, room).await?;
                taken.next = page.next;
                let before = self.narrowed(before, &page.records, &mut snapshot).await?;
                plans = self.plan(self.prepared(page.records), &before, None, false);
            }
            Look::Targets(targets) => {
                for target in targets {
                    let (records, lane, alone) =
                        self.read_target(target, &mut snapshot, room).await?;
                    let before = self.narrowed(before.clone(), &records, &mut snapshot).await?;
                    let records = self.prepared(records);
                    let mut one = self.plan(records, &before, lane.as_deref(), alone);
                    match lane {
                        Some(lane) => refills.push((lane, one.runs.pop())),
                        None => plans.runs.append(&mut one.runs),
                    }
                    plans.repairs.append(&mut one.repairs);
                    plans.spent.append(&mut one.spent);
                    plans.suspects.append(&mut one.suspects);
                    plans.holds.append(&mut one.holds);
                }
            }
        }
        plans.repairs.extend(unstamped);
        drop(snapshot);
        taken.found = self.carry_out(&mut plans).await?;
        taken.suspects = plans.suspects;
        taken.found |= self.lease(plans.runs, refills, &mut taken.lanes).await?;
        Ok(taken)
    }

    /// What must be known before any lane is planned: unstamped records and blocked keys.
    async fn before_lanes(
        &self,
        snapshot: &mut Snapshot,
        keys: Option<&[Bson]>,
        limit: usize,
    ) -> Result<(Before, Vec<Record>), StoreError> {
        let unstamped = snapshot.unstamped(keys, limit).await?;
        let blocked = match self.settings.ordered {
            true => snapshot.blocked(keys, BLOCKED).await?,
            false => Vec::new(),
        };
        let complete = unstamped.len() < limit && blocked.len() < BLOCKED;
        let mut earliest: HashMap<LaneKey, Option<Timestamp>> = HashMap::new();
        for record in &unstamped {
            let seq = earliest.entry(record.lane.clone()).or_insert(record.seq);
            *seq = match (*seq, record.seq) {
                (Some(known), Some(new)) => Some(known.min(new)),
                (known, new) => known.or(new),
            };
        }
        let blocked = blocked.into_iter().collect();
        Ok((Before { unstamped: earliest, blocked, complete }, unstamped))
    }

    /// Where there were too many to read all: those of the keys at hand.
    async fn narrowed(
        &self,
        before: Before,
        records: &[Record],
        snapshot: &mut Snapshot,
    ) -> Result<Before, StoreError> {
        if before.complete || records.is_empty() {
            return Ok(before);
        }
        let keys: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
        let keys: Vec<Bson> = keys.into_iter().filter_map(key_of).collect();
        let (narrow, _) = self.before_lanes(snapshot, Some(&keys), EVERY).await?;
        Ok(narrow)
    }

    async fn read_target(
        &self,
        target: Target,
        snapshot: &mut Snapshot,
        room: Room,
    ) -> Result<(Vec<Record>, Option<Arc<Lane>>, bool), StoreError> {
        match target {
            Target::Key { partition, key } => {
                let records = Settings::LANE + 1;
                let room = Room { records, bytes: room.bytes };
                Ok((snapshot.lane(partition, &key, room).await?, None, false))
            }
            Target::Alone(record) => {
                let records = match (&record.lane, record.partition) {
                    (LaneKey::Keyed(key), Some(partition)) => {
                        let room = Room { records: 1, bytes: room.bytes };
                        snapshot.lane(partition, key, room).await?
                    }
                    _ => snapshot.by_id(std::slice::from_ref(&record.id)).await?,
                };
                Ok((records, None, true))
            }
            Target::Refill(lane) => {
                let records = lane.in_hand() + Settings::LANE + 1;
                let room = Room { records, bytes: room.bytes };
                let LaneKey::Keyed(key) = &lane.key else {
                    return Ok((Vec::new(), Some(lane), false));
                };
                let records = snapshot.lane(lane.partition, key, room).await?;
                Ok((records, Some(lane), false))
            }
        }
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
        refill: Option<&Lane>,
        may_go_alone: bool,
    ) -> Plan {
        let alone = self.losses.alone();
        let all_open = self.all_open();
        let in_hand = |record: &Record| match refill {
            Some(lane) => lane.has(record),
            // Whatever is entered in the book is somebody's turn already.
            None => self.hands.busy(&record.lane).is_some(),
        };
        let paused = |record: &Record| {
            !all_open
                && self.sink_of(record).is_some_and(|sink| {
                    self.outlets.get(&sink).is_some_and(|outlet| !outlet.gate.is_open())
                })
        };
        let sight = Sight {
            now: self.clock.now(),
            lane_cap: Settings::LANE,
            max_attempts: self.settings.max_attempts,
            unstamped: before.unstamped.clone(),
            blocked: before.blocked.clone(),
            alone: &alone,
            in_hand: &in_hand,
            paused: &paused,
            may_go_alone,
        };
        plan(records, &sight)
    }

    /// Holds, repairs and burials of a plan; answers whether there was anything to write.
    async fn carry_out(&self, plans: &mut Plan) -> Result<bool, StoreError> {
        for (lane, reason, until) in plans.holds.drain(..) {
            let until = until.map(|until| Instant::now() + self.clock.until(until));
            self.hands.hold(lane, reason, until);
        }
        for record in &plans.suspects {
            self.hands.hold(record.lane.clone(), HoldReason::Suspect, None);
        }
        let found = !plans.repairs.is_empty() || !plans.spent.is_empty();
        for record in plans.spent.drain(..) {
            let reason = DeadReason::LeaseExpired { attempts: record.attempt };
            let blocks = self.blocks(&record);
            if self.repairs.bury_expired(&record, &reason, blocks).await? {
                self.buried(&record, &reason, blocks);
            }
        }
        if !plans.repairs.is_empty() {
            let repaired = self.repairs.mend(&plans.repairs).await?;
            self.metrics.repaired(repaired);
        }
        Ok(found)
    }

    /// Leases all runs with one command, and makes lanes of what is held (guard 3).
    async fn lease(
        &self,
        runs: Vec<Run>,
        refills: Vec<(Arc<Lane>, Option<Run>)>,
        lanes: &mut Vec<Arc<Lane>>,
    ) -> Result<bool, StoreError> {
        let mut claimed: Vec<(Arc<Lane>, Option<Run>, bool)> = Vec::new();
        for run in runs {
            let partition = run.records[0].partition.unwrap_or(0);
            let lane = Lane::new(run.lane.clone(), partition, run.alone);
            if run.alone {
                // Its key is held for the turn that has come.
                self.hands.free(&lane.key);
            }
            if self.hands.claim(&lane) {
                claimed.push((lane, Some(run), true));
            }
        }
        claimed.extend(refills.into_iter().map(|(lane, run)| (lane, run, false)));
        let wanted: Vec<RecordId> = claimed
            .iter()
            .filter_map(|(_, run, _)| run.as_ref())
            .flat_map(|run| run.records.iter().map(|record| record.id.clone()))
            .collect();
        let id = LeaseId::fresh();
        let lease = Lease::new(id, self.leaser.length(), Instant::now());
        let granted = match wanted.is_empty() {
            true => Ok(Default::default()),
            false => self.leaser.lease(id, &wanted).await,
        };
        let grant = match granted {
            Ok(grant) => grant,
            Err(error) => {
                for (lane, _, new) in &claimed {
                    match new {
                        true => self.hands.free(&lane.key),
                        false => lane.add(Vec::new(), false),
                    }
                }
                return Err(error);
            }
        };
        failpoint::hit("relay::after_lease");
        let mut fronts: Vec<Record> = Vec::new();
        let mut owners: Vec<(Arc<Lane>, usize, bool, bool)> = Vec::new();
        let mut surplus: Vec<RecordId> = Vec::new();
        let mut oversized: Vec<Record> = Vec::new();
        for (lane, run, new) in claimed {
            let mut count = 0;
            let mut more = false;
            if let Some(run) = run {
                // Only the leading part that is held: what is behind a gap would overtake it.
                let asked = run.records.len();
                let mut whole = true;
                for record in run.records {
                    let held = grant.held.contains(&record.id);
                    if held && whole {
                        count += 1;
                        fronts.push(record);
                    } else {
                        whole = false;
                        if held {
                            surplus.push(record.id);
                        } else if grant.oversized.contains(&record.id) {
                            oversized.push(record);
                        }
                    }
                }
                more = run.more && count == asked;
            }
            owners.push((lane, count, more, new));
        }
        self.leases.add(&lease);
        for record in &fronts {
            self.in_hand.add(record);
        }
        let mut held = lease.hold(fronts).into_iter();
        let mut any = false;
        for (lane, count, more, new) in owners {
            let records: Vec<Held> = held.by_ref().take(count).collect();
            any |= !records.is_empty();
            if new && records.is_empty() {
                self.hands.free(&lane.key);
                continue;
            }
            lane.add(records, more);
            if new {
                lanes.push(lane);
            }
        }
        self.give_back(id, surplus).await;
        self.bury_oversized(&oversized).await?;
        Ok(any || !oversized.is_empty())
    }

    /// Leased behind a gap: free again at once, uncharged.
    async fn give_back(&self, lease: LeaseId, surplus: Vec<RecordId>) {
        use crate::outbox::settle::{Outcome, Settlement, Settlements};
        if surplus.is_empty() {
            return;
        }
        let batch: Vec<Settlement> = surplus
            .into_iter()
            .map(|id| Settlement { id, lease, outcome: Outcome::Released })
            .collect();
        let settlements = Settlements::new(self.collections.clone(), false);
        if let Err(error) = settlements.write(&batch).await {
            let error = crate::telemetry::chain(&error);
            warn!(
                records = batch.len(),
                error, "a surplus was not given back: its lease ends in its time"
            );
        }
    }

    async fn bury_oversized(&self, oversized: &[Record]) -> Result<(), StoreError> {
        for record in oversized {
            let detail = format!("the lease does not fit into a record of {} bytes", record.size());
            let reason = DeadReason::TooLarge(detail);
            let blocks = self.blocks(record);
            if self.repairs.bury_oversized(&record.id, &reason, blocks).await? {
                self.buried(record, &reason, blocks);
            }
        }
        Ok(())
    }

    fn blocks(&self, record: &Record) -> bool {
        let keyed = matches!(record.lane, LaneKey::Keyed(_));
        keyed && self.settings.ordered && self.settings.block_on_dead
    }

    fn buried(&self, record: &Record, reason: &DeadReason, blocks: bool) {
        let kind = record.raw.get_str("type").unwrap_or_default();
        let key = record.lane.as_str();
        warn!(id = %record.id, key, r#type = kind, %reason, blocks, "record is dead");
        self.metrics.dead("");
    }
}

/// What holds lanes back, of the same snapshot.
#[derive(Clone, Debug)]
struct Before {
    unstamped: HashMap<LaneKey, Option<Timestamp>>,
    blocked: HashSet<LaneKey>,
    complete: bool,
}

fn key_of(lane: &LaneKey) -> Option<Bson> {
    match lane {
        LaneKey::Keyed(key) => Some(Bson::String(key.to_string())),
        LaneKey::Single(_) => None,
    }
}
