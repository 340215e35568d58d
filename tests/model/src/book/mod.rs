//! The table of blocked keys: which keys a relay does not read, and until when.
//!
//! A scan that meets a record which may not go yet blocks its key (`relay::key_table`), so that the
//! key is not read again with each scan. The blocker may change meanwhile without a message to the
//! relay: an operator discards it, makes it due, or requeues a dead record in front of it. One
//! relay, one key, two records. Leases and order are in `protocol`; this checks whether work can
//! finish.
//!
//! A key that its dead record blocks stays in the table until `relay::dead_blockers` finds that the
//! record no longer blocks it. It reads the records of all such keys again and again; or, if they
//! are many, those that a stream names, and that of each key once after it was added: the scan that
//! has found the key blocked may have read before a change that the stream has named already.

use stateright::{Model, Property};

use crate::walk::{Walk, walk};

const RECORDS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// A block ends after `poll_interval`, whatever its reason is.
    End,
    /// A block ends when the circuit of its reason closes.
    Circuit,
    /// A block by a dead record ends when the record no longer blocks.
    Recheck,
    /// The dead record of a key is read again once the key is in the table.
    Verification,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Status {
    #[default]
    NotInserted,
    Pending,
    Dead,
    /// Done, or discarded.
    Over,
}

/// When a record may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Due {
    #[default]
    Now,
    /// After a backoff.
    Soon,
    /// After longer than any test waits.
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    status: Status,
    due: Due,
    /// Whether its sink is the one that may be paused.
    is_for_sick: bool,
}

