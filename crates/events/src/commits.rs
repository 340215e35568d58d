//! Reports of what this process has committed, to the sequencer of the feed in the same process.

use std::sync::atomic::{AtomicBool, Ordering};

use bson::Bson;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::names::AggregateKey;

/// The most reports that wait: about 20 MB. Beyond, the sequencer reads them from the index.
const MAX_WAITING: usize = 100_000;

/// An append that a majority has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CommittedAppend {
    /// Its aggregate.
    pub(crate) aggregate: AggregateKey,
    /// The id of its stream document.
    pub(crate) id: Bson,
    pub(crate) version: i64,
    pub(crate) create_time: i64,
    /// The number of its events.
    pub(crate) events: i64,
    /// Whether another program has stored `position: null`.
    pub(crate) has_null_position: bool,
}

/// The appends of this process that were not taken yet. Without a listener nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct CommitReports {
    is_active: AtomicBool,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    appends: Vec<CommittedAppend>,
    is_overflowed: bool,
}

/// What was reported.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) appends: Vec<CommittedAppend>,
    /// Whether more was committed than could be kept.
    pub(crate) is_overflowed: bool,
}

impl CommitReports {
    /// Whether there is a listener: without a listener a report is not worth making.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Reports committed appends. Never waits.
    pub(crate) fn report(&self, appends: impl Iterator<Item = CommittedAppend>) {
        if !self.is_active() {
            return;
        }
        let mut waiting = self.waiting.lock();
        for append in appends {
            if waiting.appends.len() >= MAX_WAITING {
                waiting.is_overflowed = true;
                break;
            }
            waiting.appends.push(append);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Begins to listen; what was committed before is not reported.
    pub(crate) fn listen(&self) {
        self.take();
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Ends listening.
    pub(crate) fn ignore(&self) {
        self.is_active.store(false, Ordering::Relaxed);
        self.take();
    }

    /// Takes what was reported.
    pub(crate) fn take(&self) -> Taken {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        Taken { appends: waiting.appends, is_overflowed: waiting.is_overflowed }
    }

    /// Resolves when something was reported since the last call.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{AggregateId, AggregateName};

    fn append(version: i64) -> CommittedAppend {
        let name = AggregateName::new("order").unwrap();
        let aggregate = (name, AggregateId::new("1").unwrap());
        CommittedAppend {
            aggregate,
            id: Bson::Int64(version),
            version,
            create_time: 0,
            events: 1,
            has_null_position: false,
        }
    }

    #[tokio::test]
    async fn reports_are_kept_only_while_someone_listens() {
        let reports = CommitReports::default();

        reports.report([append(1)].into_iter());
        reports.listen();
        reports.report([append(2), append(3)].into_iter());
        reports.arrived().await;
        let taken = reports.take().appends;
        reports.ignore();
        reports.report([append(4)].into_iter());

        assert_eq!(taken, [append(2), append(3)]);
        assert!(reports.take().appends.is_empty());
    }

    #[test]
    fn reports_overflow_and_say_so() {
        let reports = CommitReports::default();
        reports.listen();

        reports.report((0..).map(append).take(MAX_WAITING + 1));

        let taken = reports.take();
        assert!(taken.is_overflowed && taken.appends.len() == MAX_WAITING);
        assert!(!reports.take().is_overflowed);
    }
}
