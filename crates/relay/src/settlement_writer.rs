//! Writes outcomes to MongoDB in batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_outbox::settle::{Outcome, Settlement, Settlements};
use postrider_store::failpoint;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, instrument, warn};

use crate::in_flight::InFlight;
use crate::metrics::RelayMetrics;
use crate::settlement_queue::PendingSettlement;
use crate::store_health::{RefusedOutcomes, StoreHealth, StoreWork, remedy, words};

/// Shortest and longest wait of a confirmed record for a batch: a majority write costs MongoDB a
/// millisecond, whatever its size. It delays no message, only the record's last write. A crash in
/// between costs duplicates, as at any moment before: no more than [`ENOUGH_RECORDS`] if records
/// come slowly.
const BATCH_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// Records that end the longest wait.
const ENOUGH_RECORDS: usize = 50;

/// Pause before a batch is tried again while MongoDB does not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Shortest and longest pause before a refused outcome is written again.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// How often a waiting refused outcome checks whether it must be abandoned.
const GIVE_UP_INTERVAL: Duration = Duration::from_millis(500);

/// Refused outcomes that do not count as in flight. Without its payload one is small; more of them
/// take the room of other records.
const MAX_UNCOUNTED: usize = 10_000;

/// Concurrent batches: the next one is written while a majority acknowledges the one before.
const MAX_CONCURRENT_BATCHES: usize = 4;

/// Writes outcomes, and reports the results to lanes.
#[derive(Clone, Debug)]
pub(super) struct SettlementWriter {
    pub(super) settlements: Settlements,
    /// Outcomes in one command at most.
    pub(super) batch_size: usize,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) metrics: Arc<RelayMetrics>,
    pub(super) store_health: Arc<StoreHealth>,
    /// Outcomes that MongoDB refuses.
    pub(super) refused_outcomes: Arc<RefusedOutcomes>,
    pub(super) stop: CancellationToken,
}

/// Writes outcomes until every sender is gone and all is written.
pub(super) async fn run(writer: SettlementWriter, mut items: mpsc::Receiver<PendingSettlement>) {
    let mut under_way = JoinSet::new();
    // Separate tasks: outcomes that wait for a validator must not delay batches.
    let mut refused = JoinSet::new();
    let spawn_retries = |refused: &mut JoinSet<()>, items: Vec<(PendingSettlement, i32)>| {
        for (item, code) in items {
            refused.spawn(writer.clone().retry_refused(item, code));
        }
    };
    let limit = writer.batch_size;
    let mut batch = Vec::new();
    loop {
        let received = tokio::select! {
            received = items.recv_many(&mut batch, limit) => received,
            // Not only when there is another batch: its items may be the last ones.
            Some(ended) = under_way.join_next() => {
                spawn_retries(&mut refused, propagate_panic(ended).unwrap_or_default());
                continue;
            }
            Some(ended) = refused.join_next() => {
                propagate_panic(ended);
                continue;
            }
        };
        if received == 0 {
            break;
        }
        // No lane waits for a done or released record; an item with a waiting lane ends the wait.
        for (pause, enough) in
            [(BATCH_WAIT.0, limit), (BATCH_WAIT.1 - BATCH_WAIT.0, ENOUGH_RECORDS.min(limit))]
        {
            let gather = tokio::time::sleep(pause);
            tokio::pin!(gather);
            while batch.len() < enough && !batch.iter().any(|item| item.reply.is_some()) {
                let room = limit - batch.len();
                tokio::select! {
                    biased;
                    more = items.recv_many(&mut batch, room) => if more == 0 { break },
                    () = &mut gather => break,
                }
            }
        }
        while under_way.len() >= MAX_CONCURRENT_BATCHES {
            let Some(ended) = under_way.join_next().await else { break };
            spawn_retries(&mut refused, propagate_panic(ended).unwrap_or_default());
        }
        under_way.spawn(writer.clone().write(std::mem::take(&mut batch)));
    }
    while let Some(ended) = under_way.join_next().await {
        spawn_retries(&mut refused, propagate_panic(ended).unwrap_or_default());
    }
    while let Some(ended) = refused.join_next().await {
        propagate_panic(ended);
    }
}

/// Propagates a panic of a batch as a panic of the settlement writer.
fn propagate_panic<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended {
        Ok(ended) => Some(ended),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => None,
    }
}

