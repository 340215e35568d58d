//! What a look has found is entered in the book: lanes to be leased, and keys that must wait.

use std::sync::Arc;
use std::time::Instant;

use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::Dead;
use crate::relay::before::Before;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::hands::{Openings, Read};
use crate::relay::lane::Lane;
use crate::relay::look::{Claim, Origin, Seen};
use crate::relay::plan::{Hold, Plan, Run};
use crate::relay::shared::Shared;
use crate::sink::Sink;

impl<S: Sink> Shared<S> {
    /// Enters a plan's holds and runs in the book; the rest is for the second half.
    /// `read`: what it is about is all that its key had pending then, so that the change stream
    /// may bring what comes behind it.
    pub(in crate::relay) fn enter_plan(
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
    pub(in crate::relay) fn reserved(&self, claim: Claim) -> Claim {
        for record in &claim.records {
            self.in_hand.add(record);
        }
        claim
    }

    /// Notes of what was read which keys lie in other partitions than their own, and which the dead
    /// block.
    pub(super) fn note_places(&self, records: &[Record], before: &Before) {
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
}
