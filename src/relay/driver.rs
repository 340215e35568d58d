//! The loop that keeps takes, lanes and waits going.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use metrics::gauge;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ids::{InstanceId, RecordId, SinkName};
use crate::outbox::collections::Collections;
use crate::outbox::lease::Leaser;
use crate::outbox::position::Position;
use crate::outbox::record::LaneKey;
use crate::outbox::repair::Repairs;
use crate::outbox::settle::Settlements;
use crate::outbox::snapshot::Room;
use crate::partition::share::Share;
use crate::relay::alone::{Candidate, ProbeRoom, Turns};
use crate::relay::circuits::Circuits;
use crate::relay::dead_letter::{Buried, Dying};
use crate::relay::failing::{Failing, RefusedOutcomes, Work, remedy, words};
use crate::relay::gate::Gate;
use crate::relay::hands::{Hands, Wait};
use crate::relay::lane::{Lane, LaneEnd};
use crate::relay::live::{Hints, Leaves, Live};
use crate::relay::look::{Look, Repairing, Seen, Target};
use crate::relay::losses::Losses;
use crate::relay::metrics::{RelayMetrics, SinkMetrics};
use crate::relay::quarantine::Quarantine;
use crate::relay::refusals::Refusals;
use crate::relay::renewal::Leases;
use crate::relay::rush::Rush;
use crate::relay::settings::Settings;
use crate::relay::shared::{Load, Outlet, Shared};
use crate::relay::wake::{Hint, Reasons, Wake};
use crate::relay::{audit, dead_letter, housekeeping, recheck, settler};
use crate::routing::Router;
use crate::sink::Sink;
use crate::store::{Meaning, ServerClock, StoreError};
use crate::telemetry::metrics::PARTITIONS_LIVE;

/// The shortest pause between two looks that are not full. Doubled while nothing is found,
/// up to `poll_interval`: a busy outbox is looked at often, an idle one rarely.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// Passing over so many keys is what makes a look long (4 to 5 µs of the server's each): a sink
/// that is down is not to cost the others more than a quarter of a core.
const MANY_HELD: usize = 1_000;

/// Pauses while MongoDB does not answer, from and to.
const STORE_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Leases under way at once: the next page is read while this one is leased, no more than
/// the server's cores can use.
const LEASING: usize = 3;

/// Refills and other targeted looks that one take serves. For more keys than that a look at
/// everything is cheaper, which reads them all at once.
pub(super) const TARGETS: usize = 16;

/// What the sinks' goodbyes may take, and the release of what they interrupt, beyond
/// `relay.shutdown_timeout`.
const FAREWELL: Duration = Duration::from_secs(2);

/// Records that are named at a stop that took too long: enough to find the rest by.
const NAMED: usize = 10;

/// What a relay is made of.
#[derive(Debug)]
pub struct RelayParts<S> {
    /// What the operator decided.
    pub settings: Settings,
    /// Where the outbox lives.
    pub collections: Collections,
    /// This process.
    pub instance: InstanceId,
    /// Which sink and where.
    pub router: Router,
    /// The sinks by name.
    pub sinks: BTreeMap<String, S>,
    /// What this instance may deliver, as it changes.
    pub share: watch::Receiver<Share>,
    /// Reasons to look.
    pub wake: Wake,
    /// Whether a done record is deleted at once (retention `"0s"`).
    pub delete_done: bool,
}

/// Why a relay ended uninvited.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// One of its parts panicked: a bug.
    #[error("a part of the relay ended by a panic")]
    Panicked(#[source] JoinError),
    /// The time for a stop was up before everything in flight was settled or released.
    #[error(
        "the relay was not done within relay.shutdown_timeout: {in_hand} records wait out their \
         lease, such as {some}"
    )]
    NotDone {
        /// Records that were still leased.
        in_hand: usize,
        /// The ids of some.
        some: String,
    },
}

/// The relay of one instance.
pub struct Relay<S> {
    shared: Arc<Shared<S>>,
    share: watch::Receiver<Share>,
    wake: Wake,
    refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    buried: mpsc::Receiver<Buried>,
    settler: tokio::task::JoinHandle<()>,
}

