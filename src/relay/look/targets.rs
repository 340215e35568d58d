//! A look at particular lanes.

use std::sync::Arc;

use crate::outbox::record::LaneKey;
use crate::outbox::snapshot::{Dead, Room, Stretch, size_of};
use crate::relay::blocker::Blocker;
use crate::relay::hands::Read;
use crate::relay::lane::Lane;
use crate::relay::look::{Claim, Origin, Reading, Seen, Target};
use crate::relay::plan::Plan;
use crate::relay::settings::Settings;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// What was read of one target.
struct Answer {
    plan: Plan,
    about: About,
}

/// What the answer is about.
enum About {
    /// Where something was said to be pending.
    Hint,
    /// The lane that waits for it.
    Refill(Arc<Lane>),
    /// A key of which it must be known what it has pending.
    Scan(Scan),
}

/// What a scan has shown of its key.
struct Scan {
    key: LaneKey,
    partition: u8,
    /// What blocks it.
    dead: Option<Dead>,
    /// Whether nothing of it is pending.
    is_empty: bool,
    /// Whether there may be more of it than was read.
    is_cut: bool,
    /// Whether it is known what holds it back.
    is_known: bool,
}

impl<S: Sink> Shared<S> {
    /// Reads each target in turn, as long as there is room.
    pub(super) async fn read_targets(
        &self,
        targets: Vec<Target>,
        mut reading: Reading<'_>,
        mut seen: Seen,
    ) -> Result<Seen, StoreError> {
        let mut answers = Vec::with_capacity(targets.len());
        for target in targets {
            let is_ours = reading.owned.contains(&target.partition());
            let has_room = reading.room.bytes > 0;
            seen.short |= is_ours && !has_room;
            let places = match &target {
                Target::Scan(key, _) => self.hands.places_of(key),
                Target::At(_) | Target::Refill(_) => Vec::new(),
            };
            match target.stretch(&places).filter(|_| is_ours && has_room) {
                Some(stretch) => {
                    answers.push(self.read_target(&target, &stretch, &mut reading).await?);
                }
                None => self.turn_down(target, &mut seen),
            }
        }
        let Reading { snapshot, openings, begun, .. } = reading;
        let read = snapshot.moment().map(|at| Read { at, begun });
        // Not before the last read has succeeded: nobody would lease, or free, the rest.
        for Answer { plan, about } in answers {
            match about {
                About::Hint => self.enter_plan(plan, openings, None, None, &mut seen),
                About::Refill(lane) => self.enter_plan(plan, openings, Some(lane), None, &mut seen),
                About::Scan(scan) => {
                    let Scan { key, partition, dead, is_empty, is_cut, is_known } = scan;
                    if !is_known {
                        let unseen = Blocker::unseen(partition);
                        self.hands.hold_for_repair(vec![(key.clone(), unseen)]);
                    }
                    let read = read.filter(|_| is_known);
                    self.enter_plan(plan, openings, None, read.filter(|_| !is_cut), &mut seen);
                    let blocked = dead.map(|dead| (key.clone(), dead));
                    self.hands.hold_blocked(blocked.into_iter().collect());
                    // What was found is entered, or it is read again.
                    self.hands.scanned(&key, read.filter(|_| is_empty));
                }
            }
        }
        Ok(seen)
    }

    async fn read_target(
        &self,
        target: &Target,
        stretch: &Stretch<'_>,
        reading: &mut Reading<'_>,
    ) -> Result<Answer, StoreError> {
        let Reading { snapshot, before, spoken_for, room, .. } = reading;
        let (lane, cap, had) = match target {
            Target::At(_) | Target::Scan(..) => (None, Settings::LANE, 0),
            Target::Refill(lane) => (Some(lane), self.share(), lane.had_count()),
        };
        let own = Room { records: had + cap + 1, bytes: room.bytes };
        let records = snapshot.read(stretch, own).await?;
        let is_cut = own.is_filled_by(&records);
        room.bytes = room.bytes.saturating_sub(size_of(&records));
        let (records, before, unknown) =
            self.view(records, before.clone(), stretch, own, snapshot).await?;
        self.note_places(&records, &before);
        let records = self.prepared(records);
        let is_empty = records.is_empty();
        let refill = lane.map(Arc::as_ref);
        let plan = self.plan(records, &before, spoken_for, refill, (cap, cap));
        let about = match target {
            Target::At(_) => About::Hint,
            Target::Refill(lane) => About::Refill(lane.clone()),
            Target::Scan(key, _) => About::Scan(Scan {
                key: key.clone(),
                partition: target.partition(),
                dead: before.blocked.get(key).cloned(),
                is_empty,
                is_cut,
                // (Narrowed down for the keys of what was read alone.)
                is_known: unknown.is_empty()
                    && !before.misplaced.contains_key(key)
                    && (before.all_misplaced || !is_empty)
                    && (before.all_blocked || !is_empty),
            }),
        };
        Ok(Answer { plan, about })
    }

    /// Its partition is not ours (any more), or there is no room: nothing is read.
    fn turn_down(&self, target: Target, seen: &mut Seen) {
        match target {
            Target::At(_) => {}
            Target::Scan(key, _) => self.hands.scanned(&key, None),
            Target::Refill(lane) => {
                let (records, more) = (Vec::new(), false);
                seen.claims.push(Claim { lane, records, more, origin: Origin::Refill });
            }
        }
    }
}
