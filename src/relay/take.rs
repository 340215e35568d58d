//! The second half of a take: what a look saw is leased, and becomes lanes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, instrument, warn};

use crate::failpoint;
use crate::ids::{LeaseId, RecordId};
use crate::moment::Moment;
use crate::outbox::fields::{PENDING, SCHEDULED};
use crate::outbox::lease::Grant;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::repair::Mended;
use crate::outbox::settle::Outcome;
use crate::outbox::snapshot::Snapshot;
use crate::outbox::undecoded::RawId;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::held::{Held, Lease};
use crate::relay::lane::Lane;
use crate::relay::look::{Claim, Origin, Repairing, Seen};
use crate::relay::plan::Way;
use crate::relay::refusals::Refusals;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// Pause before a lease of unknown outcome is released again.
const RELEASE_AGAIN: Duration = Duration::from_millis(250);

/// How long a stop waits for the release of a lease of unknown outcome.
const LAST_TRIES: Duration = Duration::from_secs(2);

/// What of a claim was leased.
struct Holder {
    lane: Arc<Lane>,
    asked: Vec<RecordId>,
    /// The leading ones that are held.
    count: usize,
    more: bool,
    origin: Origin,
}

impl<S: Sink> Shared<S> {
    /// The second half of a take: one lease for all runs. Nothing is published here; the lanes
    /// that come back must be run. After a stop nothing is leased.
    ///
    /// # Errors
    ///
    /// Those of the store. Whatever was leased then waits out its lease.
    pub async fn lease(&self, seen: Seen) -> Result<Vec<Arc<Lane>>, StoreError> {
        if self.is_stopping() {
            seen.claims.into_iter().for_each(|claim| self.give_up(claim));
            return Ok(Vec::new());
        }
        self.lease_claims(seen.claims).await
    }

    /// Makes dead what is spent, and gives others what they lack; answers whether another look will
    /// find more to do.
    ///
    /// Apart from the leases, which must not wait for it: a transaction of the users' own may hold
    /// one of these records for as long as it likes.
    ///
    /// # Errors
    ///
    /// Those of the store; what was not repaired is met again.
    pub async fn repair(&self, repairs: Repairing) -> Result<bool, StoreError> {
        let Repairing { repairs, spent } = repairs;
        let mut changed = false;
        for record in spent {
            let blocks = self.blocks(&record);
            let (reason, dead) = match record.unfit {
                Some(unfit) => {
                    let reason = DeadReason::Malformed(unfit.malformed());
                    let dead = self.repairs.bury_unfit(&record, unfit, &reason, blocks).await;
                    (reason, dead)
                }
                None => {
                    let reason = DeadReason::LeaseExpired { attempts: record.attempt };
                    let dead = self.repairs.bury_expired(&record, &reason, blocks).await;
                    (reason, dead)
                }
            };
            match dead {
                Ok(true) => {
                    changed = true;
                    self.buried(&record, &reason, blocks);
                }
                Ok(false) => {}
                // Neither dead nor to be delivered: it waits, and holds up its key alone.
                Err(StoreError::Refused { code, .. }) => {
                    self.refusals.report(&record, code);
                    let again = Instant::now() + Refusals::REST;
                    let wait = Wait::new(HoldReason::Refused, Blocker::of(&record), Some(again));
                    self.hands.hold(record.lane.clone(), wait);
                }
                Err(error) => return Err(error),
            }
        }
        let repairs: Vec<&Record> = repairs.iter().collect();
        Ok(changed | self.mend(&repairs).await?)
    }

    /// Gives each record what it lacks. One on which that does not fit becomes dead; one that
    /// MongoDB refuses rests, with its key. Answers whether any was changed.
    pub(super) async fn mend(&self, records: &[&Record]) -> Result<bool, StoreError> {
        if records.is_empty() {
            return Ok(false);
        }
        let Mended { repaired, oversized, refused } = self.repairs.mend(records).await?;
        self.metrics.repaired(repaired);
        let mut left = HashSet::new();
        for (record, code) in refused {
            self.refusals.rest(record, code);
            left.insert(&record.id);
        }
        for record in records.iter().filter(|record| !left.contains(&record.id)) {
            self.misplaced.forget(&record.id);
        }
        let mut changed = repaired.any();
        for record in records {
            let partition = record.partition;
            self.hands.changed(
                self.lane_of(record.lane.clone(), &record.id),
                partition,
                record.id.clone(),
            );
        }
        for record in oversized {
            // Read for its place alone: its dead letter needs all of it.
            let Some(record) = self.read_again(&record.id, PENDING).await? else { continue };
            changed |= self.bury_oversized(&record, "its partition or seq").await?;
        }
        Ok(changed)
    }

