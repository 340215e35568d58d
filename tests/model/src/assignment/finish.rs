//! Whether every partition can still get a live owner.

use super::action::{Action, after, enabled};
use super::state::{Bounds, Fleet, Process};

/// Rounds after which nothing changes any more.
const ROUNDS: usize = 40;

/// Whether, from here on, these instances alone share all partitions evenly: the others never act
/// again, and time passes.
pub fn settles(from: &Fleet, survivors: &[usize], bounds: &Bounds) -> bool {
    let mut fleet = from.clone();
    for _ in 0..ROUNDS {
        if is_settled(&fleet, survivors, bounds) {
            return true;
        }
        for at in 0..bounds.instances {
            let acts = |action: &Action| match action {
                Action::Revoke(one, _) | Action::Give(one, _) | Action::Claim(one, _) => *one == at,
                Action::Leave(one) => *one == at,
                _ => false,
            };
            if !survivors.contains(&at) {
                step(&mut fleet, Action::Unheard(at), bounds);
                step(&mut fleet, Action::Stale(at), bounds);
                continue;
            }
            step(&mut fleet, Action::Beat(at), bounds);
            step(&mut fleet, Action::Read(at), bounds);
            let mut actions = Vec::new();
            enabled(&fleet, bounds, &mut actions);
            for action in actions.into_iter().filter(acts) {
                step(&mut fleet, action, bounds);
            }
        }
    }
    false
}

/// Takes an action, if it is possible now.
fn step(fleet: &mut Fleet, action: Action, bounds: &Bounds) {
    let mut actions = Vec::new();
    enabled(fleet, bounds, &mut actions);
    // An instance of the survivors comes back even if there is no other.
    let beats = matches!(action, Action::Beat(at) if fleet.instances[at].process != Process::Gone);
    if !beats && !actions.contains(&action) {
        return;
    }
    if let Some(next) = after(fleet, action, bounds) {
        *fleet = next;
    }
}

fn is_settled(fleet: &Fleet, survivors: &[usize], bounds: &Bounds) -> bool {
    let running = |at: &&usize| fleet.instances[**at].process == Process::Runs;
    let owned = |at: &usize| {
        (0..bounds.partitions).filter(|partition| fleet.takes(*at, *partition)).count()
    };
    let counts: Vec<usize> = survivors.iter().filter(running).map(owned).collect();
    let (Some(most), Some(least)) = (counts.iter().max(), counts.iter().min()) else { return true };
    counts.iter().sum::<usize>() == bounds.partitions && most - least <= 1
}
