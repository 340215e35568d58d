//! Rechecks whether the blockers of keys are still there, unchanged.
//!
//! Records of blocked keys change without the relay: an operator discards or requeues one, or
//! corrects its `visibleAt`; a peer delivers one; a slow transaction commits an earlier one. A
//! rotation skips blocked keys and does not see that. Therefore their blockers are read again in
//! rounds, one in every `poll_interval`, and at once after an operator command in this process. A
//! key whose blocker is gone, has changed, or is no longer the first pending record of its key is
//! unblocked, and the next scan decides again.
//!
//! A round reads one key of the index and one record, without its payload, for each blocked key,
//! some hundreds with one command. It works for a tenth of the time: a round of a few thousand keys
//! is over within `poll_interval`; one of 100,000 keys takes about ten times as long as its reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bson::Bson;
use postrider_outbox::fields::LEASE_ID;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::OutboxSnapshot;
use postrider_outbox::wakeup::{ScanHint, Wakeup};
use postrider_store::StoreError;
use postrider_store::text::chain;
use tracing::debug;

use crate::blocker::Blocker;
use crate::context::RelayContext;
use crate::metrics::ReadSource;
use crate::sink::Sink;

/// Keys whose blockers one command reads.
pub(crate) const BATCH_KEYS: usize = 500;

/// The pause after each command, as a multiple of its duration.
pub(crate) const REST_FACTOR: u32 = 9;

/// Rechecks blocked keys, forever.
pub(crate) async fn run<S: Sink>(context: Arc<RelayContext<S>>, wakeup: Wakeup) {
    let poll = context.settings.poll_interval;
    let mut changes = wakeup.changes();
    loop {
        let began = Instant::now();
        if let Err(error) = round(&context, &wakeup).await {
            // The scan meets the same error and logs it.
            debug!(error = chain(&error), "failed to recheck blocked keys; reading them again");
        }
        tokio::select! {
            () = tokio::time::sleep(poll.saturating_sub(began.elapsed())) => {}
            // The sender lives as long as `wakeup`.
            _ = changes.changed() => {}
        }
    }
}

async fn round<S: Sink>(context: &RelayContext<S>, wakeup: &Wakeup) -> Result<(), StoreError> {
    recheck_singles(context).await?;
    recheck_unsettled(context).await?;
    let mut from = None;
    loop {
        let (waiting, next) =
            context.state.key_table.comparable_blockers(from.as_ref(), BATCH_KEYS);
        if !waiting.is_empty() {
            let began = Instant::now();
            for key in recheck_batch(context, &waiting).await? {
                wakeup.at(key);
            }
            tokio::time::sleep(began.elapsed() * REST_FACTOR).await;
        }
        match next {
            Some(_) => from = next,
            None => return Ok(()),
        }
    }
}

/// Unblocks blocked records without a key that have changed.
async fn recheck_singles<S: Sink>(context: &RelayContext<S>) -> Result<(), StoreError> {
    let mut from = 0;
    loop {
        let waiting = context.state.key_table.comparable_singles(from, BATCH_KEYS);
        if waiting.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let ids: Vec<Bson> = waiting.iter().map(|(_, blocker)| Bson::from(&blocker.id)).collect();
        let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
        let read = snapshot.waiting(&ids, context.settings.batch_bytes).await?;
        context.metrics.seen(ReadSource::Recheck, read.len());
        let read: HashMap<&RecordId, &Record> =
            read.iter().map(|record| (&record.id, record)).collect();
        for (key, blocker) in &waiting {
            let front: Vec<&Record> = read.get(&blocker.id).copied().into_iter().collect();
            is_freed(context, key, blocker, &front);
        }
        from += waiting.len();
        tokio::time::sleep(began.elapsed() * REST_FACTOR).await;
    }
}

/// Notes which records with a refused outcome this relay no longer owns: an operator or another
/// instance has discarded, deleted or requeued them.
async fn recheck_unsettled<S: Sink>(context: &RelayContext<S>) -> Result<(), StoreError> {
    let unsettled = context.state.refused_outcomes.some(usize::MAX);
    for some in unsettled.chunks(BATCH_KEYS) {
        let began = Instant::now();
        let ids: Vec<Bson> = some.iter().map(|(id, _)| Bson::from(id)).collect();
        let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
        let read = snapshot.waiting(&ids, context.settings.batch_bytes).await?;
        context.metrics.seen(ReadSource::Recheck, read.len());
        let leases: HashMap<&RecordId, Option<Bson>> =
            read.iter().map(|record| (&record.id, lease_of(record))).collect();
        let is_ours = |id: &RecordId, lease| leases.get(id) == Some(&Some(Bson::from(lease)));
        let gone = some.iter().filter(|(id, unsettled)| !is_ours(id, unsettled.lease));
        gone.for_each(|(id, _)| context.state.refused_outcomes.gone(id));
        tokio::time::sleep(began.elapsed() * REST_FACTOR).await;
    }
    Ok(())
}

fn lease_of(record: &Record) -> Option<Bson> {
    let lease = record.raw.get(LEASE_ID).ok()??;
    Bson::try_from(lease).ok()
}

/// Unblocks the keys whose blockers have changed. Returns where they are.
async fn recheck_batch<S: Sink>(
    context: &RelayContext<S>,
    waiting: &[(LaneKey, Blocker)],
) -> Result<Vec<ScanHint>, StoreError> {
    let lanes = waiting
        .iter()
        .filter_map(|(key, blocker)| Some((blocker.partition, key.as_str(), blocker.seq?)));
    let lanes: Vec<_> = lanes.collect();
    let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
    let read = snapshot.fronts(&lanes, context.settings.batch_bytes).await?;
    context.metrics.seen(ReadSource::Recheck, read.len());
    let mut fronts: HashMap<&LaneKey, Vec<&Record>> = HashMap::new();
    for record in &read {
        fronts.entry(&record.lane).or_default().push(record);
    }
    let mut freed = Vec::new();
    for (key, blocker) in waiting {
        let front = fronts.get(key).map(Vec::as_slice).unwrap_or_default();
        if is_freed(context, key, blocker, front) {
            freed.push(ScanHint::Key { partition: blocker.partition, key: key.as_str().into() });
        }
    }
    Ok(freed)
}

/// Unblocks a key unless its blocker was read unchanged, with nothing before it. Returns whether it
/// did.
fn is_freed<S>(
    context: &RelayContext<S>,
    key: &LaneKey,
    blocker: &Blocker,
    front: &[&Record],
) -> bool {
    let is_first = front.iter().all(|record| record.seq >= blocker.seq);
    let found = front.iter().find(|record| record.id == blocker.id).filter(|_| is_first);
    match found {
        Some(record) if blocker.is(record) => false,
        Some(record) if blocker.is_written() => {
            // (A leased record will change in a moment.)
            if record.lease_until.is_none() {
                context.state.key_table.update_blocker(key, blocker, Blocker::of(record));
            }
            false
        }
        _ => context.state.key_table.unblock_from(key, blocker),
    }
}
