//! Whether the work can finish: one sequencer alone, which nothing is reported to.

use super::planner::{Predecessors, early, plan, predecessors};
use super::step::{Assigned, after};
use super::store::{Place, Stream, create_time, places};
use super::{AGGREGATES, Action, Bounds, State, Without};

/// Scans until everything is found.
const SCANS: usize = 4;

/// Steps of one scan, and pages of the reader.
const STEPS: usize = 20;

/// Whether everything that follows no missing version gets a position by this sequencer alone, and
/// the reader sees it.
pub fn finishes(from: &State, at: usize, bounds: &Bounds) -> bool {
    let mut state = *from;
    if state.breach.is_some() {
        return true;
    }
    state.replicate(bounds);
    for _ in 0..SCANS {
        state.end_lease();
        if state.sequencers[at].known.is_some() {
            state.renew(at, bounds);
        } else {
            state.own(at, bounds);
        }
        state.add_names(at, bounds);
        if scan(&mut state, at, bounds).is_none() {
            break;
        }
    }
    for _ in 0..STEPS {
        let Some(next) = after(&state, Action::Read, bounds) else { break };
        state = next;
    }
    let is_placed = |place: Place| {
        let is_due = (1..=place.1).all(|version| state.majority.has((place.0, version)));
        !is_due || state.majority.stream(place).position().is_some()
    };
    let head = state.majority.feed.map(|feed| (feed.id, feed.head));
    let reached = state.reader.feed.map(|feed| (feed, state.reader.after));
    places().all(is_placed) && head == reached && state.reader.is_exact(&state.majority, bounds)
}

/// Assigns what a scan finds. `None`: an error ends it.
fn scan(state: &mut State, at: usize, bounds: &Bounds) -> Option<()> {
    let names = state.sequencers[at].known?.names;
    let last = places().filter(|place| state.majority.stream(*place).position().is_some());
    let last = last.map(create_time).max().unwrap_or(0);
    let is_new = |place: &Place| bounds.has(Without::ByState) || create_time(*place) > last;
    let mut queue: Vec<Place> = places()
        .filter(|place| state.majority.stream(*place) == Stream::Committed)
        .filter(|place| names[place.0] && is_new(place))
        .collect();
    queue.sort_by_key(|place| create_time(*place));
    let mut gaps = [None; AGGREGATES];
    for _ in 0..STEPS {
        queue.retain(|(aggregate, version)| gaps[*aggregate].is_none_or(|gap| *version <= gap));
        let memory = state.sequencers[at].memory;
        queue.retain(|place| memory[place.0].is_none_or(|known| place.1 > known));
        let batch = plan(&mut queue);
        if batch[0].is_none() {
            break;
        }
        let assigned = state.assign(at, &batch, bounds);
        state.replicate(bounds);
        if assigned == Some(Assigned::All) {
            continue;
        }
        let is_left = |place: &Place| state.majority.stream(*place) == Stream::Committed;
        queue.splice(0..0, batch.iter().flatten().copied().filter(is_left));
        if assigned != Some(Assigned::TooEarly) {
            continue;
        }
        for (aggregate, before) in early(&state.majority, &batch) {
            match predecessors(&state.majority, (aggregate, before), bounds) {
                Predecessors::WithoutFrom(first) => {
                    let chain = (first..before).map(|version| (aggregate, version));
                    queue.splice(0..0, chain);
                }
                Predecessors::Missing(_) if !bounds.has(Without::GapAside) => return None,
                Predecessors::Missing(version) => gaps[aggregate] = Some(version),
            }
        }
    }
    Some(())
}
