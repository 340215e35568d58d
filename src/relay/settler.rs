//! Batches outcomes on their way to MongoDB.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::failpoint;
use crate::outbox::settle::{Outcome, Settlement, Settlements};
use crate::relay::lane::Lane;
use crate::relay::metrics::RelayMetrics;
use crate::relay::shared::Shared;

/// How long a confirmed record waits for company. It delays no message, only the
/// record's last write; a crash in between costs duplicates, as at any moment before.
const COMPANY: Duration = Duration::from_millis(20);

/// Pause before a batch is tried again while MongoDB does not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// Batches on their way at a time: the next one is written while a majority acknowledges
/// the one before.
const UNDER_WAY: usize = 4;

/// One outcome, and whom to tell when it is written.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) settlement: Settlement,
    pub(crate) lane: Arc<Lane>,
    pub(crate) sink: String,
    pub(crate) bytes: usize,
    /// Given where a lane waits: whether the record was still ours.
    pub(crate) reply: Option<oneshot::Sender<bool>>,
}

/// Writes outcomes until every sender is gone and all is written.
pub(crate) async fn run<S: Send + Sync + 'static>(
    shared: Arc<Shared<S>>,
    settlements: Settlements,
    mut items: mpsc::Receiver<Item>,
) {
    let mut under_way = JoinSet::new();
    let limit = shared.settings.batch_size;
    let mut batch = Vec::new();
    loop {
        let came = tokio::select! {
            came = items.recv_many(&mut batch, limit) => came,
            // Not only when there is another batch: its items may be all that was to come.
            Some(ended) = under_way.join_next() => {
                surface(Some(ended));
                continue;
            }
        };
        if came == 0 {
            break;
        }
        // Nobody waits for a done or released record; whoever waits is not kept.
        let gather = tokio::time::sleep(COMPANY);
        tokio::pin!(gather);
        while batch.len() < limit && !batch.iter().any(|item| item.reply.is_some()) {
            let room = limit - batch.len();
            tokio::select! {
                biased;
                more = items.recv_many(&mut batch, room) => if more == 0 { break },
                () = &mut gather => break,
            }
        }
        while under_way.len() >= UNDER_WAY {
            surface(under_way.join_next().await);
        }
        let work = write(shared.clone(), settlements.clone(), std::mem::take(&mut batch));
        under_way.spawn(work);
    }
    while let Some(ended) = under_way.join_next().await {
        surface(Some(ended));
    }
}

/// A panic in a batch is a panic of the settler.
fn surface(ended: Option<Result<(), tokio::task::JoinError>>) {
    if let Some(Err(error)) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Writes one batch, however long MongoDB takes to come back: giving up would only
/// turn its records into suspects. The hard end of a stop drops it.
async fn write<S>(shared: Arc<Shared<S>>, settlements: Settlements, items: Vec<Item>) {
    let batch: Vec<Settlement> = items.iter().map(|item| item.settlement.clone()).collect();
    failpoint::hit("relay::before_settle");
    let lost = loop {
        let began = Instant::now();
        match settlements.write(&batch).await {
            Ok(lost) => break lost,
            Err(error) => {
                if shared.settling.failed(began) {
                    let error = crate::telemetry::chain(&error);
                    warn!(error, "settling fails: it is repeated until MongoDB has it");
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    if let Some(failures) = shared.settling.succeeded() {
        info!(failures, "settling goes on");
    }
    failpoint::hit("relay::after_settle");
    for item in items {
        let ours = !lost.contains(&item.settlement.id);
        count(&shared.metrics, &item, ours);
        shared.in_hand.remove(item.bytes);
        item.lane.settled(&item.settlement.id);
        if let Some(reply) = item.reply {
            // Whoever waited may be gone: its lane was dropped at a hard stop.
            let _ = reply.send(ours);
        }
    }
}

fn count(metrics: &RelayMetrics, item: &Item, ours: bool) {
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
