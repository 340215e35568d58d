//! Claims and releases the partitions of this instance, without a leader: each instance reads the
//! assignments, plans, and writes conditionally.
//!
//! ```text
//!  unowned, planned for this instance ───────────────────────────────────► claim
//!  another instance's, planned for this one ──► request ── not released ──► claim
//!  owned, planned for an instance that requests it ──► drain ─────────────► release
//!  owned, at a stop ─────────────────────────────────► drain ─────────────► release
//! ```
//!
//! An assignment with an unreadable owner is claimed after `stale_after`, like a partition that its
//! owner does not release in time. The former owner reads the assignments before that, and stops.
//!
//! Two instances that deliver one partition for a moment cause duplicates at worst: the prefix rule
//! and the leases protect the order (see [`relay`](crate)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_outbox::ids::InstanceId;
use postrider_store::StoreError;
use postrider_store::boot_instant::BootInstant;
use postrider_store::text::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::partition::config::PartitionsConfig;
use crate::partition::fleet::{Fleet, FleetView, Unreadable};
use crate::partition::heartbeat::{Heartbeat, Pulse};
use crate::partition::metrics::FleetMetrics;
use crate::partition::names;
use crate::partition::owned::AssignedPartitions;
use crate::partition::plan::Move;

/// How often an instance reads the assignments: a released partition waits no longer than this.
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// How often an instance reads the assignments during a handover.
const HANDOVER_READ_INTERVAL: Duration = Duration::from_millis(100);

/// How often an instance that stops reads the assignments: the process waits for it.
const STOP_READ_INTERVAL: Duration = Duration::from_millis(50);

/// How long a stop waits for a claim that was sent, while heartbeats are acknowledged.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);

