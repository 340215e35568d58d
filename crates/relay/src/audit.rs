//! Whether the change stream has brought everything.
//!
//! While it carries the records nothing else reads them. So now and then everything pending is read
//! all the same, and compared with what the relay knows. A record is a finding if the stream must
//! have brought it by now, it is still pending, and nothing is known of its key: neither is it in
//! flight, nor does it wait for anything. Its key is read at once. There should be none.

use std::sync::Arc;
use std::time::Duration;

use postrider_outbox::fields::PENDING;
use postrider_outbox::ids::RecordId;
use postrider_outbox::position::Position;
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::{Room, Snapshot};
use postrider_outbox::wakeup::Wakeup;
use postrider_store::StoreError;
use postrider_store::text::chain;
use tracing::{debug, warn};

use crate::context::RelayContext;
use crate::sink::Sink;

/// By then the stream has brought what a read has shown: it is given up as lagging otherwise.
const BROUGHT: Duration = Duration::from_secs(30);

/// Records of one read.
const PAGE: usize = 500;

/// Records that one audit compares at most: of more the next one continues.
const COMPARED: usize = 10_000;

/// The first record of a key of which nothing was known.
struct Suspect {
    lane: LaneKey,
    partition: u8,
    id: RecordId,
}

/// Audits for ever, at this interval.
pub(super) async fn run<S: Sink>(context: Arc<RelayContext<S>>, wakeup: Wakeup) {
    loop {
        tokio::time::sleep(context.settings.audit_interval).await;
        if let Err(error) = audit(&context, &wakeup).await {
            // The scan meets the same error, and reports it.
            debug!(error = chain(&error), "an audit failed; the next one is made in its time");
        }
    }
}

async fn audit<S: Sink>(context: &RelayContext<S>, wakeup: &Wakeup) -> Result<(), StoreError> {
    let Some(life) = context.state.key_table.live_period() else { return Ok(()) };
    let suspects = suspects(context).await?;
    if suspects.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(BROUGHT).await;
    for Suspect { lane, partition, id } in suspects {
        if context.state.key_table.live_period() != Some(life) {
            return Ok(());
        }
        let is_known = || context.state.key_table.is_tracked(&lane);
        // Known before or after the read: it came into a lane and was settled, or waits.
        if is_known() || context.read(&id, PENDING).await?.is_none() || is_known() {
            continue;
        }
        warn!(
            %id,
            key = lane.as_str(),
            partition,
            "a record was not brought by the change stream: its key is read now; please report this"
        );
        context.metrics.audit_finding();
        context.state.key_table.require_scan(lane, partition, id);
        wakeup.all();
    }
    Ok(())
}

/// Of each key that has anything pending, and of which nothing is known, the first record.
async fn suspects<S: Sink>(context: &RelayContext<S>) -> Result<Vec<Suspect>, StoreError> {
    let owned = context.state.key_table.owned();
    let mut suspects: Vec<Suspect> = Vec::new();
    let mut snapshot = Snapshot::begin(&context.collections).await?;
    if !context.settings.is_ordered() {
        snapshot.go_on_within_keys();
    }
    let mut next = Some(Position::start());
    while let Some(from) = next.filter(|_| suspects.len() < COMPARED) {
        let allowance = context.state.in_flight.allow(context.settings.batch_bytes);
        let room = Room { records: PAGE, bytes: allowance.bytes };
        let over = context.state.key_table.keys_to_skip(&from);
        let page = snapshot.page(&from, &owned, &over, room).await?;
        for record in page.records {
            let record = context.settings.in_lane(record);
            let is_next = suspects.last().is_none_or(|last| last.lane != record.lane);
            if is_next && !context.state.key_table.is_tracked(&record.lane) {
                let (lane, partition, id) = (record.lane, record.partition, record.id);
                suspects.push(Suspect { lane, partition, id });
            }
        }
        next = page.next;
    }
    Ok(suspects)
}
