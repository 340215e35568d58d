//! Records that crash the process which delivers them (poison), among innocent ones.
//!
//! One process at a time leases any part of two to four records, publishes them and settles them.
//! They have a key each or one key. Each publish of a poison record crashes the process, whatever
//! the state of the others of its batch is: leased, published, or settled. A clean handover may
//! happen at any moment: what was published is settled, the rest is released. A record stores
//! `attempt` and `leaseCrashes`.
//!
//! Left out: leases that end while their owner lives (they count as crashes too), crashes for other
//! reasons, and failures that are counted; an innocent record may die of those. A second process,
//! because a crash leaves its records alone and each process has a quarantine of its own. Which
//! instance takes an abandoned lease, and when, is in `takeover`.

use stateright::{Model, Property};

use crate::walk::{Walk, walk};

const RECORDS: usize = 4;

/// The scope of one check.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    records: usize,
    /// The poison records, as bits.
    poison: u8,
    one_key: bool,
    max_attempts: u8,
    /// Other records are leased while one goes alone.
    neighbours: bool,
    without: Option<Without>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// A record dies of an abandoned lease only if it was alone in it.
    AloneOnlyDies,
    /// A record goes alone after its second crash, not after its first.
    SecondCrash,
    /// A release leaves `leaseCrashes`.
    CrashesStay,
    /// The lease command that replaces an abandoned lease counts its crash.
    CrashesCount,
    /// A crash does not count as a failure, after which only the head of a key is leased.
    CrashIsNotAFailure,
    /// Records that go alone take turns within the process.
    Turns,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Status {
    #[default]
    Pending,
    Leased,
    /// Its lease remained when the process crashed.
    Abandoned,
    Published,
    Done,
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    status: Status,
    attempt: u8,
    lease_crashes: u8,
    /// Its lease replaced an abandoned one.
    replaces: bool,
    must_be_isolated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    records: [Record; RECORDS],
    /// At most 2.
    crashes: u8,
    /// An innocent record went alone after one crash.
    was_early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The process leases these records in one command.
    Lease(u8),
    LeaseAlone(usize),
    /// It marks a record dead whose attempts are exhausted.
    MarkDead(usize),
    Publish(usize),
    Settle(usize),
    /// A clean handover.
    Handover,
}

impl Record {
    fn is_held(&self) -> bool {
        matches!(self.status, Status::Leased | Status::Published)
    }

    fn waits(&self) -> bool {
        matches!(self.status, Status::Pending | Status::Abandoned)
    }

    fn is_over(&self) -> bool {
        matches!(self.status, Status::Done | Status::Dead)
    }

    fn crashes(&self) -> u8 {
        self.lease_crashes + u8::from(self.status == Status::Abandoned)
    }
}

#[derive(Clone)]
struct Relay(Bounds);

impl Relay {
    fn has(&self, rule: Without) -> bool {
        self.0.without != Some(rule)
    }

    fn is_poison(&self, at: usize) -> bool {
        self.0.poison & 1 << at != 0
    }

    /// How many attempts a poison record gets.
    fn attempts(&self) -> u8 {
        self.0.max_attempts.max(3)
    }

    fn must_die(&self, record: &Record) -> bool {
        let was_quarantined = record.lease_crashes >= 2 || !self.has(Without::AloneOnlyDies);
        let is_spent = record.attempt >= self.0.max_attempts;
        record.status == Status::Abandoned && was_quarantined && is_spent
    }

    fn must_go_alone(&self, record: &Record) -> bool {
        record.crashes() >= if self.has(Without::SecondCrash) { 2 } else { 1 }
    }

    /// Whether no earlier record of its key prevents a lease.
    fn is_head(&self, state: &State, at: usize) -> bool {
        !self.0.one_key || state.records[..at].iter().all(Record::is_over)
    }

    fn has_failed(&self, record: &Record) -> bool {
        let crashes = if self.has(Without::CrashIsNotAFailure) { record.crashes() } else { 0 };
        record.attempt > crashes
    }

    /// The records that one command may lease together: any of several keys, and of one key those
    /// from the head on.
    fn batches(&self, state: &State) -> Vec<u8> {
        let records = &state.records[..self.0.records];
        let fits = |record: &Record| {
            record.waits() && !self.must_die(record) && !self.must_go_alone(record)
        };
        let may = |at: &usize| fits(&records[*at]);
        if !self.0.one_key {
            let all = (0..records.len()).filter(may).fold(0, |all, at| all | 1_u8 << at);
            return (1..1 << records.len()).filter(|batch| batch & !all == 0).collect();
        }
        let Some(head) = records.iter().position(|record| !record.is_over()) else { return vec![] };
        let (mut batches, mut batch) = (Vec::new(), 0);
        for at in (head..records.len()).take_while(may) {
            batch |= 1 << at;
            batches.push(batch);
            if self.has_failed(&records[at]) {
                break;
            }
        }
        batches
    }

