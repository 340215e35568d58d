//! A walk through all states that a model can reach.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

/// What a walk came to.
#[derive(Debug, Default)]
pub struct Walk {
    /// Promises that were broken.
    pub broken: Vec<&'static str>,
    /// What was to happen sometimes, and never did.
    pub never: Vec<&'static str>,
}

/// Walks through all states, or until a promise is broken; tells of each that was the shortest
/// way there.
pub fn walk<M>(model: M) -> Walk
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let walked = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
    let walked = walked.spawn_bfs().join();
    println!(
        "{} states, {} steps, depth {}, {:.1?}",
        walked.unique_state_count(),
        walked.state_count(),
        walked.max_depth(),
        began.elapsed()
    );
    let mut discoveries = walked.discoveries();
    let mut walk = Walk::default();
    for property in model.properties() {
        match (property.expectation.discovery_is_failure(), discoveries.remove(property.name)) {
            (true, Some(path)) => {
                println!("BROKEN: {}", property.name);
                for action in shortest(&model, property.name, path).into_actions() {
                    println!("    {action:?}");
                }
                walk.broken.push(property.name);
            }
            (false, None) => walk.never.push(property.name),
            _ => {}
        }
    }
    walk
}

/// The checker goes on for a while after its first discovery, and keeps the last.
fn shortest<M>(
    model: &M,
    promise: &'static str,
    mut known: Path<M::State, M::Action>,
) -> Path<M::State, M::Action>
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    loop {
        let states = known.clone().into_states().len();
        let only = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
        let walked = model.clone().checker().finish_when(only).target_max_depth(states);
        match walked.spawn_bfs().join().discovery(promise) {
            Some(shorter) => known = shorter,
            None => break,
        }
    }
    known
}
