//! Plans which records of a snapshot may be leased: a pure function.
//!
//! A run is the leading part of a key's pending records. A record that must wait *ends the run* of
//! its key, since every record behind it would overtake it (guard 2).

use std::collections::{HashMap, HashSet};

use bson::{DateTime, Timestamp};
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Placement, Record};

use crate::blocker::BlockReason;

/// What the relay knows in addition to the records, as of the same snapshot.
pub struct PlanInput<'a> {
    /// The estimated time of the server; the filter of the lease decides.
    pub now: DateTime,
    /// Records to which a run is cut if its key has more.
    pub lane_cap: usize,
    /// Records up to which a run stays whole nevertheless: a short rest does not justify another
    /// read.
    pub whole: usize,
    /// Deliveries that a record may have.
    pub max_attempts: u32,
    /// The earliest `seq` of a record with an invalid partition, by key: nothing behind it may go
    /// before the relay has corrected it.
    pub misplaced: HashMap<LaneKey, Option<Timestamp>>,
    /// Keys that a dead record blocks.
    pub blocked: HashSet<LaneKey>,
    /// Keys of which this relay has a lane or a quarantined record.
    pub taken: HashSet<LaneKey>,
    /// Whether a record must be quarantined for its lost connections.
    pub must_be_isolated: &'a dyn Fn(&RecordId) -> bool,
    /// What the lane that is refilled has of the record.
    pub in_lane: &'a dyn Fn(&Record) -> InLane,
    /// Whether the instance that leased the record is dead.
    pub is_owner_dead: &'a dyn Fn(&Record) -> bool,
    /// Whether the record's sink and destination take records.
    pub availability: &'a dyn Fn(&Record) -> Availability,
}

/// What the lane that is refilled has of a record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InLane {
    /// Nothing.
    Absent,
    /// The record itself: in flight, or confirmed.
    InFlight,
    /// A document that this one has replaced since.
    Replaced,
}

/// Whether a sink and a destination are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// They are available.
    Available,
    /// The sink or the destination is down: the key is blocked for this reason.
    Down(BlockReason),
    /// The destination does not confirm; this record may probe it, isolated.
    Probe,
}

/// The leading part of one key's records, which will be leased and delivered in this order.
#[derive(Debug)]
pub struct Run {
    /// The key.
    pub lane: LaneKey,
    /// Its records in order; never empty.
    pub records: Vec<Record>,
    /// Whether the key has more records behind these that could go.
    pub more: bool,
    /// Whether these are all records of the key.
    pub is_whole: bool,
}

/// What to do with the records of one snapshot.
#[derive(Debug, Default)]
pub struct Plan {
    /// Runs to lease.
    pub runs: Vec<Run>,
    /// Records to repair; a later scan finds them again.
    pub defective: Vec<Record>,
    /// Poison records without attempts left, and unfit records: they are made dead without a lane.
    pub exhausted: Vec<Record>,
    /// Heads of their keys that must be quarantined, each in its turn.
    pub quarantined: Vec<Record>,
    /// Blocked keys.
    pub blocked: Vec<BlockedLane>,
    /// Heads of keys that wait for the correction of an earlier record.
    pub stopped: Vec<Record>,
}

/// A key that must wait.
#[derive(Debug)]
pub struct BlockedLane {
    /// The head of the key, which is the blocker.
    pub head: Record,
    /// The reason.
    pub reason: BlockReason,
    /// Until when by the server's clock, if known.
    pub until: Option<DateTime>,
}

/// The state of a record by its own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// It can be neither leased nor corrected.
    Unfit,
    /// It must be corrected first: it has no usable `seq`, or an invalid partition.
    Defect(Defect),
    /// It is leased.
    Leased,
    /// It is not due before this time.
    NotDue(DateTime),
    /// It may crash the process.
    Poison,
    /// Nothing prevents its delivery.
    Fit,
}

/// What must be corrected in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// It has no usable `seq`.
    Seq,
    /// Its partition is not an integer from 0 to 255.
    Partition,
}

impl RecordState {
    /// Returns the state of the record at this time of the server. The lease of a dead owner counts
    /// as expired.
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
        } else if record.is_poison() {
            Self::Poison
        } else {
            Self::Fit
        }
    }
}

/// What to do with one record.
enum Decision {
    Goes,
    GoesAlone,
    InFlight,
    NeedsRepair,
    Spent,
    Waits(BlockReason, Option<DateTime>),
    /// It waits for a repair by this scan.
    Stops,
    /// It waits for the end of the lane, which has a document with the same `_id`.
    WaitsForLane,
}

/// Plans for `records`, which are in lane order and without a gap from the beginning of each key.
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
            Decision::InFlight => {
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
            // Only at the head: the records before it must have gone.
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
            Decision::Spent | Decision::GoesAlone | Decision::WaitsForLane => break,
            Decision::Goes => {
                if run.records.len() >= cap {
                    run.more = true;
                    break;
                }
                // After a failure only the head is leased: if it fails again, no lease behind it
                // was wasted.
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
    match (input.in_lane)(record) {
        InLane::Absent => {}
        InLane::InFlight => return Decision::InFlight,
        InLane::Replaced => return Decision::WaitsForLane,
    }
    let of_itself = RecordState::of(record, input.now, input.is_owner_dead);
    match of_itself {
        RecordState::Unfit => return Decision::Spent,
        RecordState::Defect(_) => return Decision::NeedsRepair,
        // (A misplaced record without a `seq` has no place in the order and stops no others.)
        _ if input.misplaced.get(&record.lane).is_some_and(|earliest| {
            earliest.is_some_and(|earliest| record.seq.is_some_and(|seq| earliest < seq))
        }) =>
        {
            return Decision::Stops;
        }
        RecordState::Leased => return Decision::Waits(BlockReason::Leased, record.lease_until),
        RecordState::NotDue(due) => return Decision::Waits(BlockReason::NotDue, Some(due)),
        RecordState::Poison | RecordState::Fit => {}
    }
    match (input.availability)(record) {
        Availability::Down(reason) => Decision::Waits(reason, None),
        Availability::Available | Availability::Probe if of_itself == RecordState::Poison => {
            // In a shared lease another record may have caused the crash.
            let is_spent = record.was_quarantined() && record.attempt >= input.max_attempts;
            if is_spent { Decision::Spent } else { Decision::GoesAlone }
        }
        Availability::Probe => Decision::GoesAlone,
        Availability::Available if (input.must_be_isolated)(&record.id) => Decision::GoesAlone,
        Availability::Available => Decision::Goes,
    }
}

#[cfg(test)]
mod tests;
