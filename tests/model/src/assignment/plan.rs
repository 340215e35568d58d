//! A plan in the manner of `partition`: balanced to ±1, with little movement.

use super::state::{CROWD, Document, PARTS, View};

/// Who is to own each partition; `None` where nobody is there to.
pub fn plan(view: &View, partitions: usize) -> [Option<usize>; PARTS] {
    let mut members: Vec<usize> =
        (0..CROWD).filter(|at| view.documents[*at] == Document::Active).collect();
    let mut targets = [None; PARTS];
    if members.is_empty() {
        return targets;
    }
    let owned =
        |at: usize| view.owners[..partitions].iter().filter(|one| **one == Some(at)).count();
    // Those who own most keep the odd ones.
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
