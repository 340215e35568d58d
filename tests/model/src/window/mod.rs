//! A lane with several unconfirmed messages (`key_window`, `relay::lane_worker::window`).
//!
//! One relay, one lane, and a broker that accepts messages in order. Records may be refused before
//! they are sent (malformed), or not be sent because their lease has ended. What was sent is always
//! confirmed here: no order is promised after a message that the broker refuses.

use stateright::{Model, Property};

use crate::walk::{Walk, walk};

const RECORDS: usize = 4;

/// Messages that may be unconfirmed.
const WINDOW: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// After a record that was not sent, nothing begins until that one is concluded.
    Barrier,
    /// At most the window is unconfirmed.
    Window,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Step {
    #[default]
    Waiting,
    /// Published, and not confirmed yet.
    Begun,
    Confirmed,
    /// It was not sent, since its lease had ended; another relay delivers it later.
    NotSent,
    /// It was not sent, since it can never be delivered; its death is not written yet.
    Refused,
    /// Written: done, or dead.
    Settled,
}

/// The outcome of a record at its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Outcome {
    #[default]
    Sent,
    LeaseEnded,
    /// It can never be delivered, and its death blocks its key.
    Malformed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    steps: [Step; RECORDS],
    /// The lane ends: no more begins.
    has_ended: bool,
    breach: Option<Breach>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Breach {
    Order,
    Block,
    Window,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The lane turns to its next record.
    Begin(usize),
    Confirm(usize),
    /// The lane settles a record and those before it.
    Conclude(usize),
}

#[derive(Clone, Debug)]
struct Lane {
    fates: [Outcome; RECORDS],
    without: Option<Without>,
}

impl Lane {
    fn has(&self, guard: Without) -> bool {
        self.without != Some(guard)
    }

    fn unconfirmed(state: &State) -> usize {
        state.steps.iter().filter(|step| **step == Step::Begun).count()
    }

    fn may_begin(&self, state: &State) -> bool {
        let unsent = state.steps.iter().any(|step| matches!(step, Step::NotSent | Step::Refused));
        !state.has_ended
            && (!unsent || !self.has(Without::Barrier))
            && (Self::unconfirmed(state) < WINDOW || !self.has(Without::Window))
    }

    fn begin(&self, state: &mut State, number: usize) {
        state.steps[number] = match self.fates[number] {
            Outcome::Sent => Step::Begun,
            Outcome::LeaseEnded => Step::NotSent,
            Outcome::Malformed => Step::Refused,
        };
        if state.steps[number] != Step::Begun {
            return;
        }
        let before = &state.steps[..number];
        if before.contains(&Step::NotSent) {
            state.breach = Some(Breach::Order);
        }
        let blocked = |(at, step): (usize, &Step)| {
            self.fates[at] == Outcome::Malformed && matches!(step, Step::Refused | Step::Settled)
        };
        if before.iter().enumerate().any(blocked) {
            state.breach = Some(Breach::Block);
        }
        if Self::unconfirmed(state) > WINDOW {
            state.breach = Some(Breach::Window);
        }
    }
}

impl Model for Lane {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let next = state.steps.iter().position(|step| *step == Step::Waiting);
        actions.extend(next.filter(|_| self.may_begin(state)).map(Action::Begin));
        // Confirms come in any order; the lane learns of each at any time.
        for (number, step) in state.steps.iter().enumerate() {
            let earlier = &state.steps[..number];
            let is_first = earlier.iter().all(|step| *step == Step::Settled);
            match step {
                Step::Begun => actions.push(Action::Confirm(number)),
                Step::Confirmed | Step::NotSent | Step::Refused if is_first => {
                    actions.push(Action::Conclude(number));
                }
                _ => {}
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Begin(number) => self.begin(&mut state, number),
            Action::Confirm(number) => state.steps[number] = Step::Confirmed,
            Action::Conclude(number) => {
                // Not sent, or dead and blocking: the following records are not this lane's.
                state.has_ended |= state.steps[number] != Step::Confirmed;
                state.steps[number] = Step::Settled;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State| state.breach != Some(Breach::Order)),
            Property::always(BLOCK, |_, state: &State| state.breach != Some(Breach::Block)),
            Property::always(NUMBER, |_, state: &State| state.breach != Some(Breach::Window)),
            Property::always(FINISH, |lane: &Self, state: &State| {
                let mut actions = Vec::new();
                lane.actions(state, &mut actions);
                let untouched = |step: &Step| matches!(step, Step::Settled | Step::Waiting);
                // At rest, the lane has ended or settled all; what waits is leased again.
                !actions.is_empty() || state.steps.iter().all(untouched)
            }),
            Property::sometimes("the window is full", |lane: &Self, state: &State| {
                lane.fates[..WINDOW].iter().any(|fate| *fate != Outcome::Sent)
                    || Lane::unconfirmed(state) == WINDOW
            }),
        ]
    }
}

const ORDER: &str = "nothing passes a record that was not sent";
const BLOCK: &str = "no record passes a dead one that blocks";
const NUMBER: &str = "no more than the window is unconfirmed";
const FINISH: &str = "work can finish";

fn check(fates: [Outcome; RECORDS], without: Option<Without>) -> Walk {
    walk(Lane { fates, without })
}

fn breaks(name: &str, fates: [Outcome; RECORDS], without: Without, promise: &str) {
    check(fates, Some(without)).assert_breaks(name, promise);
}

use Outcome::{LeaseEnded, Malformed, Sent};

#[test]
fn a_window_keeps_the_order_whatever_is_not_sent() {
    check([Sent; RECORDS], None).assert_holds("`window`: all are sent", "test");
    for (odd, what) in [(LeaseEnded, "whose lease has ended"), (Malformed, "that is malformed")] {
        for at in 0..RECORDS {
            let mut fates = [Sent; RECORDS];
            fates[at] = odd;
            let name = format!("`window`: record {} is one {what}", at + 1);
            check(fates, None).assert_holds(&name, "test");
        }
    }
}

#[test]
fn no_publish_begins_after_a_record_that_was_not_sent() {
    let name = "`window`: nothing begins behind a record that was not sent";
    breaks(name, [Sent, LeaseEnded, Sent, Sent], Without::Barrier, ORDER);
}

#[test]
fn no_publish_begins_after_a_record_that_dies_and_blocks() {
    let name = "`window`: the same behind a record that dies and blocks";
    breaks(name, [Sent, Malformed, Sent, Sent], Without::Barrier, BLOCK);
}

#[test]
fn a_window_limits_unconfirmed_messages() {
    let name = "`window`: the number of unconfirmed messages is bounded";
    breaks(name, [Sent; RECORDS], Without::Window, NUMBER);
}
