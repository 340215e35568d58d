//! Audits the change stream: has it brought every pending record?
//!
//! While the stream carries the records, nothing else reads them. So at intervals the audit reads
//! all pending records and compares them with the key table. A record is a finding if the stream
//! must have brought it by now, it is still pending, and its key is neither in flight nor blocked.
//! Such a key is scanned at once. A finding is a bug.

use std::sync::Arc;
use std::time::Duration;

use postrider_outbox::fields::PENDING;
use postrider_outbox::ids::RecordId;
use postrider_outbox::position::Position;
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::{OutboxSnapshot, ReadLimit};
use postrider_outbox::wakeup::Wakeup;
use postrider_store::StoreError;
use postrider_store::text::chain;
use tracing::{debug, warn};

use crate::context::RelayContext;
use crate::metrics::ReadSource;
use crate::sink::Sink;

/// Age at which a record must have been brought: a stream that lags for longer is closed.
const LAG_GRACE: Duration = Duration::from_secs(30);

/// Records of one read.
const PAGE_RECORDS: usize = 500;

/// Records that one audit compares at most; the next audit continues behind them.
const MAX_COMPARED: usize = 10_000;

/// The first record of a key that the relay does not know.
struct Candidate {
    lane: LaneKey,
    partition: u8,
    id: RecordId,
}

/// Audits at this interval, forever.
pub(super) async fn run<S: Sink>(context: Arc<RelayContext<S>>, wakeup: Wakeup) {
    let mut from = Position::start();
    loop {
        tokio::time::sleep(context.settings.audit_interval).await;
        match audit(&context, &wakeup, &from).await {
            Ok(next) => from = next.unwrap_or_else(Position::start),
            // The scan meets the same error and logs it.
            Err(error) => {
                debug!(error = chain(&error), "an audit failed; the next one runs as scheduled");
            }
        }
    }
}

/// Audits from a position on. Returns where the next audit continues; `None` if this one has read everything behind
/// the position.
async fn audit<S: Sink>(
    context: &RelayContext<S>,
    wakeup: &Wakeup,
    from: &Position,
) -> Result<Option<Position>, StoreError> {
    let Some(life) = context.state.key_table.live_period() else { return Ok(None) };
    let (candidates, next) = candidates(context, from).await?;
    if candidates.is_empty() {
        return Ok(next);
    }
    tokio::time::sleep(LAG_GRACE).await;
    for Candidate { lane, partition, id } in candidates {
        if context.state.key_table.live_period() != Some(life) {
            return Ok(None);
        }
        let is_known = || context.state.key_table.is_tracked(&lane);
        // A record known before or after the read was settled by a lane, or waits.
        if is_known() || context.read(&id, PENDING).await?.is_none() || is_known() {
            continue;
        }
        warn!(
            %id,
            key = lane.as_str(),
            partition,
            "the change stream missed a record; its key is read again; please report this as a bug"
        );
        context.metrics.audit_finding();
        context.state.key_table.require_scan(lane, partition, id);
        wakeup.all();
    }
    Ok(next)
}

/// Returns the first pending record of each key that the relay does not know, from a position on, and the position
/// behind them; `None` if nothing follows.
async fn candidates<S: Sink>(
    context: &RelayContext<S>,
    from: &Position,
) -> Result<(Vec<Candidate>, Option<Position>), StoreError> {
    let owned = context.state.key_table.owned();
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
    if !context.settings.is_ordered() {
        snapshot.split_keys();
    }
    let mut next = Some(from.clone());
    while let Some(from) = next.take_if(|_| candidates.len() < MAX_COMPARED) {
        let allowance = context.state.in_flight.allow(context.settings.batch_bytes);
        let room = ReadLimit { records: PAGE_RECORDS, bytes: allowance.bytes };
        let over = context.state.key_table.keys_to_skip(&from);
        let page = snapshot.page(&from, &owned, &over, room).await?;
        context.metrics.seen(ReadSource::Audit, page.records.len());
        for record in page.records {
            let record = context.in_lane(record);
            let is_next = candidates.last().is_none_or(|last| last.lane != record.lane);
            if is_next && !context.state.key_table.is_tracked(&record.lane) {
                let (lane, partition, id) = (record.lane, record.partition, record.id);
                candidates.push(Candidate { lane, partition, id });
            }
        }
        next = page.next;
    }
    Ok((candidates, next))
}
