//! One key's way out: its records one after the other, one unconfirmed at a time.

mod window;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tracing::{debug, instrument, warn};

use crate::ids::RecordId;
use crate::outbox::reason::DeadReason;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::settle::Outcome;
use crate::relay::blocker::Blocker;
use crate::relay::dead_letter::Later;
use crate::relay::delivery::{Delivered, Delivery};
use crate::relay::hands::{HoldReason, Wait};
use crate::relay::held::Held;
use crate::relay::settings::Settings;
use crate::relay::shared::{Load, Shared};
use crate::sink::Sink;

/// The records of one key that this relay has in hand.
#[derive(Debug)]
pub struct Lane {
    /// The key.
    pub key: LaneKey,
    /// The key's partition.
    pub partition: u8,
    /// Whether its one record goes alone.
    pub alone: bool,
    revoked: AtomicBool,
    refused: AtomicBool,
    parked: AtomicBool,
    refusal: Notify,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Leased, not yet published, in order.
    waiting: VecDeque<Held>,
    /// Leased or confirmed, and not yet settled in MongoDB: what a refill passes over.
    in_hand: HashSet<RecordId>,
    /// Settled while a refill is under way, whose snapshot may show them as leased still.
    settled_meanwhile: HashSet<RecordId>,
    /// Records whose lease is under way.
    expected: HashSet<RecordId>,
    /// The first of all.
    first: Option<RecordId>,
    /// Whether it holds all that its key has pending, as far as the change stream was handled. Only
    /// then is a record put behind the others, and is the key free when the lane ends.
    is_complete: bool,
    /// Whether its first records are on their way to be leased: others come behind them.
    is_queued: bool,
    /// Whether a record was expected that was not to be had: nothing behind it may come.
    has_gap: bool,
    /// Whether nothing is taken any more.
    is_closed: bool,
    /// Whether the key had more behind these when it was last read.
    more: bool,
    /// Whether a refill is under way.
    refilling: bool,
    /// How many came the last time.
    came: usize,
}

impl State {
    fn take(&mut self, records: Vec<Held>) {
        self.in_hand.extend(records.iter().map(|held| held.record.id.clone()));
        self.waiting.extend(records);
    }

    /// How many were published, or are being so, and are not settled.
    fn unsettled(&self) -> usize {
        self.in_hand.len().saturating_sub(self.waiting.len())
    }

    /// Whether nothing is to come of it, but for what waits.
    fn is_idle(&self) -> bool {
        self.in_hand.is_empty() && self.expected.is_empty() && !self.refilling
    }
}

/// A lane that takes no room, until dropped.
#[derive(Debug)]
pub(super) struct Parked<'a> {
    lane: &'a Lane,
    publishing: &'a AtomicUsize,
    load: &'a Load,
    records: usize,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.publishing.fetch_add(1, Ordering::Relaxed);
        self.load.parked.fetch_sub(self.records, Ordering::Relaxed);
        self.lane.parked.store(false, Ordering::Relaxed);
    }
}

/// Why a lane ended. In every case its records are settled.
#[derive(Debug, PartialEq)]
pub enum LaneEnd {
    /// Nothing is left in hand.
    Drained,
    /// Its head failed and waits: for its next try, or for the sink of its dead letter.
    Waits(Box<Wait>),
    /// Sink down, lease spent or lost, partition lost, or a stop: what was left has been given back.
    Interrupted,
}

/// What the next step of a lane is.
enum Next {
    Publish(Box<Held>),
    Await,
    End,
}

impl Lane {
    /// A lane without records yet.
    pub fn new(key: LaneKey, partition: u8) -> Arc<Self> {
        Arc::new(Self::with(key, partition, false))
    }

    /// The same for one record that goes alone.
    pub(crate) fn alone(key: LaneKey, partition: u8) -> Arc<Self> {
        Arc::new(Self::with(key, partition, true))
    }

