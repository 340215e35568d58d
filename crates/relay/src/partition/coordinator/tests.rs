use super::*;
use crate::partition::fleet::Assignment;

const STALE_AFTER: Duration = Duration::from_secs(12);

fn view(owner: InstanceId, partitions: &[u8]) -> FleetView {
    let assignment = |partition: &u8| (*partition, Assignment::of(owner));
    FleetView { assignments: partitions.iter().map(assignment).collect(), ..FleetView::default() }
}

fn moved(partition: u8, from: Option<InstanceId>, to: InstanceId) -> Move {
    Move { partition, from, to }
}

#[test]
fn owner_is_not_overdue_while_it_releases_partitions() {
    let (me, owner) = (InstanceId::fresh(), InstanceId::fresh());
    let moves = [moved(2, Some(owner), me)];
    let mut stalls = StallTimer::default();
    let start = Instant::now();
    let mut overdue = |partitions: &[u8], at: Duration| {
        stalls.overdue(&view(owner, partitions), &moves, me, start + at, STALE_AFTER).owners
    };

    assert!(overdue(&[1, 2, 3], Duration::ZERO).is_empty());
    assert!(overdue(&[1, 2, 3], STALE_AFTER / 2).is_empty());
    // It released one, which restarts the wait.
    assert!(overdue(&[1, 2], STALE_AFTER).is_empty());
    assert!(overdue(&[1, 2], STALE_AFTER * 2 - Duration::from_secs(1)).is_empty());
    assert_eq!(overdue(&[1, 2], STALE_AFTER * 2), BTreeSet::from([owner]));
}

#[test]
fn unowned_partitions_of_another_instance_become_overdue() {
    let (me, other) = (InstanceId::fresh(), InstanceId::fresh());
    let mut stalls = StallTimer::default();
    let start = Instant::now();
    let mut overdue = |moves: &[Move], at: Duration| {
        stalls.overdue(&FleetView::default(), moves, me, start + at, STALE_AFTER).unowned
    };
    let two = [moved(1, None, other), moved(2, None, other)];

    assert!(!overdue(&two, Duration::ZERO));
    // The other instance claimed one.
    assert!(!overdue(&two[1..], STALE_AFTER));
    assert!(overdue(&two[1..], STALE_AFTER * 2));
    assert!(!overdue(&[moved(1, None, me)], STALE_AFTER * 9));
}

#[test]
fn partition_with_unreadable_owner_is_claimed_after_a_wait() {
    let me = InstanceId::fresh();
    let unreadable =
        FleetView { assignments: [(5, Assignment::unreadable())].into(), ..FleetView::default() };
    let moves = [moved(5, None, me)];
    let mut stalls = StallTimer::default();
    let start = Instant::now();
    let mut is_too_early = |view: &FleetView, at: Duration| {
        stalls.overdue(view, &moves, me, start + at, STALE_AFTER).is_too_early(view, 5)
    };

    assert!(is_too_early(&unreadable, Duration::ZERO));
    assert!(is_too_early(&unreadable, STALE_AFTER - Duration::from_secs(1)));
    assert!(!is_too_early(&unreadable, STALE_AFTER));
    // It was claimed and released.
    assert!(!is_too_early(&FleetView::default(), STALE_AFTER));
    assert!(is_too_early(&unreadable, STALE_AFTER * 2), "its time begins anew");
}
