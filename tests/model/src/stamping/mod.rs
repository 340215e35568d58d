//! Records of one key that have no valid partition: who is held back until they have one.
//!
//! A look reads the records that have a valid partition (`outbox::snapshot`), and asks in the same
//! moment for those that have none or an invalid one (`relay::before`). It gives these the partition
//! of their key (`outbox::repair`): one command, but a write for each record, in the order of their
//! ids. What a relay leases, publishes and settles is much simpler here than in `protocol`.

use stateright::{Model, Property};

use crate::walk::walk;

/// Relays. Each may have one look under way.
const RELAYS: usize = 2;

/// Records of the key: each was committed before the next was inserted.
const RECORDS: usize = 2;

/// What one check covers.
#[derive(Clone, Debug, Default)]
struct Bounds {
    /// What producers write as the partition.
    written: [Written; RECORDS],
    without: Option<Without>,
}

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// A look asks for records without a partition.
    AbsentRead,
    /// A look asks for records with an invalid one.
    InvalidRead,
    /// A record that cannot be given a partition dies.
    RefusedDies,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Written {
    #[default]
    Valid,
    Absent,
    Invalid,
    /// Absent, and the record is too large to be given one.
    TooLarge,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Status {
    #[default]
    NotInserted,
    Pending,
    Done,
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    status: Status,
    partition: Written,
    /// The relay that has leased it.
    lease: Option<usize>,
    has_arrived: bool,
}

/// What a relay has seen, and has under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Relay {
    /// What it is to publish, in this order.
    run: Vec<usize>,
    /// What it is to give a partition: each is a write of its own.
    repairs: Vec<usize>,
    /// A message that was handed to the broker.
    flight: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    records: [Record; RECORDS],
    relays: [Relay; RELAYS],
    is_inverted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Insert(usize),
    Look(usize),
    /// The relay's command writes this record.
    Repair(usize, usize),
    /// The relay leases the next record of its run, and hands it to the broker.
    Publish(usize),
    Arrive(usize),
    /// A confirm, and the write that settles.
    Settle(usize),
    /// A lease ends, while its owner may be at work.
    Expire(usize),
    Crash(usize),
}

#[derive(Clone, Debug)]
struct Key {
    bounds: Bounds,
}

impl Key {
    fn has(&self, guard: Without) -> bool {
        self.bounds.without != Some(guard)
    }

    fn look(&self, state: &mut State, relay: usize) {
        let mut seen = Relay { flight: state.relays[relay].flight, ..Relay::default() };
        let mut is_held = false;
        for (number, record) in state.records.iter().enumerate() {
            if record.status != Status::Pending {
                continue;
            }
            let is_read = match record.partition {
                Written::Valid => {
                    if record.lease.is_some() {
                        is_held = true;
                    } else if !is_held {
                        seen.run.push(number);
                    }
                    continue;
                }
                Written::Absent | Written::TooLarge => self.has(Without::AbsentRead),
                Written::Invalid => self.has(Without::InvalidRead),
            };
            // Housekeeping finds it in any case.
            seen.repairs.push(number);
            is_held |= is_read;
        }
        state.relays[relay] = seen;
    }

    fn repair(&self, state: &mut State, relay: usize, number: usize) {
        state.relays[relay].repairs.retain(|other| *other != number);
        let record = &mut state.records[number];
        if record.status != Status::Pending || record.partition == Written::Valid {
            return;
        }
        match record.partition {
            Written::TooLarge if self.has(Without::RefusedDies) => record.status = Status::Dead,
            Written::TooLarge => {}
            _ => record.partition = Written::Valid,
        }
    }

    fn after(&self, state: &State, action: Action) -> State {
        let mut state = state.clone();
        match action {
            Action::Insert(number) => {
                let record = &mut state.records[number];
                record.status = Status::Pending;
                record.partition = self.bounds.written[number];
            }
            Action::Look(relay) => self.look(&mut state, relay),
            Action::Repair(relay, number) => self.repair(&mut state, relay, number),
            Action::Publish(relay) => {
                let number = state.relays[relay].run[0];
                let record = &mut state.records[number];
                if record.status == Status::Pending && record.lease.is_none() {
                    record.lease = Some(relay);
                    state.relays[relay].flight = Some(number);
                } else {
                    // What it has not leased, and all behind, is not its own.
                    state.relays[relay].run.clear();
                }
            }
            Action::Arrive(relay) => {
                if let Some(number) = state.relays[relay].flight {
                    let overtaken = |one: &Record| !one.has_arrived && one.status != Status::Dead;
                    state.is_inverted |= !state.records[number].has_arrived
                        && state.records[..number].iter().any(overtaken);
                    state.records[number].has_arrived = true;
                }
            }
            Action::Settle(relay) => {
                if let Some(number) = state.relays[relay].flight.take() {
                    let record = &mut state.records[number];
                    if record.lease == Some(relay) {
                        (record.status, record.lease) = (Status::Done, None);
                        state.relays[relay].run.remove(0);
                    } else {
                        state.relays[relay].run.clear();
                    }
                }
            }
            Action::Expire(number) => state.records[number].lease = None,
            Action::Crash(relay) => state.relays[relay] = Relay::default(),
        }
        state
    }

