//! What one relay knows: the take under way, and its lane.

use super::bounds::MOST;
use super::plan::{Plan, Set};
use super::store::{Outcome, Records, Token};

/// One take and its lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relay {
    /// Still speaks to a deposed primary.
    pub behind: bool,
    /// By its own reckoning its lease has not ended (`Lease::budget`).
    pub budget: bool,
    pub take: Take,
    pub lane: Lane,
}

/// A take: `relay::scanner`, then `relay::acquirer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    pub step: Step,
    /// What a look has read, where it was not planned at once.
    pub seen: Records,
    /// How many of them.
    pub read: u8,
    pub plan: Plan,
    /// The lease; while burying, the one that was seen to end.
    pub token: Token,
}

/// Where a take is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Step {
    #[default]
    None,
    /// A lane has asked for more (`Lane::next`).
    Asked,
    /// A look has read some of it.
    Reading,
    /// It is planned.
    Saw,
    /// The lease command was not answered, and is to be repeated.
    Again,
}

/// `relay::lane::Lane`, and what the settler has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    pub active: bool,
    pub alone: bool,
    pub more: bool,
    /// It ends: nothing new is published.
    pub ending: bool,
    pub tokens: [Token; MOST],
    pub attempts: [u8; MOST],
    /// Leased, not yet published.
    pub waiting: Set,
    /// Of these: a renewal found them in other hands.
    pub lost: Set,
    /// Handed to the broker, outcome unknown.
    pub under_way: Set,
    /// Of these: not yet arrived.
    pub flight: Set,
    /// The followers wait for its settling.
    pub awaited: Set,
    /// Outcomes on their way.
    pub items: [Option<Item>; MOST],
    /// Settled since more was asked for.
    pub meanwhile: Set,
}

/// An outcome on its way to MongoDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    pub outcome: Outcome,
    pub sent: Sent,
}

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    No,
    /// The primary has done it; whether it matched. The answer waits for a majority.
    Written(bool),
    /// It is answered, did not match, and is to be read back.
    Unmatched,
}

impl Take {
    /// Nothing is under way any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Lane {
    /// What it leases, publishes or settles.
    pub fn in_hand(&self) -> Set {
        let settling = (0..MOST).filter(|number| self.items[*number].is_some());
        let settling = settling.fold(0, |set, number| set | 1 << number);
        self.unsettled() | settling
    }

    /// What a renewal is for (`Lease::in_hand`).
    pub fn unsettled(&self) -> Set {
        self.waiting | self.under_way
    }

    /// Hands an outcome to the settler.
    pub fn settle(&mut self, number: usize, outcome: Outcome) {
        self.items[number] = Some(Item { outcome, sent: Sent::No });
    }

    /// Nothing is written for these.
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
    (0..MOST).filter(move |number| set & 1 << number != 0)
}