    /// Leases all claims with one command, and makes lanes of what is held (guard 3).
    #[instrument(name = "lease", level = "debug", skip_all, fields(keys = claims.len()))]
    async fn lease_claims(&self, claims: Vec<Claim>) -> Result<Vec<Arc<Lane>>, StoreError> {
        let (mut touched, mut untouched) = (Vec::new(), Vec::new());
        for record in claims.iter().flat_map(|claim| &claim.records) {
            let ids = if record.is_touched { &mut touched } else { &mut untouched };
            ids.push(record.id.clone());
        }
        let count = touched.len() + untouched.len();
        let id = LeaseId::fresh();
        let lease = Lease::new(id, self.leaser.length(), Moment::now());
        let granted = match count {
            0 => Ok(Grant::default()),
            _ => self.leaser.lease(id, &touched, &untouched).await,
        };
        let grant = match granted {
            Ok(grant) => grant,
            Err(error) => {
                let wanted = [touched, untouched].concat();
                let is_released =
                    !error.is_refusal() && self.release_unknown(id, &wanted, &error).await;
                claims.into_iter().for_each(|claim| self.give_up(claim));
                // Where it is, MongoDB answers again, and what it did not is told already.
                return if is_released { Ok(Vec::new()) } else { Err(error) };
            }
        };
        failpoint::hit("relay::after_lease");
        let mut fronts: Vec<Record> = Vec::with_capacity(count);
        let mut holders: Vec<Holder> = Vec::with_capacity(claims.len());
        let mut surplus: Vec<(Arc<Lane>, Record)> = Vec::new();
        let mut oversized: Vec<Record> = Vec::new();
        let mut refused: HashMap<LaneKey, Blocker> = HashMap::new();
        for Claim { lane, records, more, origin } in claims {
            // Only the leading part that is held: what is behind a gap would overtake it.
            let asked: Vec<RecordId> = records.iter().map(|record| record.id.clone()).collect();
            let before = fronts.len();
            let mut whole = true;
            for record in records {
                let held = grant.held.contains(&record.id);
                whole &= held;
                if whole {
                    fronts.push(record);
                    continue;
                }
                if held {
                    surplus.push((lane.clone(), record));
                    continue;
                }
                self.in_hand.remove(record.size());
                if grant.oversized.contains(&record.id) {
                    oversized.push(record);
                } else if let Some(code) = grant.refused.get(&record.id) {
                    // The first of its key: those behind it wait for it in any case.
                    if !refused.contains_key(&lane.key) {
                        refused.insert(lane.key.clone(), Blocker::of(&record));
                        self.refusals.report(&record, *code);
                    }
                }
            }
            let count = fronts.len() - before;
            let more = more && count == asked.len();
            holders.push(Holder { lane, asked, count, more, origin });
        }
        self.leases.add(&lease);
        let (lanes_of_surplus, surplus): (Vec<_>, Vec<_>) = surplus.into_iter().unzip();
        fronts.extend(surplus);
        let mut held = lease.hold(fronts).into_iter();
        let mut lanes = Vec::new();
        for Holder { lane, asked, count, more, origin } in holders {
            let records: Vec<Held> = held.by_ref().take(count).collect();
            if origin == Origin::New && records.is_empty() {
                lane.close();
                self.hands.free(&lane.key);
                if let Some(blocker) = refused.remove(&lane.key) {
                    let again = Instant::now() + Refusals::REST;
                    let wait = Wait::new(HoldReason::Refused, blocker, Some(again));
                    self.hands.hold(lane.key.clone(), wait);
                }
                continue;
            }
            match origin {
                Origin::New => {
                    lane.add_expected(records, &asked, Some(more));
                    lanes.push(lane);
                }
                Origin::Refill => lane.add(records, more),
                Origin::Stream => lane.add_expected(records, &asked, None),
            }
        }
        // Leased behind a gap: free again at once, uncharged.
        for (lane, held) in lanes_of_surplus.iter().zip(held) {
            self.settle(lane, held, "", Outcome::Released).await;
        }
        for record in &oversized {
            if let Err(error) = self.bury_oversized(record, "the lease").await {
                let error = crate::telemetry::chain(&error);
                warn!(error, "failed to make an oversized record dead; the next take tries again");
            }
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
        lane.begin(std::slice::from_ref(&record), false);
        let claim = Claim { lane, records: vec![record], more: false, origin: Origin::New };
        Ok(self.lease_claims(vec![self.reserved(claim)]).await?.pop())
    }

    /// Whether the sink and the destination that the record goes to take records.
    pub(crate) fn way(&self, record: &Record) -> Way {
        // Only its dead letter goes.
        if self.dying.reason(record).is_some() {
            return Way::Open;
        }
        let Some(outlet) = self.sink_of(record).and_then(|sink| self.outlets.get(sink)) else {
            return Way::Open;
        };
        // What dies does not wait for it. (Asked last: it takes the whole payload.)
        if !outlet.gate.is_open() {
            let paused = self.has_way(record);
            return if paused { Way::Paused(HoldReason::SinkPaused) } else { Way::Open };
        }
        if outlet.circuits.all_closed() {
            return Way::Open;
        }
        let Some(destination) = self.destination_of(outlet, record) else { return Way::Open };
        match outlet.circuits.waits(&destination) {
            None => Way::Open,
            Some(_) if outlet.circuits.wants_probe(&destination) => Way::Probe,
            Some(_) => Way::Paused(HoldReason::DestinationPaused),
        }
    }

    /// Lets a key wait whose destination does not confirm: until that does, or the key is called to
    /// probe it.
    pub(crate) fn hold_for_destination(&self, head: &Record) {
        let Some(sink) = self.sink_of(head) else { return };
        let Some(outlet) = self.outlets.get(sink) else { return };
        let Some(destination) = self.destination_of(outlet, head) else { return };
        let wait = Wait::for_destination(Blocker::of(head), None, sink.into(), destination.clone());
        self.hands.hold(head.lane.clone(), wait);
        // It may have confirmed meanwhile, and freed what waited before.
        if outlet.circuits.waits(&destination).is_none() {
            self.hands.free_waiting(&head.lane);
        }
    }

    /// Nothing was leased: the key is free again.
    pub(super) fn give_up(&self, claim: Claim) {
        for record in &claim.records {
            self.in_hand.remove(record.size());
        }
        let Claim { lane, records, origin, .. } = claim;
        match origin {
            Origin::New => {
                lane.close();
                self.hands.free(&lane.key);
            }
            Origin::Refill => lane.add(Vec::new(), false),
            Origin::Stream => {
                let asked: Vec<RecordId> = records.into_iter().map(|record| record.id).collect();
                lane.add_expected(Vec::new(), &asked, None);
            }
        }
    }

    /// A lease whose answers were lost: releases what it may hold, uncharged, until a majority says
    /// that it holds nothing; answers whether one has said so.
    ///
    /// Its keys stay claimed meanwhile, and so nothing here takes its records for suspects when the
    /// lease ends. What waits so is bounded by the leases that may be under way at once; a stop
    /// waits no longer than [`LAST_TRIES`].
    async fn release_unknown(&self, lease: LeaseId, ids: &[RecordId], error: &StoreError) -> bool {
        let records = ids.len();
        let cause = crate::telemetry::chain(error);
        warn!(
            records,
            error = cause,
            "the outcome of a lease is unknown; its records are released"
        );
        let releasing = async {
            // The second time for a command that was still on its way.
            let mut empty = 0;
            while empty < 2 {
                match self.leaser.release(lease, ids).await {
                    Ok(true) => empty += 1,
                    Ok(false) => empty = 0,
                    Err(StoreError::Refused { .. }) => return false,
                    Err(error) => {
                        debug!(error = crate::telemetry::chain(&error), "not released yet");
                        empty = 0;
                    }
                }
                tokio::time::sleep(RELEASE_AGAIN).await;
            }
            true
        };
        let stopping = async {
            self.stopping().await;
            tokio::time::sleep(LAST_TRIES).await;
        };
        let released = tokio::select! {
            released = releasing => released,
            () = stopping => false,
        };
        match released {
            true => info!(records, "a lease of unknown outcome is released"),
            false => {
                warn!(records, "a lease of unknown outcome was not released; it ends by itself")
            }
        }
        released
    }

    /// Makes dead a record into which `what` does not fit; answers whether it did.
    async fn bury_oversized(&self, record: &Record, what: &str) -> Result<bool, StoreError> {
        let detail = format!("{what} does not fit into a record of {} bytes", record.size());
        let reason = DeadReason::TooLarge(detail);
        let blocks = self.blocks(record);
        let dead = self.repairs.bury_oversized(&record.id, &reason, blocks).await?;
        if dead {
            self.buried(record, &reason, blocks);
        }
        Ok(dead)
    }

    /// The record with this id, whole, where it still has this status.
    pub(super) async fn read_again(
        &self,
        id: &RecordId,
        status: &str,
    ) -> Result<Option<Record>, StoreError> {
        Snapshot::begin(&self.collections).await?.by_id(id, status).await
    }

    /// Makes dead a scheduled record into which no `seq` fits; answers whether it did.
    pub(super) async fn bury_unpromoted(&self, id: &RawId) -> Result<bool, StoreError> {
        let Some(id) = id.decoded() else { return Ok(false) };
        match self.read_again(&id, SCHEDULED).await? {
            Some(record) => self.bury_oversized(&record, "its seq").await,
            // Changed meanwhile: it is met again.
            None => Ok(true),
        }
    }

    fn blocks(&self, record: &Record) -> bool {
        let keyed = matches!(record.lane, LaneKey::Keyed(_));
        keyed && self.settings.ordered && self.settings.block_on_dead
    }

    fn buried(&self, record: &Record, reason: &DeadReason, blocks: bool) {
        let kind = record.raw.get_str("type").unwrap_or_default();
        let id = record.shown_id();
        let key = match &record.lane {
            LaneKey::Keyed(key) => key,
            LaneKey::Single(_) => id.as_str(),
        };
        warn!(id, key, r#type = kind, %reason, blocks, "record is dead");
        self.metrics.dead("");
        self.announce_death(record, reason);
    }
}
