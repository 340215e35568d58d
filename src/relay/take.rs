//! Taking: snapshot read → plan → book, then lease → lanes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bson::{Bson, Timestamp};
use tracing::warn;

use crate::failpoint;
use crate::ids::{LeaseId, RecordId};
use crate::outbox::lease::Grant;
use crate::outbox::position::Position;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Room, Snapshot, Stretch};
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
    /// Suspects that wait for their turn.
    pub suspects: Vec<Record>,
    claims: Vec<Claim>,
    repairs: Vec<Record>,
    spent: Vec<Record>,
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
struct Claim {
    lane: Arc<Lane>,
    /// Empty where a refill found nothing.
    records: Vec<Record>,
    more: bool,
    /// Whether the lane is entered for this run, or was in hand before.
    new: bool,
}

impl<S: Sink> Shared<S> {
    /// The first half of a take: reads one snapshot, plans, and enters the keys of what may
    /// go in the book, so that the next look can begin while this one is leased.
    ///
    /// # Errors
    ///
    /// Those of the store. Nothing has changed then.
    pub async fn look(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        let refilled = look.refills();
        let seen = self.read(look, owned, room).await;
        if seen.is_err() {
            // Nothing more for now; the next rotation finds it.
            for lane in refilled {
                lane.add(Vec::new(), false);
            }
        }
        seen
    }

