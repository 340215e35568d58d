//! Whether the work finishes, by what the process does by itself.

use super::{Action, Health, KEYS, Key, ODD, Sick, State, Status};

/// Turns after which everything has finished, or never will.
const TURNS: usize = 60;

/// The outcome of messages that are not simply confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// A message in flight while its destination was silent is never confirmed.
    Never,
    /// It is confirmed late, if its destination is healthy by then.
    Late,
    /// As `Never`; and each dead letter of the odd record breaks its connection.
    Breaks,
}

impl Sick {
    /// Whether all work finishes once everything is healthy.
    pub fn finishes(self, state: &State) -> bool {
        let mut state = *state;
        for key in 0..KEYS {
            if state.destination == Health::Down && matches!(state.keys[key], Key::Flies(_)) {
                state = self.after(&state, Action::Interrupted(key));
            }
        }
        state = self.after(&state, Action::Heal(0));
        state = self.after(&state, Action::Heal(1));
        let is_odd_over = state.records[ODD].status != Status::Pending;
        [Lost::Never, Lost::Late, Lost::Breaks].into_iter().all(|lost| {
            if lost == Lost::Breaks && is_odd_over {
                return true;
            }
            let end = self.run(state, lost);
            end.records.iter().all(|record| record.status != Status::Pending)
        })
    }

    /// Whether everything finishes that may, where what is silent or down stays so for ever. A sick
    /// destination keeps its own records, except those that are dying. A sick destination of dead
    /// letters keeps those that are dying, with their keys.
    pub fn ends(self, state: &State) -> bool {
        let end = self.run(*state, Lost::Never);
        let are_letters_sick = self.health_of_letters(&end) != Health::Well;
        (0..KEYS).all(|key| {
            if end.head(key).is_none() {
                return true;
            }
            let is_sent = matches!(end.keys[key], Key::SendsCopy { .. });
            if end.is_dying(key) || is_sent {
                are_letters_sick
            } else {
                end.destination != Health::Well
            }
        })
    }

    fn run(self, mut state: State, lost: Lost) -> State {
        // When each key began to wait.
        let mut since = [0; KEYS];
        for turn in 1..=TURNS {
            for (key, since) in since.iter_mut().enumerate() {
                let Some(action) = self.step(&state, key, lost) else { continue };
                state = self.after(&state, action);
                if matches!(state.keys[key], Key::Waits { .. }) {
                    *since = turn;
                }
            }
            if state.is_resting() {
                state = self.after(&state, Action::ProbeDue);
            }
            // The one that has waited for the longest (`free_for_probes`), and no second one before
            // the first had the time to probe (`CALL_AGAIN`).
            if self.calls(&state) && !state.keys.contains(&Key::Candidate) {
                let waits = |key: &usize| matches!(state.keys[*key], Key::Waits { .. });
                let next = (0..KEYS).filter(waits).min_by_key(|key| since[*key]);
                state = next.map_or(state, |key| self.after(&state, Action::Call(key)));
            }
            if state.records.iter().all(|record| record.status != Status::Pending) {
                break;
            }
        }
        state
    }

    /// The next action of the process for a key.
    fn step(self, state: &State, key: usize, lost: Lost) -> Option<Action> {
        let is_kept = |is_lost: bool, health: Health| {
            health == Health::Well && (!is_lost || lost == Lost::Late)
        };
        Some(match state.keys[key] {
            Key::Free => Action::Look(key),
            Key::Claimed(_) => Action::Deliver(key),
            Key::Met => Action::Enter(key),
            Key::Candidate => Action::Probe(key),
            Key::Later(_) => Action::Due(key),
            // A key that has probed waits for longer than until the next probe
            // (`Open::failed_until`).
            Key::Waits { ends: true } if state.circuit.is_none() => Action::Due(key),
            Key::Waits { .. } | Key::Paused => return None,
            Key::Flies(_) if state.destination == Health::Down => Action::Interrupted(key),
            Key::Flies(flight) => {
                if is_kept(flight.is_lost, state.destination) {
                    Action::Confirm(key)
                } else {
                    Action::Unconfirmed(key)
                }
            }
            Key::SendsCopy { record, is_lost, .. } => match self.health_of_letters(state) {
                Health::Down => Action::LetterDown(key),
                _ if record == ODD && lost == Lost::Breaks => Action::LetterBroke(key),
                health if is_kept(is_lost, health) => Action::LetterConfirmed(key),
                _ => Action::LetterUnconfirmed(key),
            },
        })
    }
}
