//! Whether work can still finish, with any one relay.

use super::action::{Action, after, enabled};
use super::bounds::Bounds;
use super::state::State;

/// Longer than any course that ends.
const MAX_STEPS: usize = 400;

/// Whether, from here on, this relay alone finishes the work without further faults: the others
/// never act again, time passes, members catch up, and everything that happens by itself does.
pub fn finishes(from: &State, survivor: usize, bounds: &Bounds) -> bool {
    let mut state = from.clone();
    let mut actions = Vec::new();
    for _ in 0..MAX_STEPS {
        if state.is_finished(bounds) {
            return true;
        }
        actions.clear();
        enabled(&state, bounds, &mut actions);
        actions.retain(|action| urgency(*action, survivor).is_some());
        actions.sort_by_key(|action| urgency(*action, survivor));
        let next = actions.iter().find_map(|action| after(&state, *action, bounds));
        match next {
            Some(next) if next.breach.is_none() => state = next,
            _ => return false,
        }
    }
    false
}

/// What happens first without faults; `None` for a fault, or an action of an operator or another
/// relay.
fn urgency(action: Action, survivor: usize) -> Option<u8> {
    let mine = |at: usize, urgency| (at == survivor).then_some(urgency);
    match action {
        Action::Hear(_) => Some(0),
        Action::Replicate => Some(1),
        Action::Arrive(at, _) => mine(at, 2),
        Action::Confirm(at, _) => mine(at, 2),
        Action::ReadBack(at, _) => mine(at, 3),
        Action::Settle(at, _) => mine(at, 4),
        Action::Publish(at) => mine(at, 5),
        Action::PlanMore(at) | Action::ReadMore(at) => mine(at, 6),
        Action::Lease(at) | Action::AskMore(at) | Action::ScanOn(at) => mine(at, 7),
        Action::MarkDead(at) => mine(at, 8),
        Action::Insert(_) => Some(9),
        Action::Look(at) => mine(at, 10),
        // Time passes.
        Action::BudgetEnds(_) | Action::Expire(_) | Action::Due(_) => Some(11),
        _ => None,
    }
}
