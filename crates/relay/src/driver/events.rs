//! Handles wake-ups of the driver, above all the events of the change stream.

use std::sync::Arc;
use std::time::Instant;

use bson::Timestamp;
use metrics::gauge;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::wakeup::{ScanHint, StreamEvent, WakeReasons};
use postrider_store::StoreError;
use postrider_store::text::chain;
use tracing::debug;

use crate::acquirer::{self, Acquirer, Acquisition, Origin};
use crate::blocker::Blocker;
use crate::driver::{Driver, Event, MAX_TARGETS};
use crate::key_table::{KeyState, LivePeriod};
use crate::lane::Lane;
use crate::live_mode::{LeaveReason, PassPart, Phase};
use crate::metrics::{PARTITIONS_LIVE, ReadSource};
use crate::scanner::{ScanResult, ScanTarget, Scanner};
use crate::sink::Sink;

/// Keys that wait for a scan, beyond which a rotation costs less.
const MAX_PENDING_SCANS: usize = 2_048;

/// Where an event asks to scan while rotations find the records.
enum Hints {
    None,
    At(ScanHint),
    Somewhere,
}

impl<S: Sink> Driver<S> {
    /// Handles queued events and other reasons to scan.
    pub(super) fn on_wakeup(&mut self) {
        let WakeReasons { mut all, mut hints } = self.wakeup.take();
        for event in self.wakeup.take_events() {
            match self.handle(event) {
                Hints::None => {}
                Hints::At(hint) => hints.push(hint),
                Hints::Somewhere => all = true,
            }
        }
        if self.live.is_live() {
            // All pending records are known.
            return;
        }
        let targets: Vec<ScanTarget> = {
            let is_ours = |hint: &ScanHint| self.partitions().contains(&hint.partition());
            let ours = hints.into_iter().filter(is_ours);
            ours.map(ScanTarget::At).filter(|target| !self.is_in_flight(target)).collect()
        };
        if self.targets.len() + targets.len() <= MAX_TARGETS && self.has_room() {
            self.targets.extend(targets);
        } else if !targets.is_empty() {
            // The next rotation finds the rest.
            all = true;
        }
        if all {
            self.scan_now();
        }
    }

    /// Returns whether a target's key is in flight: the scan after the end of its lane finds the
    /// rest.
    fn is_in_flight(&self, target: &ScanTarget) -> bool {
        match target {
            ScanTarget::At(ScanHint::Key { key, .. }) => {
                self.context.state.key_table.lane(&LaneKey::Keyed(key.clone())).is_some()
            }
            ScanTarget::At(ScanHint::Record { .. })
            | ScanTarget::Refill(_)
            | ScanTarget::Scan(..) => false,
        }
    }

    /// Handles one event of the change stream. Returns where to scan while rotations find the
    /// records.
    fn handle(&mut self, event: StreamEvent) -> Hints {
        if let Some(at) = event.at() {
            self.context.state.key_table.advance_to(at);
            let now = (self.context.clock.now(), Instant::now());
            if self.live.is_live() && self.live.is_behind(at, now.0, now.1) {
                self.leave_live(LeaveReason::Overloaded);
                return Hints::Somewhere;
            }
        }
        if event.partition().is_some_and(|it| self.partitions().contains(&it)) {
            self.context.metrics.seen(ReadSource::ChangeStream, 1);
        }
        match (event, self.live.phase()) {
            (StreamEvent::Opened(_), _) => {
                // (On a sharded cluster an event waits for the slowest shard: there it is only a
                // reason to scan.)
                self.live.opened(!self.context.collections.is_sharded());
                Hints::Somewhere
            }
            (StreamEvent::Closed, _) => {
                self.live.closed();
                self.leave_live(LeaveReason::OnPurpose);
                Hints::Somewhere
            }
            (StreamEvent::Somewhere, _) => {
                self.leave_live(LeaveReason::OnPurpose);
                Hints::Somewhere
            }
            (StreamEvent::Misplaced(record, at), phase) => {
                let record = self.context.in_lane(*record);
                let hint = ScanHint::of(record.partition, record.lane.clone(), record.id.clone());
                self.handle_misplaced(record, at);
                if matches!(phase, Phase::Scanning) { Hints::At(hint) } else { Hints::None }
            }
            (event, Phase::Scanning) => event.hint().map_or(Hints::None, Hints::At),
            (StreamEvent::Pending(record, at), Phase::Passing(_)) => {
                let key_table = &self.context.state.key_table;
                key_table.record_partition(&record);
                let record = self.context.in_lane(*record);
                key_table.withhold(record.lane, record.partition, record.id, at);
                Hints::None
            }
            (StreamEvent::Touched { partition, lane, id, at }, _) => {
                let lane = self.context.settings.lane_of(lane, &id);
                self.context.state.key_table.withhold(lane, partition, id, at);
                Hints::None
            }
            (StreamEvent::Pending(record, at), Phase::Live { .. }) => {
                if self.partitions().contains(&record.partition) {
                    self.handle_pending(*record, at);
                }
                Hints::None
            }
        }
    }

