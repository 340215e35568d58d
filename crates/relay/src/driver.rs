//! The main loop of the relay: starts scans, acquisitions and lanes, and handles their results.

mod events;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::gauge;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::ReadLimit;
use postrider_outbox::wakeup::{ScanHint, Wakeup};
use postrider_store::StoreError;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

use crate::acquirer::Acquirer;
use crate::blocker::{Blocker, KeyBlock};
use crate::context::RelayContext;
use crate::key_table::LivePeriod;
use crate::lane::{Lane, LaneEnd};
use crate::lane_worker;
use crate::live_mode::{LeaveReason, LiveMode};
use crate::metrics::PARTITIONS_LIVE;
use crate::partition::owned::OwnedPartitions;
use crate::quarantine::{Candidate, Quarantine};
use crate::repairer::{RepairBatch, Repairer};
use crate::saturation::Saturation;
use crate::scanner::{MISPLACED_PAGE, ScanResult, ScanScope, ScanTarget, Scanner};
use crate::schedule::{RotationPage, STORE_PAUSE, Schedule};
use crate::sink::Sink;
use crate::store_health::{StoreWork, remedy, words};

/// Concurrent leases of scans: the next page is read while this one is leased. More are not faster
/// (2 cores).
const MAX_ACQUIRING: usize = 3;

/// Keys that one targeted scan reads. For more keys a rotation costs less.
const MAX_TARGETS: usize = 16;

/// The result of a task of the driver.
enum Event {
    Rotated(Result<ScanResult, StoreError>),
    Scanned(Result<ScanResult, StoreError>),
    /// The records of a scan are leased.
    Acquired(Result<Vec<Arc<Lane>>, StoreError>),
    /// The records of the change stream are leased, by the lease of this number.
    AcquiredLive(u64, Result<Vec<Arc<Lane>>, StoreError>),
    /// The dead records that block were read, in this period: whether the relay knows all of them.
    DeadRead(LivePeriod, Result<bool, StoreError>),
    Repaired(Result<bool, StoreError>),
    /// The lane of a quarantined record; `None` if it was not delivered.
    Quarantined(Result<Option<(Arc<Lane>, LaneEnd)>, StoreError>),
    LaneEnded(Arc<Lane>, LaneEnd),
}

pub(super) struct Driver<S> {
    context: Arc<RelayContext<S>>,
    owned: watch::Receiver<OwnedPartitions>,
    wakeup: Wakeup,
    refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    tasks: JoinSet<Event>,
    live: LiveMode,
    schedule: Schedule,
    scanning: bool,
    acquiring: usize,
    repairing: bool,
    targets: VecDeque<ScanTarget>,
    saturation: Saturation,
    /// The partitions at their last change, and whether any was added.
    last_owned: Option<(Vec<u8>, bool)>,
    next_tick: Instant,
    /// Whether the refusal by MongoDB is logged.
    is_refusal_reported: bool,
}

/// How often expired blocks are removed.
const TICK_INTERVAL: Duration = Duration::from_millis(20);

impl<S: Sink> Driver<S> {
    pub(super) fn new(
        context: Arc<RelayContext<S>>,
        owned: watch::Receiver<OwnedPartitions>,
        wakeup: Wakeup,
        refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    ) -> Self {
        gauge!(PARTITIONS_LIVE).set(0.0);
        let poll_interval = context.settings.poll_interval;
        Self {
            context,
            owned,
            wakeup,
            refills,
            tasks: JoinSet::new(),
            live: LiveMode::default(),
            schedule: Schedule::new(poll_interval, Instant::now()),
            scanning: false,
            acquiring: 0,
            repairing: false,
            targets: VecDeque::new(),
            saturation: Saturation::default(),
            last_owned: None,
            next_tick: Instant::now(),
            is_refusal_reported: false,
        }
    }