/// What a task of the driver came to.
pub(super) enum Event {
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

impl<S: Sink> Relay<S> {
    /// Puts the parts together; nothing is read before [`run`](Self::run).
    ///
    /// Must be called within a tokio runtime. `stop` ends taking and publishing.
    pub fn new(parts: RelayParts<S>, stop: CancellationToken) -> Self {
        let RelayParts { settings, collections, instance, router, sinks, share, wake, delete_done } =
            parts;
        let metrics = RelayMetrics::new(sinks.keys().map(String::as_str));
        let outlets = sinks
            .into_iter()
            .map(|(name, sink)| {
                let outlet = Outlet {
                    gate: Gate::new(SinkName::from(name.as_str())),
                    circuits: Circuits::new(SinkName::from(name.as_str()), settings.probe_max),
                    quarantine: Quarantine::new(SinkName::from(name.as_str()), &sink),
                    turns: Turns::default(),
                    metrics: SinkMetrics::new(&name),
                    sink,
                };
                (name, outlet)
            })
            .collect();
        // Room for a few batches: beyond it lanes wait, and nothing more is taken.
        let (items, settled) = mpsc::channel(settings.batch_size * 4);
        let (ask, refills) = mpsc::unbounded_channel();
        let (bury, buried) = mpsc::channel(dead_letter::WAITING);
        let settlements = Settlements::new(collections.clone(), delete_done);
        let failing = Arc::new(Failing::default());
        let shared = Arc::new(Shared {
            leaser: Leaser::new(collections.clone(), instance, settings.lease),
            repairs: Repairs::new(collections.clone()),
            clock: Arc::new(ServerClock::default()),
            hands: Hands::default(),
            losses: Losses::default(),
            dying: Dying::default(),
            refusals: Refusals::default(),
            outcomes: RefusedOutcomes::default(),
            leases: Leases::new(failing.clone()),
            failing,
            turns: Turns::default(),
            probe_room: ProbeRoom::new(settings.batch_bytes),
            in_hand: Arc::<Load>::default(),
            publishing: AtomicUsize::new(0),
            settler: items,
            buried: bury,
            refills: ask,
            settings,
            collections,
            router,
            outlets,
            metrics,
            stop,
        });
        let settler = tokio::spawn(settler::run(shared.clone(), settlements, settled));
        shared.hands.own(&share.borrow().partitions);
        Self { shared, share, wake, refills, buried, settler }
    }

    /// What the parts around the relay may look at: gates, hands, figures.
    pub fn shared(&self) -> Arc<Shared<S>> {
        self.shared.clone()
    }

    /// Relays until the stop, then settles or releases what is in flight.
    ///
    /// # Errors
    ///
    /// [`RelayError`]: a panic in a part, or a stop that took longer than `shutdown_timeout`.
    pub async fn run(mut self) -> Result<(), RelayError> {
        let shared = self.shared.clone();
        let mut parts = JoinSet::new();
        for name in shared.outlets.keys() {
            let (shared, name, wake) = (shared.clone(), name.clone(), self.wake.clone());
            parts.spawn(async move { keep_gate(&shared, &name, &wake).await });
        }
        parts.spawn(dead_letter::run(shared.clone(), self.buried));
        parts.spawn(housekeeping::run(shared.clone(), self.wake.clone()));
        parts.spawn(recheck::run(shared.clone(), self.wake.clone()));
        parts.spawn(audit::run(shared.clone(), self.wake.clone()));
        let renewing = shared.clone();
        parts.spawn(async move { renewing.leases.keep(&renewing.leaser).await });

        let mut driver = Driver::new(shared.clone(), self.share, self.wake, self.refills);
        let ended = tokio::select! {
            ended = driver.run() => ended,
            Some(Err(panicked)) = parts.join_next() => return Err(RelayError::Panicked(panicked)),
            // It ends with the last sender, of which `shared` holds one.
            Err(panicked) = &mut self.settler => return Err(RelayError::Panicked(panicked)),
        };
        ended?;
        let mut draining = std::pin::pin!(driver.drain());
        let limit = shared.settings.shutdown_timeout;
        let mut drained = tokio::time::timeout(limit, &mut draining).await;
        // Nothing rests on it: a broker that does not answer sees the connection end.
        let goodbyes = shared
            .outlets
            .values()
            .map(|outlet| async { tokio::join!(outlet.sink.close(), outlet.quarantine.close()) });
        let goodbyes = tokio::time::timeout(FAREWELL, join_all(goodbyes));
        if drained.is_err() {
            // A publish that hung ends with its connection; then its records can be released.
            (_, drained) = tokio::join!(goodbyes, tokio::time::timeout(FAREWELL, draining));
        } else {
            let _ = goodbyes.await;
        }
        self.settler.abort();
        drained.unwrap_or_else(|_| {
            let in_hand = shared.in_hand.records();
            if in_hand == 0 {
                // What MongoDB has not answered holds nothing.
                return Ok(());
            }
            let some = shared.hands.some_in_hand(NAMED);
            let names: Vec<String> = some.iter().map(ToString::to_string).collect();
            Err(RelayError::NotDone { in_hand, some: names.join(", ") })
        })
    }
}

async fn keep_gate<S: Sink>(shared: &Shared<S>, name: &str, wake: &Wake) {
    let Some(outlet) = shared.outlets.get(name) else { return };
    let opened = || {
        outlet.metrics.up(true);
        shared.hands.free_paused();
        wake.all();
    };
    let shut = || outlet.metrics.up(false);
    let probe_max = shared.settings.probe_max;
    outlet.gate.keep(&outlet.sink, probe_max, &shared.stop, opened, shut).await;
    // Kept as a part until the process ends.
    std::future::pending::<()>().await;
}

pub(super) struct Driver<S> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) share: watch::Receiver<Share>,
    wake: Wake,
    refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    pub(super) tasks: JoinSet<Event>,
    pub(super) live: Live,
    position: Position,
    rotating: bool,
    /// Whether another look was asked for since the latest one began.
    asked: bool,
    pub(super) looking: bool,
    leasing: usize,
    repairing: bool,
    pub(super) targets: VecDeque<Target>,
    rush: Rush,
    pause: Duration,
    pub(super) store_pause: Option<Duration>,
    pub(super) next_rotation: Instant,
    rotation_began: Instant,
    /// No look for which nothing waits begins before.
    rests_until: Instant,
    next_tick: Instant,
}

