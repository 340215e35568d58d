//! One suite, which every store passes: the behaviours that the seed system tests for itself,
//! adapted to our contract.
//!
//! [`events`], [`snapshots`] and [`keys`] say it once, over the traits in [`stores`]. `of_mongodb`
//! makes ours fit; another store needs the same, and a line here. Faulty stores, one for each promise, show
//! that the clause that is meant for it can fail.

mod events;
mod faulty_events;
mod faulty_keys;
mod faulty_snapshots;
mod keys;
mod of_mongodb;
mod snapshots;
mod stores;

use std::panic::AssertUnwindSafe;

use crate::support::outbox::TestOutbox;
use futures_util::FutureExt;
use postrider::names::AggregateName;

/// Of aggregates, or keys, that a clause has for itself.
fn name(number: usize) -> AggregateName {
    AggregateName::new(&format!("order{number}")).unwrap()
}

/// Whether a clause fails.
async fn fails(clause: impl Future<Output = ()>) -> bool {
    AssertUnwindSafe(clause).catch_unwind().await.is_err()
}

/// Our store for a clause.
macro_rules! ours {
    (keys, $outbox:ident, $name:ident) => {
        of_mongodb::keys(&$outbox, $name.as_str())
    };
    ($module:ident, $outbox:ident, $name:ident) => {
        of_mongodb::$module(&$outbox)
    };
}

macro_rules! ask {
    (keys $clause:ident, $keys:ident, $name:ident) => {
        keys::$clause(&$keys).await
    };
    ($module:ident $clause:ident, $store:ident, $name:ident) => {
        $module::$clause(&$store, &$name).await
    };
}

macro_rules! clauses {
    ($module:ident of $suite:ident: $($clause:ident)*) => {
        mod $suite {
            use super::*;

            $(
                #[fixture::test]
                async fn $clause() {
                    let (outbox, name) = (TestOutbox::new().await, name(0));
                    let store = ours!($module, outbox, name);
                    ask!($module $clause, store, name);
                }
            )*
        }
    };
}

/// Every fault, told by the clause that is meant for it.
macro_rules! faults {
    ($test:ident, $module:ident by $faulty:ident: $($fault:ident by $clause:ident)*) => {
        #[fixture::test]
        async fn $test() {
            let (outbox, mut names) = (TestOutbox::new().await, (0..).map(name));
            $(
                let name = names.next().unwrap();
                let store = ours!($module, outbox, name);
                let fault = $faulty::Fault::$fault;
                let faulty = $faulty::Faulty::new(store, fault);
                let told = fails(async { ask!($module $clause, faulty, name) }).await;
                assert!(told, "{fault:?}");
            )*
        }
    };
}

clauses! {
    events of events_of_mongodb:
    what_is_appended_is_loaded
    what_is_not_valid_is_refused
    a_duplicate_aggregate_is_refused
    a_version_that_is_not_the_aggregates_is_refused
    a_request_that_comes_again_is_answered_as_at_first
    the_same_request_in_another_aggregate_is_another
    a_request_is_found_in_its_aggregate_alone
    appends_at_once_to_many_aggregates_are_all_there
    of_racers_for_a_version_one_wins
    appends_at_once_to_one_aggregate_leave_no_gap
    loads_at_once_are_each_complete
    what_is_not_there_is_not_found
    versions_are_loaded_from_the_first_to_the_last
    a_single_one_and_the_last_one_are_found
    times_are_loaded_from_the_first_to_the_last
    invalid_range_is_refused
    aggregates_are_scanned_once_each_in_order_behind_a_cursor
    a_tenant_sees_what_is_his_alone
}

clauses! {
    snapshots of snapshots_of_mongodb:
    saved_snapshot_is_loaded
    what_is_not_there_has_version_0
    a_version_below_1_is_refused
    an_equal_one_replaces
    a_newer_one_replaces
    an_older_one_never_wins
    of_those_saved_at_once_the_newest_is_left
    a_tenant_sees_what_is_his_alone
}

clauses! {
    keys of keys_of_mongodb:
    a_key_is_held_until_it_is_given_back
    of_racers_for_a_key_one_takes_it
    a_key_is_changed_where_it_has_the_expected_value
    a_key_is_given_back_where_it_has_the_expected_value
    what_has_expired_is_not_there_for_any_operation
    the_end_of_a_key_is_told
    a_key_is_moved_with_its_value
    a_key_that_cannot_be_moved_stays_where_it_is
    key_is_not_moved_to_itself
    work_under_a_key_gives_it_back_where_it_fails
}

