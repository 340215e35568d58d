//! Circuits, quarantine and dead letters: a faulty record, and a neighbour on its sink.
//!
//! The faulty record either breaks every connection that carries it (poison), or its destination
//! never confirms. Both records are of keys of their own, on one sink. Dead letters go to the same
//! sink. Leases are in `protocol`: here one process delivers (`relay::publisher`,
//! `relay::dead_letter`). Destinations that heal, and dead letters that are not confirmed, are in
//! `healing`.

mod healing;

use stateright::{Model, Property};

use crate::walk::{Walk, walk};

/// Counted attempts until a record dies.
const MAX_ATTEMPTS: u8 = 2;

/// Connections lost with a record until it goes alone.
const LOSSES: u8 = 2;

/// How often a dead letter is tried.
const ROUNDS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// A record in quarantine has a connection of its own.
    OwnConnection,
    /// A loss together with others is not counted as an attempt.
    LossesUncounted,
    /// A destination that does not confirm opens its own circuit, not that of the sink.
    OwnCircuit,
    /// A missing confirm of a destination is not counted.
    SilenceUncounted,
    /// A dead letter is tried a number of times, and the record dies without it.
    RoundsBounded,
}

/// The fault of the faulty record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FaultKind {
    Poison,
    Silence,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Status {
    #[default]
    Pending,
    /// On the connection that all share.
    OnSharedConnection,
    /// On a connection of its own.
    Alone,
    /// Its attempts are exhausted: a copy goes to the dead-letter destination first.
    Dying,
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    status: Status,
    attempts: u8,
    losses: u8,
    rounds: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    odd: Record,
    neighbour: Record,
    /// The circuit of the sink is open: it is paused.
    is_open: bool,
    /// The circuit of the faulty record's destination.
    is_destination_open: bool,
    breach: Option<Breach>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Breach {
    /// An attempt of the neighbour was counted.
    NeighbourCounted,
    /// The neighbour was interrupted without a fault of the sink.
    NeighbourInterrupted,
    /// The destination's fault was counted.
    SilenceCounted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    PublishOdd,
    PublishNeighbour,
    /// What carries the faulty record ends: the connection, or the time to wait for a confirm.
    Fail,
    Confirm,
    /// The sink, or the destination, is tried again.
    Probe,
    ProbeDestination,
    /// The copy is sent, and has the same effect as the record.
    DeadLetter,
    /// The broker restarts, independent of both records.
    Restart,
}

#[derive(Clone, Copy, Debug)]
struct Sink {
    trouble: FaultKind,
    without: Option<Without>,
}

impl Sink {
    fn has(self, guard: Without) -> bool {
        self.without != Some(guard)
    }

    /// The shared connection ends, with all that it carries.
    fn lose(self, state: &mut State) {
        state.is_open = true;
        for record in [&mut state.odd, &mut state.neighbour] {
            if record.status == Status::OnSharedConnection {
                record.status = Status::Pending;
                record.losses = (record.losses + 1).min(LOSSES);
                if !self.has(Without::LossesUncounted) {
                    record.attempts += 1;
                }
            }
        }
        if state.neighbour.attempts > 0 {
            state.breach = Some(Breach::NeighbourCounted);
        }
    }

    fn count(self, state: &mut State) {
        state.odd.attempts = (state.odd.attempts + 1).min(MAX_ATTEMPTS);
        let is_spent = state.odd.attempts == MAX_ATTEMPTS;
        state.odd.status = if is_spent { Status::Dying } else { Status::Pending };
    }

    fn fail(self, state: &mut State) {
        let was_quarantined = state.odd.status == Status::Alone;
        match (self.trouble, was_quarantined) {
            (FaultKind::Poison, false) => self.lose(state),
            (FaultKind::Poison, true) => {
                if !self.has(Without::OwnConnection) {
                    if state.neighbour.status == Status::OnSharedConnection {
                        state.breach = Some(Breach::NeighbourInterrupted);
                    }
                    self.lose(state);
                }
                self.count(state);
            }
            (FaultKind::Silence, _) => {
                if self.has(Without::OwnCircuit) {
                    state.is_destination_open = true;
                } else {
                    if state.neighbour.status == Status::OnSharedConnection {
                        state.breach = Some(Breach::NeighbourInterrupted);
                    }
                    self.lose(state);
                }
                if self.has(Without::SilenceUncounted) {
                    state.odd.status = Status::Pending;
                } else {
                    self.count(state);
                    state.breach = Some(Breach::SilenceCounted);
                }
            }
        }
    }

    fn publish(record: &mut Record) {
        let is_alone = record.losses >= LOSSES;
        record.status = if is_alone { Status::Alone } else { Status::OnSharedConnection };
    }

    fn after(self, state: &State, action: Action) -> State {
        let mut state = state.clone();
        match action {
            Action::PublishOdd => Self::publish(&mut state.odd),
            Action::PublishNeighbour => Self::publish(&mut state.neighbour),
            Action::Fail => self.fail(&mut state),
            Action::Confirm => state.neighbour.status = Status::Over,
            Action::Probe => state.is_open = false,
            Action::ProbeDestination => state.is_destination_open = false,
            Action::DeadLetter => {
                // It is known as poison, and is sent on a connection of its own.
                state.odd.rounds = (state.odd.rounds + 1).min(ROUNDS);
                if state.odd.rounds == ROUNDS && self.has(Without::RoundsBounded) {
                    state.odd.status = Status::Over;
                } else if !self.has(Without::RoundsBounded) {
                    // Later, as if it had not been tried.
                    (state.odd.status, state.odd.attempts) = (Status::Pending, MAX_ATTEMPTS - 1);
                    state.odd.rounds = 0;
                }
            }
            Action::Restart => self.lose(&mut state),
        }
        state
    }

    fn enabled(self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        match state.odd.status {
            Status::Pending if !state.is_open && !state.is_destination_open => {
                actions.push(Action::PublishOdd);
            }
            Status::OnSharedConnection | Status::Alone => actions.push(Action::Fail),
            Status::Dying if !state.is_open => actions.push(Action::DeadLetter),
            _ => {}
        }
        match state.neighbour.status {
            Status::Pending if !state.is_open => actions.push(Action::PublishNeighbour),
            Status::OnSharedConnection | Status::Alone => actions.push(Action::Confirm),
            _ => {}
        }
        if state.is_open {
            actions.push(Action::Probe);
        }
        if state.is_destination_open {
            actions.push(Action::ProbeDestination);
        }
        actions
    }

    /// Whether a process alone finishes what can finish, if the broker does not restart. What a
    /// destination does not confirm waits for it; everything else must not.
    fn finishes(self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..40 {
            // The same order each time: the first possible action, the neighbour last.
            let Some(next) = self.enabled(&state).into_iter().next() else { break };
            state = self.after(&state, next);
            if let Some(next) = self.enabled(&state).into_iter().find(|action| {
                matches!(action, Action::Confirm | Action::PublishNeighbour | Action::Probe)
            }) {
                state = self.after(&state, next);
            }
        }
        let is_odd_over = self.trouble == FaultKind::Silence || state.odd.status == Status::Over;
        is_odd_over && state.neighbour.status == Status::Over
    }
}

impl Model for Sink {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.enabled(state));
        if !state.is_open {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(COUNTED, |_, state: &State| {
                state.breach != Some(Breach::NeighbourCounted)
            }),
            Property::always(INTERRUPTED, |_, state: &State| {
                state.breach != Some(Breach::NeighbourInterrupted)
            }),
            Property::always(SILENCE, |_, state: &State| {
                state.breach != Some(Breach::SilenceCounted)
            }),
            Property::always(FINISH, |sink: &Self, state: &State| sink.finishes(state)),
            Property::sometimes("the troublemaker goes alone", |_, state: &State| {
                state.odd.status == Status::Alone
            }),
            Property::sometimes("the neighbour goes alone", |_, state: &State| {
                state.neighbour.status == Status::Alone
            }),
        ]
    }
}

