//! One state of the whole model.

use std::hash::{Hash, Hasher};

use super::bounds::{Bounds, MAX_RECORDS, MAX_RELAYS};
use super::code::Code;
use super::plan::Set;
use super::promise::Breach;
use super::relay::Relay;
use super::store::{Record, Records, Status, Token};

/// One state of the whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// As the primary has it.
    pub primary: Records,
    /// As a majority has it.
    pub stable: Records,
    /// The data of a deposed primary that has not noticed.
    pub deposed: Option<Deposed>,
    pub relays: [Relay; MAX_RELAYS],
    /// A lease command whose answer no client awaits.
    pub stray: Option<Stray>,
    /// Messages in flight that no relay waits for.
    pub orphans: Set,
    /// What has arrived at the consumer.
    pub arrived: Set,
    /// Records that a majority has seen dead and skipped, or discarded: they have no order.
    pub exempt: Set,
    pub breach: Option<Breach>,
}

/// A primary that was deposed and has not noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deposed {
    pub primary: Records,
    pub stable: Records,
}

/// The rest of a lease command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stray {
    pub token: Token,
    pub todo: Set,
}

impl State {
    /// The records that this relay's writes change.
    pub fn store(&mut self, relay: usize) -> &mut Records {
        match &mut self.deposed {
            Some(deposed) if self.relays[relay].behind => &mut deposed.primary,
            _ => &mut self.primary,
        }
    }

    /// The records in this relay's snapshots.
    pub fn snapshot(&self, relay: usize) -> &Records {
        match &self.deposed {
            Some(deposed) if self.relays[relay].behind => &deposed.stable,
            _ => &self.stable,
        }
    }

    /// The records that this relay reads without a majority.
    pub fn local(&self, relay: usize) -> &Records {
        match &self.deposed {
            Some(deposed) if self.relays[relay].behind => &deposed.primary,
            _ => &self.primary,
        }
    }

    /// A lease id that is not in use.
    pub fn fresh(&self) -> Token {
        let mut used = 0_u64;
        self.each_token(|token| used |= 1 << token);
        (1..64).find(|token| used & 1 << token == 0).unwrap()
    }

    fn each_token(&self, mut note: impl FnMut(Token)) {
        let deposed = self.deposed.unwrap_or_default();
        for records in [&self.primary, &self.stable, &deposed.primary, &deposed.stable] {
            records.iter().for_each(|record| note(record.lease));
        }
        for relay in &self.relays {
            note(relay.take.token);
            relay.take.seen.iter().for_each(|record| note(record.lease));
            relay.lane.tokens.iter().for_each(|token| note(*token));
        }
        note(self.stray.unwrap_or_default().token);
    }

    /// The majority gets the primary's records.
    pub fn replicate(&mut self) {
        self.stable = self.primary;
        for (number, record) in self.stable.iter().enumerate() {
            if matches!(record.status, Status::Dead | Status::Removed) {
                self.exempt |= 1 << number;
            }
        }
    }

    /// A message reaches the consumer.
    pub fn arrive(&mut self, number: usize, bounds: &Bounds) {
        let bit = 1 << number;
        if self.arrived & bit != 0 {
            return;
        }
        let overtaken = (0..MAX_RECORDS)
            .any(|later| precedes(number, later, bounds) && self.arrived & 1 << later != 0);
        let passed = (0..MAX_RECORDS).any(|earlier| {
            precedes(earlier, number, bounds)
                && self.stable[earlier].status == Status::Blocked
                && self.arrived & 1 << earlier == 0
        });
        if self.stable[number].status == Status::Absent {
            self.breach = Some(Breach::Phantom);
        } else if overtaken && self.exempt & bit == 0 {
            self.breach = Some(Breach::Inversion);
        } else if passed {
            self.breach = Some(Breach::BlockPassed);
        }
        self.arrived |= bit;
    }

    /// Whether every record is delivered, dead or discarded, or blocked by a dead one.
    pub fn is_finished(&self, bounds: &Bounds) -> bool {
        let records = &self.primary[..bounds.records];
        let open = |record: &Record| matches!(record.status, Status::Pending | Status::Absent);
        let blocked = records.iter().any(|record| record.status == Status::Blocked);
        self.primary == self.stable && (blocked || !records.iter().any(open))
    }
}

/// Whether the one was committed before the other was inserted.
pub fn precedes(earlier: usize, later: usize, bounds: &Bounds) -> bool {
    earlier < later && !(bounds.overlapping && (earlier, later) == (0, 1))
}

/// Two states that differ only in the names of relays and leases are equal.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Code::of(self).hash(hasher);
    }
}
