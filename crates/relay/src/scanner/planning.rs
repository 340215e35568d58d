//! Plans what to do with the records that were read, by the state of the relay.

use std::collections::HashSet;

use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};

use crate::addressing::availability;
use crate::lane::Lane;
use crate::plan::{Availability, InLane, Plan, PlanInput, plan};
use crate::scanner::Scanner;
use crate::scanner::snapshot_blockers::SnapshotBlockers;
use crate::settings::Settings;
use crate::sink::Sink;

/// Limits of the records of a key that are leased at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLimit {
    /// Records to which a run is cut if its key has more.
    pub(super) cut_to: usize,
    /// Records up to which a run stays whole.
    pub(super) whole: usize,
}

impl RunLimit {
    /// The limit of a new lane.
    pub(super) const NEW_LANE: Self = Self { cut_to: Settings::LANE, whole: Settings::WHOLE };
}

impl<S: Sink> Scanner<'_, S> {
    /// Plans for a record that the change stream has brought.
    pub(crate) fn plan_one(&self, record: Record) -> Plan {
        let blockers = SnapshotBlockers::none();
        self.plan_with(vec![record], &blockers, HashSet::new(), None, RunLimit::NEW_LANE)
    }

    /// Plans for the records of a snapshot. `taken_keys`: keys that were in flight or in quarantine
    /// before it. `refill`: the lane that asked for more of its key.
    pub(super) fn plan(
        &self,
        records: Vec<Record>,
        blockers: &SnapshotBlockers,
        taken_keys: &HashSet<LaneKey>,
        refill: Option<&Lane>,
        limit: RunLimit,
    ) -> Plan {
        // Decided once for each key, and after the reads: if a lane ended while the plan is made,
        // records behind a skipped record could overtake it.
        let lanes: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
        let key_table = &self.context.state.key_table;
        let is_taken = |lane: &LaneKey| taken_keys.contains(lane) || key_table.lane(lane).is_some();
        let taken: HashSet<LaneKey> = match refill {
            Some(_) => HashSet::new(),
            None => lanes.into_iter().filter(|lane| is_taken(lane)).cloned().collect(),
        };
        self.plan_with(records, blockers, taken, refill, limit)
    }

    fn plan_with(
        &self,
        records: Vec<Record>,
        blockers: &SnapshotBlockers,
        taken: HashSet<LaneKey>,
        refill: Option<&Lane>,
        limit: RunLimit,
    ) -> Plan {
        let context = self.context;
        let must_be_isolated = |id: &RecordId| context.state.connection_losses.must_be_isolated(id);
        let in_lane = |record: &Record| refill.map_or(InLane::Absent, |lane| lane.has(record));
        let is_all_available = context.all_up() && context.all_confirm();
        let availability = |record: &Record| {
            if is_all_available { Availability::Available } else { availability(context, record) }
        };
        let input = PlanInput {
            now: context.clock.now(),
            lane_cap: limit.cut_to,
            whole: limit.whole,
            max_attempts: context.settings.max_attempts,
            misplaced: blockers.misplaced.clone(),
            blocked: blockers.dead.keys().cloned().collect(),
            taken,
            must_be_isolated: &must_be_isolated,
            in_lane: &in_lane,
            is_owner_dead: &|record| context.state.lease_owners.is_dead(record),
            availability: &availability,
        };
        plan(records, &input)
    }
}