const COUNTED: &str = "a neighbour is not counted an attempt";
const INTERRUPTED: &str = "a neighbour is not interrupted by one destination";
const SILENCE: &str = "a destination's silence is not counted";
const FINISH: &str = "work can finish";

fn check(trouble: FaultKind, without: Option<Without>) -> Walk {
    walk(Sink { trouble, without })
}

fn breaks(name: &str, trouble: FaultKind, without: Without, promise: &str) {
    check(trouble, Some(without)).assert_breaks(name, promise);
}

#[test]
fn a_faulty_record_finishes_and_its_neighbour_does_not_wait() {
    check(FaultKind::Poison, None).assert_holds("`circuit`: poison", "test");
    let name = "`circuit`: a destination that does not confirm";
    check(FaultKind::Silence, None).assert_holds(name, "test");
}

#[test]
fn a_record_in_quarantine_has_a_connection_of_its_own() {
    let name = "`circuit`: a record in quarantine has a connection of its own";
    breaks(name, FaultKind::Poison, Without::OwnConnection, INTERRUPTED);
}

#[test]
fn a_loss_together_with_others_is_not_counted() {
    let name = "`circuit`: a loss in company is not counted";
    breaks(name, FaultKind::Poison, Without::LossesUncounted, COUNTED);
}

#[test]
fn an_unconfirming_destination_has_a_circuit_of_its_own() {
    let name = "`circuit`: a destination has a circuit of its own";
    breaks(name, FaultKind::Silence, Without::OwnCircuit, INTERRUPTED);
}

#[test]
fn a_missing_confirm_of_a_destination_is_not_counted() {
    let name = "`circuit`: what a destination does not confirm is not counted";
    breaks(name, FaultKind::Silence, Without::SilenceUncounted, SILENCE);
}

#[test]
fn dead_letters_are_tried_a_number_of_times() {
    let name = "`circuit`: a dead letter is tried a number of times";
    breaks(name, FaultKind::Poison, Without::RoundsBounded, FINISH);
}