    fn lease(&self, state: &mut State, at: usize, must_be_isolated: bool) {
        let record = &mut state.records[at];
        record.replaces = record.status == Status::Abandoned;
        record.lease_crashes += u8::from(record.replaces && self.has(Without::CrashesCount));
        record.attempt += 1;
        record.status = Status::Leased;
        record.must_be_isolated = must_be_isolated;
        if must_be_isolated {
            self.note_alone(state, at);
        }
    }

    fn note_alone(&self, state: &mut State, at: usize) {
        state.was_early |= state.crashes == 1 && !self.is_poison(at);
    }

    fn publish(&self, state: &mut State, at: usize) {
        if !self.is_poison(at) {
            state.records[at].status = Status::Published;
            return;
        }
        state.crashes = (state.crashes + 1).min(2);
        for record in state.records.iter_mut().filter(|record| record.is_held()) {
            record.status = Status::Abandoned;
            (record.replaces, record.must_be_isolated) = (false, false);
        }
    }

    /// A clean stop, after which another process begins.
    fn hand_over(&self, state: &mut State) {
        for record in &mut state.records {
            match record.status {
                Status::Published => record.status = Status::Done,
                Status::Leased => {
                    record.status = Status::Pending;
                    record.attempt -= 1;
                    if !self.has(Without::CrashesStay) {
                        record.lease_crashes -= u8::from(record.replaces);
                    }
                }
                _ => {}
            }
            (record.replaces, record.must_be_isolated) = (false, false);
        }
    }

    /// Whether the relay finishes all records from here, without handovers.
    fn finishes(&self, from: &State) -> bool {
        let mut state = from.clone();
        for _ in 0..200 {
            if state.records[..self.0.records].iter().all(Record::is_over) {
                return true;
            }
            let mut actions = Vec::new();
            self.actions(&state, &mut actions);
            // The last one leases the most.
            let next = actions.into_iter().rev().find(|action| *action != Action::Handover);
            let Some(next) = next.and_then(|next| self.next_state(&state, next)) else {
                return false;
            };
            state = next;
        }
        false
    }
}

impl Model for Relay {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let records = &state.records[..self.0.records];
        // Without a rule, counts have no limit.
        if records.iter().any(|record| record.attempt > self.attempts()) {
            return;
        }
        let holds = records.iter().any(Record::is_held);
        let has_turn = records.iter().any(|record| record.must_be_isolated && record.is_held());
        let in_key = self.0.one_key && holds;
        if !in_key && (!has_turn || self.0.neighbours) {
            actions.extend(self.batches(state).into_iter().map(Action::Lease));
        }
        for (at, record) in records.iter().enumerate() {
            if self.must_die(record) && self.is_head(state, at) {
                actions.push(Action::MarkDead(at));
            } else if record.waits() && self.must_go_alone(record) && self.is_head(state, at) {
                let waits = has_turn && self.has(Without::Turns);
                if !waits && (!holds || self.0.neighbours) {
                    actions.push(Action::LeaseAlone(at));
                }
            }
            // One after the other within a key; what was published may be settled together.
            let waits = |record: &Record| record.status == Status::Leased;
            let is_next = !self.0.one_key || !records[..at].iter().any(waits);
            if record.status == Status::Leased && is_next {
                actions.push(Action::Publish(at));
            }
            if record.status == Status::Published {
                actions.push(Action::Settle(at));
            }
        }
        if holds {
            actions.push(Action::Handover);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Lease(batch) => {
                for at in (0..RECORDS).filter(|at| batch & 1 << at != 0) {
                    self.lease(&mut state, at, false);
                    // That rule keeps the rest of the key away.
                    let is_last = at + 1 == self.0.records;
                    if self.0.one_key && !is_last && self.has_failed(&last.records[at]) {
                        self.note_alone(&mut state, at);
                    }
                }
            }
            Action::LeaseAlone(at) => self.lease(&mut state, at, true),
            Action::MarkDead(at) => state.records[at].status = Status::Dead,
            Action::Publish(at) => self.publish(&mut state, at),
            Action::Settle(at) => {
                state.records[at].status = Status::Done;
                state.records[at].must_be_isolated = false;
            }
            Action::Handover => self.hand_over(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INNOCENT, |relay: &Self, state: &State| {
                let is_dead = |at: &usize| state.records[*at].status == Status::Dead;
                (0..RECORDS).filter(is_dead).all(|at| relay.is_poison(at))
            }),
            Property::always(POISON, |relay: &Self, state: &State| {
                (0..RECORDS).filter(|at| relay.is_poison(*at)).all(|at| {
                    let Record { status, attempt, .. } = state.records[at];
                    let is_dead = status == Status::Dead;
                    attempt <= relay.attempts() && (!is_dead || attempt == relay.attempts())
                })
            }),
            Property::always(EARLY, |_, state: &State| !state.was_early),
            Property::always(FINISH, |relay: &Self, state: &State| {
                relay.0.without.is_some() || relay.finishes(state)
            }),
            Property::sometimes("a poison record is dead", |relay: &Self, state: &State| {
                let is_dead = |at: usize| state.records[at].status == Status::Dead;
                (0..RECORDS).any(|at| relay.is_poison(at) && is_dead(at))
            }),
            Property::sometimes("an innocent record goes alone", |relay: &Self, state: &State| {
                let alone = |at: usize| state.records[at].must_be_isolated && !relay.is_poison(at);
                // Of one key, the poison record may be the first.
                (0..RECORDS).any(alone) || relay.0.one_key && relay.is_poison(0)
            }),
        ]
    }
}

