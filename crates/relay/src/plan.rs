//! From a snapshot's records to the runs that may be leased: a pure function.
//!
//! A run is the leading part of a key's pending records. Whatever may not go *ends its
//! key's run*, since everything behind it would overtake it: guard 2.

use std::collections::{HashMap, HashSet};

use bson::{DateTime, Timestamp};
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Placement, Record};

use crate::blocker::BlockReason;

/// What the relay knows besides the records, as of the same snapshot.
pub struct PlanInput<'a> {
    /// The server's time, as estimated; the lease's filter has the last word.
    pub now: DateTime,
    /// What the run of a key that has more is cut to.
    pub lane_cap: usize,
    /// Up to so many go whole all the same: a short rest is not worth another read.
    pub whole: usize,
    /// Deliveries in all.
    pub max_attempts: u32,
    /// Of each key the earliest `seq` of a record with an invalid partition: nothing behind it may
    /// go before the relay has corrected it.
    pub misplaced: HashMap<LaneKey, Option<Timestamp>>,
    /// Keys held by a dead record.
    pub blocked: HashSet<LaneKey>,
    /// Keys of which this relay has a lane, or a record that waits for its turn.
    pub taken: HashSet<LaneKey>,
    /// Whether a record is to go alone, for its lost connections.
    pub goes_alone: &'a dyn Fn(&RecordId) -> bool,
    /// Records of the lane that is refilled: known to go before, or confirmed.
    pub in_flight: &'a dyn Fn(&Record) -> bool,
    /// Whether the instance that leased the record is dead.
    pub is_owner_dead: &'a dyn Fn(&Record) -> bool,
    /// Whether the record's sink and destination take records.
    pub availability: &'a dyn Fn(&Record) -> Availability,
}

/// Whether a sink and a destination take records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// They do.
    Available,
    /// They do not, for this reason.
    Paused(BlockReason),
    /// The destination does not confirm; this record may probe it, alone.
    Probe,
}

/// The leading part of one key's records, to be leased and delivered in this order.
#[derive(Debug)]
pub struct Run {
    /// The key.
    pub lane: LaneKey,
    /// Its records in order; never empty.
    pub records: Vec<Record>,
    /// Whether the key has more that could go behind these.
    pub more: bool,
    /// Whether these are all of its records.
    pub is_whole: bool,
}

/// What to do about the records of one snapshot.
#[derive(Debug, Default)]
pub struct Plan {
    /// To be leased.
    pub runs: Vec<Run>,
    /// To be repaired, and then met again.
    pub defective: Vec<Record>,
    /// Suspects that have used up their attempts, and records that are unfit: to be made dead where
    /// they are.
    pub exhausted: Vec<Record>,
    /// Heads of their keys that go alone, each when its turn comes.
    pub quarantined: Vec<Record>,
    /// Blocked keys.
    pub blocked: Vec<BlockedLane>,
    /// Heads of keys that wait for the correction of an earlier record.
    pub stopped: Vec<Record>,
}

/// A key that must wait.
#[derive(Debug)]
pub struct BlockedLane {
    /// Its head, the blocker.
    pub head: Record,
    /// Why.
    pub reason: BlockReason,
    /// Until when by the server's clock, where that is known.
    pub until: Option<DateTime>,
}

/// What a record's own fields say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// It can be neither leased nor corrected.
    Unfit,
    /// It is to be corrected first: it has no usable `seq`, or an invalid partition.
    Defect(Defect),
    /// A lease is on it.
    Leased,
    /// It is not due before.
    NotDue(DateTime),
    /// It may crash the process.
    Suspect,
    /// Nothing is against it.
    Fit,
}

/// What is to be corrected in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// It has no usable `seq`.
    Seq,
    /// Its partition is no integral number from 0 to 255.
    Partition,
}

impl RecordState {
    /// What the record says at this time of the server. The lease of an owner that is dead is as one
    /// that has expired.
    pub fn of(record: &Record, now: DateTime, is_owner_dead: impl Fn(&Record) -> bool) -> Self {
        if record.unfit.is_some() {
            Self::Unfit
        } else if record.seq.is_none() {
            Self::Defect(Defect::Seq)
        } else if record.placement == Placement::Invalid {
            Self::Defect(Defect::Partition)
        } else if record.is_leased(now) && !is_owner_dead(record) {
            Self::Leased
        } else if let Some(due) = record.visible_at.filter(|due| *due > now) {
            Self::NotDue(due)
        } else if record.is_suspect() {
            Self::Suspect
        } else {
            Self::Fit
        }
    }
}

