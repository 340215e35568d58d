//! The records of one key that are in flight, and what is known of those behind them.
//! A [worker](crate::lane_worker) delivers them.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::blocker::KeyBlock;
use crate::in_flight::InFlight;
use crate::lease::LeasedRecord;
use crate::settings::Settings;

/// The records of one key that this relay has in flight.
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
    waiting: VecDeque<LeasedRecord>,
    /// Leased or confirmed, and not yet settled in MongoDB: what a refill passes over.
    in_flight: HashSet<RecordId>,
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
    /// Whether nothing is added any more.
    is_closed: bool,
    /// Whether the key had more behind these when it was last read.
    more: bool,
    /// Whether a refill is under way.
    refilling: bool,
    /// How many came the last time.
    came: usize,
}

impl State {
    fn take(&mut self, records: Vec<LeasedRecord>) {
        self.in_flight.extend(records.iter().map(|held| held.record.id.clone()));
        self.waiting.extend(records);
    }

    /// How many were published, or are being so, and are not settled.
    fn unsettled(&self) -> usize {
        self.in_flight.len().saturating_sub(self.waiting.len())
    }

    /// Whether nothing is to come of it, but for what waits.
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.expected.is_empty() && !self.refilling
    }
}

/// A lane that takes no room, until dropped.
#[derive(Debug)]
pub(super) struct Parked<'a> {
    lane: &'a Lane,
    load: &'a InFlight,
    records: usize,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.load.unpark(self.records);
        self.lane.parked.store(false, Ordering::Relaxed);
    }
}

/// Why a lane ended. In every case its records are settled.
#[derive(Debug, PartialEq)]
pub enum LaneEnd {
    /// Nothing is left in flight.
    Drained,
    /// Its head failed and waits: for its next try, or for the sink of its dead letter.
    Waits(Box<KeyBlock>),
    /// Sink down, lease spent or lost, partition lost, or a stop: what was left has been given back.
    Interrupted,
}

/// What the next step of a lane is.
pub(super) enum Next {
    Publish(Box<LeasedRecord>),
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
    pub(super) fn must_end(&self, stop: &CancellationToken) -> bool {
        stop.is_cancelled() || self.revoked.load(Ordering::Relaxed)
    }

    /// Whether nothing new may be published.
    pub(super) fn is_over(&self, stop: &CancellationToken) -> bool {
        self.must_end(stop) || self.refused.load(Ordering::Relaxed)
    }

    /// Resolves when nothing new may be published.
    pub(super) async fn over(&self, stop: &CancellationToken) {
        let over = async {
            while !self.is_over(stop) {
                // Another waiter for a change looks at the state first.
                self.changed.notified().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = over => {}
        }
    }

    /// Resolves when something came or was settled, or when the lane is to end. For one waiter.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Lets others have the room that this lane takes, until the answer is dropped: its records wait
    /// for a destination that does not answer. Their bytes stay counted. `None` where the lane is
    /// parked already.
    pub(super) fn park<'a>(&'a self, load: &'a InFlight) -> Option<Parked<'a>> {
        if self.parked.swap(true, Ordering::Relaxed) {
            return None;
        }
        let records = self.state().in_flight.len();
        load.park(records);
        Some(Parked { lane: self, load, records })
    }

    /// Puts newly leased records behind those that wait. `more`: there were more to be had.
    pub fn add(&self, records: Vec<LeasedRecord>, more: bool) {
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

    /// Expects one more to be leased for it; returns whether it does. It does not where something
    /// of its key is pending that it does not hold, where it is full, where it has ended, and where
    /// it is only about to begin.
    pub(super) fn offer(&self, id: &RecordId) -> bool {
        let mut state = self.state();
        let is_full = state.in_flight.len() + state.expected.len() >= Settings::WHOLE;
        if is_full || state.is_closed || !state.is_queued || !state.is_complete {
            state.is_complete = false;
            return false;
        }
        state.expected.insert(id.clone())
    }

    /// Whether this record is in flight, or is being leased.
    pub(super) fn expects(&self, id: &RecordId) -> bool {
        let state = self.state();
        state.in_flight.contains(id) || state.expected.contains(id)
    }

    /// What became of the lease of records that were expected: which are held. `more`, for the first
    /// ones of the lane: there were more to be had.
    pub(super) fn add_expected(
        &self,
        held: Vec<LeasedRecord>,
        expected: &[RecordId],
        more: Option<bool>,
    ) {
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
        state.is_complete && state.waiting.is_empty() && state.in_flight.is_empty()
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

    /// Whether the record is in flight, or was since the refill under way was asked for: leased
    /// by this lane, confirmed to it, or settled.
    pub fn had(&self, record: &Record) -> bool {
        let state = self.state();
        state.in_flight.contains(&record.id)
            || state.expected.contains(&record.id)
            || state.settled_meanwhile.contains(&record.id)
    }

    /// The records that are leased, or confirmed and not yet settled.
    pub fn in_flight(&self) -> Vec<RecordId> {
        self.state().in_flight.iter().cloned().collect()
    }

    /// How many records a refill's snapshot may show that were in flight when it was asked for.
    pub fn had_count(&self) -> usize {
        let state = self.state();
        state.in_flight.len() + state.expected.len() + state.settled_meanwhile.len()
    }

    /// MongoDB has the record's outcome.
    pub fn settled(&self, id: &RecordId) {
        let is_news = {
            let mut state = self.state();
            if let Some(id) = state.in_flight.take(id)
                && state.refilling
            {
                state.settled_meanwhile.insert(id);
            }
            // It may end, or ask for more.
            state.in_flight.is_empty() || state.waiting.is_empty() && state.more && !state.refilling
        };
        if is_news {
            self.changed.notify_one();
        }
    }

    /// Takes the next step. `share`: how many may be unsettled for it to ask for more, where there is
    /// room; returns also whether it does so, and counts on an answer by [`add`](Self::add) then.
    pub(super) fn next(&self, share: Option<usize>) -> (Next, bool) {
        let mut state = self.state();
        // (A refill reads what is unsettled once more.)
        let is_short = |share| {
            state.waiting.len() <= state.came / 2 && state.unsettled() <= share && state.more
        };
        // Without room the key makes way for others: it ends, and is read again in its turn.
        let asks = share.is_some_and(is_short) && !state.refilling;
        if asks {
            (state.refilling, state.is_complete) = (true, false);
        }
        let next = match state.waiting.pop_front() {
            Some(held) => Next::Publish(Box::new(held)),
            None if state.is_idle() => {
                state.is_closed = true;
                Next::End
            }
            None => Next::Await,
        };
        (next, asks)
    }

    /// Puts a record that was not published back before the others.
    pub(super) fn put_back(&self, held: LeasedRecord) {
        self.state().waiting.push_front(held);
    }

    /// How many were not published yet.
    pub(super) fn waiting_count(&self) -> usize {
        self.state().waiting.len()
    }

    /// What was not published, in its order.
    pub(super) fn take_waiting(&self) -> VecDeque<LeasedRecord> {
        std::mem::take(&mut self.state().waiting)
    }

    /// Whether it holds nothing, and nothing is to come of it.
    pub(super) fn is_finished(&self) -> bool {
        let state = self.state();
        state.waiting.is_empty() && state.is_idle()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests;
