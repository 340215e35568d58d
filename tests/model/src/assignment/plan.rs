//! A plan like that of `partition`: balanced to ±1, with little movement.

use super::state::{Document, MAX_INSTANCES, MAX_PARTITIONS, View};

/// The next owner of each partition; `None` without live instances.
pub fn plan(view: &View, partitions: usize) -> [Option<usize>; MAX_PARTITIONS] {
    let mut members: Vec<usize> =
        (0..MAX_INSTANCES).filter(|at| view.documents[*at] == Document::Active).collect();
    let mut targets = [None; MAX_PARTITIONS];
    if members.is_empty() {
        return targets;
    }
    let owned =
        |at: usize| view.owners[..partitions].iter().filter(|one| **one == Some(at)).count();
    // The instances that own most keep the odd partitions.
    members.sort_by_key(|at| (usize::MAX - owned(*at), *at));
    let (each, odd) = (partitions / members.len(), partitions % members.len());
    let mut room: Vec<(usize, usize)> = members
        .iter()
        .enumerate()
        .map(|(place, at)| (*at, each + usize::from(place < odd)))
        .collect();
    for (target, owner) in targets.iter_mut().zip(view.owners).take(partitions) {
        let place = room.iter_mut().find(|(at, room)| Some(*at) == owner && *room > 0);
        if let Some((at, room)) = place {
            *target = Some(*at);
            *room -= 1;
        }
    }
    for target in targets[..partitions].iter_mut().filter(|target| target.is_none()) {
        if let Some((at, room)) = room.iter_mut().find(|(_, room)| *room > 0) {
            *target = Some(*at);
            *room -= 1;
        }
    }
    targets
}
