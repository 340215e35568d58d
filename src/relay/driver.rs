//! The loop that keeps takes, lanes and waits going.

mod changes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::gauge;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

use crate::ids::RecordId;
use crate::outbox::record::LaneKey;
use crate::outbox::snapshot::Room;
use crate::partition::share::Share;
use crate::relay::alone::Candidate;
use crate::relay::before::CORRECTED;
use crate::relay::blocker::{Blocker, Wait};
use crate::relay::failing::{Work, remedy, words};
use crate::relay::lane::{Lane, LaneEnd};
use crate::relay::live::{Leaves, Live};
use crate::relay::look::{Look, Repairing, Seen, Target};
use crate::relay::rush::Rush;
use crate::relay::schedule::{Page, STORE_PAUSE, Schedule};
use crate::relay::shared::Shared;
use crate::relay::wake::{Hint, Wake};
use crate::relay::worker;
use crate::sink::Sink;
use crate::store::{Meaning, StoreError};
use crate::telemetry::metrics::PARTITIONS_LIVE;

/// Leases under way at once: the next page is read while this one is leased, no more than
/// the server's cores can use.
const LEASING: usize = 3;

/// Refills and other targeted looks that one take serves. For more keys than that a look at
/// everything is cheaper, which reads them all at once.
const TARGETS: usize = 16;

/// What a task of the driver came to.
enum Event {
    Rotated(Result<Seen, StoreError>),
    Looked(Result<Seen, StoreError>),
    Leased(Result<Vec<Arc<Lane>>, StoreError>),
    /// What the change stream brought is leased, by the lease of this number.
    Acquired(u64, Result<Vec<Arc<Lane>>, StoreError>),
    Repaired(Result<bool, StoreError>),
    /// One that went alone, if it came to that.
    Alone(Result<Option<(Arc<Lane>, LaneEnd)>, StoreError>),
    Ended(Arc<Lane>, LaneEnd),
}

pub(super) struct Driver<S> {
    shared: Arc<Shared<S>>,
    share: watch::Receiver<Share>,
    wake: Wake,
    refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    tasks: JoinSet<Event>,
    live: Live,
    schedule: Schedule,
    looking: bool,
    leasing: usize,
    repairing: bool,
    targets: VecDeque<Target>,
    rush: Rush,
    next_tick: Instant,
    /// Whether it was told that MongoDB refuses the takes.
    told_refusal: bool,
}

/// How often due waits are struck off the book.
const TICK: Duration = Duration::from_millis(20);

impl<S: Sink> Driver<S> {
    pub(super) fn new(
        shared: Arc<Shared<S>>,
        share: watch::Receiver<Share>,
        wake: Wake,
        refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    ) -> Self {
        gauge!(PARTITIONS_LIVE).set(0.0);
        let poll_interval = shared.settings.poll_interval;
        Self {
            shared,
            share,
            wake,
            refills,
            tasks: JoinSet::new(),
            live: Live::default(),
            schedule: Schedule::new(poll_interval, Instant::now()),
            looking: false,
            leasing: 0,
            repairing: false,
            targets: VecDeque::new(),
            rush: Rush::default(),
            next_tick: Instant::now(),
            told_refusal: false,
        }
    }

