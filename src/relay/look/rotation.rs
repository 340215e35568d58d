//! A rotation's look: on from a place, up to where there is something.

use bson::Bson;

use crate::ids::RecordId;
use crate::outbox::position::Position;
use crate::outbox::record::Record;
use crate::outbox::snapshot::{Stretch, first_keys, size_of};
use crate::partition;
use crate::relay::before::key_of;
use crate::relay::look::{Reading, Seen};
use crate::relay::settings::Settings;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

impl<S: Sink> Shared<S> {
    /// Reads from `from` up to where there is something; from the records without a partition to the
    /// others all the same, so that a round of a quiet outbox is one look.
    pub(super) async fn rotate(
        &self,
        mut from: Position,
        reading: Reading<'_>,
        mut seen: Seen,
    ) -> Result<Seen, StoreError> {
        let Reading { mut snapshot, before, spoken_for, openings, begun, owned, room } = reading;
        seen.is_all = before.all_blocked && before.all_misplaced;
        self.hands.note_blocked(before.blocked_within(owned));
        // What is not passed over is read, and left.
        let blocked = first_keys(before.blocked.keys().filter_map(key_of));
        let run = (Settings::LANE, Settings::WHOLE);
        let mut left = room;
        let (mut plans, mut shown, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let mut over = self.hands.passed_over(&from);
            seen.passed_over += over.keys.len();
            over.keys.extend_from_slice(&blocked);
            let page = snapshot.page(&from, owned, &over, left).await?;
            skipped.extend(page.skipped);
            // (A new primary may not know yet what the stream has shown.)
            seen.is_all &= page.is_all && begun.heard <= snapshot.moment();
            seen.full |= page.is_full;
            left.records -= page.records.len().min(left.records / 2);
            left.bytes = left.bytes.saturating_sub(size_of(&page.records));
            let stretch = Stretch::Page(&from, owned, &over);
            let (records, before, unknown) =
                self.view(page.records, before.clone(), &stretch, left, &mut snapshot).await?;
            skipped.extend(unknown);
            self.note_places(&records, &before);
            let records = self.prepared(records);
            // (Where rotations go on, they meet it again.)
            if begun.follows {
                let place = |r: &Record| (r.lane.clone(), r.partition, r.id.clone());
                shown.extend(records.iter().map(place));
            }
            plans.push(self.plan(records, &before, &spoken_for, None, run));
            let is_found = plans.iter().any(|plan| !plan.runs.is_empty());
            match page.next {
                Some(next) if !page.is_full && (!is_found || next.begins_side()) => from = next,
                next => {
                    seen.next = next;
                    break;
                }
            }
        }
        // Not before the last read has succeeded: nobody would lease, or free, the rest.
        for plan in plans {
            self.enter_plan(plan, openings, None, None, &mut seen);
        }
        // A lane that ended since the page was read has left none of it in silence.
        for (lane, partition, id) in shown {
            self.hands.must_scan(lane, partition, id);
        }
        for key in skipped {
            let partition = partition::of_key(key.as_str());
            self.hands.must_scan(key, partition, RecordId::from(Bson::Null));
        }
        Ok(seen)
    }
}
