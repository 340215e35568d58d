//! Batches outcomes on their way to MongoDB.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tracing::{info, instrument, warn};

use crate::failpoint;
use crate::outbox::settle::{Outcome, Settlement, Settlements};
use crate::relay::failing::{Work, remedy, words};
use crate::relay::lane::Lane;
use crate::relay::metrics::RelayMetrics;
use crate::relay::shared::Shared;

/// How long a confirmed record waits for company at least, and at most where it has little: what a
/// majority must acknowledge costs MongoDB a millisecond, whatever it is about. It delays no message,
/// only the record's last write; a crash in between costs duplicates, as at any moment before.
const COMPANY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

/// So many are company enough.
const ENOUGH: usize = 50;

/// Pause before a batch is tried again while MongoDB does not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// Pauses before an outcome that MongoDB refuses is written again, from and to.
const REFUSED: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// How often one that waits so looks whether it must be given up.
const GIVE_UP: Duration = Duration::from_millis(500);

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
    // Apart: what waits for a validator must not stand in the way of batches.
    let mut refused = JoinSet::new();
    let keep_on = |refused: &mut JoinSet<()>, items: Vec<(Item, i32)>| {
        for (item, code) in items {
            refused.spawn(insist(shared.clone(), settlements.clone(), item, code));
        }
    };
    let limit = shared.settings.batch_size;
    let mut batch = Vec::new();
    loop {
        let came = tokio::select! {
            came = items.recv_many(&mut batch, limit) => came,
            // Not only when there is another batch: its items may be all that was to come.
            Some(ended) = under_way.join_next() => {
                keep_on(&mut refused, surface(ended).unwrap_or_default());
                continue;
            }
            Some(ended) = refused.join_next() => {
                surface(ended);
                continue;
            }
        };
        if came == 0 {
            break;
        }
        // Nobody waits for a done or released record; whoever waits is not kept.
        for (pause, enough) in [(COMPANY.0, limit), (COMPANY.1 - COMPANY.0, ENOUGH.min(limit))] {
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
        while under_way.len() >= UNDER_WAY {
            let Some(ended) = under_way.join_next().await else { break };
            keep_on(&mut refused, surface(ended).unwrap_or_default());
        }
        let work = write(shared.clone(), settlements.clone(), std::mem::take(&mut batch));
        under_way.spawn(work);
    }
    while let Some(ended) = under_way.join_next().await {
        keep_on(&mut refused, surface(ended).unwrap_or_default());
    }
    while let Some(ended) = refused.join_next().await {
        surface(ended);
    }
}

/// A panic in a batch is a panic of the settler.
fn surface<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended {
        Ok(ended) => Some(ended),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => None,
    }
}

/// Writes one batch, however long MongoDB takes to come back: giving up would only
/// turn its records into suspects. The hard end of a stop drops it. Answers what MongoDB refuses,
/// with its code.
#[instrument(name = "settle", level = "debug", skip_all, fields(records = items.len()))]
async fn write<S>(
    shared: Arc<Shared<S>>,
    settlements: Settlements,
    items: Vec<Item>,
) -> Vec<(Item, i32)> {
    let batch: Vec<Settlement> = items.iter().map(|item| item.settlement.clone()).collect();
    failpoint::hit("relay::before_settle");
    let mut unsettled = loop {
        let began = Instant::now();
        match settlements.write(&batch).await {
            Ok(unsettled) => break unsettled,
            Err(error) => {
                if shared.failing.failed(Work::Settle, began, &error) {
                    let remedy = remedy(&error);
                    let error = words(&error);
                    warn!(error, remedy, "settling fails: it is repeated until MongoDB has it");
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    if let Some(failures) = shared.failing.succeeded(Work::Settle) {
        info!(failures, "settling goes on");
    }
    failpoint::hit("relay::after_settle");
    let mut refused = Vec::new();
    for item in items {
        match unsettled.refused.remove(&item.settlement.id) {
            Some(code) => refused.push((item, code)),
            None => {
                let ours = !unsettled.lost.contains(&item.settlement.id);
                conclude(&shared, item, ours);
            }
        }
    }
    refused
}

/// Outcomes that MongoDB refuses and that do not count as in flight. Without its payload one is
/// small; more of them take the room of other records.
const INSISTED: usize = 10_000;

/// Repeats one outcome that MongoDB refuses, until it is written, a stop comes or its partition
/// goes to another instance.
///
/// Nothing of its key is published meanwhile, least of all the record itself: what a broker has
/// confirmed would be delivered again with every lease for as long as the validator is as it is.
async fn insist<S>(shared: Arc<Shared<S>>, settlements: Settlements, item: Item, code: i32) {
    // What waits for an operator must not take the room of what can go.
    let makes_room = shared.outcomes.count() < INSISTED;
    if makes_room {
        shared.in_hand.remove(item.bytes);
    }
    shared.outcomes.unsettled(&item.settlement, &item.lane, code);
    item.lane.refuse();
    let mut pause = REFUSED.0;
    let mut next = Instant::now() + pause;
    let ours = loop {
        if item.lane.must_end(&shared) {
            break false;
        }
        tokio::time::sleep(GIVE_UP).await;
        if Instant::now() < next && !shared.outcomes.take_gone(&item.settlement.id) {
            continue;
        }
        // What else is wrong with MongoDB is told by the batches.
        if let Ok(unsettled) = settlements.write(std::slice::from_ref(&item.settlement)).await
            && unsettled.refused.is_empty()
        {
            break unsettled.is_empty();
        }
        pause = (pause * 2).min(REFUSED.1);
        next = Instant::now() + pause;
    };
    shared.outcomes.settled(&item.settlement.id);
    if makes_room { finish(&shared, item, ours) } else { conclude(&shared, item, ours) }
}

/// The end of one outcome: written, or lost where the record was not `ours` any more.
fn conclude<S>(shared: &Shared<S>, item: Item, ours: bool) {
    shared.in_hand.remove(item.bytes);
    finish(shared, item, ours);
}

fn finish<S>(shared: &Shared<S>, item: Item, ours: bool) {
    count(&shared.metrics, &item, ours);
    if !ours {
        item.lane.leave_incomplete();
    }
    item.lane.settled(&item.settlement.id);
    if let Some(reply) = item.reply {
        // Whoever waited may be gone: its lane was dropped at a hard stop.
        let _ = reply.send(ours);
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
