//! A state in few bytes, the same for all states that differ only in names.

use std::hash::{Hash, Hasher};

use super::bounds::{MAX_RECORDS, MAX_RELAYS};
use super::relay::{Item, Relay, Sent};
use super::state::State;
use super::store::{Record, Records, Token};

const LENGTH: usize = 320;

/// A state in few bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code {
    bytes: [u8; LENGTH],
    length: usize,
    names: [Token; 64],
    known: Token,
}

impl Code {
    /// The lowest of the codes of its relays in any order.
    pub fn of(state: &State) -> Self {
        let idle = Relay::default();
        let crowd =
            state.relays.iter().rposition(|relay| *relay != idle).map_or(0, |last| last + 1);
        let orders: &[[usize; MAX_RELAYS]] = match crowd {
            0 | 1 => &[[0, 1, 2], [1, 0, 2]],
            2 => &[[0, 1, 2], [1, 0, 2]],
            _ => &[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        };
        let codes = orders.iter().map(|order| Self::ordered(state, order));
        codes.min_by(|one, other| one.bytes.cmp(&other.bytes)).unwrap()
    }

    fn ordered(state: &State, order: &[usize; MAX_RELAYS]) -> Self {
        let mut code = Self { bytes: [0; LENGTH], length: 0, names: [0; 64], known: 0 };
        code.records(&state.primary);
        code.records(&state.stable);
        code.byte(u8::from(state.deposed.is_some()));
        if let Some(deposed) = &state.deposed {
            code.records(&deposed.primary);
            code.records(&deposed.stable);
        }
        for relay in order {
            code.relay(&state.relays[*relay]);
        }
        let stray = state.stray.unwrap_or_default();
        code.token(stray.token);
        code.byte(stray.todo);
        code.byte(state.orphans | state.arrived << 4);
        code.byte(state.exempt);
        code.byte(state.breach.map_or(0, |breach| 1 + breach as u8));
        code
    }

    fn relay(&mut self, relay: &Relay) {
        let Relay { behind, budget, take, lane } = relay;
        self.byte(u8::from(*behind) | u8::from(*budget) << 1);
        self.byte(take.step as u8 | take.read << 4);
        self.records(&take.seen);
        self.byte(take.plan.run | take.plan.spent << 4);
        self.byte(u8::from(take.plan.alone) | u8::from(take.plan.more) << 1);
        self.attempts(&take.plan.attempts);
        self.token(take.token);
        let flags = [lane.active, lane.alone, lane.more, lane.ending];
        self.byte(flags.iter().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
        lane.tokens.iter().for_each(|token| self.token(*token));
        self.attempts(&lane.attempts);
        self.byte(lane.waiting | lane.lost << 4);
        self.byte(lane.under_way | lane.flight << 4);
        self.byte(lane.awaited | lane.meanwhile << 4);
        lane.items.iter().for_each(|item| self.item(*item));
    }

    fn item(&mut self, item: Option<Item>) {
        let Some(Item { outcome, sent }) = item else { return self.byte(0) };
        let sent = match sent {
            Sent::No => 1,
            Sent::Written(matched) => 2 + u8::from(matched),
            Sent::Unmatched => 4,
        };
        self.byte(sent | (outcome as u8) << 4);
    }

    fn records(&mut self, records: &Records) {
        for Record { status, resting, attempt, lease, live } in records {
            self.byte(
                *status as u8 | u8::from(*resting) << 3 | u8::from(*live) << 4 | attempt << 5,
            );
            self.token(*lease);
        }
    }

    fn attempts(&mut self, attempts: &[u8; MAX_RECORDS]) {
        attempts.iter().for_each(|attempt| self.byte(*attempt));
    }

    /// By the order of their first appearance.
    fn token(&mut self, token: Token) {
        let name = &mut self.names[usize::from(token)];
        if token != 0 && *name == 0 {
            self.known += 1;
            *name = self.known;
        }
        let name = *name;
        self.byte(name);
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }
}

impl Hash for Code {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(&self.bytes[..self.length]);
    }
}
