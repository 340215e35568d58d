//! Records of one key with a partition, without one, and with an invalid one: their order.
//!
//! The two kinds that a relay delivers are in two ranges of the index. A scan reads both in one
//! snapshot, a limited number of each, and merges them by `seq` (`outbox::snapshot`,
//! `outbox::merge`). It reads in the same snapshot those with an invalid partition
//! (`relay::scanner::blockers`), and gives these the partition of their key (`outbox::repair`): one
//! command, but a write for each record, in the order of their ids. An instance of an older version
//! writes a partition where there is none, too. Lease, publish and settlement are much simpler here
//! than in `protocol`.

use stateright::{Model, Property};

use crate::walk::walk;

/// Relays. Each may have one scan in progress.
const RELAYS: usize = 2;

/// Records of the key: each was committed before the next was inserted.
const RECORDS: usize = 3;

/// Records of one range that a scan reads.
const LIMIT: usize = 1;

/// The scope of one check.
#[derive(Clone, Debug, Default)]
struct Bounds {
    /// The partitions that producers write.
    written: [Written; RECORDS],
    without: Option<Without>,
}

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// A scan reads both ranges.
    BothRanges,
    /// It reads them in one snapshot.
    OneSnapshot,
    /// Where one range is cut, so is the other.
    CutTogether,
    /// A scan reads records with an invalid partition.
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
    /// Invalid, and the record is too large for another partition.
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

/// The result of a scan of one range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Part {
    /// Including leased ones.
    records: Vec<(usize, bool)>,
    is_cut: bool,
}