const INNOCENT: &str = "no innocent record dies";
const POISON: &str = "a poison record dies after max(max_attempts, 3) attempts";
const EARLY: &str = "after one crash no innocent record is isolated";
const FINISH: &str = "work can finish";

fn several_keys(max_attempts: u8) -> Bounds {
    Bounds { records: 4, poison: 1, one_key: false, max_attempts, neighbours: true, without: None }
}

fn one_key(place: usize, max_attempts: u8) -> Bounds {
    Bounds { poison: 1 << place, one_key: true, ..several_keys(max_attempts) }
}

fn check(bounds: Bounds) -> Walk {
    walk(Relay(bounds))
}

fn breaks(name: &str, bounds: Bounds, without: Without, promise: &str) {
    check(Bounds { without: Some(without), ..bounds }).assert_breaks(name, promise);
}

#[test]
fn poison_alone_dies_among_records_of_other_keys() {
    for max_attempts in [1, 2, 3, 10] {
        let records = if max_attempts == 10 { 3 } else { 4 };
        let bounds = Bounds { records, ..several_keys(max_attempts) };
        let name = format!("`poison`: {records} keys, `max_attempts = {max_attempts}`");
        check(bounds).assert_holds(&name, "test");
    }
}

#[test]
fn poison_alone_dies_at_any_place_of_one_key() {
    for place in 0..RECORDS {
        for max_attempts in [1, 3] {
            let place_name = place + 1;
            let name = format!(
                "`poison`: one key, record {place_name} of 4, `max_attempts = {max_attempts}`"
            );
            check(one_key(place, max_attempts)).assert_holds(&name, "test");
        }
    }
}

#[test]
fn poison_alone_dies_when_there_are_two() {
    let bounds = Bounds { records: 3, poison: 3, neighbours: false, ..several_keys(1) };
    check(bounds).assert_holds("`poison`: two poison records, nothing else is leased", "test");
}

#[test]
fn innocent_dies_when_neighbours_count_as_alone() {
    let name = "`poison`: a record dies only of a lease in which it was alone";
    breaks(name, several_keys(1), Without::AloneOnlyDies, INNOCENT);
}

#[test]
fn innocent_goes_alone_when_one_crash_isolates() {
    let name = "`poison`: a record is isolated after its second crash";
    breaks(name, several_keys(1), Without::SecondCrash, EARLY);
}

#[test]
fn poison_lives_on_when_a_release_undoes_crashes() {
    let name = "`poison`: a release keeps `leaseCrashes`";
    breaks(name, several_keys(1), Without::CrashesStay, POISON);
}

#[test]
fn poison_lives_on_when_crashes_are_not_counted() {
    let name = "`poison`: the next lease counts the crash of an abandoned one";
    breaks(name, several_keys(1), Without::CrashesCount, POISON);
}

#[test]
fn innocent_goes_alone_when_a_crash_is_a_failure() {
    let name = "`poison`: after a crash more than the head is leased";
    breaks(name, one_key(1, 1), Without::CrashIsNotAFailure, EARLY);
}

#[test]
fn innocent_dies_when_quarantine_has_no_turns() {
    let name = "`poison`: isolated records take turns";
    breaks(name, several_keys(1), Without::Turns, INNOCENT);
}

#[test]
fn innocent_dies_when_two_poison_records_share_a_lease() {
    let name = "`poison`: while a record is isolated, nothing else is leased (two poison records)";
    let bounds = Bounds { records: 3, poison: 3, ..several_keys(1) };
    check(bounds).assert_breaks(name, INNOCENT);
}
