//! The first half of a take: one snapshot is read (`rotation`, `targets`), planned (`planning`), and
//! entered in the book (`entry`).

mod entry;
mod planning;
mod rotation;
mod targets;

use std::collections::HashSet;
use std::sync::Arc;

use crate::outbox::position::Position;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::{Room, Snapshot, Stretch};
use crate::relay::alone::Candidate;
use crate::relay::before::Before;
use crate::relay::hands::{Begun, Openings};
use crate::relay::lane::Lane;
use crate::relay::shared::Shared;
use crate::relay::wake::Hint;
use crate::sink::Sink;
use crate::store::StoreError;

/// Where a take looks.
#[derive(Debug)]
pub enum Look {
    /// On from a place, through the owned partitions.
    Rotation(Position),
    /// At particular lanes.
    Targets(Vec<Target>),
}

/// One lane to look at.
#[derive(Clone, Debug)]
pub enum Target {
    /// Where something is said to be pending.
    At(Hint),
    /// A lane in hand that runs short.
    Refill(Arc<Lane>),
    /// A key of which it must be known what it has pending.
    Scan(LaneKey, Hint),
}

impl Target {
    /// What is to be read; `None` for a lane without a key, of which there is no more than it has.
    /// `places`: the partitions in which a key that is scanned has records.
    fn stretch<'a>(&'a self, places: &'a [u8]) -> Option<Stretch<'a>> {
        match self {
            Self::Scan(LaneKey::Keyed(key), _) => Some(Stretch::Key(places, key)),
            Self::At(Hint::Key { partition, key })
            | Self::Scan(_, Hint::Key { partition, key }) => Some(Stretch::Lane(*partition, key)),
            Self::At(Hint::Record { partition, id })
            | Self::Scan(_, Hint::Record { partition, id }) => {
                Some(Stretch::Record(*partition, id))
            }
            Self::Refill(lane) => match &lane.key {
                LaneKey::Keyed(key) => Some(Stretch::Lane(lane.partition, key)),
                LaneKey::Single(_) => None,
            },
        }
    }

    /// Where it lies.
    fn partition(&self) -> u8 {
        match self {
            Self::At(hint) | Self::Scan(_, hint) => hint.partition(),
            Self::Refill(lane) => lane.partition,
        }
    }
}

impl Look {
    /// The lanes in hand that wait for what it finds.
    fn refills(&self) -> Vec<Arc<Lane>> {
        let Self::Targets(targets) = self else { return Vec::new() };
        let lanes = targets.iter().filter_map(|target| match target {
            Target::Refill(lane) => Some(lane.clone()),
            Target::At(_) | Target::Scan(..) => None,
        });
        lanes.collect()
    }

    /// The keys of which it must be known what they have pending.
    fn scans(&self) -> Vec<LaneKey> {
        let Self::Targets(targets) = self else { return Vec::new() };
        let keys = targets.iter().filter_map(|target| match target {
            Target::Scan(key, _) => Some(key.clone()),
            Target::At(_) | Target::Refill(_) => None,
        });
        keys.collect()
    }
}

/// What a look saw: runs whose keys are entered in the book, ready to be leased.
#[derive(Debug, Default)]
pub struct Seen {
    /// Where the rotation goes on; `None` after its end, or when it was none.
    pub next: Option<Position>,
    /// Whether the rotation read as much as it may at a time: there is more behind it.
    pub full: bool,
    /// Whether the bytes that it may read did not suffice for all its targets.
    pub short: bool,
    /// Whether all keys were read that the dead block, or that a record with an invalid partition
    /// holds back.
    pub is_all: bool,
    /// Keys that the rotation had to pass over.
    pub passed_over: usize,
    /// Suspects that wait for their turn.
    pub candidates: Vec<Candidate>,
    /// What must be repaired, or made dead where it is.
    pub repairs: Repairing,
    pub(super) claims: Vec<Claim>,
}

