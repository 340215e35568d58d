//! What MongoDB refuses or fails to do for the relay: logged once, and reported while it lasts.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use metrics::gauge;
use parking_lot::Mutex;
use postrider_outbox::ids::{LeaseId, RecordId};
use postrider_outbox::record::LaneKey;
use postrider_outbox::settle::Settlement;
use postrider_store::text::chain;
use postrider_store::{OutageLog, StoreError};
use tracing::warn;

use crate::instance_state::state_id;
use crate::lane::Lane;
use crate::metrics::STORE_FAILING;
use crate::reported::Reported;

/// What to do about a record that MongoDB refuses to change.
const REMEDY: &str = "change the validator of outbox_records to permit what the relay writes \
                      (`postrider schema print`)";

/// Records whose outcome MongoDB refuses because of a validator of the user's own. Each waits with
/// its key until the validator is changed.
#[derive(Debug, Default)]
pub(crate) struct RefusedOutcomes {
    reported: Reported<RecordId>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Records whose outcome is currently refused.
    unsettled: HashMap<RecordId, RefusedOutcome>,
    /// A description of the latest of them.
    latest: String,
}

/// A record whose outcome is refused.
#[derive(Clone, Debug)]
pub(crate) struct RefusedOutcome {
    pub(crate) lane: LaneKey,
    pub(crate) lease: LeaseId,
    pub(crate) since: Instant,
    /// Whether this relay no longer owns the record: it was discarded, deleted or requeued.
    is_gone: bool,
}

impl RefusedOutcomes {
    /// Logs a record whose outcome is refused, unless it was logged before, and counts it until
    /// [`settled`](Self::settled).
    pub(crate) fn unsettled(&self, settlement: &Settlement, lane: &Lane, code: i32) {
        let outcome = settlement.outcome.word();
        if self.reported.is_news(&settlement.id) {
            warn!(
                id = %settlement.id,
                key = lane.key.as_str(),
                outcome,
                code,
                remedy = REMEDY,
                "MongoDB rejects the outcome of a record, which blocks its key; retrying the write"
            );
        }
        let mut state = self.state.lock();
        let (lane, lease) = (lane.key.clone(), settlement.lease);
        let unsettled = RefusedOutcome { lane, lease, since: Instant::now(), is_gone: false };
        state.unsettled.insert(settlement.id.clone(), unsettled);
        state.latest = format!("{} ({outcome}, code {code})", state_id(&settlement.id));
    }

    /// Removes a record: its outcome is written or abandoned.
    pub(crate) fn settled(&self, id: &RecordId) {
        self.state.lock().unsettled.remove(id);
    }

    /// Returns at most this many records whose outcome is refused.
    pub(crate) fn some(&self, count: usize) -> Vec<(RecordId, RefusedOutcome)> {
        let state = self.state.lock();
        let some = state.unsettled.iter().take(count);
        some.map(|(id, unsettled)| (id.clone(), unsettled.clone())).collect()
    }

    /// Notes that this relay no longer owns the record: its outcome does not need to be written.
    pub(crate) fn gone(&self, id: &RecordId) {
        if let Some(unsettled) = self.state.lock().unsettled.get_mut(id) {
            unsettled.is_gone = true;
        }
    }

    /// Returns, and resets, whether this relay was found to own the record no longer.
    pub(crate) fn take_gone(&self, id: &RecordId) -> bool {
        let mut state = self.state.lock();
        let unsettled = state.unsettled.get_mut(id);
        unsettled.is_some_and(|unsettled| std::mem::take(&mut unsettled.is_gone))
    }

    /// Returns how many records wait with a refused outcome.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().unsettled.len()
    }

    fn words(&self) -> Option<String> {
        let state = self.state.lock();
        (!state.unsettled.is_empty()).then(|| {
            format!(
                "MongoDB rejects the outcome of {} records, for example {}; {REMEDY}",
                state.unsettled.len(),
                state.latest
            )
        })
    }
}

/// A kind of work with MongoDB, which can fail while the others succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreWork {
    Lease,
    Renew,
    Settle,
    /// Scheduled records become pending; rare kinds of invalid partitions are corrected.
    Promote,
}

impl StoreWork {
    const ALL: [Self; 4] = [Self::Lease, Self::Renew, Self::Settle, Self::Promote];

    fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Renew => "renew",
            Self::Settle => "settle",
            Self::Promote => "promote",
        }
    }
}

/// Tracks which work currently fails, for the log, `/readyz` and `postrider_store_failing`.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    troubles: BTreeMap<StoreWork, OutageLog>,
    now: Mutex<BTreeMap<StoreWork, String>>,
}

impl Default for StoreHealth {
    fn default() -> Self {
        for work in StoreWork::ALL {
            set(work, None);
        }
        let troubles = StoreWork::ALL.map(|work| (work, OutageLog::default()));
        Self { troubles: troubles.into(), now: Mutex::default() }
    }
}

impl StoreHealth {
    /// Notes that an attempt that began at `began` failed. Returns whether that is news, as
    /// [`OutageLog::failed`].
    pub(crate) fn failed(&self, work: StoreWork, began: Instant, error: &StoreError) -> bool {
        let trouble = &self.troubles[&work];
        let is_news = trouble.failed(began);
        if trouble.lasts() {
            self.note(work, error);
        }
        is_news
    }

    /// Returns whether this work currently fails.
    pub(crate) fn fails(&self, work: StoreWork) -> bool {
        self.troubles[&work].lasts()
    }

    /// Notes a success. Returns how many attempts had failed before, if any.
    pub(crate) fn succeeded(&self, work: StoreWork) -> Option<u32> {
        let failures = self.troubles[&work].succeeded()?;
        self.now.lock().remove(&work);
        set(work, None);
        Some(failures)
    }

    fn note(&self, work: StoreWork, error: &StoreError) {
        set(work, Some(error.is_permanent()));
        let words = if error.is_permanent() { error.refusal() } else { error.brief() };
        self.now.lock().insert(work, words);
    }

    /// Describes what MongoDB refuses or fails to do, for `/readyz`; `None` if nothing.
    pub(crate) fn describe(&self, outcomes: &RefusedOutcomes) -> Option<String> {
        let mut words: Vec<String> = self.now.lock().values().cloned().collect();
        words.extend(outcomes.words());
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// Returns what to do about a permanent error.
pub(crate) fn remedy(error: &StoreError) -> Option<&'static str> {
    error.is_permanent().then(|| error.remedy())
}

/// Formats an error for the log: a permanent one without the command that it quotes.
pub(crate) fn words(error: &StoreError) -> String {
    if error.is_permanent() { error.brief() } else { chain(error) }
}

/// Sets the gauges of this work. `failure`: whether it fails permanently; `None` if it succeeds.
fn set(work: StoreWork, failure: Option<bool>) {
    for (cause, is_permanent) in [("refused", true), ("unavailable", false)] {
        let failing = if failure == Some(is_permanent) { 1.0 } else { 0.0 };
        gauge!(STORE_FAILING, "operation" => work.as_str(), "cause" => cause).set(failing);
    }
}
