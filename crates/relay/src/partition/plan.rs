//! Plans which instance owns which partition: a pure function. Instances that read the same get the same plan.

use std::collections::BTreeMap;

use postrider_outbox::ids::InstanceId;
use postrider_outbox::partition::PARTITIONS;

/// A planned handover of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The partition.
    pub partition: u8,
    /// The live instance that owns it; `None` if no live instance does.
    pub from: Option<InstanceId>,
    /// The next owner.
    pub to: InstanceId,
}

/// Plans the moves that balance the partitions among `members`: the counts differ by one at most.
///
/// `owners` are the live owners by partition. Owners that are not members lose all their partitions.
/// No plan with fewer moves reaches a balance.
pub fn plan(members: &[InstanceId], owners: &BTreeMap<u8, InstanceId>) -> Vec<Move> {
    let mut kept: BTreeMap<InstanceId, usize> = members.iter().map(|id| (*id, 0)).collect();
    for owner in owners.values() {
        if let Some(count) = kept.get_mut(owner) {
            *count += 1;
        }
    }
    let mut targets = targets(&kept);
    let mut unassigned = Vec::new();
    for partition in 0..=u8::MAX {
        let from = owners.get(&partition).copied();
        match from.and_then(|owner| targets.get_mut(&owner)) {
            // The first ones are kept, so that a move that has begun is in the next plan too.
            Some(left) if *left > 0 => *left -= 1,
            _ => unassigned.push((partition, from)),
        }
    }
    // The rest of a member's target is what it lacks.
    let lacking = targets.iter().flat_map(|(member, lacks)| std::iter::repeat_n(*member, *lacks));
    let moves = unassigned.into_iter().zip(lacking);
    moves.map(|((partition, from), to)| Move { partition, from, to }).collect()
}

/// Returns the target count of each member. Members that own most get the remainder, which saves moves.
fn targets(owned: &BTreeMap<InstanceId, usize>) -> BTreeMap<InstanceId, usize> {
    if owned.is_empty() {
        return BTreeMap::new();
    }
    let all = usize::from(PARTITIONS);
    let (each, odd) = (all / owned.len(), all % owned.len());
    let mut by_most: Vec<(&InstanceId, &usize)> = owned.iter().collect();
    by_most.sort_by_key(|(id, count)| (std::cmp::Reverse(**count), **id));
    let ranked = by_most.into_iter().enumerate();
    ranked.map(|(rank, (id, _))| (*id, each + usize::from(rank < odd))).collect()
}

#[cfg(test)]
mod tests;
