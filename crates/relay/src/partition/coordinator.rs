//! Brings this instance by its partitions, and makes it let go of them: without a leader, by
//! what each reads, and by conditional writes.
//!
//! ```text
//!  look ── unowned, and mine by the plan ──────────────────────────────────► claim
//!       ── another's, and mine by the plan ──► ask ── not let go in time ──► take
//!       ── mine, and by the plan another's, who asks ──► stop, drain ──────► let go
//!       ── about to leave ─────────────────────────────► stop, drain ──────► let go
//! ```
//!
//! An assignment whose owner can't be read is nobody's, and is claimed like what an owner does not
//! give in time: when it has stood so for `stale_after`. Whoever had it looks before that, sees
//! that it is not named, and stops. To claim it at once would put two at one partition.
//!
//! That two are at the same partition for a moment costs duplicates at worst: the order rests on
//! the prefix rule, and the lease keeps them apart (see [`relay`](crate)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_outbox::ids::InstanceId;
use postrider_store::moment::Moment;
use postrider_store::text::chain;
use postrider_store::{Meaning, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::partition::config::PartitionsConfig;
use crate::partition::fleet::{Fleet, Unreadable, View};
use crate::partition::heartbeat::{Heartbeat, Pulse};
use crate::partition::metrics::FleetMetrics;
use crate::partition::names;
use crate::partition::plan::Move;
use crate::partition::share::Allotted;

/// How often everybody looks, so that what was let go stands still for no longer.
const LOOK: Duration = Duration::from_millis(500);

/// How often those look among whom something changes hands.
const BUSY_LOOK: Duration = Duration::from_millis(100);

/// How often one looks that is about to leave: the process waits for it.
const LEAVING_LOOK: Duration = Duration::from_millis(50);

/// How long a stop waits for a claim that was sent, where MongoDB acknowledges heartbeats.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the release of the last partitions may take at least; and, where MongoDB acknowledges
/// heartbeats, together with what came before it since the stop. (Peers claim what is not released.)
const RELEASE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// What the coordinator knows, for `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// How many partitions this instance has; `None` before the first look.
    pub owned: Option<usize>,
    /// The fleet's configuration, where it differs from ours.
    pub differs: Option<String>,
    /// Whether the fleet is paused.
    pub paused: bool,
    /// What keeps this instance from looking at the fleet or changing it, with the remedy where it
    /// does not pass by itself.
    pub trouble: Option<String>,
    /// The first document of the fleet of which something can't be read, and how many there are.
    pub unreadable: Option<(Unreadable, usize)>,
}

/// The coordinator of one instance. `in_hand` tells in which partitions the relay has anything, or
/// may get it still.
pub struct Coordinator<F> {
    fleet: Fleet,
    instance: InstanceId,
    settings: PartitionsConfig,
    heartbeat: Arc<Heartbeat>,
    metrics: FleetMetrics,
    allotted: watch::Sender<Allotted>,
    standing: watch::Sender<Standing>,
    in_hand: F,
    /// Being let go, as soon as nothing of them is in hand.
    leaving: BTreeSet<u8>,
    next_plan: Instant,
    waits: Waits,
    /// Whether the latest look has claimed something.
    claimed: bool,
    /// Since when looks have failed, while heartbeats were acknowledged.
    failing: Option<Instant>,
    /// Whether that was told.
    told: bool,
    /// What the latest look could not read.
    unreadable: Vec<Unreadable>,
}

impl<F: Fn() -> [bool; 256]> Coordinator<F> {
    /// A coordinator that has not looked yet.
    pub fn new(
        fleet: Fleet,
        instance: InstanceId,
        settings: PartitionsConfig,
        heartbeat: Arc<Heartbeat>,
        allotted: watch::Sender<Allotted>,
        in_hand: F,
    ) -> Self {
        let (standing, _) = watch::channel(Standing::default());
        Self {
            fleet,
            instance,
            settings,
            heartbeat,
            metrics: FleetMetrics::default(),
            allotted,
            standing,
            in_hand,
            leaving: BTreeSet::new(),
            next_plan: Instant::now(),
            waits: Waits::default(),
            claimed: false,
            failing: None,
            told: false,
            unreadable: Vec::new(),
        }
    }

