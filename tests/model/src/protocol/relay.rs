//! What one relay knows: the scan in progress, and its lane.

use super::bounds::MAX_RECORDS;
use super::plan::{Plan, Set};
use super::store::{Outcome, Records, Token};

/// One scan and its lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relay {
    /// It still uses a deposed primary.
    pub behind: bool,
    /// By its own clock its lease has not ended (`Lease::budget`).
    pub budget: bool,
    pub take: Take,
    pub lane: Lane,
}

/// A scan: `relay::scanner`, then `relay::acquirer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    pub step: Step,
    /// The result of a scan that was not planned at once.
    pub seen: Records,
    /// How many of them.
    pub read: u8,
    pub plan: Plan,
    /// The lease; while a record is marked dead, the one that was seen to end.
    pub token: Token,
}

/// The step of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Step {
    #[default]
    None,
    /// A lane has asked for more (`Lane::next`).
    Asked,
    /// A scan has read some of it.
    Reading,
    /// It is planned.
    Saw,
    /// The lease command was not answered, and must be repeated.
    Again,
}

/// `relay::lane::Lane`, and its outcomes at the settlement writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    pub active: bool,
    pub alone: bool,
    pub more: bool,
    /// It ends: nothing new is published.
    pub ending: bool,
    pub tokens: [Token; MAX_RECORDS],
    pub attempts: [u8; MAX_RECORDS],
    /// Leased, not yet published.
    pub waiting: Set,
    /// Of these: a renewal found that another relay has leased them.
    pub lost: Set,
    /// Published, outcome unknown.
    pub under_way: Set,
    /// Of these: not yet arrived.
    pub flight: Set,
    /// The followers wait for its settling.
    pub awaited: Set,
    /// Outcomes in progress.
    pub items: [Option<Item>; MAX_RECORDS],
    /// Settled since more was requested.
    pub meanwhile: Set,
}

/// An outcome on its way to MongoDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    pub outcome: Outcome,
    pub sent: Sent,
}

/// How far it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    No,
    /// The primary has executed it; whether it matched. The answer waits for a majority.
    Written(bool),
    /// It is answered, did not match, and must be read back.
    Unmatched,
}

impl Take {
    /// Nothing is in progress any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Lane {
    /// The records that it leases, publishes or settles.
    pub fn in_flight(&self) -> Set {
        let settling = (0..MAX_RECORDS).filter(|number| self.items[*number].is_some());
        let settling = settling.fold(0, |set, number| set | 1 << number);
        self.unsettled() | settling
    }

    /// The records that a renewal covers.
    pub fn unsettled(&self) -> Set {
        self.waiting | self.under_way
    }

    /// Passes an outcome to the settlement writer.
    pub fn settle(&mut self, number: usize, outcome: Outcome) {
        self.items[number] = Some(Item { outcome, sent: Sent::No });
    }

    /// No outcome is written for these.
    pub fn drop_lost(&mut self, lost: Set) {
        self.waiting &= !lost;
        self.lost &= !lost;
        for number in members(lost) {
            self.forget(number);
        }
    }

    /// MongoDB has its outcome.
    pub fn forget(&mut self, number: usize) {
        self.items[number] = None;
        self.tokens[number] = 0;
        self.attempts[number] = 0;
    }
}

/// The numbers in a set.
pub fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..MAX_RECORDS).filter(move |number| set & 1 << number != 0)
}
