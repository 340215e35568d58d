//! With all guards: every promise holds in every state, and all that can happen does.

use super::bounds::{Bounds, Clocks};
use super::check::Key;
use crate::walk::walk;

/// Nothing breaks, and whatever is to happen sometimes does.
fn holds(bounds: Bounds) {
    check(Key { bounds, asks_finish: false });
}

/// The same, and from each state every relay can finish the work alone.
fn holds_and_finishes(bounds: Bounds) {
    check(Key { bounds, asks_finish: true });
}

fn check(key: Key) {
    let walk = walk(key.clone());
    assert!(walk.broken.is_empty() && walk.never.is_empty(), "{walk:?} with {key:?}");
}

fn one_attempt() -> Bounds {
    Bounds { max_attempts: 1, ..Bounds::small() }
}

/// Without what adds states and no interleavings of another kind.
fn quiet() -> Bounds {
    Bounds { unknown: false, interrupt: false, lost_answers: false, renew: false, ..one_attempt() }
}

#[test]
fn two_relays_and_two_records() {
    holds_and_finishes(one_attempt());
}

#[test]
fn records_are_tried_again_and_suspects_go_alone() {
    holds_and_finishes(Bounds { max_attempts: 2, unknown: true, ..quiet() });
}

#[test]
fn a_dead_record_blocks_its_key_until_it_is_requeued_or_discarded() {
    holds_and_finishes(Bounds { block: true, operator: true, ..quiet() });
}

#[test]
fn operators_may_requeue_discard_and_redeliver_at_any_moment() {
    holds_and_finishes(Bounds { operator: true, ..quiet() });
}

#[test]
fn overlapping_transactions_may_become_visible_in_either_order() {
    holds(Bounds { overlapping: true, records: 3, ..quiet() });
}

#[test]
fn lease_commands_may_be_carried_out_late() {
    holds(Bounds { strays: true, lost_answers: true, ..quiet() });
}

#[test]
fn lanes_may_refill_themselves() {
    holds(Bounds { cap: 1, refill: true, crash: false, ..quiet() });
}

#[test]
fn nobody_publishes_behind_anothers_lease_where_clocks_run() {
    holds(Bounds { clocks: Clocks::Orderly, ..one_attempt() });
}

#[test]
fn no_lease_is_left_behind_where_nobody_dies() {
    holds(Bounds { clocks: Clocks::Renewed, crash: false, ..Bounds::small() });
}

#[test]
fn failovers_may_undo_what_no_majority_has() {
    holds(Bounds { rollback: true, crash: false, ..quiet() });
}

#[test]
fn a_deposed_primary_may_go_on_answering() {
    holds(Bounds { rollback: true, deposed: true, crash: false, nack: false, ..quiet() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_two_relays_and_two_records_with_two_attempts() {
    holds_and_finishes(Bounds::small());
}

#[test]
#[ignore = "minutes: make model"]
fn large_two_relays_and_three_records() {
    holds(Bounds { records: 3, ..one_attempt() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_three_relays_and_two_records() {
    holds(Bounds { relays: 3, ..quiet() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_failovers_with_crashes() {
    holds_and_finishes(Bounds { rollback: true, ..quiet() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_a_deposed_primary_with_deaths() {
    holds(Bounds { rollback: true, deposed: true, crash: false, ..quiet() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_refills_of_three_records() {
    holds(Bounds { cap: 1, refill: true, records: 3, crash: false, ..quiet() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_refills_with_crashes() {
    holds(Bounds { cap: 1, refill: true, ..quiet() });
}