    fn with(key: LaneKey, partition: u8, alone: bool) -> Self {
        Self {
            key,
            partition,
            alone,
            revoked: AtomicBool::default(),
            refused: AtomicBool::default(),
            parked: AtomicBool::default(),
            refusal: Notify::new(),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Its partition is to be another's: nothing more of it is published, and it ends when what
    /// is under way is known.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// MongoDB refuses an outcome of this lane: nothing more of it is published, and it ends when
    /// that outcome is written, or given up.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.refusal.notify_one();
        self.changed.notify_one();
    }

    /// Resolves when an outcome is refused. For one waiter.
    pub(crate) async fn refused(&self) {
        self.refusal.notified().await;
    }

    /// Whether its records must be let go, settled or not: at a stop, or for another owner.
    pub(crate) fn must_end<S>(&self, shared: &Shared<S>) -> bool {
        shared.is_stopping() || self.revoked.load(Ordering::Relaxed)
    }

    /// Resolves when nothing new may be published.
    pub(super) async fn over<S>(&self, shared: &Shared<S>) {
        let over = async {
            while !self.is_over(shared) {
                // Whoever else waits for a change looks at the state first.
                self.changed.notified().await;
            }
        };
        tokio::select! {
            () = shared.stopping() => {}
            () = over => {}
        }
    }

    /// Whether nothing new may be published.
    fn is_over<S>(&self, shared: &Shared<S>) -> bool {
        self.must_end(shared) || self.refused.load(Ordering::Relaxed)
    }

    /// Lets others have the room that this lane takes, until the answer is dropped: its records wait
    /// for a destination that does not answer. Their bytes stay counted. `None` where the lane is
    /// parked already.
    pub(super) fn park<'a, S>(&'a self, shared: &'a Shared<S>) -> Option<Parked<'a>> {
        if self.parked.swap(true, Ordering::Relaxed) {
            return None;
        }
        let records = self.state().in_hand.len();
        let (publishing, load) = (&shared.publishing, &*shared.in_hand);
        publishing.fetch_sub(1, Ordering::Relaxed);
        load.parked.fetch_add(records, Ordering::Relaxed);
        Some(Parked { lane: self, publishing, load, records })
    }

    /// Puts newly leased records behind those that wait. `more`: there were more to be had.
    pub fn add(&self, records: Vec<Held>, more: bool) {
        {
            let mut state = self.state();
            state.came = records.len();
            state.take(records);
            state.more = more;
            state.refilling = false;
            state.settled_meanwhile.clear();
        }
        self.changed.notify_one();
    }

    /// Expects these to be leased for it, the first ones of the lane; `is_complete` where they are
    /// all that its key has pending.
    pub(super) fn begin(&self, records: &[Record], is_complete: bool) {
        let mut state = self.state();
        state.first = records.first().map(|record| record.id.clone());
        state.expected.extend(records.iter().map(|record| record.id.clone()));
        state.is_complete = is_complete;
    }

    /// Its first records will be leased before any that is offered from now on.
    pub(super) fn queued(&self) {
        self.state().is_queued = true;
    }

    /// Expects one more to be leased for it; answers whether it does. It does not where something
    /// of its key is pending that it does not hold, where it is full, where it has ended, and where
    /// it is only about to begin.
    pub(super) fn offer(&self, id: &RecordId) -> bool {
        let mut state = self.state();
        let is_full = state.in_hand.len() + state.expected.len() >= Settings::WHOLE;
        if is_full || state.is_closed || !state.is_queued || !state.is_complete {
            state.is_complete = false;
            return false;
        }
        state.expected.insert(id.clone())
    }

    /// Whether this record is in hand, or is being leased.
    pub(super) fn expects(&self, id: &RecordId) -> bool {
        let state = self.state();
        state.in_hand.contains(id) || state.expected.contains(id)
    }

    /// What became of the lease of records that were expected: which are held. `more`, for the first
    /// ones of the lane: there were more to be had.
    pub(super) fn add_expected(&self, held: Vec<Held>, expected: &[RecordId], more: Option<bool>) {
        {
            let mut state = self.state();
            if held.len() < expected.len() {
                (state.is_complete, state.has_gap) = (false, true);
            }
            if let Some(more) = more {
                (state.came, state.more) = (held.len(), more);
            }
            state.take(held);
            expected.iter().for_each(|id| _ = state.expected.remove(id));
        }
        self.changed.notify_one();
    }

    /// Its key has something pending that it does not hold, or may have.
    pub(super) fn leave_incomplete(&self) {
        self.state().is_complete = false;
    }

    /// Whether its key has nothing pending when it ends. Nothing is put behind the others any more.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state();
        state.is_closed = true;
        state.is_complete && state.waiting.is_empty() && state.in_hand.is_empty()
    }

    /// Whether nothing may be put behind the others any more: it has ended, or was never begun, or
    /// something between was not to be had.
    pub(super) fn is_closed(&self) -> bool {
        let state = self.state();
        state.is_closed || state.has_gap
    }

    /// The record of a lane that has no key.
    pub(super) fn single(&self) -> RecordId {
        self.state().first.clone().unwrap_or_else(|| RecordId::from(bson::Bson::Null))
    }