/// Records that a look found unfit to be leased.
#[derive(Debug, Default)]
pub struct Repairing {
    /// With an invalid partition, or without a `seq`.
    pub(super) repairs: Vec<Record>,
    /// Without attempts left, or unfit.
    pub(super) spent: Vec<Record>,
}

impl Repairing {
    /// Records that are to be corrected.
    pub(super) fn of(repairs: Vec<Record>) -> Self {
        Self { repairs, spent: Vec::new() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.repairs.is_empty() && self.spent.is_empty()
    }
}

impl Seen {
    /// Whether there is anything to lease. (A repair that changes something asks for another look
    /// itself; one that changes nothing must not.)
    pub fn is_something(&self) -> bool {
        self.claims.iter().any(|claim| !claim.records.is_empty())
    }

    /// Whether the lease stage has anything to do, even if only to report that there is nothing.
    pub fn wants_lease(&self) -> bool {
        !self.claims.is_empty()
    }
}

/// A run on its way to being leased.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) lane: Arc<Lane>,
    /// Empty where a refill found nothing.
    pub(super) records: Vec<Record>,
    pub(super) more: bool,
    pub(super) origin: Origin,
}

/// Whence a claim comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The lane is entered for this run.
    New,
    /// The lane asked for more of its key.
    Refill,
    /// The change stream brought them, for a lane that is complete.
    Stream,
}

/// A look under way: its snapshot, and what was known before that was taken.
struct Reading<'a> {
    snapshot: Snapshot,
    /// What holds lanes back, of this snapshot.
    before: Before,
    /// Lanes that were in hand, or waited for their turn: one that has ended meanwhile has settled
    /// what the snapshot shows as leased.
    spoken_for: HashSet<LaneKey>,
    openings: Openings,
    begun: Begun,
    owned: &'a [u8],
    room: Room,
}

impl<S: Sink> Shared<S> {
    /// The first half of a take: reads one snapshot, plans, and enters the keys of what may
    /// go in the book, so that the next look can begin while this one is leased.
    ///
    /// # Errors
    ///
    /// Those of the store. Nothing has changed then, and as little where a stop came first: it
    /// has seen nothing.
    pub async fn look(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        let (refilled, scanned) = (look.refills(), look.scans());
        let seen = tokio::select! {
            biased;
            seen = self.read(look, owned, room) => Some(seen),
            // Nobody waits at a stop for a MongoDB that does not answer.
            () = self.stopping() => None,
        };
        if !matches!(seen, Some(Ok(_))) {
            // Nothing more for now; the next rotation finds it.
            for lane in refilled {
                lane.add(Vec::new(), false);
            }
            for key in scanned {
                self.hands.scanned(&key, None);
            }
        }
        seen.unwrap_or_else(|| Ok(Seen::default()))
    }

    async fn read(&self, look: Look, owned: &[u8], room: Room) -> Result<Seen, StoreError> {
        // Noted before the snapshot.
        let spoken_for = self.hands.spoken_for();
        let openings = self.hands.openings();
        let begun = self.hands.begun();
        let mut snapshot = Snapshot::begin(&self.collections).await?;
        if !self.settings.ordered {
            snapshot.go_on_within_keys();
        }
        let (before, misplaced) = self.before_lanes(&mut snapshot, room.records).await?;
        let (spent, repairs) = misplaced.into_iter().partition(|record| record.unfit.is_some());
        let seen = Seen { repairs: Repairing { repairs, spent }, ..Seen::default() };
        // They lie in no range of the index where their keys are read.
        self.hands.hold_for_repair(before.misplaced_within(owned));
        let reading = Reading { snapshot, before, spoken_for, openings, begun, owned, room };
        match look {
            Look::Rotation(from) => self.rotate(from, reading, seen).await,
            Look::Targets(targets) => self.read_targets(targets, reading, seen).await,
        }
    }
}
