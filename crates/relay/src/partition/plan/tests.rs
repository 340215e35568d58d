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

/// Any number of members, and partitions with owners among them, among others, or without.
fn fleets() -> impl Strategy<Value = (Vec<InstanceId>, Owners)> {
    let owners = proptest::collection::vec(proptest::option::weighted(0.8, 0usize..24), 256);
    // Some hold most: a fleet that grows or shrinks, not one at random.
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

/// The fewest moves that reach any balance: tried for each choice of how many that have a partition
/// too many for the lower share keep it.
fn fewest(members: &[InstanceId], owners: &Owners) -> usize {
    let (each, odd) = (256 / members.len(), 256 % members.len());
    let counts = counts(members, owners);
    let homeless = 256 - counts.iter().sum::<usize>();
    let surplus: usize = counts.iter().map(|count| count.saturating_sub(each)).sum();
    let could_keep = counts.iter().filter(|count| **count > each).count();
    homeless + surplus - could_keep.min(odd)
}

proptest! {
    #[test]
    fn every_partition_has_an_owner_and_nobody_two_more_than_another((members, owners) in fleets()) {
        let moves = plan(&members, &owners);
        let after = apply(&owners, &moves);

        prop_assert_eq!(after.len(), 256);
        let counts = counts(&members, &after);
        prop_assert_eq!(counts.iter().sum::<usize>(), 256);
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    }

    #[test]
    fn no_fewer_moves_would_do((members, owners) in fleets()) {
        let moves = plan(&members, &owners);

        prop_assert_eq!(moves.len(), fewest(&members, &owners));
        let moved: BTreeSet<u8> = moves.iter().map(|moved| moved.partition).collect();
        prop_assert_eq!(moved.len(), moves.len());
        for moved in &moves {
            prop_assert_eq!(moved.from, owners.get(&moved.partition).copied());
            prop_assert!(moved.from != Some(moved.to));
        }
    }

    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do((members, owners) in fleets()) {
        let after = apply(&owners, &plan(&members, &owners));

        prop_assert_eq!(plan(&members, &after), vec![]);
    }

    /// Moves are carried out one by one, by several hands: none is in vain, whichever comes first.
    #[test]
    fn a_plan_that_was_carried_out_in_part_asks_for_as_many_more_as_are_left(
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
    fn one_that_comes_back_moves_no_more_than_its_share(count in 2usize..20) {
        let members = instances(count);
        let (gone, rest) = members.split_first().unwrap();
        let before = apply(&Owners::new(), &plan(rest, &Owners::new()));

        let moves = plan(&members, &before);

        prop_assert_eq!(moves.len(), 256 / count);
        prop_assert!(moves.iter().all(|moved| moved.to == *gone));
    }

    #[test]
    fn one_that_goes_moves_what_it_had_and_nothing_else(count in 2usize..20) {
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
fn without_members_nothing_moves() {
    let owners = Owners::from([(3, InstanceId::fresh())]);

    assert_eq!(plan(&[], &owners), vec![]);
}

#[test]
fn of_more_members_than_partitions_some_have_none() {
    let members = instances(300);

    let after = apply(&Owners::new(), &plan(&members, &Owners::new()));

    assert!(counts(&members, &after).iter().all(|count| *count <= 1));
    assert_eq!(plan(&members, &after), vec![]);
}
