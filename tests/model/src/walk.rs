//! A walk through all states that a model can reach.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::table::{number, row, steps};

/// The result of a walk.
#[derive(Debug, Default)]
pub struct Walk {
    /// Promises that were broken.
    pub broken: Vec<&'static str>,
    /// Events that must happen sometimes, and never did.
    pub never: Vec<&'static str>,
    pub states: usize,
    pub steps: usize,
    /// The number of steps to the first broken promise, of those in [`broken`](Self::broken).
    pub lengths: Vec<usize>,
}

impl Walk {
    /// Compares the row of this check with its result: nothing breaks, and every event that must
    /// happen somewhere does.
    #[track_caller]
    pub fn assert_holds(&self, name: &str, run_by: &str) {
        assert!(self.broken.is_empty() && self.never.is_empty(), "{name}: {self:?}");
        row(name, &[number(self.states), steps(self.steps), format!("`make {run_by}`")]);
    }

    /// Compares the row of a guard with the effect of its removal.
    #[track_caller]
    pub fn assert_breaks(&self, name: &str, promise: &str) {
        let found = self.broken.iter().position(|broken| *broken == promise);
        let Some(found) = found else { panic!("without {name}: {self:?}") };
        row(name, &[promise.to_owned(), self.lengths[found].to_string()]);
    }
}

/// Walks through all states, or until a promise is broken; returns each broken one with its
/// shortest path.
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
    let mut walk = Walk {
        states: walked.unique_state_count(),
        steps: walked.state_count(),
        ..Walk::default()
    };
    for property in model.properties() {
        match (property.expectation.discovery_is_failure(), discoveries.remove(property.name)) {
            (true, Some(path)) => {
                println!("BROKEN: {}", property.name);
                let way = shortest(&model, property.name, path).into_actions();
                for action in &way {
                    println!("    {action:?}");
                }
                walk.broken.push(property.name);
                walk.lengths.push(way.len());
            }
            (false, None) => walk.never.push(property.name),
            _ => {}
        }
    }
    walk
}

/// The checker continues for a while after its first discovery, and keeps the last.
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
