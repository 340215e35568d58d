//! Which appends are next (`feed::planner`), and what precedes them (`feed::lookup`).

use super::store::{Batch, Place, Store, Stream};
use super::{AGGREGATES, Bounds, Without};

/// The last versions that are known to have positions, of each aggregate.
pub type Cache = [Option<u8>; AGGREGATES];

/// What precedes a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessors {
    Positioned,
    /// These and all behind them have no positions.
    WithoutFrom(u8),
    Missing(u8),
}

/// The last version of an aggregate that has a position, or will have one by this batch.
fn known((aggregate, version): Place, cache: &Cache, ahead: Option<Place>) -> Option<u8> {
    let ahead = ahead.filter(|ahead| ahead.0 == aggregate).map(|ahead| ahead.1);
    ahead.or(cache[aggregate]).or_else(|| (version == 1).then_some(0))
}

/// Whether the sequencer may put these appends into one transaction.
pub fn may_plan(batch: &Batch, cache: &Cache, bounds: &Bounds) -> bool {
    let [first, second] = batch;
    let follows = |place: Place, ahead| {
        let (_, version) = place;
        let known = known(place, cache, ahead);
        known.is_some_and(|known| version == known + 1) || !bounds.has(Without::Predecessor)
    };
    first.is_some_and(|first| follows(first, None))
        && second.is_none_or(|second| *first != Some(second) && follows(second, *first))
}

/// Takes a batch from the front of a queue; a version whose predecessors must be read.
pub fn plan(queue: &mut Vec<Place>, cache: &Cache) -> (Batch, Option<Place>) {
    let mut batch = [None; 2];
    let mut lookup = None;
    let mut rest = Vec::new();
    for place in std::mem::take(queue) {
        let is_waiting = lookup.is_some_and(|waiting: Place| waiting.0 == place.0);
        if batch[1].is_some() || is_waiting {
            rest.push(place);
            continue;
        }
        match known(place, cache, batch[0]) {
            Some(known) if place.1 <= known => {}
            Some(known) if place.1 == known + 1 => {
                let at = usize::from(batch[0].is_some());
                batch[at] = Some(place);
            }
            _ => {
                lookup = lookup.or(Some(place));
                rest.push(place);
            }
        }
    }
    *queue = rest;
    (batch, lookup)
}

/// Reads what precedes a version.
pub fn predecessors(store: &Store, (aggregate, before): Place, bounds: &Bounds) -> Predecessors {
    let stream = |version| store.stream((aggregate, version));
    match stream(before - 1) {
        Stream::NotCommitted => return Predecessors::Missing(before - 1),
        Stream::At(_) => return Predecessors::Positioned,
        Stream::Committed => {}
    }
    for read in 1..=bounds.chain {
        let at = before - read;
        if at == 0 {
            return Predecessors::WithoutFrom(1);
        }
        match stream(at) {
            Stream::NotCommitted => return Predecessors::Missing(at),
            Stream::At(_) => return Predecessors::WithoutFrom(at + 1),
            Stream::Committed => {}
        }
    }
    // A longer chain: from its beginning on.
    let first = (1..before).find(|version| stream(*version) == Stream::Committed).unwrap_or(1);
    let is_behind = first == 1 || stream(first - 1).position().is_some();
    if is_behind || !bounds.has(Without::LongChain) {
        Predecessors::WithoutFrom(first)
    } else {
        Predecessors::Missing(first - 1)
    }
}
