//! Reads a page of a rotation: from a position on, up to where there is something to lease.

use bson::Bson;
use postrider_outbox::ids::RecordId;
use postrider_outbox::position::Position;
use postrider_outbox::record::Record;
use postrider_outbox::snapshot::{ScanRange, size_of};
use postrider_store::StoreError;

use crate::metrics::ReadSource;
use crate::partition;
use crate::scanner::planning::RunLimit;
use crate::scanner::{OpenScan, ScanResult, Scanner};
use crate::sink::Sink;

impl<S: Sink> Scanner<'_, S> {
    /// Reads from `from` up to where there is something to lease. Always continues from the records
    /// without a partition to the others, so that a rotation over a quiet outbox is one scan.
    pub(super) async fn rotate(
        &self,
        mut from: Position,
        open: OpenScan<'_>,
        mut result: ScanResult,
    ) -> Result<ScanResult, StoreError> {
        let key_table = &self.context.state.key_table;
        let OpenScan { mut snapshot, blockers, taken_keys, recoveries, start, owned, room } = open;
        result.is_all = blockers.has_all_misplaced;
        let mut left = room;
        let (mut plans, mut shown, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let over = key_table.keys_to_skip(&from);
            result.skipped += over.keys.len();
            let page = snapshot.page(&from, owned, &over, left).await?;
            self.context.metrics.seen(ReadSource::Scan, page.records.len());
            skipped.extend(page.skipped);
            // (A new primary may not know yet what the stream has shown.)
            result.is_all &= page.is_all && start.handled_until <= snapshot.moment();
            result.full |= page.is_full;
            left.records -= page.records.len().min(left.records / 2);
            left.bytes = left.bytes.saturating_sub(size_of(&page.records));
            let stretch = ScanRange::Page(&from, owned, &over);
            let (records, blockers, unknown) = self
                .plan_basis(page.records, blockers.clone(), &stretch, None, left, &mut snapshot)
                .await?;
            skipped.extend(unknown);
            self.record_places(&records, &blockers);
            let records = self.in_lanes(records);
            // (While polling, the next rotation finds it again.)
            if start.follows {
                let place = |r: &Record| (r.lane.clone(), r.partition, r.id.clone());
                shown.extend(records.iter().map(place));
            }
            plans.push(self.plan(records, &blockers, &taken_keys, None, RunLimit::NEW_LANE));
            let is_found = plans.iter().any(|plan| !plan.runs.is_empty());
            match page.next {
                Some(next) if !page.is_full && (!is_found || next.begins_side()) => from = next,
                next => {
                    result.next = next;
                    break;
                }
            }
        }
        // After the last read has succeeded: otherwise nothing would lease, or release, the rest.
        for plan in plans {
            self.register(plan, recoveries, None, None, &mut result);
        }
        // A lane may have ended since the page was read: its key is scanned again.
        for (lane, partition, id) in shown {
            key_table.require_scan(lane, partition, id);
        }
        for key in skipped {
            let partition = partition::of_key(key.as_str());
            key_table.require_scan(key, partition, RecordId::from(Bson::Null));
        }
        Ok(result)
    }
}