    /// Whether the record is in hand, or was since the refill under way was asked for: leased
    /// by this lane, confirmed to it, or settled.
    pub fn had(&self, record: &Record) -> bool {
        let state = self.state();
        state.in_hand.contains(&record.id)
            || state.expected.contains(&record.id)
            || state.settled_meanwhile.contains(&record.id)
    }

    /// The records that are leased, or confirmed and not yet settled.
    pub fn in_hand(&self) -> Vec<RecordId> {
        self.state().in_hand.iter().cloned().collect()
    }

    /// How many records a refill's snapshot may show that were in hand when it was asked for.
    pub fn had_count(&self) -> usize {
        let state = self.state();
        state.in_hand.len() + state.expected.len() + state.settled_meanwhile.len()
    }

    /// MongoDB has the record's outcome.
    pub fn settled(&self, id: &RecordId) {
        let is_news = {
            let mut state = self.state();
            if let Some(id) = state.in_hand.take(id)
                && state.refilling
            {
                state.settled_meanwhile.insert(id);
            }
            // It may end, or ask for more.
            state.in_hand.is_empty() || state.waiting.is_empty() && state.more && !state.refilling
        };
        if is_news {
            self.changed.notify_one();
        }
    }

    /// Delivers until nothing is left or something stops it.
    ///
    /// The prefix rule in one loop: a record is published when all before it in this lane
    /// are confirmed, or dead by a write that a majority acknowledged and that matched.
    /// Anything else ends the lane, and gives back what is behind.
    #[instrument(name = "lane", level = "debug", skip_all, fields(key = self.key.as_str()))]
    pub async fn run<S: Sink>(self: Arc<Self>, shared: &Shared<S>) -> LaneEnd {
        let mut publishing = shared.publishing();
        let end = loop {
            if self.is_over(shared) {
                break LaneEnd::Interrupted;
            }
            let held = match self.next(shared) {
                Next::Publish(held) => *held,
                Next::Await => {
                    publishing.pause();
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = shared.stopping() => {}
                    }
                    continue;
                }
                Next::End => break LaneEnd::Drained,
            };
            publishing.resume();
            let delivered = match self.window(shared, &held) {
                1 => self.deliver(shared, held).await,
                window => self.deliver_several(shared, held, window).await,
            };
            if let Some(end) = delivered {
                break end;
            }
        };
        publishing.pause();
        self.state().is_closed = true;
        self.give_back(shared).await;
        end
    }

    /// One record; `None` lets the next one go.
    async fn deliver<S: Sink>(self: &Arc<Self>, shared: &Shared<S>, held: Held) -> Option<LaneEnd> {
        if held.is_lost() {
            shared.lost(&held, self);
            return Some(LaneEnd::Interrupted);
        }
        let mut lost_since = None;
        let delivery = loop {
            let delivery = shared.deliver(&held, self).await;
            if delivery.outcome != Delivery::SinkLost || held.is_lost() || self.is_over(shared) {
                break delivery;
            }
            // Sent again first, as soon as the sink is up.
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed() > shared.settings.grace() {
                break delivery;
            }
        };
        self.conclude(shared, held, delivery).await
    }

    /// Settles what came of one record; `None` lets the next one go.
    async fn conclude<S: Sink>(
        self: &Arc<Self>,
        shared: &Shared<S>,
        held: Held,
        delivery: Delivered,
    ) -> Option<LaneEnd> {
        let sink = delivery.sink;
        match delivery.outcome {
            Delivery::Confirmed if self.alone => {
                // Before the next one's turn, which may end this process: a record that was
                // delivered must not be charged for its successor's crash time and again.
                let ours = shared.settle_and_wait(self, held, &sink, Outcome::Done).await;
                if ours { None } else { Some(LaneEnd::Interrupted) }
            }
            Delivery::Confirmed => {
                shared.settle(self, held, &sink, Outcome::Done).await;
                None
            }
            Delivery::Failed(error) if held.attempt() < shared.settings.max_attempts => {
                let delay = shared.settings.backoff.delay(held.attempt());
                debug!(id = %held.record.id, attempt = held.attempt(), error, "delivery failed");
                self.release_followers(shared).await;
                let blocker = Blocker::written(&held.record);
                let outcome = Outcome::Retry { delay, error };
                let ours = shared.settle_and_wait(self, held, &sink, outcome).await;
                // The next read shows what was written, and can be compared with later ones.
                let delay = delay.min(shared.settings.poll_interval);
                match ours {
                    true => Some(wait(HoldReason::NotDue, blocker, delay)),
                    false => Some(LaneEnd::Interrupted),
                }
            }
            Delivery::Failed(error) => {
                let attempts = held.attempt();
                let reason = DeadReason::AttemptsExhausted { attempts, error };
                self.bury(shared, held, &sink, reason).await
            }
            Delivery::Undeliverable(reason) => self.bury(shared, held, &sink, reason).await,
            Delivery::DestinationPaused(destination, until) => {
                self.release_followers(shared).await;
                let blocker = Blocker::of(&held.record);
                let way = sink.as_str().into();
                let wait = Wait::for_destination(blocker, Some(until), way, destination);
                shared.settle(self, held, &sink, Outcome::Released).await;
                Some(LaneEnd::Waits(Box::new(wait)))
            }
            Delivery::SinkLost | Delivery::Interrupted => {
                shared.settle(self, held, &sink, Outcome::Released).await;
                Some(LaneEnd::Interrupted)
            }
        }
    }

    /// Makes a record dead; its followers go only when that is known to be so (guard 4).
    async fn bury<S: Sink>(
        self: &Arc<Self>,
        shared: &Shared<S>,
        held: Held,
        sink: &str,
        reason: DeadReason,
    ) -> Option<LaneEnd> {
        let blocks = shared.settings.ordered
            && shared.settings.block_on_dead
            && matches!(self.key, LaneKey::Keyed(_));
        let attempts = match reason {
            DeadReason::AttemptsExhausted { attempts, .. } => attempts,
            // The delivery that can't be is none.
            _ => held.record.attempt,
        };
        let id = held.record.id.clone();
        let is_first = shared.dying.reason(&held.record).is_none();
        // It may take as long as a publish may, and takes no room from others.
        let parked = self.park(shared);
        let sent = shared.send_dead_letter(&held.record, attempts, &reason, self.alone).await;
        drop(parked);
        if let Err(Later) = sent {
            // It would die without its dead letter; only its key waits.
            let delay = shared.settings.probe_max;
            shared.dying.remember(&held.record, &reason, delay);
            self.release_followers(shared).await;
            let outcome = match reason {
                // The last attempt stays counted: another instance does not begin again.
                DeadReason::AttemptsExhausted { error, .. } if is_first => {
                    Outcome::Retry { delay, error }
                }
                _ => Outcome::Released,
            };
            let blocker = Blocker::written(&held.record);
            let ours = shared.settle_and_wait(self, held, sink, outcome).await;
            let end = wait(HoldReason::DeadLetter, blocker, delay);
            return Some(if ours { end } else { LaneEnd::Interrupted });
        }
        shared.dying.forget(&id);
        let kind = held.record.raw.get_str("type").unwrap_or_default().to_owned();
        let words = reason.to_string();
        shared.losses.forget(&id);
        let ours = shared.settle_and_wait(self, held, sink, Outcome::Dead { reason, blocks }).await;
        if !ours {
            return Some(LaneEnd::Interrupted);
        }
        warn!(%id, key = self.key.as_str(), r#type = kind, reason = words, blocks, "record is dead");
        if blocks { Some(LaneEnd::Interrupted) } else { None }
    }

    fn next<S: Sink>(self: &Arc<Self>, shared: &Shared<S>) -> Next {
        let mut state = self.state();
        // (A refill reads what is unsettled once more.)
        let low = state.waiting.len() <= state.came / 2 && state.unsettled() <= shared.share();
        // Without room the key makes way for others: it ends, and is read again in its turn.
        if low && state.more && !state.refilling && shared.has_room() {
            (state.refilling, state.is_complete) = (true, false);
            shared.ask_refill(self.clone());
        }
        match state.waiting.pop_front() {
            Some(held) => Next::Publish(Box::new(held)),
            None if state.is_idle() => {
                state.is_closed = true;
                Next::End
            }
            None => Next::Await,
        }
    }

    async fn release_followers<S: Sink>(self: &Arc<Self>, shared: &Shared<S>) {
        let followers = std::mem::take(&mut self.state().waiting);
        for held in followers {
            shared.settle(self, held, "", Outcome::Released).await;
        }
    }

    /// Releases what was not published and waits until all is settled, so that
    /// whoever reads the key next sees it as it is.
    async fn give_back<S: Sink>(self: &Arc<Self>, shared: &Shared<S>) {
        loop {
            self.release_followers(shared).await;
            {
                let state = self.state();
                if state.waiting.is_empty() && state.is_idle() {
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn wait(reason: HoldReason, blocker: Blocker, delay: Duration) -> LaneEnd {
    LaneEnd::Waits(Box::new(Wait::new(reason, blocker, Some(Instant::now() + delay))))
}
