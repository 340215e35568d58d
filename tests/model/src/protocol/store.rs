//! The records as MongoDB has them, and what each command does to one.

use super::bounds::{Bounds, MAX_RECORDS, Without};
use super::promise::Breach;

/// A lease id; 0 is none.
pub type Token = u8;

/// The records of the key by `seq`.
pub type Records = [Record; MAX_RECORDS];

/// The status of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    #[default]
    Absent,
    Pending,
    Done,
    /// Dead, and skipped.
    Dead,
    /// Dead, and `blocks: true`.
    Blocked,
    /// Discarded.
    Removed,
}

/// One record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    pub status: Status,
    /// `visibleAt` has not passed.
    pub resting: bool,
    pub attempt: u8,
    pub lease: Token,
    /// `leaseUntil` has not passed.
    pub live: bool,
}

/// The outcome of a settling write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Done,
    Released,
    Retry,
    Dead,
}

impl Record {
    pub fn is_leased(&self) -> bool {
        self.lease != 0 && self.live
    }

    pub fn is_poison(&self) -> bool {
        self.lease != 0 && !self.live
    }

    pub fn is_dead(&self) -> bool {
        matches!(self.status, Status::Dead | Status::Blocked)
    }

    fn is_free(&self) -> bool {
        !self.is_leased()
    }

    fn clear_lease(&mut self) {
        self.lease = 0;
        self.live = false;
    }

    /// `Leaser::lease`, for one document; returns whether it matched.
    pub fn take(&mut self, token: Token, bounds: &Bounds) -> (bool, Option<Breach>) {
        let settled = matches!(self.status, Status::Done | Status::Dead | Status::Blocked);
        let fits =
            self.status == Status::Pending || (settled && !bounds.has(Without::StatusInLease));
        let free = self.is_free() || self.lease == token || !bounds.has(Without::ExpiryInLease);
        if !fits || !free || self.resting {
            return (false, None);
        }
        let breach = if settled {
            Some(Breach::SettledTaken)
        } else if self.is_leased() && self.lease != token {
            Some(Breach::LeaseBroken)
        } else {
            None
        };
        if self.lease != token {
            self.attempt = (self.attempt + 1).min(bounds.most_attempts());
        }
        self.lease = token;
        self.live = true;
        (true, breach)
    }

    /// `Leaser::renew`, for one document.
    pub fn renew(&mut self, token: Token) -> bool {
        let holds = self.holds(token);
        self.live |= holds;
        holds
    }

    /// Whether this lease is on it.
    pub fn holds(&self, token: Token) -> bool {
        self.status == Status::Pending && self.lease == token
    }

    /// `Settlements::write`, for one document.
    pub fn settle(&mut self, token: Token, outcome: Outcome, bounds: &Bounds) -> Settled {
        let holds = self.holds(token);
        let unfenced = self.status == Status::Pending && !bounds.has(Without::LeaseInSettle);
        if !holds && !unfenced {
            return Settled { matched: false, breach: None };
        }
        match outcome {
            // (The count of attempts no longer matters.)
            Outcome::Done => (self.status, self.attempt) = (Status::Done, 0),
            Outcome::Released => self.attempt = self.attempt.saturating_sub(1),
            Outcome::Retry => self.resting = true,
            Outcome::Dead => self.die(bounds),
        }
        if !self.is_dead() || bounds.has(Without::LeaseCleared) {
            self.clear_lease();
        }
        Settled { matched: true, breach: (!holds).then_some(Breach::ForeignSettled) }
    }

    /// `Settlements::is_written`, for a death: whether the record is as that leaves it.
    pub fn is_dead_after(&self, attempt: u8) -> bool {
        self.is_dead() && self.attempt == attempt
    }

    /// Marks an exhausted record dead (`outbox::repair`); `seen` is the lease that was seen to end.
    pub fn mark_dead(&mut self, seen: Token, bounds: &Bounds) {
        if self.holds(seen) && !self.live {
            self.die(bounds);
            if bounds.has(Without::LeaseCleared) {
                self.clear_lease();
            }
        }
    }

    fn die(&mut self, bounds: &Bounds) {
        self.status = if bounds.block { Status::Blocked } else { Status::Dead };
    }

    /// `Redriver`, requeue or redeliver; returns whether it matched.
    pub fn requeue(&mut self, bounds: &Bounds) -> bool {
        let matches = self.is_dead() || self.status == Status::Done;
        if matches {
            self.status = Status::Pending;
            self.attempt = 0;
            self.resting = false;
            if bounds.has(Without::LeaseCleared) {
                self.clear_lease();
            }
        }
        matches
    }

    /// `Redriver`, discard; returns whether it matched.
    pub fn discard(&mut self) -> bool {
        let pending = self.status == Status::Pending && self.is_free();
        let matches = self.is_dead() || pending;
        if matches {
            *self = Self { status: Status::Removed, ..Self::default() };
        }
        matches
    }
}

/// The result of a settling write.
pub struct Settled {
    pub matched: bool,
    pub breach: Option<Breach>,
}
