//! The removal of each guard: the promise that breaks, by the shortest path.

use super::bounds::{Bounds, Clocks, Without};
use super::check::{BLOCK, FENCE, FINAL, FINISH, FORSAKEN, Key, LATE, LEASE, LOSS, ORDER, PHANTOM};
use crate::walk::walk;

/// Without the guard this promise breaks. With it none does: `whole`.
fn breaks(name: &str, without: Without, promise: &str, bounds: Bounds) {
    let asks_finish = promise == FINISH;
    let walk = walk(Key { bounds: Bounds { without: Some(without), ..bounds }, asks_finish });
    walk.assert_breaks(name, promise);
}

/// Nothing breaks without it.
fn breaks_nothing(without: Without, bounds: Bounds) {
    let walk =
        walk(Key { bounds: Bounds { without: Some(without), ..bounds }, asks_finish: false });
    assert!(walk.broken.is_empty(), "without {without:?}");
}

fn one_attempt() -> Bounds {
    Bounds { max_attempts: 1, ..Bounds::small() }
}

fn rollback() -> Bounds {
    let quiet = Bounds { unknown: false, interrupt: false, lost_answers: false, ..one_attempt() };
    Bounds { rollback: true, renew: false, ..quiet }
}

#[test]
fn guard_1_all_reads_see_one_moment() {
    breaks("guard 1: one moment for all reads of a scan", Without::OneMoment, ORDER, one_attempt());
}

#[test]
fn guard_1_only_what_a_majority_has_is_read() {
    breaks("guard 1: only what a majority has", Without::MajorityRead, PHANTOM, rollback());
}

#[test]
fn guard_2_a_record_that_may_not_go_ends_the_run() {
    breaks(
        "guard 2: what may not go ends the run",
        Without::EverythingPending,
        ORDER,
        one_attempt(),
    );
}

#[test]
fn guard_3_only_the_leased_front_is_published() {
    breaks("guard 3: only the leased front is published", Without::HeldFront, ORDER, one_attempt());
}

#[test]
fn guard_3_a_lost_record_ends_its_lane() {
    breaks(
        "guard 3: a record that a renewal found lost ends its lane",
        Without::LostEndsLane,
        ORDER,
        Bounds::small(),
    );
}

#[test]
fn guard_4_a_death_is_awaited() {
    breaks("guard 4: a death is awaited", Without::DeathAwaited, ORDER, rollback());
}

#[test]
fn guard_4_a_death_is_matched() {
    breaks(
        "guard 4: a death that did not match ends the lane",
        Without::DeathMatched,
        ORDER,
        one_attempt(),
    );
}

#[test]
fn guard_4_a_death_is_read_back_from_a_majority() {
    breaks(
        "guard 4: what did not match is read back from a majority",
        Without::MajorityReadBack,
        ORDER,
        rollback(),
    );
}

#[test]
fn blocked_keys_are_read() {
    breaks(
        "blocked keys are read in the same scan",
        Without::BlocksRead,
        BLOCK,
        Bounds { block: true, ..one_attempt() },
    );
}

#[test]
fn hazard_3_the_lease_names_the_status() {
    breaks("hazard 3: status in the lease filter", Without::StatusInLease, FINAL, one_attempt());
}

#[test]
fn hazard_3_the_lease_names_the_expiry() {
    breaks("hazard 3: expiry in the lease filter", Without::ExpiryInLease, LEASE, one_attempt());
}

#[test]
fn hazard_4_a_repeated_lease_has_the_same_id() {
    let bounds = Bounds { crash: false, clocks: Clocks::Renewed, ..Bounds::small() };
    breaks("hazard 4: a repeated lease has the same id", Without::SameLeaseId, FORSAKEN, bounds);
}

#[test]
fn settling_names_the_lease() {
    breaks("settling names the lease", Without::LeaseInSettle, FENCE, one_attempt());
}

#[test]
fn no_publish_starts_without_budget() {
    let bounds = Bounds { clocks: Clocks::Orderly, ..Bounds::small() };
    breaks("no publish without budget, where clocks run", Without::Budget, LATE, bounds);
}

#[test]
fn an_unconfirmed_record_is_not_done() {
    breaks("what was not confirmed is not done", Without::ConfirmForDone, LOSS, one_attempt());
}

#[test]
fn a_record_left_leased_by_a_crash_is_leased_again() {
    breaks("what a crash left leased is taken again", Without::ExpiredTaken, FINISH, one_attempt());
}

#[test]
fn the_budget_is_not_a_guard_of_the_order() {
    breaks_nothing(Without::Budget, one_attempt());
}

#[test]
fn a_key_has_one_unconfirmed_message_at_a_time() {
    breaks(
        "one unconfirmed message of a key",
        Without::PredecessorsConfirm,
        ORDER,
        Bounds::small(),
    );
}

#[test]
fn clearing_the_lease_at_a_requeue_is_not_a_guard() {
    let bounds = Bounds { unknown: false, interrupt: false, renew: false, ..one_attempt() };
    let bounds = Bounds { operator: true, lost_answers: false, ..bounds };
    breaks_nothing(Without::LeaseCleared, bounds);
}
