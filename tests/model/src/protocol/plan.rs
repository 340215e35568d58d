//! The plan of a scan: `relay::plan`, record by record.

use super::bounds::{Bounds, MAX_RECORDS, Without};
use super::store::{Records, Status};

/// A set of records, as bits.
pub type Set = u8;

/// What a relay may do with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The records to lease.
    pub run: Set,
    /// The attempts that a lease will have counted.
    pub attempts: [u8; MAX_RECORDS],
    /// The run is a poison record.
    pub alone: bool,
    /// The key has more.
    pub more: bool,
    /// A poison record that has exhausted its attempts.
    pub spent: Set,
}

/// Plans what to lease of `seen`; this lane has leased `had` already.
pub fn plan(seen: &Records, had: Set, bounds: &Bounds) -> Plan {
    let mut plan = Plan::default();
    let is_blocked = seen.iter().any(|record| record.status == Status::Blocked);
    if is_blocked && bounds.has(Without::BlocksRead) {
        return plan;
    }
    let mut nothing_before = true;
    for (number, record) in seen.iter().enumerate() {
        let bit = 1 << number;
        if record.status != Status::Pending {
            continue;
        }
        if had & bit != 0 {
            nothing_before = false;
            continue;
        }
        let forgotten = record.is_poison() && !bounds.has(Without::ExpiredTaken);
        if record.is_leased() || record.resting || forgotten {
            if bounds.has(Without::EverythingPending) {
                break;
            }
            continue;
        }
        if record.is_poison() {
            if nothing_before && record.attempt >= bounds.max_attempts {
                plan.spent = bit;
            } else if nothing_before {
                plan.run = bit;
                plan.alone = true;
                plan.attempts[number] = (record.attempt + 1).min(bounds.most_attempts());
            }
            break;
        }
        if plan.run.count_ones() as usize >= bounds.cap {
            plan.more = true;
            break;
        }
        let failed_before = record.attempt > 0;
        if failed_before && plan.run != 0 {
            break;
        }
        nothing_before = false;
        plan.run |= bit;
        plan.attempts[number] = (record.attempt + 1).min(bounds.most_attempts());
        if failed_before {
            plan.more = true;
            break;
        }
    }
    plan.more &= bounds.refill;
    plan
}