    async fn read(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        // Noted before the snapshot: a lane that ends meanwhile has settled what it shows as leased.
        let busy = self.hands.busy_keys();
        let mut snapshot = Snapshot::begin(&self.collections).await?;
        let (before, unstamped) = self.before_lanes(&mut snapshot, None, room.records).await?;
        let (spent, repairs) = unstamped.into_iter().partition(|record| record.nameless);
        let mut seen = Seen { repairs, spent, ..Seen::default() };
        match look {
            Look::Rotation(from) => {
                let mut pass_over = self.hands.passed_over();
                pass_over.extend(before.blocked.iter().filter_map(key_of));
                let page = snapshot.page(&from, owned, &pass_over, room).await?;
                seen.next = page.next;
                let stretch = Stretch::Page(&from, owned, &pass_over);
                let (records, before) =
                    self.view(page.records, before, &stretch, room, &mut snapshot).await?;
                let run = (Settings::LANE, Settings::WHOLE);
                let plan = self.plan(self.prepared(records), &before, &busy, None, run);
                self.note(plan, None, &mut seen);
            }
            Look::Targets(targets) => {
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
                    let plan = self.plan(records, &before, &busy, lane.as_deref(), (cap, cap));
                    self.note(plan, lane, &mut seen);
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
    fn note(&self, plan: Plan, refill: Option<Arc<Lane>>, seen: &mut Seen) {
        for (lane, reason, until) in plan.holds {
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
            if self.hands.await_turn(&record.lane) {
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
    fn reserved(&self, claim: Claim) -> Claim {
        for record in &claim.records {
            self.in_hand.add(record);
        }
        claim
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
        let keys = keys_of(records);
        let (narrow, _) = self.before_lanes(snapshot, Some(&keys), EVERY).await?;
        Ok(narrow)
    }

    /// What a plan may go by: the records of a stretch, and what holds their lanes back.
    ///
    /// On a standalone server, where reads share no moment, the stretch is read twice, and a
    /// lane's run ends before what only the second read has shown. Whatever was there before a
    /// record that the first one saw, is seen by the second, which began later: among the records,
    /// among the unstamped ones that are probed between the two, or among the blocked keys, that
    /// are probed before and after it.
    async fn view(
        &self,
        records: Vec<Record>,
        before: Before,
        stretch: &Stretch<'_>,
        room: Room,
        snapshot: &mut Snapshot,
    ) -> Result<(Vec<Record>, Before), StoreError> {
        if snapshot.is_one_moment() || records.is_empty() {
            let before = self.narrowed(before, &records, snapshot).await?;
            return Ok((records, before));
        }
        let first: HashSet<RecordId> = records.iter().map(|record| record.id.clone()).collect();
        let keys = keys_of(&records);
        let (mut before, _) = self.before_lanes(snapshot, Some(&keys), EVERY).await?;
        let again = snapshot.read(stretch, room).await?;
        if self.settings.ordered {
            before.blocked.extend(snapshot.blocked(Some(&keys), EVERY).await?);
        }
        Ok((seen_twice(again, &first), before))
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
        busy: &HashSet<LaneKey>,
        refill: Option<&Lane>,
        (cap, whole): (usize, usize),
    ) -> Plan {
        let alone = self.losses.alone();
        let in_hand = |record: &Record| match refill {
            Some(lane) => lane.had(record),
            // Whatever is entered in the book is somebody's turn already.
            None => busy.contains(&record.lane) || self.hands.busy(&record.lane).is_some(),
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

    /// The second half of a take: repairs, burials, and one lease for all runs. Nothing is
    /// published here; the lanes that come back are to be run.
    ///
    /// # Errors
    ///
    /// Those of the store. Whatever was leased then waits out its lease.
    pub async fn lease(&self, seen: Seen) -> Result<Vec<Arc<Lane>>, StoreError> {
        let Seen { claims, repairs, spent, .. } = seen;
        let lanes = self.lease_claims(claims).await?;
        if let Err(error) = self.mend(repairs, spent).await {
            // The lanes hold their leases; what was not mended is met again.
            let error = crate::telemetry::chain(&error);
            warn!(error, "repairs are put off");
        }
        Ok(lanes)
    }

    async fn mend(&self, repairs: Vec<Record>, spent: Vec<Record>) -> Result<(), StoreError> {
        for record in spent {
            let blocks = self.blocks(&record);
            let (reason, dead) = match record.content() {
                Err(malformed) if record.nameless => {
                    let reason = DeadReason::Malformed(malformed);
                    let dead = self.repairs.bury_nameless(&record, &reason, blocks).await?;
                    (reason, dead)
                }
                _ => {
                    let reason = DeadReason::LeaseExpired { attempts: record.attempt };
                    let dead = self.repairs.bury_expired(&record, &reason, blocks).await?;
                    (reason, dead)
                }
            };
            if dead {
                self.buried(&record, &reason, blocks);
            }
        }
        if !repairs.is_empty() {
            let repaired = self.repairs.mend(&repairs).await?;
            self.metrics.repaired(repaired);
        }
        Ok(())
    }

    /// Leases all claims with one command, and makes lanes of what is held (guard 3).
    async fn lease_claims(&self, claims: Vec<Claim>) -> Result<Vec<Arc<Lane>>, StoreError> {
        let wanted: Vec<RecordId> = claims
            .iter()
            .flat_map(|claim| claim.records.iter().map(|record| record.id.clone()))
            .collect();
        let id = LeaseId::fresh();
        let lease = Lease::new(id, self.leaser.length(), Instant::now());
        let granted = match wanted.is_empty() {
            true => Ok(Grant::default()),
            false => self.leaser.lease(id, &wanted).await,
        };
        let grant = match granted {
            Ok(grant) => grant,
            Err(error) => {
                claims.into_iter().for_each(|claim| self.give_up(claim));
                return Err(error);
            }
        };
        failpoint::hit("relay::after_lease");
        let mut fronts: Vec<Record> = Vec::with_capacity(wanted.len());
        let mut holders: Vec<(Arc<Lane>, usize, bool, bool)> = Vec::with_capacity(claims.len());
        let mut surplus: Vec<RecordId> = Vec::new();
        let mut oversized: Vec<Record> = Vec::new();
        for Claim { lane, records, more, new } in claims {
            // Only the leading part that is held: what is behind a gap would overtake it.
            let asked = records.len();
            let before = fronts.len();
            let mut whole = true;
            for record in records {
                let held = grant.held.contains(&record.id);
                whole &= held;
                if whole {
                    fronts.push(record);
                    continue;
                }
                self.in_hand.remove(record.size());
                if held {
                    surplus.push(record.id);
                } else if grant.oversized.contains(&record.id) {
                    oversized.push(record);
                }
            }
            let count = fronts.len() - before;
            holders.push((lane, count, more && count == asked, new));
        }
        self.leases.add(&lease);
        let mut held = lease.hold(fronts).into_iter();
        let mut lanes = Vec::new();
        for (lane, count, more, new) in holders {
            let records: Vec<Held> = held.by_ref().take(count).collect();
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
        if let Err(error) = self.bury_oversized(&oversized).await {
            let error = crate::telemetry::chain(&error);
            warn!(error, "an oversized record is left for the next take");
        }
        Ok(lanes)
    }

    /// Leases one record by itself, for a lane that is entered in the book; `None` where it was
    /// not to be had.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn lease_one(
        &self,
        lane: Arc<Lane>,
        record: Record,
    ) -> Result<Option<Arc<Lane>>, StoreError> {
        let claim = Claim { lane, records: vec![record], more: false, new: true };
        Ok(self.lease_claims(vec![self.reserved(claim)]).await?.pop())
    }

    /// Whether the sink that the record goes to is down.
    pub(crate) fn is_paused(&self, record: &Record) -> bool {
        let sink = self.sink_of(record);
        let outlet = sink.and_then(|sink| self.outlets.get(&sink));
        outlet.is_some_and(|outlet| !outlet.gate.is_open())
    }

    /// Nothing was leased: the key is free again.
    fn give_up(&self, claim: Claim) {
        for record in &claim.records {
            self.in_hand.remove(record.size());
        }
        match claim.new {
            true => self.hands.free(&claim.lane.key),
            false => claim.lane.add(Vec::new(), false),
        }
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

/// Of each lane the leading part that the first read showed as well.
fn seen_twice(again: Vec<Record>, first: &HashSet<RecordId>) -> Vec<Record> {
    let mut cut: Option<LaneKey> = None;
    let is_known = |record: &Record| {
        if cut.as_ref() == Some(&record.lane) {
            return false;
        }
        let known = first.contains(&record.id);
        if !known {
            cut = Some(record.lane.clone());
        }
        known
    };
    again.into_iter().filter(is_known).collect()
}

fn keys_of(records: &[Record]) -> Vec<Bson> {
    let keys: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
    keys.into_iter().filter_map(key_of).collect()
}

fn key_of(lane: &LaneKey) -> Option<Bson> {
    match lane {
        LaneKey::Keyed(key) => Some(Bson::String(key.to_string())),
        LaneKey::Single(_) => None,
    }
}