faults! {
    every_fault_of_an_event_store_is_told, events by faulty_events:
    ForgetsTheVersion by a_version_that_is_not_the_aggregates_is_refused
    TakesAnAggregateTwice by a_duplicate_aggregate_is_refused
    LetsSeveralWin by of_racers_for_a_version_one_wins
    TakesARequestTwice by a_request_that_comes_again_is_answered_as_at_first
    JudgesTheVersionFirst by a_request_that_comes_again_is_answered_as_at_first
    KeepsRequestsForAll by the_same_request_in_another_aggregate_is_another
    FindsRequestsAnywhere by a_request_is_found_in_its_aggregate_alone
    TakesEmptyAppends by what_is_not_valid_is_refused
    LosesAnEvent by what_is_appended_is_loaded
    LosesOneOfManyAppends by appends_at_once_to_many_aggregates_are_all_there
    LosesOneOfManyAppends by appends_at_once_to_one_aggregate_leave_no_gap
    IgnoresTheTenant by a_tenant_sees_what_is_his_alone
    EndsBeforeTheLastVersion by versions_are_loaded_from_the_first_to_the_last
    BeginsBehindTheFirstVersion by versions_are_loaded_from_the_first_to_the_last
    IgnoresTheLimit by versions_are_loaded_from_the_first_to_the_last
    EndsBeforeTheLastTime by times_are_loaded_from_the_first_to_the_last
    LoadsBackwards by loads_at_once_are_each_complete
    MendsRanges by invalid_range_is_refused
    FindsWhatIsNotThere by what_is_not_there_is_not_found
    TakesTheFirstForTheLast by a_single_one_and_the_last_one_are_found
    TakesTheNearestVersion by a_single_one_and_the_last_one_are_found
    ScansTheCursorToo by aggregates_are_scanned_once_each_in_order_behind_a_cursor
    ScansOthersToo by aggregates_are_scanned_once_each_in_order_behind_a_cursor
    ScansByLength by aggregates_are_scanned_once_each_in_order_behind_a_cursor
}

faults! {
    every_fault_of_a_snapshot_store_is_told, snapshots by faulty_snapshots:
    LetsTheLastWin by an_older_one_never_wins
    LetsTheLastWin by of_those_saved_at_once_the_newest_is_left
    SaysWrittenAlways by an_older_one_never_wins
    KeepsTheEqual by an_equal_one_replaces
    KeepsTheFirst by a_newer_one_replaces
    ForgetsThatItIsDeleted by saved_snapshot_is_loaded
    LosesAField by saved_snapshot_is_loaded
    IgnoresTheTenant by a_tenant_sees_what_is_his_alone
    MakesAVersionUp by what_is_not_there_has_version_0
    TakesAnyVersion by a_version_below_1_is_refused
}

faults! {
    every_fault_of_prepare_keys_is_told, keys by faulty_keys:
    TakesAHeldKey by a_key_is_held_until_it_is_given_back
    LetsSeveralWin by of_racers_for_a_key_one_takes_it
    NeverFreesAnExpiredKey by of_racers_for_a_key_one_takes_it
    ShowsAnExpiredKey by what_has_expired_is_not_there_for_any_operation
    RevivesAnExpiredKey by what_has_expired_is_not_there_for_any_operation
    GivesBackAnExpiredKey by what_has_expired_is_not_there_for_any_operation
    MovesAnExpiredKey by what_has_expired_is_not_there_for_any_operation
    ForgetsTheEnd by the_end_of_a_key_is_told
    ChangesAnyValue by a_key_is_changed_where_it_has_the_expected_value
    GivesBackAnyValue by a_key_is_given_back_where_it_has_the_expected_value
    ComparesFieldsInTheirOrder by a_key_is_changed_where_it_has_the_expected_value
    ComparesFieldsInTheirOrder by a_key_is_given_back_where_it_has_the_expected_value
    LeavesTheOldKey by a_key_is_moved_with_its_value
    LosesTheOldKey by a_key_that_cannot_be_moved_stays_where_it_is
    LeavesTheNewKey by a_key_that_cannot_be_moved_stays_where_it_is
    MovesAKeyToItself by key_is_not_moved_to_itself
    KeepsAKeyWhoseWorkFailed by work_under_a_key_gives_it_back_where_it_fails
    GivesBackAKeyWhoseWorkIsDone by work_under_a_key_gives_it_back_where_it_fails
    WorksWithoutTheKey by work_under_a_key_gives_it_back_where_it_fails
}
