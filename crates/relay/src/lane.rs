//! The records of one key that are in flight, and what is known of those behind them. A
//! [worker](crate::lane_worker) delivers them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::Timestamp;
use parking_lot::Mutex;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::blocker::KeyBlock;
use crate::in_flight::InFlight;
use crate::lease::LeasedRecord;
use crate::plan::InLane;
use crate::settings::Settings;

/// The records of one key that this relay has in flight.
#[derive(Debug)]
pub struct Lane {
    /// The key.
    pub key: LaneKey,
    /// The key's partition.
    pub partition: u8,
    /// Whether it holds one quarantined record.
    pub is_quarantined: bool,
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
    /// Leased or confirmed, and not yet settled in MongoDB, each with its `seq`: a refill skips them.
    in_flight: HashMap<RecordId, Option<Timestamp>>,
    /// Settled during a refill, whose snapshot may still show them as leased.
    settled_meanwhile: HashMap<RecordId, Option<Timestamp>>,
    /// Records whose lease is under way, each with its `seq`.
    expected: HashMap<RecordId, Option<Timestamp>>,
    /// The first record of the lane.
    first: Option<RecordId>,
    /// Whether it holds all pending records of its key, as far as the change stream was handled.
    /// Only then can a record be added behind the others, and is the key released when the lane
    /// ends.
    is_complete: bool,
    /// Whether the lease of its first records is queued: others follow them.
    is_queued: bool,
    /// Whether an expected record could not be leased: nothing behind it may be added.
    has_gap: bool,
    /// Whether nothing is added any more.
    is_closed: bool,
    /// Whether the key had more records behind these when it was last read.
    more: bool,
    /// Whether a refill is under way.
    refilling: bool,
    /// How many records the last refill brought.
    came: usize,
}

impl State {
    fn take(&mut self, records: Vec<LeasedRecord>) {
        let versions = records.iter().map(|held| (held.record.id.clone(), held.record.seq));
        self.in_flight.extend(versions);
        self.waiting.extend(records);
    }

    /// Returns how many records were published, or are being published, and are not settled.
    fn unsettled(&self) -> usize {
        self.in_flight.len().saturating_sub(self.waiting.len())
    }

    /// Returns whether only the waiting records are left.
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.expected.is_empty() && !self.refilling
    }
}

/// Keeps a lane parked, so that it takes no room, until dropped.
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
    /// Its head failed and waits: for its next attempt, or for the sink of its dead letter.
    Waits(Box<KeyBlock>),
    /// Sink down, lease spent or lost, partition lost, or a stop: the remaining records were
    /// released.
    Interrupted,
}

/// The next step of a lane.
pub(super) enum Next {
    Publish(Box<LeasedRecord>),
    Await,
    End,
}

impl Lane {
    /// Creates a lane without records.
    pub fn new(key: LaneKey, partition: u8) -> Arc<Self> {
        Arc::new(Self::with(key, partition, false))
    }

    /// Creates a lane for one quarantined record.
    pub(crate) fn quarantined(key: LaneKey, partition: u8) -> Arc<Self> {
        Arc::new(Self::with(key, partition, true))
    }