    /// Whether a relay alone brings every record to its end.
    fn finishes(&self, state: &State) -> bool {
        let mut state = state.clone();
        for number in 0..RECORDS {
            if state.records[number].status == Status::NotInserted {
                state = self.after(&state, Action::Insert(number));
            }
            state = self.after(&state, Action::Expire(number));
        }
        state.relays = Default::default();
        for _ in 0..2 * RECORDS {
            state = self.after(&state, Action::Look(0));
            for number in state.relays[0].repairs.clone() {
                state = self.after(&state, Action::Repair(0, number));
            }
            while !state.relays[0].run.is_empty() {
                for step in [Action::Publish(0), Action::Arrive(0), Action::Settle(0)] {
                    state = self.after(&state, step);
                }
            }
        }
        let is_over = |record: &Record| matches!(record.status, Status::Done | Status::Dead);
        state.records.iter().all(is_over)
    }
}

impl Model for Key {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let next = state.records.iter().position(|one| one.status == Status::NotInserted);
        actions.extend(next.map(Action::Insert));
        for (number, record) in state.records.iter().enumerate() {
            if record.lease.is_some() {
                actions.push(Action::Expire(number));
            }
        }
        for (number, relay) in state.relays.iter().enumerate() {
            actions.push(Action::Crash(number));
            match relay.flight {
                None => {
                    actions.push(Action::Look(number));
                    if !relay.run.is_empty() {
                        actions.push(Action::Publish(number));
                    }
                }
                Some(record) if state.records[record].has_arrived => {
                    actions.push(Action::Settle(number));
                }
                Some(_) => actions.push(Action::Arrive(number)),
            }
            actions.extend(relay.repairs.iter().map(|record| Action::Repair(number, *record)));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State| !state.is_inverted),
            Property::always(FINISH, |key: &Self, state: &State| key.finishes(state)),
            Property::sometimes("all is over", |_, state: &State| {
                state.records.iter().all(|one| matches!(one.status, Status::Done | Status::Dead))
            }),
            Property::sometimes("a follower has a partition first", |key: &Self, state: &State| {
                let needs = key.bounds.written.iter().all(|one| *one != Written::Valid);
                let [first, second] = &state.records;
                !needs || (first.partition != Written::Valid && second.partition == Written::Valid)
            }),
        ]
    }
}

const ORDER: &str = "first deliveries follow the order";
const FINISH: &str = "work can finish";

fn check(first: Written, second: Written, without: Option<Without>) -> crate::walk::Walk {
    walk(Key { bounds: Bounds { written: [first, second], without } })
}

fn breaks(name: &str, first: Written, second: Written, without: Without, promise: &str) {
    check(first, second, Some(without)).assert_breaks(name, promise);
}

#[test]
fn records_without_a_valid_partition_keep_their_order() {
    use Written::{Absent, Invalid, TooLarge, Valid};
    for first in [Valid, Absent, Invalid] {
        for second in [Valid, Absent, Invalid] {
            let name = format!("`stamping`: {first:?}, {second:?}").to_lowercase();
            check(first, second, None).assert_holds(&name, "test");
        }
    }
    let walk = check(TooLarge, Absent, None);
    walk.assert_holds("`stamping`: too large, absent", "test");
}

#[test]
fn records_without_a_partition_hold_back_their_followers() {
    let name = "`stamping`: records without a partition are read in the same look";
    breaks(name, Written::Absent, Written::Absent, Without::AbsentRead, ORDER);
}

#[test]
fn records_with_an_invalid_partition_hold_back_their_followers() {
    let name = "`stamping`: records with an invalid partition are read in the same look";
    breaks(name, Written::Invalid, Written::Invalid, Without::InvalidRead, ORDER);
}

#[test]
fn a_record_that_cannot_be_repaired_dies() {
    let name = "`stamping`: a record that cannot be given a partition dies";
    breaks(name, Written::TooLarge, Written::Absent, Without::RefusedDies, FINISH);
}