/// The time limit of releasing the last partitions: at least this; and, while heartbeats are
/// acknowledged, this since the stop. Peers claim what is not released.
const RELEASE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The state of the coordinator, for `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorStatus {
    /// How many partitions this instance owns; `None` before the first read.
    pub owned: Option<usize>,
    /// The configuration of the other instances, if ours differs.
    pub differs: Option<String>,
    /// Whether the fleet is paused.
    pub paused: bool,
    /// Why the assignments cannot be read or changed, with the remedy for a permanent cause.
    pub trouble: Option<String>,
    /// The first document with unreadable fields, and how many there are.
    pub unreadable: Option<(Unreadable, usize)>,
}

/// The coordinator of one instance. `in_flight` returns the partitions in which the relay has records in
/// flight, or may still acquire some.
pub struct Coordinator<F> {
    fleet: Fleet,
    instance: InstanceId,
    settings: PartitionsConfig,
    heartbeat: Arc<Heartbeat>,
    metrics: FleetMetrics,
    assigned: watch::Sender<AssignedPartitions>,
    status: watch::Sender<CoordinatorStatus>,
    in_flight: F,
    /// Partitions to release as soon as none of their records is in flight.
    leaving: BTreeSet<u8>,
    next_plan: Instant,
    stalls: StallTimer,
    /// Whether the latest round claimed a partition.
    claimed: bool,
    /// Since when rounds have failed while heartbeats were acknowledged.
    failing: Option<Instant>,
    /// Whether that was logged.
    is_failure_logged: bool,
    /// What the latest round could not read.
    unreadable: Vec<Unreadable>,
}

impl<F: Fn() -> [bool; 256]> Coordinator<F> {
    /// Creates a coordinator.
    pub fn new(
        fleet: Fleet,
        instance: InstanceId,
        settings: PartitionsConfig,
        heartbeat: Arc<Heartbeat>,
        assigned: watch::Sender<AssignedPartitions>,
        in_flight: F,
    ) -> Self {
        let (status, _) = watch::channel(CoordinatorStatus::default());
        Self {
            fleet,
            instance,
            settings,
            heartbeat,
            metrics: FleetMetrics::default(),
            assigned,
            status,
            in_flight,
            leaving: BTreeSet::new(),
            next_plan: Instant::now(),
            stalls: StallTimer::default(),
            claimed: false,
            failing: None,
            is_failure_logged: false,
            unreadable: Vec::new(),
        }
    }

    /// Watches the state of the coordinator.
    pub fn status(&self) -> watch::Receiver<CoordinatorStatus> {
        self.status.subscribe()
    }

    /// Runs rounds until `stop`. Then releases the partitions without records in flight, and the rest
    /// once `drained` signals that the relay has ended.
    pub async fn run(mut self, stop: CancellationToken, drained: CancellationToken) {
        let mut pulse = self.heartbeat.pulse();
        while !stop.is_cancelled() {
            let alive = *pulse.borrow_and_update() == Pulse::Alive;
            // A stop does not interrupt a claim: MongoDB might apply it after the release of all
            // partitions, for an instance that is gone.
            let heartbeat = self.heartbeat.clone();
            let too_late = async {
                stop.cancelled().await;
                if heartbeat.is_alive() {
                    tokio::time::sleep(CLAIM_TIMEOUT).await;
                }
            };
            let pause = tokio::select! {
                pause = self.run_round(alive, &stop) => pause,
                () = too_late => break,
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause.min(self.settings.rebalance)) => {}
                // After the first heartbeat the first round must not wait.
                Ok(()) = pulse.changed(), if !alive => {}
            }
        }
        self.release_all(&drained).await;
    }

    /// Runs one round. Returns the pause until the next one.
    async fn run_round(&mut self, alive: bool, stop: &CancellationToken) -> Duration {
        if !alive {
            self.failing = None;
            self.metrics.forget();
            return READ_INTERVAL;
        }
        match self.read_and_assign(stop).await {
            Ok(pause) => {
                self.failing = None;
                if std::mem::take(&mut self.is_failure_logged) {
                    info!("reading instances and acquiring partitions again");
                }
                self.metrics.refused(false);
                self.publish_trouble(None);
                pause
            }
            Err(error) => {
                self.note_failure(&error);
                READ_INTERVAL
            }
        }
    }

    fn note_failure(&mut self, error: &StoreError) {
        let since = *self.failing.get_or_insert_with(Instant::now);
        let is_refused = error.is_permanent();
        // The heartbeat usually fails too, and reports the cause.
        let is_lasting = is_refused || since.elapsed() >= self.settings.stale_after;
        if !is_lasting {
            debug!(error = chain(error), "failed to read the instances");
        } else if !std::mem::replace(&mut self.is_failure_logged, true) {
            if is_refused {
                warn!(
                    error = error.brief(),
                    remedy = error.remedy(),
                    "MongoDB rejects this instance; it can neither acquire nor release partitions"
                );
            } else {
                warn!(error = chain(error), "failed to acquire or release partitions");
            }
        }
        self.metrics.refused(is_refused);
        self.publish_trouble(Some(if is_refused {
            error.refusal()
        } else {
            format!("failed to acquire or release partitions: {}", error.brief())
        }));
        self.metrics.forget();
    }

    /// Publishes the current failure, if any.
    fn publish_trouble(&self, trouble: Option<String>) {
        self.status.send_if_modified(|status| {
            let is_news = status.trouble != trouble;
            status.trouble = trouble;
            is_news
        });
    }

    /// Logs the unreadable documents, each once while it stays unreadable.
    fn note_unreadable(&mut self, view: &FleetView) {
        let before = std::mem::replace(&mut self.unreadable, view.unreadable.clone());
        for document in self.unreadable.iter().filter(|document| !before.contains(document)) {
            let Unreadable { collection, id, fields, remedy } = document;
            let fields = fields.join(", ");
            warn!(
                collection,
                id, fields, remedy, "found an invalid document of instances or partitions"
            );
        }
        if !before.is_empty() && self.unreadable.is_empty() {
            info!("every document of instances and partitions is valid again");
        }
    }

    async fn read_and_assign(&mut self, stop: &CancellationToken) -> Result<Duration, StoreError> {
        let asked = BootInstant::now();
        let view = self.fleet.view().await?;
        self.note_unreadable(&view);
        if !self.holds_name(&view) {
            return Ok(STOP_READ_INTERVAL);
        }
        match self.settings.fixed.clone() {
            Some(fixed) => {
                let differs = self.fingerprint_difference(&view);
                let owned =
                    if differs.is_some() { Vec::new() } else { fixed.partitions().to_vec() };
                self.publish_assigned(owned, &view, asked, differs);
                Ok(READ_INTERVAL)
            }
            None => self.rebalance_partitions(view, asked, stop).await,
        }
    }

    /// Returns whether this instance holds its name and no new instance asks for it. A process that was
    /// replaced while it was suspended must not act on what it reads.
    fn holds_name(&self, view: &FleetView) -> bool {
        let Some(name) = self.heartbeat.name() else { return true };
        let entry = view.names.get(name);
        entry.is_some_and(|entry| entry.holder == self.instance && entry.question.is_none())
    }

    /// Runs the round of an instance with assigned partitions: adopts, claims, requests and releases.
    async fn rebalance_partitions(
        &mut self,
        view: FleetView,
        asked: BootInstant,
        stop: &CancellationToken,
    ) -> Result<Duration, StoreError> {
        if stop.is_cancelled() {
            // The stop came during the read: claim nothing more.
            return Ok(READ_INTERVAL);
        }
        let me = self.instance;
        let now = Instant::now();
        self.metrics.seen(view.members.len(), view.unassigned());
        let differs = self.fingerprint_difference(&view);
        let moves = view.moves();
        let plans = self.next_plan <= now;
        if plans {
            self.next_plan = now + self.settings.rebalance;
            if view.some_stale {
                self.fleet.forget_stale().await?;
            }
        }
        let wants_partitions =
            |id: &InstanceId| view.members.get(id).is_some_and(|member| member.wants_partitions);
        let to_release: BTreeSet<u8> = moves
            .iter()
            .filter(|moved| moved.from == Some(me) && wants_partitions(&moved.to))
            .map(|moved| moved.partition)
            .collect();
        // A release starts with a plan, and ends when the plan no longer includes it.
        self.leaving.retain(|partition| to_release.contains(partition));
        if plans {
            for partition in to_release {
                if self.leaving.insert(partition) {
                    debug!(partition, instance = %me, "draining a partition before its handover");
                }
            }
        }
        let mut owned = view.owned_by(me);
        owned.retain(|partition| !self.leaving.contains(partition));
        self.publish_assigned(owned, &view, asked, differs);
        let lacks_partitions = moves.iter().any(|moved| moved.to == me && moved.from.is_some());
        self.heartbeat.announce_wants(lacks_partitions);

        let overdue = self.stalls.overdue(&view, &moves, me, now, self.settings.stale_after);
        let claims_for_others = overdue.unowned && view.sharing().contains(&me);
        let claims: Vec<u8> = moves
            .iter()
            .filter(|moved| match moved.from {
                None if overdue.is_too_early(&view, moved.partition) => false,
                None => moved.to == me || claims_for_others,
                Some(owner) => moved.to == me && overdue.owners.contains(&owner),
            })
            .map(|moved| moved.partition)
            .collect();
        self.fleet.assign(&claims, &view, Some(me)).await?;
        let drained_partitions = self.drained_partitions();
        self.fleet.assign(&drained_partitions, &view, None).await?;
        if let Some((name, holder)) = view.unused_name().filter(|_| plans) {
            let removed =
                names::release_name(self.fleet.collections(), name, holder, READ_INTERVAL).await;
            if let Err(error) = removed {
                debug!(name, error = chain(&error), "failed to remove a name without an instance");
            }
        }
        let claimed_before = std::mem::replace(&mut self.claimed, !claims.is_empty());
        // A claim counts once it is read. Repeated claims without success do not shorten the pause.
        Ok(if self.claimed && !claimed_before {
            Duration::ZERO
        } else if self.claimed || lacks_partitions || !self.leaving.is_empty() {
            HANDOVER_READ_INTERVAL
        } else {
            READ_INTERVAL
        })
    }

    /// Returns the leaving partitions that have no record in flight.
    fn drained_partitions(&self) -> Vec<u8> {
        if self.leaving.is_empty() {
            return Vec::new();
        }
        let in_flight = (self.in_flight)();
        self.leaving
            .iter()
            .copied()
            .filter(|partition| !in_flight[usize::from(*partition)])
            .collect()
    }

    fn publish_assigned(
        &mut self,
        partitions: Vec<u8>,
        view: &FleetView,
        asked: BootInstant,
        differs: Option<String>,
    ) {
        self.metrics.paused(view.paused);
        let (owned, paused) = (Some(partitions.len()), view.paused);
        // Kept until the whole round has succeeded.
        let trouble = self.status.borrow().trouble.clone();
        let first = view.unreadable.first().cloned();
        let unreadable = first.map(|first| (first, view.unreadable.len()));
        let status = CoordinatorStatus { owned, differs, paused, trouble, unreadable };
        let before = self.status.send_replace(status);
        if before.paused != view.paused {
            if view.paused {
                warn!(
                    "the relay is paused, and no instance publishes; resume it with `postrider \
                     relay resume`"
                );
            } else {
                info!("the relay is no longer paused");
            }
        }
        let alive = Arc::new(view.lease_owners());
        let now = AssignedPartitions { partitions, paused: view.paused, as_of: Some(asked), alive };
        let before = self.assigned.send_replace(now);
        let (had, have) = (before.partitions.len(), self.assigned.borrow().partitions.len());
        if before.partitions != self.assigned.borrow().partitions {
            info!(had, have, instances = view.members.len(), "the owned partitions changed");
            self.metrics.rebalanced();
        }
    }

    /// Returns the fingerprint of the other instances if ours differs; logs a change once.
    fn fingerprint_difference(&self, view: &FleetView) -> Option<String> {
        let fleet = view.differs(self.heartbeat.fingerprint())?.to_string();
        let is_new = self.status.borrow().differs.as_ref() != Some(&fleet);
        if is_new {
            warn!(
                fleet,
                own = %self.heartbeat.fingerprint(),
                "this instance acquires no partitions, since its configuration differs from \
                 that of running instances in settings that the order depends on; make it the \
                 same, or stop them first"
            );
        }
        Some(fleet)
    }

    /// Releases all partitions: first those without records in flight, then the rest.
    async fn release_all(&mut self, drained: &CancellationToken) {
        if self.settings.fixed.is_some() {
            return drained.cancelled().await;
        }
        let began = Instant::now();
        self.publish_nothing();
        while !drained.is_cancelled() {
            let releasing = async {
                if let Err(error) = self.release(|in_flight| !in_flight).await {
                    debug!(error = chain(&error), "failed to release partitions; retrying");
                }
                tokio::time::sleep(STOP_READ_INTERVAL).await;
            };
            tokio::select! {
                () = releasing => {}
                () = drained.cancelled() => {}
            }
        }
        // Records that are still in flight at the time limit stay protected by their leases.
        let (least, most) = RELEASE_TIMEOUT;
        let most = if self.heartbeat.is_alive() { most } else { least };
        let limit = most.saturating_sub(began.elapsed()).max(least);
        let rest = tokio::time::timeout(limit, self.release(|_| true)).await;
        match rest {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(
                    error = chain(&error),
                    "failed to release partitions; other instances take them over when the \
                     heartbeat is stale"
                );
            }
            Err(_) => warn!(
                "failed to release partitions; other instances take them over when the \
                 heartbeat is stale"
            ),
        }
    }

    fn publish_nothing(&self) {
        self.assigned.send_replace(AssignedPartitions::default());
    }

    async fn release(&self, goes: impl Fn(bool) -> bool) -> Result<(), StoreError> {
        let view = self.fleet.view().await?;
        let in_flight = (self.in_flight)();
        let mut owned = view.owned_by(self.instance);
        owned.retain(|partition| goes(in_flight[usize::from(*partition)]));
        self.fleet.assign(&owned, &view, None).await
    }
}

/// Measures how long the awaited claims and releases of other instances have made no progress.
#[derive(Debug, Default)]
struct StallTimer {
    /// Owners that must release partitions to this instance: what they own, and since when.
    owners: BTreeMap<InstanceId, (Vec<u8>, Instant)>,
    /// Unowned partitions that other instances must claim, and since when.
    unowned: Option<(Vec<u8>, Instant)>,
    /// Partitions with an unreadable owner, and since when: the former owner must notice it first.
    unreadable: BTreeMap<u8, Instant>,
}

/// The owners and partitions whose wait is over.
#[derive(Debug, Default, PartialEq)]
struct Overdue {
    owners: BTreeSet<InstanceId>,
    unowned: bool,
    unreadable: BTreeSet<u8>,
}

impl Overdue {
    /// Returns whether the former owner may not have noticed yet that the owner is unreadable.
    fn is_too_early(&self, view: &FleetView, partition: u8) -> bool {
        view.is_unreadable(partition) && !self.unreadable.contains(&partition)
    }
}

impl StallTimer {
    fn overdue(
        &mut self,
        view: &FleetView,
        moves: &[Move],
        me: InstanceId,
        now: Instant,
        limit: Duration,
    ) -> Overdue {
        let givers: BTreeSet<InstanceId> =
            moves.iter().filter(|moved| moved.to == me).filter_map(|moved| moved.from).collect();
        self.owners.retain(|owner, _| givers.contains(owner));
        let mut overdue = Overdue::default();
        self.unreadable.retain(|partition, _| view.is_unreadable(*partition));
        let unreadable = |partition: &u8| view.is_unreadable(*partition);
        for partition in view.assignments.keys().copied().filter(unreadable) {
            let since = *self.unreadable.entry(partition).or_insert(now);
            if now - since >= limit {
                overdue.unreadable.insert(partition);
            }
        }
        for owner in givers {
            let has = view.owned_by(owner);
            let (had, since) = self.owners.entry(owner).or_insert_with(|| (has.clone(), now));
            if *had != has {
                (*had, *since) = (has, now);
            }
            if now - *since >= limit {
                overdue.owners.insert(owner);
            }
        }
        let unowned: Vec<u8> = moves
            .iter()
            .filter(|moved| moved.from.is_none() && moved.to != me)
            .map(|moved| moved.partition)
            .collect();
        match &mut self.unowned {
            _ if unowned.is_empty() => self.unowned = None,
            Some((were, since)) if *were == unowned => overdue.unowned = now - *since >= limit,
            other => *other = Some((unowned, now)),
        }
        overdue
    }
}

#[cfg(test)]
mod tests;