/// Why a key is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Blocked {
    /// Until a time, which was read from the blocker.
    Until(Due),
    /// Until the circuit of the sink closes.
    Circuit,
    /// Until this dead record no longer blocks.
    Dead(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    records: [Record; RECORDS],
    blocked: Option<Blocked>,
    /// The circuit of the sick sink is open.
    is_open: bool,
    /// A scan has read that this dead record blocks the key, which is not in the table yet.
    found_dead: Option<usize>,
    /// The dead record was not read again since the key is in the table.
    is_unverified: bool,
    /// Records whose end of death the stream has yet to name.
    to_name: [bool; RECORDS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A producer inserts the next record: due at once, or much later; for either sink.
    Insert(usize, Due, bool),
    Scan,
    /// The scan that has found the key blocked by a dead record adds it to the table.
    Add,
    /// The record that a scan met fails: again after a backoff, or dead.
    Fail,
    Die,
    /// A backoff ends.
    BecomeDue(usize),
    /// `poll_interval` has passed since the key was blocked, or the stream is read.
    Poll,
    Open,
    Close,
    /// An operator discards a record.
    Discard(usize),
    MakeDue(usize),
    Requeue(usize),
}

#[derive(Clone, Copy, Debug)]
struct Book {
    without: Option<Without>,
    /// Whether a death blocks the key, until an operator acts.
    blocks: bool,
    /// Whether a stream names the dead records that may no longer block.
    is_watched: bool,
}

impl Book {
    fn has(self, guard: Without) -> bool {
        self.without != Some(guard)
    }

    /// The record that a scan meets first.
    fn head(self, state: &State) -> Option<usize> {
        let waits = |status| matches!(status, Status::Pending) || self.holds(status);
        state.records.iter().position(|record| waits(record.status))
    }

    fn holds(self, status: Status) -> bool {
        self.blocks && status == Status::Dead
    }

    fn scan(self, state: &mut State, failure: Option<Action>) {
        if state.blocked.is_some() {
            return;
        }
        let Some(number) = self.head(state) else { return };
        let is_open = state.is_open;
        let record = &mut state.records[number];
        if self.holds(record.status) {
            state.found_dead = Some(number);
            return;
        }
        state.blocked = match (record.due, record.is_for_sick && is_open) {
            (Due::Now, false) => None,
            (Due::Now, true) => Some(Blocked::Circuit),
            (later, _) => Some(Blocked::Until(later)),
        };
        if state.blocked.is_none() {
            match failure {
                None => record.status = Status::Over,
                Some(Action::Die) => record.status = Status::Dead,
                Some(_) => record.due = Due::Soon,
            }
        }
    }

    /// Reads blockers again.
    fn poll(self, state: &mut State) {
        let named = std::mem::take(&mut state.to_name);
        let verifies = std::mem::take(&mut state.is_unverified) && self.has(Without::Verification);
        let ends = match state.blocked {
            Some(Blocked::Dead(number)) => {
                let is_read = !self.is_watched || named[number] || verifies;
                is_read && !self.holds(state.records[number].status) && self.has(Without::Recheck)
            }
            _ => self.has(Without::End),
        };
        state.blocked = state.blocked.filter(|_| !ends);
    }

    fn after(self, state: &State, action: Action) -> State {
        let mut state = state.clone();
        match action {
            Action::Add => {
                if let Some(number) = state.found_dead.take() {
                    state.blocked = Some(Blocked::Dead(number));
                    state.is_unverified = self.is_watched;
                }
            }
            Action::Insert(number, due, is_for_sick) => {
                state.records[number] = Record { status: Status::Pending, due, is_for_sick };
            }
            Action::Scan => self.scan(&mut state, None),
            Action::Fail | Action::Die => self.scan(&mut state, Some(action)),
            Action::BecomeDue(number) => {
                state.records[number].due = Due::Now;
                if state.blocked == Some(Blocked::Until(Due::Soon)) {
                    state.blocked = None;
                }
            }
            Action::Poll => self.poll(&mut state),
            Action::Open => state.is_open = true,
            Action::Close => {
                state.is_open = false;
                if state.blocked == Some(Blocked::Circuit) && self.has(Without::Circuit) {
                    state.blocked = None;
                }
            }
            Action::Discard(number) => {
                state.to_name[number] |=
                    self.is_watched && self.holds(state.records[number].status);
                state.records[number].status = Status::Over;
            }
            Action::MakeDue(number) => state.records[number].due = Due::Now,
            Action::Requeue(number) => {
                state.to_name[number] |= self.is_watched;
                state.records[number].status = Status::Pending;
                state.records[number].due = Due::Now;
            }
        }
        state
    }

    /// Whether everything that may go goes, without an operator. The sick sink stays as it is.
    fn finishes(self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..2 * RECORDS {
            for number in 0..RECORDS {
                if state.records[number].due == Due::Soon {
                    state = self.after(&state, Action::BecomeDue(number));
                }
            }
            for action in [Action::Add, Action::Poll, Action::Scan] {
                state = self.after(&state, action);
            }
        }
        let Some(head) = self.head(&state) else { return true };
        let head = &state.records[head];
        head.due == Due::Never || (head.is_for_sick && state.is_open) || self.holds(head.status)
    }
}

impl Model for Book {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let next = state.records.iter().position(|one| one.status == Status::NotInserted);
        if let Some(next) = next {
            for due in [Due::Now, Due::Never] {
                actions.extend([true, false].map(|sick| Action::Insert(next, due, sick)));
            }
        }
        actions.extend([Action::Scan, Action::Fail, Action::Die, Action::Open, Action::Close]);
        if state.blocked.is_some() || state.to_name.contains(&true) {
            actions.push(Action::Poll);
        }
        if state.found_dead.is_some() {
            actions.push(Action::Add);
        }
        for (number, record) in state.records.iter().enumerate() {
            match record.status {
                Status::Pending => {
                    actions.extend([Action::Discard(number), Action::MakeDue(number)]);
                    if record.due == Due::Soon {
                        actions.push(Action::BecomeDue(number));
                    }
                }
                Status::Dead => {
                    actions.extend([Action::Discard(number), Action::Requeue(number)]);
                }
                _ => {}
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FINISH, |book: &Self, state: &State| book.finishes(state)),
            Property::sometimes("a key is blocked by what is gone", |_, state: &State| {
                state.blocked.is_some() && state.records[0].status == Status::Over
            }),
            Property::sometimes("a key is blocked by a circuit", |_, state: &State| {
                state.blocked == Some(Blocked::Circuit)
            }),
            Property::sometimes("a key is blocked by its dead", |book: &Self, state: &State| {
                matches!(state.blocked, Some(Blocked::Dead(_))) || !book.blocks
            }),
        ]
    }
}

const FINISH: &str = "work can finish";

fn check(without: Option<Without>, blocks: bool, is_watched: bool) -> Walk {
    walk(Book { without, blocks, is_watched })
}

#[test]
fn a_blocked_key_continues_whatever_resolves_its_blocker() {
    check(None, false, false).assert_holds("`book`: skip", "test");
    check(None, true, false).assert_holds("`book`: block", "test");
    check(None, true, true).assert_holds("`book`: block, with a stream of what changes", "test");
}

#[test]
fn a_block_has_an_end() {
    let walk = check(Some(Without::End), false, false);
    walk.assert_breaks("`book`: a block in the book of keys has an end", FINISH);
}

#[test]
fn a_block_by_a_dead_record_ends_when_it_no_longer_blocks() {
    let walk = check(Some(Without::Recheck), true, false);
    walk.assert_breaks("`book`: a dead record in the book is read again", FINISH);
}

#[test]
fn a_dead_record_is_read_again_once_its_key_is_in_the_table() {
    let walk = check(Some(Without::Verification), true, true);
    walk.assert_breaks("`book`: a dead record is read again once it is in the book", FINISH);
}

#[test]
fn ending_a_block_when_a_circuit_closes_is_not_a_guard() {
    // It saves a part of `poll_interval`.
    let walk = check(Some(Without::Circuit), false, false);
    assert!(walk.broken.is_empty(), "{walk:?}");
}