    /// Takes until the stop.
    ///
    /// # Errors
    ///
    /// A panic in one of its tasks.
    pub(super) async fn run(&mut self) -> Result<(), JoinError> {
        self.on_share();
        // Leases and due times are judged by it: nothing is taken before it is known.
        self.learn_time().await;
        while !self.shared.is_stopping() {
            self.start_what_can();
            let next = self.next_wait();
            tokio::select! {
                () = self.shared.stop.cancelled() => {}
                Some(ended) = self.tasks.join_next() => self.on_event(ended)?,
                Some(lane) = self.refills.recv() => self.targets.push_back(Target::Refill(lane)),
                () = self.wake.woken() => self.on_wake(),
                Ok(()) = self.share.changed() => self.on_share(),
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
        Ok(())
    }

    /// Lets every lane end: each publishes no more, and settles or releases what it holds.
    pub(super) async fn drain(&mut self) -> Result<(), JoinError> {
        let in_hand = self.shared.in_hand.records();
        info!(in_hand, "stopping: settling or releasing what is in flight");
        self.shared.hands.own(&[]);
        self.leave_live(Leaves::OnPurpose);
        self.turn_down_all();
        while !self.tasks.is_empty() {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => {
                    let event = ended?;
                    match event {
                        // Seen while the stop came: the lanes learn that nothing more comes.
                        Event::Rotated(Ok(seen)) | Event::Looked(Ok(seen)) => self.lease(seen),
                        // Leased while the stop came: the lanes give everything back.
                        Event::Leased(Ok(lanes)) | Event::Acquired(_, Ok(lanes)) => {
                            lanes.into_iter().for_each(|lane| self.start_lane(lane));
                        }
                        Event::Ended(lane, _) | Event::Alone(Ok(Some((lane, _)))) => {
                            self.shared.hands.free(&lane.key);
                        }
                        _ => {}
                    }
                }
                Some(lane) = self.refills.recv() => lane.add(Vec::new(), false),
            }
        }
        Ok(())
    }

    async fn learn_time(&mut self) {
        let mut pause = STORE_PAUSE.0;
        loop {
            let sample = self.shared.clock.sample(self.shared.collections.database());
            let sampled = tokio::select! {
                () = self.shared.stop.cancelled() => return,
                sampled = sample => sampled,
            };
            match sampled {
                Ok(()) => return,
                Err(error) => self.on_store_error(&error),
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(STORE_PAUSE.1);
        }
    }

    fn start_what_can(&mut self) {
        let now = Instant::now();
        if self.next_tick <= now {
            self.next_tick = now + TICK;
            self.shared.make_way();
            self.call_probes();
            self.correct();
            if self.shared.hands.free_due(now) {
                self.look_now();
            }
        }
        if !self.may_take() {
            self.leave_live(Leaves::OnPurpose);
            self.turn_down_all();
            return;
        }
        if self.schedule.waits_for_store(now) {
            return;
        }
        self.serve_live(now);
        if !self.looking && !self.targets.is_empty() {
            let count = self.targets.len().min(TARGETS);
            let targets: Vec<Target> = self.targets.drain(..count).collect();
            self.looking = true;
            self.spawn_look(Look::Targets(targets), Event::Looked);
        }
        if !self.live.is_live() && self.schedule.is_due(now) && self.has_room() {
            let is_pass = self.live.begins_pass(now);
            if is_pass {
                self.shared.hands.follow();
            }
            let position = self.schedule.begin(is_pass, now);
            self.spawn_look(Look::Rotation(position), Event::Rotated);
        }
    }

    /// Of each destination that is to be probed reads a key that waits for it.
    fn call_probes(&mut self) {
        let shared = self.shared.clone();
        for (sink, outlet) in &shared.outlets {
            for unused in outlet.circuits.expire() {
                shared.hands.free_destination(sink, &unused);
                self.look_now();
            }
            let due = outlet.circuits.due();
            if due.is_empty() {
                continue;
            }
            let is_suspected = |id: &RecordId| shared.losses.goes_alone(id);
            for (key, head) in shared.hands.free_for_probes(sink, &due, is_suspected) {
                self.targets.push_back(Target::At(Hint::of(head.partition, key, head.id)));
            }
        }
    }

    fn spawn_look(
        &mut self,
        look: Look,
        event: impl FnOnce(Result<Seen, StoreError>) -> Event + Send + 'static,
    ) {
        let shared = self.shared.clone();
        let owned = self.share.borrow().partitions.clone();
        let allowance = shared.in_hand.allow(shared.settings.batch_bytes);
        let room = Room { records: shared.settings.batch_size, bytes: allowance.bytes };
        self.tasks.spawn(async move {
            let seen = shared.look(look, &owned, room).await;
            // By now what goes on to be leased is counted as in flight.
            drop(allowance);
            event(seen)
        });
    }

    fn lease(&mut self, seen: Seen) {
        let shared = self.shared.clone();
        self.leasing += 1;
        self.tasks.spawn(async move { Event::Leased(shared.lease(seen).await) });
    }

    /// Corrects what the change stream has brought with an invalid partition.
    fn correct(&mut self) {
        if self.repairing || self.schedule.is_store_failing() {
            return;
        }
        let rests = |id: &RecordId| self.shared.refusals.rests_until(id).is_some();
        let next = self.shared.misplaced.next(CORRECTED, rests);
        if !next.is_empty() {
            self.repair(Repairing::of(next));
        }
    }

    fn repair(&mut self, repairs: Repairing) {
        let shared = self.shared.clone();
        self.repairing = true;
        self.tasks.spawn(async move {
            Event::Repaired(tokio::select! {
                repaired = shared.repair(repairs) => repaired,
                // Each of its writes is conditional: one that is dropped does no harm.
                () = shared.stopping() => Ok(false),
            })
        });
    }

    fn send_alone(&mut self, candidate: Candidate) {
        let shared = self.shared.clone();
        self.tasks.spawn(async move { Event::Alone(shared.go_alone(candidate).await) });
    }

    fn may_take(&self) -> bool {
        let share = self.share.borrow();
        share.takes && !share.partitions.is_empty()
    }

    /// Nothing is read: the lanes that ask for more go on without.
    fn turn_down_all(&mut self) {
        for target in self.targets.drain(..) {
            match target {
                Target::Refill(lane) => lane.add(Vec::new(), false),
                Target::Scan(key, _) => self.shared.hands.scanned(&key, None),
                Target::At(_) => {}
            }
        }
    }

    fn has_room(&self) -> bool {
        self.shared.any_open()
            && self.leasing < LEASING
            && self.shared.has_room()
            && self.shared.in_hand.publishing_lanes() < self.shared.settings.lanes()
    }

    fn next_wait(&self) -> Instant {
        // Without room an event (a lane that ends) comes first; the tick is the net.
        match self.schedule.next_look() {
            Some(next) if !self.live.is_live() && self.may_take() && self.has_room() => {
                next.min(self.next_tick)
            }
            _ => self.next_tick,
        }
    }

    fn on_event(&mut self, ended: Result<Event, JoinError>) -> Result<(), JoinError> {
        match ended? {
            Event::Rotated(Ok(seen)) => self.on_rotated(seen),
            Event::Rotated(Err(error)) => {
                self.schedule.failed();
                self.on_store_error(&error);
            }
            Event::Looked(seen) => {
                self.looking = false;
                match seen {
                    Ok(seen) => self.on_seen(seen),
                    Err(error) => self.on_store_error(&error),
                }
            }
            Event::Leased(leased) => {
                self.leasing -= 1;
                self.on_leased(leased);
            }
            Event::Acquired(number, leased) => {
                self.live.acquired(number);
                self.on_leased(leased);
            }
            Event::Repaired(repaired) => {
                self.repairing = false;
                match repaired {
                    Ok(true) => {
                        self.shared.hands.free_repaired();
                        // Those that are not corrected yet wait on.
                        let left = self.shared.misplaced.keys().into_iter();
                        let left = left.map(|(key, partition)| (key, Blocker::unseen(partition)));
                        self.shared.hands.hold_for_repair(left.collect());
                        self.schedule.look_soon();
                    }
                    Ok(false) => {}
                    Err(error) => self.on_store_error(&error),
                }
            }
            Event::Alone(went) => match went {
                Ok(Some((lane, end))) => {
                    self.on_store_well();
                    self.on_lane_end(&lane, &end);
                }
                // Its key is free again, unless it waits for a time.
                Ok(None) => self.schedule.look_soon(),
                Err(error) => self.on_store_error(&error),
            },
            Event::Ended(lane, end) => self.on_lane_end(&lane, &end),
        }
        Ok(())
    }

    fn on_leased(&mut self, leased: Result<Vec<Arc<Lane>>, StoreError>) {
        match leased {
            Ok(lanes) => {
                self.on_store_well();
                lanes.into_iter().for_each(|lane| self.start_lane(lane));
            }
            Err(error) => self.on_store_error(&error),
        }
    }

    fn on_rotated(&mut self, mut seen: Seen) {
        let found = seen.is_something();
        // A page that is full of what can't go is no work.
        let rush = self.rush.page(seen.full && found, Instant::now());
        self.wake.set_crowded(rush);
        let page = Page { goes_on: seen.next.take(), found, passed_over: seen.passed_over };
        let is_all = seen.is_all;
        self.on_seen(seen);
        self.after_look(is_all, page.goes_on.is_some());
        self.schedule.ended(page, self.wake.is_followed(), Instant::now());
    }

    fn on_seen(&mut self, mut seen: Seen) {
        if !seen.wants_lease() && seen.candidates.is_empty() && seen.repairs.is_empty() {
            self.on_store_well();
        }
        if seen.short {
            self.schedule.look_soon();
        }
        let repairs = std::mem::take(&mut seen.repairs);
        // Those of a look during a repair are met again after it.
        if !self.repairing && !repairs.is_empty() {
            self.repair(repairs);
        }
        for candidate in std::mem::take(&mut seen.candidates) {
            self.send_alone(candidate);
        }
        if seen.wants_lease() {
            match self.live.is_live() {
                // One after the other, so that what the stream brings next comes behind it.
                true => self.live.queue(seen.claims),
                false => self.lease(seen),
            }
        }
    }

    fn start_lane(&mut self, lane: Arc<Lane>) {
        let shared = self.shared.clone();
        self.tasks.spawn(async move {
            let end = worker::run(lane.clone(), &shared).await;
            Event::Ended(lane, end)
        });
    }

    fn on_lane_end(&mut self, lane: &Arc<Lane>, end: &LaneEnd) {
        let is_complete = lane.close() && *end == LaneEnd::Drained;
        self.shared.hands.end(lane, is_complete);
        // Rotations have passed over its key meanwhile: it may have got more.
        self.schedule.look_soon();
        if let LaneEnd::Waits(wait) = end {
            self.shared.hands.hold(lane.key.clone(), Wait::clone(wait));
            // It may have confirmed meanwhile, and freed what waited before. (What goes alone waits
            // for a connection, too.)
            if !lane.alone && self.takes_again(wait) {
                self.shared.hands.free_waiting(&lane.key);
            }
        }
        if lane.alone && !self.live.is_live() {
            // What waited behind it can go now.
            if let (LaneKey::Keyed(key), LaneEnd::Drained) = (&lane.key, end) {
                let (partition, key) = (lane.partition, key.clone());
                self.targets.push_back(Target::At(Hint::Key { partition, key }));
            }
        }
    }

    /// Whether the destination that is waited for takes records again.
    fn takes_again(&self, wait: &Wait) -> bool {
        let (Some(sink), Some(destination)) = (&wait.sink, &wait.destination) else { return false };
        let outlet = self.shared.outlets.get(sink.as_ref());
        outlet.is_some_and(|outlet| outlet.circuits.takes(destination))
    }

    /// Partitions came or went, or may be taken of (no more).
    fn on_share(&mut self) {
        self.leave_live(Leaves::OnPurpose);
        let partitions = self.share.borrow_and_update().partitions.clone();
        self.shared.hands.own(&partitions);
        self.shared.misplaced.keep_within(&partitions);
        self.look_now();
    }

    /// Another rotation, after the look that is under way if one is.
    fn look_now(&mut self) {
        self.schedule.look_now(Instant::now());
    }

    /// A take succeeded, or found nothing to lease. (What can be read and not leased is no end of
    /// the trouble.)
    fn on_store_well(&mut self) {
        if self.schedule.store_answers() {
            self.shared.failing.succeeded(Work::Take);
            self.told_refusal = false;
            info!("MongoDB answers again: taking goes on");
        }
    }

    fn on_store_error(&mut self, error: &StoreError) {
        self.shared.failing.failed(Work::Take, Instant::now(), error);
        let is_first = self.schedule.store_failed(Instant::now());
        let is_refused = error.meaning() == Meaning::Permanent;
        // What has begun as an outage may turn out to need a person.
        if !is_first && (!is_refused || self.told_refusal) {
            return;
        }
        self.told_refusal = is_refused;
        let (words, remedy) = (words(error), remedy(error));
        match error.meaning() {
            Meaning::Permanent => {
                warn!(error = words, remedy, "MongoDB refuses the relay: taking is paused");
            }
            Meaning::Transient => {
                warn!(error = words, "MongoDB does not answer: taking is paused");
            }
        }
    }
}
