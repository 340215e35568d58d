//! Who is to own which partition: a pure function, the same for all who see the same.

use std::collections::BTreeMap;

use postrider_outbox::ids::InstanceId;
use postrider_outbox::partition::PARTITIONS;

/// One partition that is to change hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The partition.
    pub partition: u8,
    /// The living instance that has it; `None` where nobody does.
    pub from: Option<InstanceId>,
    /// The one that is to have it.
    pub to: InstanceId,
}

/// The moves that give every one of `members` its share: as many as any other, or one more.
///
/// `owners` are the living, by partition; among them may be some who are no members (any more), and
/// are to give up what they have. No plan with fewer moves reaches a balance: whoever has most keeps
/// the odd ones, and nobody who lacks any gives any.
pub fn plan(members: &[InstanceId], owners: &BTreeMap<u8, InstanceId>) -> Vec<Move> {
    let mut kept: BTreeMap<InstanceId, usize> = members.iter().map(|id| (*id, 0)).collect();
    for owner in owners.values() {
        if let Some(count) = kept.get_mut(owner) {
            *count += 1;
        }
    }
    let mut targets = targets(&kept);
    let mut homeless = Vec::new();
    for partition in 0..=u8::MAX {
        let from = owners.get(&partition).copied();
        match from.and_then(|owner| targets.get_mut(&owner)) {
            // Its first ones are kept: a move that is under way stays one at the next look.
            Some(left) if *left > 0 => *left -= 1,
            _ => homeless.push((partition, from)),
        }
    }
    // What is left of each one's target is what it lacks.
    let lacking = targets.iter().flat_map(|(member, lacks)| std::iter::repeat_n(*member, *lacks));
    let moves = homeless.into_iter().zip(lacking);
    moves.map(|((partition, from), to)| Move { partition, from, to }).collect()
}

/// How many each is to have. Those who have most are given the odd ones, so that they need not move.
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