    /// Relays until the stop.
    ///
    /// # Errors
    ///
    /// A panic in one of its tasks.
    pub(super) async fn run(&mut self) -> Result<(), JoinError> {
        self.on_partitions_changed();
        // Leases and due times follow the server's time: nothing is leased before it is known.
        self.sample_time().await;
        while !self.context.is_stopping() {
            self.start_due();
            let next = self.next_wait();
            tokio::select! {
                () = self.context.stop.cancelled() => {}
                Some(ended) = self.tasks.join_next() => self.on_event(ended)?,
                Some(lane) = self.refills.recv() => self.targets.push_back(ScanTarget::Refill(lane)),
                () = self.wakeup.woken() => self.on_wakeup(),
                Ok(()) = self.owned.changed() => self.on_partitions_changed(),
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
        Ok(())
    }

    /// Drains every lane: it publishes nothing more, and settles or releases its records.
    pub(super) async fn drain(&mut self) -> Result<(), JoinError> {
        let in_flight = self.context.state.in_flight.records();
        info!(in_flight, "stopping; settling or releasing records in flight");
        self.context.state.key_table.set_owned(&[]);
        self.leave_live(LeaveReason::OnPurpose);
        self.decline_targets();
        while !self.tasks.is_empty() {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => {
                    let event = ended?;
                    match event {
                        // Found during the stop: the lanes learn that nothing more comes.
                        Event::Rotated(Ok(result)) | Event::Scanned(Ok(result)) => {
                            self.acquire_scanned(result);
                        }
                        // Leased during the stop: the lanes release everything.
                        Event::Acquired(Ok(lanes)) | Event::AcquiredLive(_, Ok(lanes)) => {
                            lanes.into_iter().for_each(|lane| self.start_lane(lane));
                        }
                        Event::LaneEnded(lane, _) | Event::Quarantined(Ok(Some((lane, _)))) => {
                            self.context.state.key_table.release(&lane.key);
                        }
                        _ => {}
                    }
                }
                Some(lane) = self.refills.recv() => lane.add(Vec::new(), false),
            }
        }
        Ok(())
    }

    async fn sample_time(&mut self) {
        let mut pause = STORE_PAUSE.0;
        loop {
            let sample = self.context.clock.sample(self.context.collections.database());
            let sampled = tokio::select! {
                () = self.context.stop.cancelled() => return,
                sampled = sample => sampled,
            };
            match sampled {
                Ok(()) => return,
                Err(error) => self.on_store_error(&error),
            }
            tokio::select! {
                () = self.context.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(STORE_PAUSE.1);
        }
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        if self.next_tick <= now {
            self.next_tick = now + TICK_INTERVAL;
            self.context.free_room();
            self.scan_for_probes();
            self.correct();
            if self.context.state.key_table.unblock_due(now) {
                self.scan_now();
            }
        }
        if !self.may_scan() {
            self.leave_live(LeaveReason::OnPurpose);
            self.decline_targets();
            return;
        }
        if self.schedule.waits_for_store(now) {
            return;
        }
        self.serve_live(now);
        if !self.scanning && !self.targets.is_empty() {
            let count = self.targets.len().min(MAX_TARGETS);
            let targets: Vec<ScanTarget> = self.targets.drain(..count).collect();
            self.scanning = true;
            self.spawn_scan(ScanScope::Targets(targets), Event::Scanned);
        }
        if self.live.needs_rotations() && self.schedule.is_due(now) && self.has_room() {
            let is_pass = self.live.begins_pass(now);
            if is_pass {
                self.context.state.key_table.begin_following();
                self.read_dead();
            }
            let position = self.schedule.begin(is_pass, now);
            self.spawn_scan(ScanScope::Rotation(position), Event::Rotated);
        }
    }

    /// Scans, for each destination that is due for a probe, a key that waits for it.
    fn scan_for_probes(&mut self) {
        let context = self.context.clone();
        for (sink, handle) in &context.sinks {
            for unused in handle.destinations.expire() {
                context.state.key_table.unblock_destination(sink, &unused);
                self.scan_now();
            }
            let due = handle.destinations.due();
            if due.is_empty() {
                continue;
            }
            let is_suspected = |id: &RecordId| context.state.connection_losses.must_be_isolated(id);
            for (key, head) in context.state.key_table.unblock_for_probes(sink, &due, is_suspected)
            {
                self.targets.push_back(ScanTarget::At(ScanHint::of(head.partition, key, head.id)));
            }
        }
    }

    fn spawn_scan(
        &mut self,
        scope: ScanScope,
        event: impl FnOnce(Result<ScanResult, StoreError>) -> Event + Send + 'static,
    ) {
        let context = self.context.clone();
        let owned = self.partitions().to_vec();
        let allowance = context.state.in_flight.allow(context.settings.batch_bytes);
        let room = ReadLimit { records: context.settings.batch_size, bytes: allowance.bytes };
        self.tasks.spawn(async move {
            let result = Scanner::new(&context).scan(scope, &owned, room).await;
            // The records that will be leased are counted as in flight now.
            drop(allowance);
            event(result)
        });
    }

    /// Reads the dead records that block keys, for a pass. They may be many: the records of other
    /// keys do not wait for them.
    fn read_dead(&mut self) {
        let context = self.context.clone();
        let period = context.state.key_table.scan_start().period;
        self.tasks.spawn(async move {
            let scanner = Scanner::new(&context);
            let read = tokio::select! {
                biased;
                read = scanner.block_all_dead() => read,
                () = context.stopping() => Ok(false),
            };
            Event::DeadRead(period, read)
        });
    }

    fn acquire_scanned(&mut self, result: ScanResult) {
        let context = self.context.clone();
        self.acquiring += 1;
        self.tasks.spawn(async move {
            Event::Acquired(Acquirer::new(&context).acquire(result.acquisitions).await)
        });
    }

    /// Corrects records that the change stream has brought with an invalid partition.
    fn correct(&mut self) {
        if self.repairing || self.schedule.is_store_failing() {
            return;
        }
        let state = &self.context.state;
        let is_held = |id: &RecordId| state.refused_changes.held_until(id).is_some();
        let next = state.misplaced.next(MISPLACED_PAGE, is_held);
        if !next.is_empty() {
            self.repair(RepairBatch::of(next));
        }
    }

    fn repair(&mut self, repairs: RepairBatch) {
        let context = self.context.clone();
        self.repairing = true;
        self.tasks.spawn(async move {
            let repairer = Repairer::new(&context);
            Event::Repaired(tokio::select! {
                repaired = repairer.repair(repairs) => repaired,
                // Each of its writes is conditional: dropping one does no harm.
                () = context.stopping() => Ok(false),
            })
        });
    }

    fn quarantine(&mut self, candidate: Candidate) {
        let context = self.context.clone();
        self.tasks.spawn(async move {
            Event::Quarantined(Quarantine::new(&context).deliver(candidate).await)
        });
    }

    /// The partitions as of the last change that was handled. (The latest ones may be others for a
    /// moment, and these again afterwards: what was left out meanwhile would be missing.)
    fn partitions(&self) -> &[u8] {
        self.last_owned.as_ref().map(|(partitions, _)| partitions.as_slice()).unwrap_or_default()
    }

    fn may_scan(&self) -> bool {
        let owned = self.owned.borrow();
        owned.may_acquire && !owned.partitions.is_empty()
    }

    /// Skips all targets: the lanes that asked for more continue without.
    fn decline_targets(&mut self) {
        for target in self.targets.drain(..) {
            match target {
                ScanTarget::Refill(lane) => lane.add(Vec::new(), false),
                ScanTarget::Scan(key, _) => self.context.state.key_table.finish_scan(&key, None),
                ScanTarget::At(_) => {}
            }
        }
    }

    fn has_room(&self) -> bool {
        self.context.any_up()
            && self.acquiring < MAX_ACQUIRING
            && self.context.has_room()
            && self.context.state.in_flight.publishing_lanes() < self.context.settings.lanes()
    }

    fn next_wait(&self) -> Instant {
        // Without room, the next event is usually the end of a lane; the tick is the fallback.
        match self.schedule.next_scan() {
            Some(next) if self.live.needs_rotations() && self.may_scan() && self.has_room() => {
                next.min(self.next_tick)
            }
            _ => self.next_tick,
        }
    }

    fn on_event(&mut self, ended: Result<Event, JoinError>) -> Result<(), JoinError> {
        match ended? {
            Event::Rotated(Ok(result)) => self.on_rotated(result),
            Event::Rotated(Err(error)) => {
                self.schedule.failed();
                self.on_store_error(&error);
            }
            Event::Scanned(result) => {
                self.scanning = false;
                match result {
                    Ok(result) => self.on_result(result),
                    Err(error) => self.on_store_error(&error),
                }
            }
            Event::Acquired(leased) => {
                self.acquiring -= 1;
                self.on_acquired(leased);
            }
            Event::AcquiredLive(number, leased) => {
                self.live.acquired(number);
                self.on_acquired(leased);
            }
            Event::DeadRead(period, read) => self.on_dead_read(period, read),
            Event::Repaired(repaired) => {
                self.repairing = false;
                match repaired {
                    Ok(true) => {
                        self.context.state.key_table.unblock_repaired();
                        // Keys of records that are not corrected yet stay blocked.
                        let left = self.context.state.misplaced.keys().into_iter();
                        let left = left.map(|(key, partition)| (key, Blocker::unseen(partition)));
                        self.context.state.key_table.block_for_repair(left.collect());
                        self.schedule.scan_soon();
                    }
                    Ok(false) => {}
                    Err(error) => self.on_store_error(&error),
                }
            }
            Event::Quarantined(went) => match went {
                Ok(Some((lane, end))) => {
                    self.on_store_ok();
                    self.on_lane_end(&lane, &end);
                }
                // Its key is released, unless it is blocked until a certain time.
                Ok(None) => self.schedule.scan_soon(),
                Err(error) => self.on_store_error(&error),
            },
            Event::LaneEnded(lane, end) => self.on_lane_end(&lane, &end),
        }
        Ok(())
    }

    fn on_acquired(&mut self, leased: Result<Vec<Arc<Lane>>, StoreError>) {
        match leased {
            Ok(lanes) => {
                self.on_store_ok();
                lanes.into_iter().for_each(|lane| self.start_lane(lane));
            }
            Err(error) => self.on_store_error(&error),
        }
    }

    fn on_rotated(&mut self, mut result: ScanResult) {
        let found = result.has_records();
        // A page full of records that must wait does not count as work.
        let is_saturated = self.saturation.page(result.full && found, Instant::now());
        self.wakeup.set_saturated(is_saturated);
        let page =
            RotationPage { continues_at: result.next.take(), found, skipped: result.skipped };
        let is_all = result.is_all;
        self.on_result(result);
        self.on_page(is_all, page.continues_at.is_some());
        self.schedule.ended(page, self.wakeup.is_followed(), Instant::now());
    }

    fn on_result(&mut self, mut result: ScanResult) {
        if !result.wants_acquisition() && result.candidates.is_empty() && result.repairs.is_empty()
        {
            self.on_store_ok();
        }
        if result.short {
            self.schedule.scan_soon();
        }
        let repairs = std::mem::take(&mut result.repairs);
        // A scan during a repair drops its repairs; a later scan finds them again.
        if !self.repairing && !repairs.is_empty() {
            self.repair(repairs);
        }
        for candidate in std::mem::take(&mut result.candidates) {
            self.quarantine(candidate);
        }
        if !result.wants_acquisition() {
            return;
        }
        if self.live.is_live() {
            // Leased in order, so that later records of the stream follow.
            self.live.queue(result.acquisitions);
        } else {
            self.acquire_scanned(result);
        }
    }

    fn start_lane(&mut self, lane: Arc<Lane>) {
        let context = self.context.clone();
        self.tasks.spawn(async move {
            let end = lane_worker::run(lane.clone(), &context).await;
            Event::LaneEnded(lane, end)
        });
    }

    fn on_lane_end(&mut self, lane: &Arc<Lane>, end: &LaneEnd) {
        let is_complete = lane.close() && *end == LaneEnd::Drained;
        self.context.state.key_table.end_lane(lane, is_complete);
        // Rotations skipped its key meanwhile: it may have more pending records.
        self.schedule.scan_soon();
        if let LaneEnd::Waits(wait) = end {
            self.context.state.key_table.block(lane.key.clone(), KeyBlock::clone(wait));
            // Its destination may have confirmed meanwhile, which unblocked only the keys that
            // waited before. (A quarantined record waits for a connection, too.)
            if !lane.is_quarantined && self.takes_again(wait) {
                self.context.state.key_table.unblock(&lane.key);
            }
        }
        if lane.is_quarantined && !self.live.is_live() {
            // The records behind it can go now.
            if let (LaneKey::Keyed(key), LaneEnd::Drained) = (&lane.key, end) {
                let (partition, key) = (lane.partition, key.clone());
                self.targets.push_back(ScanTarget::At(ScanHint::Key { partition, key }));
            }
        }
    }

    /// Returns whether the destination that a key waits for takes records again.
    fn takes_again(&self, wait: &KeyBlock) -> bool {
        let (Some(sink), Some(destination)) = (&wait.sink, &wait.destination) else { return false };
        let handle = self.context.sinks.get(sink.as_ref());
        handle.is_some_and(|handle| handle.destinations.takes_records(destination))
    }

    /// Handles a change of the assigned partitions or of the instances that are alive.
    fn on_partitions_changed(&mut self) {
        let OwnedPartitions { partitions, may_acquire, alive } =
            self.owned.borrow_and_update().clone();
        let state = &self.context.state;
        if state.lease_owners.set_alive(alive) {
            // The owners of these leases may have ended.
            state.key_table.unblock_leased();
            self.schedule.scan_soon();
        }
        let owned = Some((partitions.clone(), may_acquire));
        if self.last_owned == owned {
            return;
        }
        self.last_owned = owned;
        self.leave_live(LeaveReason::OnPurpose);
        self.context.state.key_table.set_owned(&partitions);
        self.context.state.misplaced.keep_within(&partitions);
        self.scan_now();
    }

    /// Starts another rotation, after the scan that is under way.
    fn scan_now(&mut self) {
        self.schedule.scan_now(Instant::now());
    }

    /// Notes that MongoDB works: a lease succeeded, or a scan found nothing to lease. (A read
    /// alone does not show that the outage is over.)
    fn on_store_ok(&mut self) {
        if self.schedule.store_answers() {
            self.context.state.store_health.succeeded(StoreWork::Lease);
            self.is_refusal_reported = false;
            info!("MongoDB responds again; resumed leasing records");
        }
    }

    fn on_store_error(&mut self, error: &StoreError) {
        self.context.state.store_health.failed(StoreWork::Lease, Instant::now(), error);
        let is_first = self.schedule.store_failed(Instant::now());
        let is_refused = error.is_permanent();
        // An outage may turn out to require an operator.
        if !is_first && (!is_refused || self.is_refusal_reported) {
            return;
        }
        self.is_refusal_reported = is_refused;
        let (words, remedy) = (words(error), remedy(error));
        if is_refused {
            warn!(error = words, remedy, "MongoDB rejects the relay; paused leasing records");
        } else {
            warn!(error = words, "MongoDB does not respond; paused leasing records");
        }
    }
}
