//! Which appends are next (`feed::planner`), and what precedes them (`feed::lookup`).

use super::store::{Batch, Place, Store, Stream};
use super::{AGGREGATES, Bounds, Without};

/// The last versions that were seen with positions, of each aggregate; only where they are remembered.
pub type Memory = [Option<u8>; AGGREGATES];

/// What precedes a version without a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessors {
    /// These have no positions, up to the version.
    WithoutFrom(u8),
    Missing(u8),
}

/// Whether the sequencer may put these appends into one transaction.
pub fn may_plan(batch: &Batch, memory: &Memory, bounds: &Bounds) -> bool {
    let [Some(first), second] = *batch else { return false };
    let is_remembered = |place: Place| {
        let known = memory[place.0].or_else(|| (place.1 == 1).then_some(0));
        bounds.has(Without::ReadPredecessor) || known.is_some_and(|known| place.1 == known + 1)
    };
    let follows = |second: Place| {
        if second.0 == first.0 {
            second.1 == first.1 + 1 || !bounds.has(Without::Predecessor) && second != first
        } else {
            is_remembered(second)
        }
    };
    is_remembered(first) && second.is_none_or(follows)
}

/// Takes a batch from the front of a queue.
pub fn plan(queue: &mut Vec<Place>) -> Batch {
    let mut batch: Batch = [None; 2];
    let mut rest = Vec::new();
    for place in std::mem::take(queue) {
        match batch {
            [None, _] => batch[0] = Some(place),
            [Some(first), None] if first.0 != place.0 || place.1 == first.1 + 1 => {
                batch[1] = Some(place);
            }
            [first, second] if first == Some(place) || second == Some(place) => {}
            _ => rest.push(place),
        }
    }
    *queue = rest;
    batch
}

/// The appends of a batch whose predecessors have no position in the store, and are not in front of them.
pub fn early<'a>(store: &'a Store, batch: &'a Batch) -> impl Iterator<Item = Place> + 'a {
    batch.iter().flatten().copied().filter(move |(aggregate, version)| {
        let before = (*aggregate, version - 1);
        *version > 1 && batch[0] != Some(before) && store.stream(before).position().is_none()
    })
}

/// Reads what precedes a version whose predecessor has no position.
pub fn predecessors(store: &Store, (aggregate, before): Place, bounds: &Bounds) -> Predecessors {
    let has_none = |version: &u8| store.stream((aggregate, *version)) == Stream::Committed;
    if !has_none(&(before - 1)) {
        return Predecessors::Missing(before - 1);
    }
    let without = (1..before).rev().take_while(has_none);
    let chain: Vec<u8> = without.take(usize::from(bounds.chain)).collect();
    let first = chain.last().copied().unwrap_or(before);
    if chain.len() < usize::from(bounds.chain) {
        return Predecessors::WithoutFrom(first);
    }
    // A longer chain: from its beginning on.
    Predecessors::WithoutFrom((1..before).find(has_none).unwrap_or(first))
}