    /// What it knows, as it changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Looks until `stop`. From then on it lets go of whatever the relay has done with, and of the
    /// rest when `drained` says that the relay has ended.
    pub async fn run(mut self, stop: CancellationToken, drained: CancellationToken) {
        let mut pulse = self.heartbeat.pulse();
        while !stop.is_cancelled() {
            let alive = *pulse.borrow_and_update() == Pulse::Alive;
            // A stop does not interrupt a claim that was sent: MongoDB might apply it behind the
            // release of everything, in the name of an instance that is gone.
            let heartbeat = self.heartbeat.clone();
            let too_late = async {
                stop.cancelled().await;
                if heartbeat.is_alive() {
                    tokio::time::sleep(CLAIM_TIMEOUT).await;
                }
            };
            let pause = tokio::select! {
                pause = self.look(alive, &stop) => pause,
                () = too_late => break,
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause.min(self.settings.rebalance)) => {}
                // An instance that comes (back) must not wait for its first look.
                Ok(()) = pulse.changed(), if !alive => {}
            }
        }
        self.leave(&drained).await;
    }

    /// One look, and what follows from it; answers how long until the next one.
    async fn look(&mut self, alive: bool, stop: &CancellationToken) -> Duration {
        if !alive {
            self.failing = None;
            self.metrics.forget();
            return LOOK;
        }
        match self.once(stop).await {
            Ok(pause) => {
                self.failing = None;
                if std::mem::take(&mut self.told) {
                    info!("the fleet can be looked at again, and partitions claimed");
                }
                self.metrics.refused(false);
                self.trouble(None);
                pause
            }
            Err(error) => {
                self.failed(&error);
                LOOK
            }
        }
    }

    fn failed(&mut self, error: &StoreError) {
        let since = *self.failing.get_or_insert_with(Instant::now);
        let is_refused = error.meaning() == Meaning::Permanent;
        // As a rule the heartbeat meets the same trouble, and reports it.
        let is_lasting = is_refused || since.elapsed() >= self.settings.stale_after;
        if !is_lasting {
            debug!(error = chain(error), "the fleet can't be looked at");
        } else if !std::mem::replace(&mut self.told, true) {
            match is_refused {
                true => warn!(
                    error = error.brief(),
                    remedy = error.remedy(),
                    "MongoDB refuses this instance: partitions can't be claimed or let go"
                ),
                false => warn!(error = chain(error), "partitions can't be claimed or let go"),
            }
        }
        self.metrics.refused(is_refused);
        self.trouble(Some(match is_refused {
            true => error.refusal(),
            false => format!("partitions can't be claimed or let go: {}", error.brief()),
        }));
        self.metrics.forget();
    }

    /// Notes what is in the way, if anything is.
    fn trouble(&self, trouble: Option<String>) {
        self.standing.send_if_modified(|standing| {
            let is_news = standing.trouble != trouble;
            standing.trouble = trouble;
            is_news
        });
    }

    /// Tells which documents can't be read, each once while that lasts.
    fn note_unreadable(&mut self, view: &View) {
        let before = std::mem::replace(&mut self.unreadable, view.unreadable.clone());
        for document in self.unreadable.iter().filter(|document| !before.contains(document)) {
            let Unreadable { collection, id, fields, remedy } = document;
            let fields = fields.join(", ");
            warn!(collection, id, fields, remedy, "a document of the fleet cannot be read");
        }
        if !before.is_empty() && self.unreadable.is_empty() {
            info!("every document of the fleet can be read again");
        }
    }

    async fn once(&mut self, stop: &CancellationToken) -> Result<Duration, StoreError> {
        let asked = Moment::now();
        let view = self.fleet.view().await?;
        self.note_unreadable(&view);
        if !self.holds_name(&view) {
            return Ok(LEAVING_LOOK);
        }
        match self.settings.fixed.clone() {
            Some(fixed) => {
                let differs = self.told_apart(&view);
                let owned =
                    if differs.is_some() { Vec::new() } else { fixed.partitions().to_vec() };
                self.adopt(owned, &view, asked, differs);
                Ok(LOOK)
            }
            None => self.share_out(view, asked, stop).await,
        }
    }

    /// Whether this instance may act by a view: it holds its name, and no newcomer asks for it. (A
    /// process that was replaced while it stood still must not go on by what it reads.)
    fn holds_name(&self, view: &View) -> bool {
        let Some(name) = self.heartbeat.name() else { return true };
        let entry = view.names.get(name);
        entry.is_some_and(|entry| entry.holder == self.instance && entry.question.is_none())
    }

    /// The assigned instance's look: adopts, claims, asks, lets go.
    async fn share_out(
        &mut self,
        view: View,
        asked: Moment,
        stop: &CancellationToken,
    ) -> Result<Duration, StoreError> {
        if stop.is_cancelled() {
            // Read while the stop came: nothing more is claimed.
            return Ok(LOOK);
        }
        let me = self.instance;
        let now = Instant::now();
        self.metrics.seen(view.members.len(), view.unassigned());
        let differs = self.told_apart(&view);
        let moves = view.moves();
        let plans = self.next_plan <= now;
        if plans {
            self.next_plan = now + self.settings.rebalance;
            if view.some_stale {
                self.fleet.forget_stale().await?;
            }
        }
        let asks = |id: &InstanceId| view.members.get(id).is_some_and(|member| member.asks);
        let to_give: BTreeSet<u8> = moves
            .iter()
            .filter(|moved| moved.from == Some(me) && asks(&moved.to))
            .map(|moved| moved.partition)
            .collect();
        // Begun with a plan, ended when the plan wants it no more.
        self.leaving.retain(|partition| to_give.contains(partition));
        if plans {
            self.leaving.extend(&to_give);
        }
        let mut owned = view.owned_by(me);
        owned.retain(|partition| !self.leaving.contains(partition));
        self.adopt(owned, &view, asked, differs);
        let lacking = moves.iter().any(|moved| moved.to == me && moved.from.is_some());
        self.heartbeat.ask(lacking);

        let overdue = self.waits.overdue(&view, &moves, me, now, self.settings.stale_after);
        let rescues = overdue.unowned && view.sharing().contains(&me);
        let claims: Vec<u8> = moves
            .iter()
            .filter(|moved| match moved.from {
                None if overdue.is_too_early(&view, moved.partition) => false,
                None => moved.to == me || rescues,
                Some(owner) => moved.to == me && overdue.owners.contains(&owner),
            })
            .map(|moved| moved.partition)
            .collect();
        self.fleet.assign(&claims, &view, Some(me)).await?;
        let done_with = self.done_with();
        self.fleet.assign(&done_with, &view, None).await?;
        if let Some((name, holder)) = view.unused_name().filter(|_| plans) {
            let removed = names::give_up(self.fleet.collections(), name, holder, LOOK).await;
            if let Err(error) = removed {
                debug!(name, error = chain(&error), "a name without an instance was not removed");
            }
        }
        let claimed_before = std::mem::replace(&mut self.claimed, !claims.is_empty());
        Ok(match self.claimed || lacking || !self.leaving.is_empty() {
            // What was claimed is not ours before it is read. (Claims in vain are no haste.)
            _ if self.claimed && !claimed_before => Duration::ZERO,
            true => BUSY_LOOK,
            false => LOOK,
        })
    }

    /// Of those that are being let go, the ones of which nothing is in hand.
    fn done_with(&self) -> Vec<u8> {
        if self.leaving.is_empty() {
            return Vec::new();
        }
        let in_hand = (self.in_hand)();
        self.leaving.iter().copied().filter(|partition| !in_hand[usize::from(*partition)]).collect()
    }

    fn adopt(&mut self, partitions: Vec<u8>, view: &View, asked: Moment, differs: Option<String>) {
        self.metrics.paused(view.paused);
        let (owned, paused) = (Some(partitions.len()), view.paused);
        // As it was: whether that is over is not known before all is done.
        let trouble = self.standing.borrow().trouble.clone();
        let first = view.unreadable.first().cloned();
        let unreadable = first.map(|first| (first, view.unreadable.len()));
        let standing = Standing { owned, differs, paused, trouble, unreadable };
        let before = self.standing.send_replace(standing);
        if before.paused != view.paused {
            match view.paused {
                true => warn!("the fleet is paused: nothing is published (postrider relay resume)"),
                false => info!("the fleet is no longer paused"),
            }
        }
        let alive = Arc::new(view.lease_owners());
        let now = Allotted { partitions, paused: view.paused, as_of: Some(asked), alive };
        let before = self.allotted.send_replace(now);
        let (had, have) = (before.partitions.len(), self.allotted.borrow().partitions.len());
        if before.partitions != self.allotted.borrow().partitions {
            info!(had, have, instances = view.members.len(), "partitions came or went");
            self.metrics.rebalanced();
        }
    }

    /// The fleet's fingerprint where ours differs; told once in the log.
    fn told_apart(&self, view: &View) -> Option<String> {
        let fleet = view.differs(self.heartbeat.fingerprint())?.to_string();
        let is_new = self.standing.borrow().differs.as_ref() != Some(&fleet);
        if is_new {
            warn!(
                fleet,
                own = %self.heartbeat.fingerprint(),
                "this instance takes no partitions: its configuration differs from that of the \
                 running ones in what the order rests on; make it the same, or stop them first"
            );
        }
        Some(fleet)
    }

    /// Lets go of everything: first of what nothing is in hand of, in the end of the rest.
    async fn leave(&mut self, drained: &CancellationToken) {
        if self.settings.fixed.is_some() {
            return drained.cancelled().await;
        }
        let began = Instant::now();
        self.adopt_nothing();
        while !drained.is_cancelled() {
            let letting_go = async {
                if let Err(error) = self.let_go(|in_hand| !in_hand).await {
                    debug!(error = chain(&error), "partitions are not let go yet");
                }
                tokio::time::sleep(LEAVING_LOOK).await;
            };
            tokio::select! {
                () = letting_go => {}
                () = drained.cancelled() => {}
            }
        }
        // What the relay holds still, where its time was up, is kept by its leases.
        let (least, most) = RELEASE_TIMEOUT;
        let most = if self.heartbeat.is_alive() { most } else { least };
        let limit = most.saturating_sub(began.elapsed()).max(least);
        let rest = tokio::time::timeout(limit, self.let_go(|_| true)).await;
        match rest {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(error = chain(&error), "partitions were not let go: peers take them in time");
            }
            Err(_) => warn!("partitions were not let go: peers take them in time"),
        }
    }

    fn adopt_nothing(&self) {
        self.allotted.send_replace(Allotted::default());
    }

    async fn let_go(&self, goes: impl Fn(bool) -> bool) -> Result<(), StoreError> {
        let view = self.fleet.view().await?;
        let in_hand = (self.in_hand)();
        let mut owned = view.owned_by(self.instance);
        owned.retain(|partition| goes(in_hand[usize::from(*partition)]));
        self.fleet.assign(&owned, &view, None).await
    }
}

