use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn instances(count: usize) -> Vec<InstanceId> {
    let ids: BTreeSet<InstanceId> = std::iter::repeat_with(InstanceId::fresh).take(count).collect();
    ids.into_iter().collect()
}

type Owners = BTreeMap<u8, InstanceId>;

fn apply(owners: &Owners, moves: &[Move]) -> Owners {
    let mut owners = owners.clone();
    owners.extend(moves.iter().map(|moved| (moved.partition, moved.to)));
    owners
}

fn counts(members: &[InstanceId], owners: &Owners) -> Vec<usize> {
    let count = |id| owners.values().filter(|owner| *owner == id).count();
    members.iter().map(count).collect()
}

/// Generates members, and partitions owned by members, by other instances or by none.
fn fleets() -> impl Strategy<Value = (Vec<InstanceId>, Owners)> {
    let owners = proptest::collection::vec(proptest::option::weighted(0.8, 0usize..24), 256);
    // A few instances own most partitions, as after instances started or stopped.
    let skew = 1usize..24;
    (1usize..20, 0usize..4, owners, skew).prop_map(|(members, others, owners, skew)| {
        let mut all = instances(members + others);
        let owners = owners.into_iter().zip(0..=u8::MAX);
        let owners = owners.filter_map(|(owner, partition)| {
            Some((partition, *all.get((owner? % skew) % (all.len() + 1))?))
        });
        let owners = owners.collect();
        all.truncate(members);
        (all, owners)
    })
}

/// Returns the least number of moves that reaches a balance.
fn fewest_moves(members: &[InstanceId], owners: &Owners) -> usize {
    let (each, odd) = (256 / members.len(), 256 % members.len());
    let counts = counts(members, owners);
    let homeless = 256 - counts.iter().sum::<usize>();
    let surplus: usize = counts.iter().map(|count| count.saturating_sub(each)).sum();
    let could_keep = counts.iter().filter(|count| **count > each).count();
    homeless + surplus - could_keep.min(odd)
}

proptest! {
    #[test]
    fn plan_assigns_all_partitions_evenly((members, owners) in fleets()) {
        let moves = plan(&members, &owners);
        let after = apply(&owners, &moves);

        prop_assert_eq!(after.len(), 256);
        let counts = counts(&members, &after);
        prop_assert_eq!(counts.iter().sum::<usize>(), 256);
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    }

    #[test]
    fn plan_has_the_fewest_moves((members, owners) in fleets()) {
        let moves = plan(&members, &owners);

        prop_assert_eq!(moves.len(), fewest_moves(&members, &owners));
        let moved: BTreeSet<u8> = moves.iter().map(|moved| moved.partition).collect();
        prop_assert_eq!(moved.len(), moves.len());
        for moved in &moves {
            prop_assert_eq!(moved.from, owners.get(&moved.partition).copied());
            prop_assert!(moved.from != Some(moved.to));
        }
    }

    #[test]
    fn plan_is_empty_after_all_moves((members, owners) in fleets()) {
        let after = apply(&owners, &plan(&members, &owners));

        prop_assert_eq!(plan(&members, &after), vec![]);
    }

    /// Several instances carry out the moves, in any order: each move shortens the plan by one.
    #[test]
    fn plan_has_the_remaining_moves_after_some_moves(
        (members, owners) in fleets(),
        part in proptest::collection::vec(any::<bool>(), 256),
    ) {
        let moves = plan(&members, &owners);
        let done: Vec<Move> =
            moves.iter().zip(&part).filter(|(_, done)| **done).map(|(moved, _)| *moved).collect();

        let rest = plan(&members, &apply(&owners, &done));

        prop_assert_eq!(rest.len(), moves.len() - done.len());
    }

    #[test]
    fn plan_moves_only_one_share_when_an_instance_starts(count in 2usize..20) {
        let members = instances(count);
        let (gone, rest) = members.split_first().unwrap();
        let before = apply(&Owners::new(), &plan(rest, &Owners::new()));

        let moves = plan(&members, &before);

        prop_assert_eq!(moves.len(), 256 / count);
        prop_assert!(moves.iter().all(|moved| moved.to == *gone));
    }

    #[test]
    fn plan_moves_only_the_partitions_of_a_stopped_instance(count in 2usize..20) {
        let members = instances(count);
        let before = apply(&Owners::new(), &plan(&members, &Owners::new()));
        let (gone, rest) = members.split_first().unwrap();
        let owners: Owners =
            before.iter().filter(|(_, id)| *id != gone).map(|(p, id)| (*p, *id)).collect();

        let moves = plan(rest, &owners);

        let had = before.values().filter(|id| *id == gone).count();
        prop_assert_eq!(moves.len(), had);
        prop_assert!(moves.iter().all(|moved| moved.from.is_none()));
    }
}

#[test]
fn plan_is_empty_without_members() {
    let owners = Owners::from([(3, InstanceId::fresh())]);

    assert_eq!(plan(&[], &owners), vec![]);
}

#[test]
fn plan_gives_one_partition_at_most_to_each_of_300_members() {
    let members = instances(300);

    let after = apply(&Owners::new(), &plan(&members, &Owners::new()));

    assert!(counts(&members, &after).iter().all(|count| *count <= 1));
    assert_eq!(plan(&members, &after), vec![]);
}
