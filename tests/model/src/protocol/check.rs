//! The state space as `stateright` walks it.

use stateright::{Model, Property};

use super::action::{Action, after, enabled};
use super::bounds::{Bounds, Clocks};
use super::finish::finishes;
use super::promise::Breach;
use super::relay::{Relay, Sent, Step, members};
use super::state::State;
use super::store::Status;

/// The records of one key, and all relays.
#[derive(Clone, Debug)]
pub struct Key {
    pub bounds: Bounds,
    /// Whether each state is checked for whether work can still finish: expensive.
    pub asks_finish: bool,
}

impl Model for Key {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        enabled(state, &self.bounds, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        after(state, action, &self.bounds)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ORDER, |_, state: &State| state.breach != Some(Breach::Inversion)),
            Property::always(PHANTOM, |_, state: &State| state.breach != Some(Breach::Phantom)),
            Property::always(LOSS, |_, state: &State| state.breach != Some(Breach::Loss)),
            Property::always(BLOCK, |_, state: &State| state.breach != Some(Breach::BlockPassed)),
            Property::always(FENCE, |_, state: &State| {
                state.breach != Some(Breach::ForeignSettled)
            }),
            Property::always(LEASE, |_, state: &State| state.breach != Some(Breach::LeaseBroken)),
            Property::always(FINAL, |_, state: &State| state.breach != Some(Breach::SettledTaken)),
            Property::always(LATE, |_, state: &State| state.breach != Some(Breach::LateStart)),
            Property::sometimes("all is delivered", |key: &Self, state: &State| {
                let all = (1 << key.bounds.records) - 1;
                state.arrived == all
            }),
            Property::sometimes("a duplicate is under way", |_, state: &State| {
                let flights = state.relays.iter().fold(0, |set, one| set | one.lane.flight);
                flights & state.arrived != 0
            }),
        ];
        if self.bounds.clocks == Clocks::Any {
            properties.push(Property::sometimes("a zombie publishes", |_, state: &State| {
                state.relays.iter().any(|relay| has_lost(state, relay, relay.lane.flight))
            }));
        }
        // Where leases are renewed in time, none is taken.
        if self.bounds.clocks != Clocks::Renewed {
            properties.push(Property::sometimes(
                "two relays have one record in hand",
                |_, state: &State| {
                    let [one, other, _] = &state.relays;
                    one.lane.unsettled() & other.lane.unsettled() != 0
                },
            ));
        }
        if self.bounds.clocks == Clocks::Renewed {
            properties.push(Property::always(FORSAKEN, |_, state: &State| !is_forsaken(state)));
        }
        if self.bounds.nack {
            properties.push(Property::sometimes("a death matches nothing", |_, state: &State| {
                let items = state.relays.iter().flat_map(|relay| relay.lane.items);
                items.flatten().any(|item| item.sent == Sent::Unmatched)
            }));
            properties.push(Property::sometimes("a record dies", |_, state: &State| {
                state.stable.iter().any(|record| record.is_dead())
            }));
        }
        if self.bounds.block {
            properties.push(Property::sometimes(
                "a dead one blocks",
                |key: &Self, state: &State| {
                    let records = &state.stable[..key.bounds.records];
                    let blocks = records.iter().position(|record| record.status == Status::Blocked);
                    let blocks = blocks.unwrap_or(key.bounds.records);
                    records[blocks..].iter().any(|record| record.status == Status::Pending)
                },
            ));
        }
        if self.bounds.rollback {
            properties.push(Property::sometimes(
                "a rollback undoes a lease",
                |_, state: &State| {
                    let lost = |relay: &&Relay| {
                        let waiting = relay.lane.waiting;
                        members(waiting).any(|one| state.primary[one].attempt == 0)
                    };
                    state.deposed.is_none() && state.relays.iter().any(|relay| lost(&relay))
                },
            ));
        }
        if self.asks_finish {
            properties.push(Property::always(FINISH, |key: &Self, state: &State| {
                let crowd = 0..key.bounds.relays;
                state.breach.is_some()
                    || crowd.into_iter().all(|survivor| finishes(state, survivor, &key.bounds))
            }));
        }
        properties
    }
}

pub const ORDER: &str = "first deliveries follow the order";
pub const PHANTOM: &str = "only what a majority had is delivered";
pub const LOSS: &str = "done is only what arrived";
pub const BLOCK: &str = "no record passes a dead one that blocks";
pub const FENCE: &str = "only the holder of a lease settles";
pub const LEASE: &str = "no live lease is broken";
pub const FINAL: &str = "what is settled stays settled";
pub const LATE: &str = "no publish starts after another instance's lease";
pub const FORSAKEN: &str = "each live lease is known to a relay";
pub const FINISH: &str = "the relays that are left can finish the work";

fn has_lost(state: &State, relay: &Relay, set: u8) -> bool {
    members(set).any(|number| !state.primary[number].holds(relay.lane.tokens[number]))
}

fn is_forsaken(state: &State) -> bool {
    let known = |token: u8| {
        state.relays.iter().any(|relay| {
            let leases = relay.take.step == Step::Again && relay.take.token == token;
            leases || relay.lane.tokens.contains(&token)
        })
    };
    state.primary.iter().any(|record| record.is_leased() && !known(record.lease))
}
