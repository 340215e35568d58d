use super::*;
use crate::partition::fleet::Assignment;

const PATIENCE: Duration = Duration::from_secs(12);

fn view(owner: InstanceId, partitions: &[u8]) -> View {
    let assignment = |partition: &u8| (*partition, Assignment::of(owner));
    View { assignments: partitions.iter().map(assignment).collect(), ..View::default() }
}

fn moved(partition: u8, from: Option<InstanceId>, to: InstanceId) -> Move {
    Move { partition, from, to }
}

#[test]
fn an_owner_that_gives_something_in_time_is_waited_for() {
    let (me, owner) = (InstanceId::fresh(), InstanceId::fresh());
    let moves = [moved(2, Some(owner), me)];
    let mut waits = Waits::default();
    let start = Instant::now();
    let mut overdue = |partitions: &[u8], at: Duration| {
        waits.overdue(&view(owner, partitions), &moves, me, start + at, PATIENCE).owners
    };

    assert!(overdue(&[1, 2, 3], Duration::ZERO).is_empty());
    assert!(overdue(&[1, 2, 3], PATIENCE / 2).is_empty());
    // It gave one: its time begins anew.
    assert!(overdue(&[1, 2], PATIENCE).is_empty());
    assert!(overdue(&[1, 2], PATIENCE * 2 - Duration::from_secs(1)).is_empty());
    assert_eq!(overdue(&[1, 2], PATIENCE * 2), BTreeSet::from([owner]));
}

#[test]
fn what_is_left_to_another_one_is_left_for_a_time() {
    let (me, other) = (InstanceId::fresh(), InstanceId::fresh());
    let mut waits = Waits::default();
    let start = Instant::now();
    let mut overdue = |moves: &[Move], at: Duration| {
        waits.overdue(&View::default(), moves, me, start + at, PATIENCE).unowned
    };
    let two = [moved(1, None, other), moved(2, None, other)];

    assert!(!overdue(&two, Duration::ZERO));
    // It took one.
    assert!(!overdue(&two[1..], PATIENCE));
    assert!(overdue(&two[1..], PATIENCE * 2));
    assert!(!overdue(&[moved(1, None, me)], PATIENCE * 9));
}

#[test]
fn a_partition_whose_owner_cannot_be_read_is_left_for_a_time() {
    let me = InstanceId::fresh();
    let unreadable =
        View { assignments: [(5, Assignment::unreadable())].into(), ..View::default() };
    let moves = [moved(5, None, me)];
    let mut waits = Waits::default();
    let start = Instant::now();
    let mut is_too_early = |view: &View, at: Duration| {
        waits.overdue(view, &moves, me, start + at, PATIENCE).is_too_early(view, 5)
    };

    assert!(is_too_early(&unreadable, Duration::ZERO));
    assert!(is_too_early(&unreadable, PATIENCE - Duration::from_secs(1)));
    assert!(!is_too_early(&unreadable, PATIENCE));
    // It was claimed, and let go of.
    assert!(!is_too_early(&View::default(), PATIENCE));
    assert!(is_too_early(&unreadable, PATIENCE * 2), "its time begins anew");
}