    /// Corrects a record with an invalid partition first, and blocks its key until then: a scan
    /// might not find it.
    fn handle_misplaced(&mut self, record: Record, at: Timestamp) {
        let is_ours = self.partitions().contains(&record.partition);
        if !is_ours {
            return;
        }
        let (lane, partition, id) = (record.lane.clone(), record.partition, record.id.clone());
        self.context.state.key_table.withhold(lane.clone(), partition, id, at);
        self.context.state.key_table.block_for_repair(vec![(lane, Blocker::unseen(partition))]);
        if !self.context.state.misplaced.note(record) {
            // A pass reads everything again.
            self.leave_live(LeaveReason::Overloaded);
        }
    }

    /// Handles a record that became pending: leases it if its key has nothing pending before it, or
    /// adds it to a complete lane. Otherwise withholds the event, and the key is scanned later.
    fn handle_pending(&mut self, record: Record, at: Timestamp) {
        let context = self.context.clone();
        let (key_table, scanner) = (&context.state.key_table, Scanner::new(&context));
        key_table.record_partition(&record);
        let record = context.in_lane(record);
        let (key, partition, id) = (record.lane.clone(), record.partition, record.id.clone());
        debug!(record.id = %id, key = key.as_str(), partition, "received a record from the \
                                                                change stream");
        let withhold = || key_table.withhold(key.clone(), partition, id.clone(), at);
        if self.schedule.is_store_failing() || !context.has_room() {
            return withhold();
        }
        match key_table.state_of(&record, at) {
            KeyState::Covered => {}
            KeyState::Blocked => withhold(),
            KeyState::InFlight(lane) => {
                let run = scanner.plan_one(record).runs.pop();
                match run.filter(|run| lane.offer(&run.records[0])) {
                    Some(run) => self.acquire_live(lane, run.records, Origin::Stream),
                    None => withhold(),
                }
            }
            KeyState::Idle => {
                let recoveries = key_table.recoveries();
                let mut plan = scanner.plan_one(record);
                if let Some(run) = plan.runs.pop() {
                    let lane = Lane::new(key.clone(), partition);
                    lane.begin(&run.records, true);
                    if !key_table.register_idle(&lane, &run.records[0]) {
                        return withhold();
                    }
                    return self.acquire_live(lane, run.records, Origin::NewLane);
                }
                let mut result = ScanResult::default();
                scanner.register(plan, recoveries, None, None, &mut result);
                self.on_result(result);
                if !key_table.is_tracked(&key) {
                    withhold();
                }
            }
        }
    }

    fn acquire_live(&mut self, lane: Arc<Lane>, records: Vec<Record>, origin: Origin) {
        Scanner::new(&self.context).reserve(&records);
        self.live.add(Acquisition { lane, records, more: false, origin });
    }