/// What a relay has read, and has in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Relay {
    /// The result of the one range, where the other is not read yet.
    half: Option<Part>,
    /// The records to publish, in this order.
    run: Vec<usize>,
    /// The records to repair: each is a write of its own.
    repairs: Vec<usize>,
    /// A published message.
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
    /// A scan, or its first half.
    Look(usize),
    /// The second half of a scan.
    LookOn(usize),
    /// The relay's command writes this record.
    Repair(usize, usize),
    /// An older instance gives a record without a partition one.
    Stamp(usize),
    /// The relay leases the next record of its run, and publishes it.
    Publish(usize),
    Arrive(usize),
    /// A confirm, and the write that settles.
    Settle(usize),
    /// A lease ends, while its owner may continue.
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

    fn read(state: &State, range: Written) -> Part {
        let records = state.records.iter().enumerate();
        let pending = records
            .filter(|(_, one)| one.status == Status::Pending && one.partition == range)
            .map(|(number, one)| (number, one.lease.is_some()));
        let all: Vec<(usize, bool)> = pending.collect();
        Part { is_cut: all.len() > LIMIT, records: all.into_iter().take(LIMIT).collect() }
    }

    fn look(&self, state: &mut State, relay: usize) {
        // A page of either range is a page; that of the partitions can overtake records in the
        // other.
        let one = Self::read(state, Written::Valid);
        if !self.has(Without::OneSnapshot) {
            // The other order: what is read first may have more by now.
            let absent = Self::read(state, Written::Absent);
            state.relays[relay].half = Some(absent);
            return;
        }
        // Without the guard a page of its own, at another time.
        let other = if self.has(Without::BothRanges) || one.records.is_empty() {
            Self::read(state, Written::Absent)
        } else {
            Part::default()
        };
        self.see(state, relay, one, other);
    }

    fn see(&self, state: &mut State, relay: usize, one: Part, other: Part) {
        let end = |part: &Part| part.records.last().filter(|_| part.is_cut).map(|(last, _)| *last);
        let ends =
            if self.has(Without::CutTogether) { [end(&one), end(&other)] } else { [None, None] };
        let mut all = [one.records, other.records].concat();
        all.sort_unstable();
        all.retain(|(number, _)| ends.iter().flatten().all(|end| number <= end));
        let invalid = |record: &Record| {
            record.status == Status::Pending
                && matches!(record.partition, Written::Invalid | Written::TooLarge)
        };
        let mut seen = Relay { flight: state.relays[relay].flight, ..Relay::default() };
        let misplaced = (0..RECORDS).filter(|number| invalid(&state.records[*number]));
        // Housekeeping finds them in any case.
        seen.repairs = misplaced.collect();
        let first =
            if self.has(Without::InvalidRead) { seen.repairs.first().copied() } else { None };
        for (number, is_leased) in all {
            if is_leased || first.is_some_and(|first| first < number) {
                break;
            }
            seen.run.push(number);
        }
        state.relays[relay] = seen;
    }

    fn repair(&self, state: &mut State, relay: usize, number: usize) {
        state.relays[relay].repairs.retain(|other| *other != number);
        let record = &mut state.records[number];
        if record.status != Status::Pending {
            return;
        }
        match record.partition {
            Written::TooLarge if self.has(Without::RefusedDies) => record.status = Status::Dead,
            Written::Invalid => record.partition = Written::Valid,
            _ => {}
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
            Action::LookOn(relay) => {
                let absent = state.relays[relay].half.take().unwrap_or_default();
                let valid = Self::read(&state, Written::Valid);
                self.see(&mut state, relay, valid, absent);
            }
            Action::Repair(relay, number) => self.repair(&mut state, relay, number),
            Action::Stamp(number) => state.records[number].partition = Written::Valid,
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

    /// Whether a relay alone finishes every record.
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
            if state.relays[0].half.is_some() {
                state = self.after(&state, Action::LookOn(0));
            }
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
            if record.status == Status::Pending && record.partition == Written::Absent {
                actions.push(Action::Stamp(number));
            }
        }
        for (number, relay) in state.relays.iter().enumerate() {
            actions.push(Action::Crash(number));
            match relay.flight {
                None => {
                    actions.push(match relay.half {
                        None => Action::Look(number),
                        Some(_) => Action::LookOn(number),
                    });
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
        ]
    }
}

const ORDER: &str = "first deliveries follow the order";
const FINISH: &str = "work can finish";

fn check(written: [Written; RECORDS], without: Option<Without>) -> crate::walk::Walk {
    walk(Key { bounds: Bounds { written, without } })
}

fn breaks(name: &str, written: [Written; RECORDS], without: Without, promise: &str) {
    check(written, Some(without)).assert_breaks(name, promise);
}

#[test]
fn records_of_all_kinds_keep_their_order() {
    use Written::{Absent, Invalid, TooLarge, Valid};
    for written in [
        [Valid, Valid, Valid],
        [Absent, Absent, Absent],
        [Absent, Valid, Absent],
        [Absent, Absent, Valid],
        [Valid, Valid, Absent],
        [Invalid, Absent, Valid],
        [Absent, Invalid, Valid],
        [Invalid, Invalid, Absent],
        [TooLarge, Absent, Valid],
    ] {
        let [first, second, third] = written;
        let name = format!("`placement`: {first:?}, {second:?}, {third:?}").to_lowercase();
        check(written, None).assert_holds(&name.replace("toolarge", "too large"), "test");
    }
}

#[test]
fn a_scan_reads_both_ranges() {
    use Written::{Absent, Valid};
    let name = "`placement`: a scan reads both ranges";
    breaks(name, [Absent, Valid, Valid], Without::BothRanges, ORDER);
}

#[test]
fn a_scan_reads_both_ranges_in_one_snapshot() {
    use Written::{Absent, Valid};
    let name = "`placement`: it reads them in one snapshot";
    breaks(name, [Absent, Valid, Valid], Without::OneSnapshot, ORDER);
}

#[test]
fn both_ranges_are_cut_together() {
    use Written::{Absent, Valid};
    let name = "`placement`: where one range is cut, so is the other";
    breaks(name, [Absent, Absent, Valid], Without::CutTogether, ORDER);
}

#[test]
fn records_with_an_invalid_partition_hold_back_their_followers() {
    use Written::{Absent, Invalid};
    let name = "`placement`: records with an invalid partition are read in the same scan";
    breaks(name, [Invalid, Absent, Absent], Without::InvalidRead, ORDER);
}

#[test]
fn a_record_that_cannot_be_corrected_dies() {
    use Written::{Absent, TooLarge};
    let name = "`placement`: a record that cannot be given a partition dies";
    breaks(name, [TooLarge, Absent, Absent], Without::RefusedDies, FINISH);
}
