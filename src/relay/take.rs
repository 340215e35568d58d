//! The second half of a take: what a look saw is leased, and becomes lanes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use crate::failpoint;
use crate::ids::{LeaseId, RecordId};
use crate::moment::Moment;
use crate::outbox::lease::Grant;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::{LaneKey, Record};
use crate::relay::hands::HoldReason;
use crate::relay::held::{Held, Lease};
use crate::relay::lane::Lane;
use crate::relay::look::{Claim, Seen};
use crate::relay::refusals::Refusals;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// What the second half of a take achieved.
#[derive(Debug)]
pub struct Leased {
    /// Lanes that hold something now, to be run.
    pub lanes: Vec<Arc<Lane>>,
    /// Why repairs and burials were put off, if they were: what was not mended is met again.
    pub put_off: Option<StoreError>,
}

impl<S: Sink> Shared<S> {
    /// The second half of a take: repairs, burials, and one lease for all runs. Nothing is
    /// published here; the lanes that come back are to be run. After a stop nothing is leased.
    ///
    /// # Errors
    ///
    /// Those of the store. Whatever was leased then waits out its lease.
    pub async fn lease(&self, seen: Seen) -> Result<Leased, StoreError> {
        let Seen { claims, repairs, spent, .. } = seen;
        if self.is_stopping() {
            claims.into_iter().for_each(|claim| self.give_up(claim));
            return Ok(Leased { lanes: Vec::new(), put_off: None });
        }
        let lanes = self.lease_claims(claims).await?;
        let put_off = self.mend(repairs, spent).await.err();
        Ok(Leased { lanes, put_off })
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
        let lease = Lease::new(id, self.leaser.length(), Moment::now());
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
        let mut surplus: Vec<Record> = Vec::new();
        let mut oversized: Vec<Record> = Vec::new();
        let mut refused: HashSet<LaneKey> = HashSet::new();
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
                    surplus.push(record);
                } else if grant.oversized.contains(&record.id) {
                    oversized.push(record);
                } else if let Some(code) = grant.refused.get(&record.id) {
                    // The first of its key: those behind it wait for it in any case.
                    if refused.insert(lane.key.clone()) {
                        self.refusals.tell(&record, *code);
                    }
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
                if refused.contains(&lane.key) {
                    let again = Instant::now() + Refusals::REST;
                    self.hands.hold(lane.key.clone(), HoldReason::NotDue, Some(again));
                }
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
        let outlet = self.sink_of(record).and_then(|sink| self.outlets.get(sink));
        // What dies does not wait for it. (Asked last: it takes the whole payload.)
        outlet.is_some_and(|outlet| !outlet.gate.is_open()) && self.has_way(record)
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
    async fn give_back(&self, lease: LeaseId, surplus: Vec<Record>) {
        use crate::outbox::settle::{Outcome, Settlement, Settlements};
        if surplus.is_empty() {
            return;
        }
        let batch: Vec<Settlement> = surplus
            .into_iter()
            .map(|record| Settlement {
                attempt: record.attempt + 1,
                id: record.id,
                lease,
                outcome: Outcome::Released,
            })
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
        self.announce_death(record, reason);
    }
}
