//! With all guards: every promise holds in every state, and every expected event happens.

use super::bounds::{Bounds, Clocks};
use super::check::Key;
use crate::walk::walk;

/// Nothing breaks, and every event that must happen sometimes does.
fn holds(name: &str, run_by: &str, bounds: Bounds) {
    walk(Key { bounds, asks_finish: false }).assert_holds(name, run_by);
}

/// The same, and from each state every relay can finish the work alone.
fn holds_and_finishes(name: &str, run_by: &str, bounds: Bounds) {
    walk(Key { bounds, asks_finish: true }).assert_holds(name, run_by);
}

fn one_attempt() -> Bounds {
    Bounds { max_attempts: 1, ..Bounds::small() }
}

/// Without what adds states and no new interleavings.
fn quiet() -> Bounds {
    Bounds { unknown: false, interrupt: false, lost_answers: false, renew: false, ..one_attempt() }
}

#[test]
fn two_relays_and_two_records() {
    holds_and_finishes(
        "two relays, two records, one attempt; all faults of one server; finishing",
        "test",
        one_attempt(),
    );
}

#[test]
fn records_are_retried_and_poison_records_go_alone() {
    holds_and_finishes(
        "two attempts: backoff, quarantine; finishing",
        "test",
        Bounds { max_attempts: 2, unknown: true, ..quiet() },
    );
}

#[test]
fn a_dead_record_blocks_its_key_until_an_operator_acts() {
    holds_and_finishes(
        r#"`on_dead = "block"` and an operator; finishing"#,
        "test",
        Bounds { block: true, operator: true, ..quiet() },
    );
}

#[test]
fn operators_may_requeue_discard_and_redeliver_at_any_moment() {
    holds_and_finishes(
        "skip and an operator; finishing",
        "test",
        Bounds { operator: true, ..quiet() },
    );
}

#[test]
fn overlapping_transactions_may_become_visible_in_either_order() {
    holds(
        "three records, the first two of overlapping transactions",
        "test",
        Bounds { overlapping: true, records: 3, ..quiet() },
    );
}

#[test]
fn lease_commands_may_be_carried_out_late() {
    holds("late lease commands", "test", Bounds { strays: true, lost_answers: true, ..quiet() });
}

#[test]
fn lanes_may_refill_themselves() {
    holds(
        "lanes that refill themselves",
        "test",
        Bounds { cap: 1, refill: true, crash: false, ..quiet() },
    );
}

#[test]
fn no_relay_publishes_during_anothers_lease_where_clocks_run() {
    holds("clocks that run", "test", Bounds { clocks: Clocks::Orderly, ..one_attempt() });
}

#[test]
fn no_lease_is_left_behind_without_deaths() {
    holds(
        "leases that are renewed in time, without crashes",
        "test",
        Bounds { clocks: Clocks::Renewed, crash: false, ..Bounds::small() },
    );
}

#[test]
fn failovers_may_undo_what_no_majority_has() {
    holds("failovers with rollback", "test", Bounds { rollback: true, crash: false, ..quiet() });
}

#[test]
fn a_deposed_primary_may_continue_to_answer() {
    holds(
        "failovers with a deposed primary",
        "test",
        Bounds { rollback: true, deposed: true, crash: false, nack: false, ..quiet() },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_two_relays_and_two_records_with_two_attempts() {
    holds_and_finishes(
        "two relays, two records, two attempts; all faults of one server; finishing",
        "model",
        Bounds::small(),
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_two_relays_and_three_records() {
    holds(
        "two relays, three records, one attempt; all faults of one server",
        "model",
        Bounds { records: 3, ..one_attempt() },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_three_relays_and_two_records() {
    holds("three relays, two records; crashes, nacks", "model", Bounds { relays: 3, ..quiet() });
}

#[test]
#[ignore = "minutes: make model"]
fn large_failovers_with_crashes() {
    holds_and_finishes(
        "failovers with rollback, crashes, nacks; finishing",
        "model",
        Bounds { rollback: true, ..quiet() },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_a_deposed_primary_with_deaths() {
    holds(
        "failovers with a deposed primary, nacks",
        "model",
        Bounds { rollback: true, deposed: true, crash: false, ..quiet() },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_refills_of_three_records() {
    holds(
        "refills: three records",
        "model",
        Bounds { cap: 1, refill: true, records: 3, crash: false, ..quiet() },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_refills_with_crashes() {
    holds("refills with crashes", "model", Bounds { cap: 1, refill: true, ..quiet() });
}