/// May this record go?
enum Decision {
    Goes,
    GoesAlone,
    InHand,
    NeedsRepair,
    Spent,
    Waits(BlockReason, Option<DateTime>),
    /// Not before a repair that this very scan makes.
    Stops,
}

/// Plans for `records`, which are in lane order and without a gap from the
/// beginning of each key.
pub fn plan(records: Vec<Record>, input: &PlanInput<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut records = records.into_iter().peekable();
    while let Some(first) = records.next() {
        let lane = first.lane.clone();
        let mut of_lane = vec![first];
        while let Some(next) = records.next_if(|next| next.lane == lane) {
            of_lane.push(next);
        }
        plan_lane(lane, of_lane, input, &mut plan);
    }
    plan
}

fn plan_lane(lane: LaneKey, records: Vec<Record>, input: &PlanInput<'_>, plan: &mut Plan) {
    if input.blocked.contains(&lane) || input.taken.contains(&lane) {
        return;
    }
    let cap = if records.len() > input.whole { input.lane_cap } else { records.len() };
    let mut run = Run { lane, records: Vec::new(), more: false, is_whole: true };
    let count = records.len();
    let mut nothing_before = true;
    for (place, record) in records.into_iter().enumerate() {
        match decide(&record, input) {
            Decision::InHand => {
                nothing_before = false;
                continue;
            }
            Decision::NeedsRepair => {
                plan.defective.push(record);
                break;
            }
            Decision::Waits(reason, until) => {
                if nothing_before {
                    plan.blocked.push(BlockedLane { head: record, reason, until });
                }
                break;
            }
            // Only ever at the head: what goes before it must have gone.
            Decision::Spent if nothing_before => {
                plan.exhausted.push(record);
                break;
            }
            Decision::GoesAlone if nothing_before => {
                plan.quarantined.push(record);
                break;
            }
            Decision::Stops => {
                if nothing_before {
                    plan.stopped.push(record);
                }
                break;
            }
            Decision::Spent | Decision::GoesAlone => break,
            Decision::Goes => {
                if run.records.len() >= cap {
                    run.more = true;
                    break;
                }
                // After a failure only the head is leased: if it fails again, nothing behind it was
                // leased and released for nothing.
                let failed_before = record.failures() > 0;
                if failed_before && !run.records.is_empty() {
                    break;
                }
                nothing_before = false;
                run.records.push(record);
                if failed_before {
                    run.more = place + 1 < count;
                    break;
                }
            }
        }
    }
    run.is_whole = run.records.len() == count;
    if !run.records.is_empty() {
        plan.runs.push(run);
    }
}

fn decide(record: &Record, input: &PlanInput<'_>) -> Decision {
    if (input.in_flight)(record) {
        return Decision::InHand;
    }
    let of_itself = RecordState::of(record, input.now, input.is_owner_dead);
    match of_itself {
        RecordState::Unfit => return Decision::Spent,
        RecordState::Defect(_) => return Decision::NeedsRepair,
        // (One without a seq of its own has no place to hold others from.)
        _ if input.misplaced.get(&record.lane).is_some_and(|earliest| {
            earliest.is_some_and(|earliest| record.seq.is_some_and(|seq| earliest < seq))
        }) =>
        {
            return Decision::Stops;
        }
        RecordState::Leased => return Decision::Waits(BlockReason::Leased, record.lease_until),
        RecordState::NotDue(due) => return Decision::Waits(BlockReason::NotDue, Some(due)),
        RecordState::Suspect | RecordState::Fit => {}
    }
    match (input.availability)(record) {
        Availability::Paused(reason) => Decision::Waits(reason, None),
        Availability::Available | Availability::Probe if of_itself == RecordState::Suspect => {
            // Of a lease in which it had company another record may have been the cause.
            let is_spent = record.was_alone() && record.attempt >= input.max_attempts;
            if is_spent { Decision::Spent } else { Decision::GoesAlone }
        }
        Availability::Probe => Decision::GoesAlone,
        Availability::Available if (input.goes_alone)(&record.id) => Decision::GoesAlone,
        Availability::Available => Decision::Goes,
    }
}

#[cfg(test)]
mod tests;
