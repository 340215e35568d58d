//! What to do about records that were read, by all that the relay knows.

use std::collections::HashSet;

use crate::ids::RecordId;
use crate::outbox::record::{LaneKey, Record};
use crate::relay::before::Before;
use crate::relay::lane::Lane;
use crate::relay::plan::{Plan, Sight, Way, plan};
use crate::relay::settings::Settings;
use crate::relay::shared::Shared;
use crate::sink::Sink;

impl<S: Sink> Shared<S> {
    /// Where ordering is off every record is its own lane.
    pub(super) fn prepared(&self, records: Vec<Record>) -> Vec<Record> {
        records.into_iter().map(|record| self.in_its_lane(record)).collect()
    }

    /// The lane that the setting of ordering gives a record of this one.
    pub(in crate::relay) fn lane_of(&self, lane: LaneKey, id: &RecordId) -> LaneKey {
        if self.settings.ordered { lane } else { LaneKey::Single(id.to_string().into()) }
    }

    /// The record in the lane that the setting of ordering gives it.
    pub(in crate::relay) fn in_its_lane(&self, record: Record) -> Record {
        if self.settings.ordered { record } else { record.without_order() }
    }

    /// What to do about a record that the change stream has brought, by itself.
    pub(in crate::relay) fn plan_one(&self, record: Record) -> Plan {
        let run = (Settings::LANE, Settings::WHOLE);
        self.plan_beside(vec![record], &Before::nothing(), HashSet::new(), None, run)
    }

    pub(super) fn plan(
        &self,
        records: Vec<Record>,
        before: &Before,
        spoken_for: &HashSet<LaneKey>,
        refill: Option<&Lane>,
        (cap, whole): (usize, usize),
    ) -> Plan {
        // Decided once for each key, and after the reads: a lane that ended while the plan is made
        // would let what is behind a passed-over record go before it.
        let lanes: HashSet<&LaneKey> = records.iter().map(|record| &record.lane).collect();
        let is_taken =
            |lane: &LaneKey| spoken_for.contains(lane) || self.hands.busy(lane).is_some();
        let taken: HashSet<LaneKey> = match refill {
            Some(_) => HashSet::new(),
            None => lanes.into_iter().filter(|lane| is_taken(lane)).cloned().collect(),
        };
        self.plan_beside(records, before, taken, refill, (cap, whole))
    }

    fn plan_beside(
        &self,
        records: Vec<Record>,
        before: &Before,
        taken: HashSet<LaneKey>,
        refill: Option<&Lane>,
        (cap, whole): (usize, usize),
    ) -> Plan {
        let goes_alone = |id: &RecordId| self.losses.goes_alone(id);
        let in_hand = |record: &Record| refill.is_some_and(|lane| lane.had(record));
        let all_well = self.all_open() && self.all_confirm();
        let way = |record: &Record| if all_well { Way::Open } else { self.way(record) };
        let sight = Sight {
            now: self.clock.now(),
            lane_cap: cap,
            whole,
            max_attempts: self.settings.max_attempts,
            misplaced: before.misplaced.clone(),
            blocked: before.blocked.keys().cloned().collect(),
            taken,
            goes_alone: &goes_alone,
            in_hand: &in_hand,
            way: &way,
        };
        plan(records, &sight)
    }
}