    /// Scans the keys that wait for a scan, leases what came, and begins a pass when one is due.
    pub(super) fn serve_live(&mut self, now: Instant) {
        if self.live.wants_pass(now) && !self.schedule.is_store_failing() {
            self.schedule.due_now(now);
        }
        let is_following = !matches!(self.live.phase(), Phase::Scanning);
        if !is_following {
            return;
        }
        if let Some(why) = self.outgrown() {
            return self.leave_live(why);
        }
        if !self.scanning && self.targets.len() < MAX_TARGETS && self.context.has_room() {
            let key_table = &self.context.state.key_table;
            let asked = key_table.take_pending_scans(MAX_TARGETS - self.targets.len()).into_iter();
            self.targets.extend(asked.map(|(key, partition, id)| {
                ScanTarget::Scan(key.clone(), ScanHint::of(partition, key, id))
            }));
        }
        self.acquire();
    }

    /// Returns why the stream cannot carry the records: more keys wait than are remembered, or than
    /// can be read one by one.
    fn outgrown(&self) -> Option<LeaveReason> {
        let key_table = &self.context.state.key_table;
        if key_table.is_over_capacity() {
            Some(LeaveReason::ManyBlocked)
        } else if key_table.pending_scans() > MAX_PENDING_SCANS {
            Some(LeaveReason::ManyUnscanned)
        } else {
            None
        }
    }

    /// Leases the records of the change stream.
    fn acquire(&mut self) {
        if !self.live.has_acquisitions() {
            return;
        }
        let now = Instant::now();
        let acquisitions = self.live.next_acquisitions(self.context.settings.batch_size, now);
        // Records behind the first one of a lane that could not be leased.
        let (ended, acquisitions): (Vec<_>, Vec<_>) =
            acquisitions.into_iter().partition(|acquisition| acquisition.lane.is_closed());
        ended.into_iter().for_each(|acquisition| acquirer::cancel(&self.context, acquisition));
        if acquisitions.is_empty() {
            return;
        }
        let number = self.live.acquire(&acquisitions, now);
        let context = self.context.clone();
        self.tasks.spawn(async move {
            Event::AcquiredLive(number, Acquirer::new(&context).acquire(acquisitions).await)
        });
    }

    /// Handles a page of a rotation, the last one without `more`. After a pass the change stream
    /// carries the records.
    pub(super) fn on_page(&mut self, is_all: bool, more: bool) {
        let is_all = self.live.page_seen(is_all);
        if matches!(self.live.phase(), Phase::Passing(_)) && !more {
            self.end_part(PassPart::Pending, is_all);
        }
    }

    /// Handles the end of the read of all dead records that block, which began in this period.
    pub(super) fn on_dead_read(&mut self, period: LivePeriod, read: Result<bool, StoreError>) {
        if period != self.context.state.key_table.scan_start().period {
            return;
        }
        let is_all = read.unwrap_or_else(|error| {
            debug!(error = chain(&error), "failed to read the dead records that block keys");
            false
        });
        self.end_part(PassPart::Dead, is_all);
    }

    fn end_part(&mut self, part: PassPart, is_all: bool) {
        let incomplete = (!is_all).then_some(LeaveReason::Incomplete);
        if let Some(why) = self.outgrown().or(incomplete) {
            return self.leave_live(why);
        }
        if !self.live.part_ended(part) {
            return;
        }
        let key_table = &self.context.state.key_table;
        let pending_scans = key_table.pending_scans();
        key_table.go_live();
        self.live.went_live(Instant::now());
        let partitions = self.partitions().len();
        gauge!(PARTITIONS_LIVE).set(partitions as f64);
        debug!(partitions, pending_scans, "receiving records from the change stream");
    }

    /// Returns to rotations, before the next event is handled.
    pub(super) fn leave_live(&mut self, why: LeaveReason) {
        let Some(acquisitions) = self.live.leave(why, Instant::now()) else { return };
        gauge!(PARTITIONS_LIVE).set(0.0);
        self.context.state.key_table.stop_following();
        acquisitions.into_iter().for_each(|one| acquirer::cancel(&self.context, one));
        self.targets.retain(|target| !matches!(target, ScanTarget::Scan(..)));
        self.scan_now();
    }
}