    fn with(key: LaneKey, partition: u8, is_quarantined: bool) -> Self {
        Self {
            key,
            partition,
            is_quarantined,
            revoked: AtomicBool::default(),
            refused: AtomicBool::default(),
            parked: AtomicBool::default(),
            refusal: Notify::new(),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Revokes the lane because another instance will own its partition: it publishes nothing more,
    /// and ends when the outcome of what is under way is known.
    pub fn revoke(&self) {
        debug!(key = self.key.as_str(), partition = self.partition, "revoked a lane");
        self.revoked.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Notes that MongoDB refuses an outcome of this lane: it publishes nothing more, and ends
    /// when that outcome is written or abandoned.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.refusal.notify_one();
        self.changed.notify_one();
    }

    /// Resolves when an outcome is refused. Supports one waiter.
    pub(crate) async fn refused(&self) {
        self.refusal.notified().await;
    }

    /// Returns whether its records must be released, settled or not: at a stop, or for another
    /// owner.
    pub(super) fn must_end(&self, stop: &CancellationToken) -> bool {
        stop.is_cancelled() || self.revoked.load(Ordering::Relaxed)
    }

    /// Returns whether nothing new may be published.
    pub(super) fn is_over(&self, stop: &CancellationToken) -> bool {
        self.must_end(stop) || self.refused.load(Ordering::Relaxed)
    }

    /// Resolves when nothing new may be published.
    pub(super) async fn over(&self, stop: &CancellationToken) {
        let over = async {
            while !self.is_over(stop) {
                // Another waiter for a change reads the state first.
                self.changed.notified().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = over => {}
        }
    }

    /// Resolves when a record was added or settled, or when the lane must end. Supports one waiter.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Parks the lane until the guard is dropped: its records wait for a destination that does not
    /// answer, and take no room from others. Their bytes stay counted. `None` if the lane is parked
    /// already.
    pub(super) fn park<'a>(&'a self, load: &'a InFlight) -> Option<Parked<'a>> {
        if self.parked.swap(true, Ordering::Relaxed) {
            return None;
        }
        let records = self.state.lock().in_flight.len();
        load.park(records);
        Some(Parked { lane: self, load, records })
    }

    /// Adds newly leased records behind those that wait. `more`: the key has more.
    pub fn add(&self, records: Vec<LeasedRecord>, more: bool) {
        {
            let mut state = self.state.lock();
            state.came = records.len();
            state.take(records);
            state.more = more;
            state.refilling = false;
            state.settled_meanwhile.clear();
        }
        self.changed.notify_one();
    }

    /// Expects the lease of these first records. `is_complete`: they are all pending records of its
    /// key.
    pub(super) fn begin(&self, records: &[Record], is_complete: bool) {
        let mut state = self.state.lock();
        state.first = records.first().map(|record| record.id.clone());
        state.expected.extend(records.iter().map(|record| (record.id.clone(), record.seq)));
        state.is_complete = is_complete;
    }

    /// Notes that the lease of its first records is queued, before any record offered from now
    /// on.
    pub(super) fn queued(&self) {
        self.state.lock().is_queued = true;
    }

    /// Expects the lease of one more record. Returns false if its key has a pending record that the
    /// lane does not hold, or if the lane is full, has ended, or is not queued yet.
    pub(super) fn offer(&self, record: &Record) -> bool {
        let mut state = self.state.lock();
        let is_full = state.in_flight.len() + state.expected.len() >= Settings::WHOLE;
        if is_full || state.is_closed || !state.is_queued || !state.is_complete {
            state.is_complete = false;
            return false;
        }
        if state.expected.contains_key(&record.id) {
            return false;
        }
        state.expected.insert(record.id.clone(), record.seq);
        true
    }

    /// Returns whether this record is in flight or being leased.
    pub(super) fn expects(&self, id: &RecordId) -> bool {
        let state = self.state.lock();
        state.in_flight.contains_key(id) || state.expected.contains_key(id)
    }

    /// Adds those of the expected records that were leased. `more`, for the first records of the
    /// lane: the key has more.
    pub(super) fn add_expected(
        &self,
        held: Vec<LeasedRecord>,
        expected: &[RecordId],
        more: Option<bool>,
    ) {
        {
            let mut state = self.state.lock();
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

    /// Notes that its key has, or may have, a pending record that the lane does not hold.
    pub(super) fn leave_incomplete(&self) {
        self.state.lock().is_complete = false;
    }

    /// Closes the lane: nothing is added any more. Returns whether its key has nothing pending.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.is_complete && state.waiting.is_empty() && state.in_flight.is_empty()
    }

    /// Returns whether nothing may be added any more: the lane has ended, never began, or has a
    /// gap.
    pub(super) fn is_closed(&self) -> bool {
        let state = self.state.lock();
        state.is_closed || state.has_gap
    }

    /// Returns the record of a lane without a key.
    pub(super) fn single(&self) -> RecordId {
        self.state.lock().first.clone().unwrap_or_else(|| RecordId::from(bson::Bson::Null))
    }

    /// Returns what the lane has of a record that its refill has read: whether the record is in
    /// flight, or was since the refill was requested (leased by this lane, confirmed, or settled).
    pub fn has(&self, record: &Record) -> InLane {
        let state = self.state.lock();
        let is_settled = state.settled_meanwhile.get(&record.id) == Some(&record.seq);
        match state.in_flight.get(&record.id).or_else(|| state.expected.get(&record.id)) {
            Some(seq) if *seq == record.seq => InLane::InFlight,
            Some(_) => InLane::Replaced,
            None if is_settled => InLane::InFlight,
            None => InLane::Absent,
        }
    }

    /// Returns the records that are leased, or confirmed and not yet settled.
    pub fn in_flight(&self) -> Vec<RecordId> {
        self.state.lock().in_flight.keys().cloned().collect()
    }

    /// Returns how many records a refill's snapshot may show that were in flight when it was
    /// requested.
    pub fn had_count(&self) -> usize {
        let state = self.state.lock();
        state.in_flight.len() + state.expected.len() + state.settled_meanwhile.len()
    }

    /// Notes that MongoDB has the record's outcome.
    pub fn settled(&self, id: &RecordId) {
        let is_news = {
            let mut state = self.state.lock();
            if let Some((id, seq)) = state.in_flight.remove_entry(id)
                && state.refilling
            {
                state.settled_meanwhile.insert(id, seq);
            }
            // The lane may end, or request more.
            state.in_flight.is_empty() || state.waiting.is_empty() && state.more && !state.refilling
        };
        if is_news {
            self.changed.notify_one();
        }
    }

    /// Takes the next step. `share`: how many unsettled records allow a request for more, if there
    /// is room. Returns also whether the caller must request more and answer by [`add`](Self::add).
    pub(super) fn next(&self, share: Option<usize>) -> (Next, bool) {
        let mut state = self.state.lock();
        // (A refill reads unsettled records again.)
        let is_short = |share| {
            state.waiting.len() <= state.came / 2 && state.unsettled() <= share && state.more
        };
        // Without room the key makes way for others: the lane ends, and the key is read again in
        // its turn.
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

    /// Puts a record that was not published back in front of the others.
    pub(super) fn put_back(&self, held: LeasedRecord) {
        self.state.lock().waiting.push_front(held);
    }

    /// Returns how many records are not published yet.
    pub(super) fn waiting_count(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Takes the records that were not published, in order.
    pub(super) fn take_waiting(&self) -> VecDeque<LeasedRecord> {
        std::mem::take(&mut self.state.lock().waiting)
    }

    /// Returns whether the lane holds and expects nothing.
    pub(super) fn is_finished(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.is_idle()
    }
}

#[cfg(test)]
mod tests;