impl SettlementWriter {
    /// Writes one batch, however long MongoDB takes to return: if it gave up, the records would be
    /// quarantined. A stop after its timeout drops it. Returns what MongoDB refuses, with its code.
    #[instrument(name = "settle", level = "debug", skip_all, fields(records = items.len()))]
    async fn write(self, items: Vec<PendingSettlement>) -> Vec<(PendingSettlement, i32)> {
        let batch: Vec<Settlement> = items.iter().map(|item| item.settlement.clone()).collect();
        failpoint::hit("relay::before_settle");
        let mut unsettled = loop {
            let began = Instant::now();
            match self.settlements.write(&batch).await {
                Ok(unsettled) => break unsettled,
                Err(error) => {
                    if self.store_health.failed(StoreWork::Settle, began, &error) {
                        let remedy = remedy(&error);
                        let error = words(&error);
                        warn!(
                            error,
                            remedy, "failed to settle records; retrying until MongoDB acknowledges"
                        );
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        };
        if let Some(failures) = self.store_health.succeeded(StoreWork::Settle) {
            info!(failures, "settling records again");
        }
        failpoint::hit("relay::after_settle");
        let mut refused = Vec::new();
        for item in items {
            match unsettled.refused.remove(&item.settlement.id) {
                Some(code) => refused.push((item, code)),
                None => {
                    let ours = !unsettled.lost.contains(&item.settlement.id);
                    self.conclude(item, ours);
                }
            }
        }
        refused
    }

    /// Repeats one outcome that MongoDB refuses, until it is written, a stop comes or its partition
    /// goes to another instance.
    ///
    /// Nothing of its key is published meanwhile, above all not the record itself: a confirmed
    /// record would be delivered again with every lease until the validator changes.
    async fn retry_refused(self, item: PendingSettlement, code: i32) {
        // An outcome that waits for an operator must not take the room of other records.
        let makes_room = self.refused_outcomes.count() < MAX_UNCOUNTED;
        if makes_room {
            self.in_flight.remove(item.bytes);
        }
        self.refused_outcomes.unsettled(&item.settlement, &item.lane, code);
        item.lane.refuse();
        let mut pause = REFUSED_PAUSE.0;
        let mut next = Instant::now() + pause;
        let ours = loop {
            if item.lane.must_end(&self.stop) {
                break false;
            }
            tokio::time::sleep(GIVE_UP_INTERVAL).await;
            if Instant::now() < next && !self.refused_outcomes.take_gone(&item.settlement.id) {
                continue;
            }
            // The batches log other errors of MongoDB.
            if let Ok(unsettled) =
                self.settlements.write(std::slice::from_ref(&item.settlement)).await
                && unsettled.refused.is_empty()
            {
                break unsettled.is_empty();
            }
            pause = (pause * 2).min(REFUSED_PAUSE.1);
            next = Instant::now() + pause;
        };
        self.refused_outcomes.settled(&item.settlement.id);
        if makes_room { self.finish(item, ours) } else { self.conclude(item, ours) }
    }

    /// Concludes one outcome: written, or lost if the record was not `ours` any more.
    fn conclude(&self, item: PendingSettlement, ours: bool) {
        self.in_flight.remove(item.bytes);
        self.finish(item, ours);
    }

    fn finish(&self, item: PendingSettlement, ours: bool) {
        count(&self.metrics, &item, ours);
        debug!(
            record.id = %item.settlement.id,
            key = item.lane.key.as_str(),
            partition = item.lane.partition,
            attempt = item.settlement.attempt,
            sink = item.sink,
            outcome = if ours { item.settlement.outcome.word() } else { "lost" },
            "settled a record"
        );
        if !ours {
            item.lane.leave_incomplete();
        }
        item.lane.settled(&item.settlement.id);
        if let Some(reply) = item.reply {
            // The lane may have been dropped by a stop after its timeout.
            let _ = reply.send(ours);
        }
    }
}

fn count(metrics: &RelayMetrics, item: &PendingSettlement, ours: bool) {
    if !ours {
        return metrics.lost(&item.sink);
    }
    match item.settlement.outcome {
        Outcome::Done => metrics.done(&item.sink),
        Outcome::Retry { .. } => metrics.retry(&item.sink),
        Outcome::Dead { .. } => metrics.dead(&item.sink),
        Outcome::Released => metrics.released(&item.sink),
    }
}