/// What has stood still, and since when: whoever does not do its part is not waited for for ever.
#[derive(Debug, Default)]
struct Waits {
    /// Owners that are to give us something: what they had, and since when.
    owners: BTreeMap<InstanceId, (Vec<u8>, Instant)>,
    /// Partitions that nobody has and another one is to claim, and since when.
    unowned: Option<(Vec<u8>, Instant)>,
    /// Partitions whose owner can't be read, and since when: whoever had them is to see it first.
    unreadable: BTreeMap<u8, Instant>,
}

/// What is waited for no longer.
#[derive(Debug, Default, PartialEq)]
struct Overdue {
    owners: BTreeSet<InstanceId>,
    unowned: bool,
    unreadable: BTreeSet<u8>,
}

impl Overdue {
    /// Whether whoever had a partition may not have seen yet that its owner can't be read.
    fn is_too_early(&self, view: &View, partition: u8) -> bool {
        view.is_unreadable(partition) && !self.unreadable.contains(&partition)
    }
}

impl Waits {
    fn overdue(
        &mut self,
        view: &View,
        moves: &[Move],
        me: InstanceId,
        now: Instant,
        patience: Duration,
    ) -> Overdue {
        let givers: BTreeSet<InstanceId> =
            moves.iter().filter(|moved| moved.to == me).filter_map(|moved| moved.from).collect();
        self.owners.retain(|owner, _| givers.contains(owner));
        let mut overdue = Overdue::default();
        self.unreadable.retain(|partition, _| view.is_unreadable(*partition));
        let unreadable = |partition: &u8| view.is_unreadable(*partition);
        for partition in view.assignments.keys().copied().filter(unreadable) {
            let since = *self.unreadable.entry(partition).or_insert(now);
            if now - since >= patience {
                overdue.unreadable.insert(partition);
            }
        }
        for owner in givers {
            let has = view.owned_by(owner);
            let (had, since) = self.owners.entry(owner).or_insert_with(|| (has.clone(), now));
            if *had != has {
                (*had, *since) = (has, now);
            }
            if now - *since >= patience {
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
            Some((were, since)) if *were == unowned => overdue.unowned = now - *since >= patience,
            other => *other = Some((unowned, now)),
        }
        overdue
    }
}

#[cfg(test)]
mod tests;