/// How often due waits are struck off the book.
const TICK: Duration = Duration::from_millis(20);

impl<S: Sink> Driver<S> {
    fn new(
        shared: Arc<Shared<S>>,
        share: watch::Receiver<Share>,
        wake: Wake,
        refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    ) -> Self {
        gauge!(PARTITIONS_LIVE).set(0.0);
        Self {
            shared,
            share,
            wake,
            refills,
            tasks: JoinSet::new(),
            live: Live::default(),
            position: Position::start(),
            rotating: false,
            asked: false,
            looking: false,
            leasing: 0,
            repairing: false,
            targets: VecDeque::new(),
            rush: Rush::default(),
            pause: SHORTEST_PAUSE,
            store_pause: None,
            next_rotation: Instant::now(),
            rotation_began: Instant::now(),
            rests_until: Instant::now(),
            next_tick: Instant::now(),
        }
    }

    async fn run(&mut self) -> Result<(), RelayError> {
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
    async fn drain(&mut self) -> Result<(), RelayError> {
        let in_hand = self.shared.in_hand.records();
        info!(in_hand, "stopping: settling or releasing what is in flight");
        self.shared.hands.own(&[]);
        self.leave_live(Leaves::OnPurpose);
        self.turn_down_all();
        while !self.tasks.is_empty() {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => {
                    let event = ended.map_err(RelayError::Panicked)?;
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
            if self.shared.hands.free_due(now) {
                self.look_now();
            }
        }
        if !self.may_take() {
            self.leave_live(Leaves::OnPurpose);
            self.turn_down_all();
            return;
        }
        if self.store_pause.is_some() && self.next_rotation > now {
            return;
        }
        self.serve_live(now);
        if !self.looking && !self.targets.is_empty() {
            let count = self.targets.len().min(TARGETS);
            let targets: Vec<Target> = self.targets.drain(..count).collect();
            self.looking = true;
            self.spawn_look(Look::Targets(targets), Event::Looked);
        }
        if !self.rotating && !self.live.is_live() && self.next_rotation <= now && self.has_room() {
            if self.live.begins_pass(now) {
                self.shared.hands.follow();
                self.position = Position::start();
            }
            self.rotating = true;
            self.asked = false;
            self.rotation_began = now;
            self.spawn_look(Look::Rotation(self.position.clone()), Event::Rotated);
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
            && self.shared.publishing.load(Ordering::Relaxed) < self.shared.settings.lanes()
    }

    fn next_wait(&self) -> Instant {
        // Without room an event (a lane that ends) comes first; the tick is the net.
        match self.rotating || self.live.is_live() || !self.may_take() || !self.has_room() {
            true => self.next_tick,
            false => self.next_rotation.min(self.next_tick),
        }
    }

    fn on_event(&mut self, ended: Result<Event, JoinError>) -> Result<(), RelayError> {
        match ended.map_err(RelayError::Panicked)? {
            Event::Rotated(seen) => {
                self.rotating = false;
                match seen {
                    Ok(seen) => self.on_rotated(seen),
                    Err(error) => self.on_store_error(&error),
                }
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
                        self.look_soon();
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
                Ok(None) => self.look_soon(),
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
        let more = seen.next.is_some();
        let whole_round = self.position.is_start();
        let found = seen.is_something();
        let passed_over = seen.passed_over;
        // A page that is full of what can't go is no work.
        let rush = self.rush.page(seen.full && found, Instant::now());
        self.wake.set_crowded(rush);
        self.position = seen.next.take().unwrap_or_default();
        let is_all = seen.is_all;
        self.on_seen(seen);
        self.after_look(is_all, more);
        let now = Instant::now();
        if more || !whole_round {
            self.next_rotation = now;
        } else {
            // As long as the look itself took: a server that finds looking hard, since it must
            // pass over what was delivered of late, is not kept busy by it.
            let took = self.rotation_began.elapsed();
            let rest = match passed_over {
                MANY_HELD.. => took * 3,
                _ => took,
            };
            let rest = rest.max(SHORTEST_PAUSE);
            self.rests_until = now + rest;
            self.pause = match found || self.asked {
                true => rest,
                // Whatever comes will wake us; the timer is the net.
                false if self.wake.is_followed() => self.shared.settings.poll_interval,
                false => (self.pause * 2).min(self.shared.settings.poll_interval),
            };
            self.next_rotation = now + self.pause;
        }
    }

    pub(super) fn on_seen(&mut self, mut seen: Seen) {
        if !seen.wants_lease() && seen.candidates.is_empty() && seen.repairs.is_empty() {
            self.on_store_well();
        }
        if seen.short {
            self.look_soon();
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
            let end = lane.clone().run(&shared).await;
            Event::Ended(lane, end)
        });
    }

    fn on_lane_end(&mut self, lane: &Arc<Lane>, end: &LaneEnd) {
        let is_complete = lane.close() && *end == LaneEnd::Drained;
        self.shared.hands.end(lane, is_complete);
        // Rotations have passed over its key meanwhile: it may have got more.
        self.look_soon();
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

    /// As soon as looking has rested; not before MongoDB is tried again.
    fn look_soon(&mut self) {
        if self.store_pause.is_some() {
            return;
        }
        self.asked = true;
        self.pause = SHORTEST_PAUSE;
        self.next_rotation = self.next_rotation.min(self.rests_until);
    }

    fn on_wake(&mut self) {
        let Reasons { mut all, mut hints } = self.wake.take();
        for change in self.wake.take_changes() {
            match self.on_change(change) {
                Hints::None => {}
                Hints::At(hint) => hints.push(hint),
                Hints::Somewhere => all = true,
            }
        }
        if self.live.is_live() {
            // It knows what there is.
            return;
        }
        let targets: Vec<Target> = {
            let share = self.share.borrow();
            let is_ours = |hint: &Hint| share.partitions.contains(&hint.partition());
            let ours = hints.into_iter().filter(is_ours);
            ours.map(Target::At).filter(|target| !self.is_in_hand(target)).collect()
        };
        if self.targets.len() + targets.len() <= TARGETS && self.has_room() {
            self.targets.extend(targets);
        } else if !targets.is_empty() {
            // What there is no room for is found when there is.
            all = true;
        }
        if all {
            self.look_now();
        }
    }

    /// Whether its key is in hand: the look that follows the end of its lane shows the rest.
    fn is_in_hand(&self, target: &Target) -> bool {
        match target {
            Target::At(Hint::Key { key, .. }) => {
                self.shared.hands.busy(&LaneKey::Keyed(key.clone())).is_some()
            }
            Target::At(Hint::Record { .. }) | Target::Refill(_) | Target::Scan(..) => false,
        }
    }

    /// Partitions came or went, or may be taken of (no more).
    fn on_share(&mut self) {
        self.leave_live(Leaves::OnPurpose);
        self.shared.hands.own(&self.share.borrow_and_update().partitions);
        self.look_now();
    }

    /// A look at everything, after the one that is under way if one is.
    pub(super) fn look_now(&mut self) {
        self.asked = true;
        self.pause = SHORTEST_PAUSE;
        self.next_rotation = Instant::now();
    }

    /// A take succeeded, or found nothing to lease. (What can be read and not leased is no end of
    /// the trouble.)
    fn on_store_well(&mut self) {
        if self.store_pause.take().is_some() {
            self.shared.failing.succeeded(Work::Take);
            info!("MongoDB answers again: taking goes on");
        }
    }

    fn on_store_error(&mut self, error: &StoreError) {
        self.shared.failing.failed(Work::Take, Instant::now(), error);
        let pause = match self.store_pause {
            None => {
                let remedy = remedy(error);
                let words = words(error);
                match error.meaning() {
                    Meaning::Permanent => {
                        warn!(error = words, remedy, "MongoDB refuses the relay: taking is paused");
                    }
                    Meaning::Transient => {
                        warn!(error = words, "MongoDB does not answer: taking is paused");
                    }
                }
                STORE_PAUSE.0
            }
            Some(pause) => (pause * 2).min(STORE_PAUSE.1),
        };
        self.store_pause = Some(pause);
        self.next_rotation = Instant::now() + pause;
    }
}
