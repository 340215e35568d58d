//! The contract of stores: one suite that every store passes, adapted from the tests of the Wow
//! framework.
//!
//! [`events`], [`snapshots`] and [`keys`] have the clauses, over the traits in [`stores`]. `of_mongodb`
//! implements these for Postrider's stores. Another store needs the same and a line here. For each
//! promise a faulty store shows that its clause can fail.

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

/// The name of the aggregates or keys of one clause.
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

/// Every fault fails its clause.
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
                let is_found = fails(async { ask!($module $clause, faulty, name) }).await;
                assert!(is_found, "{fault:?}");
            )*
        }
    };
}

clauses! {
    events of events_of_mongodb:
    appended_events_are_loaded
    invalid_append_is_refused
    duplicate_aggregate_is_refused
    append_at_another_version_is_refused
    repeated_request_gets_the_first_answer
    request_ids_are_scoped_to_the_aggregate
    request_is_found_in_its_aggregate_only
    concurrent_appends_to_many_aggregates_are_stored
    one_of_several_appends_wins_a_version
    concurrent_appends_to_one_aggregate_leave_no_gap
    concurrent_loads_are_complete
    absent_events_are_not_found
    versions_are_loaded_by_inclusive_range
    single_and_last_versions_are_found
    times_are_loaded_by_inclusive_range
    invalid_range_is_refused
    aggregates_are_listed_once_in_order
    reads_are_limited_to_the_tenant
}

clauses! {
    snapshots of snapshots_of_mongodb:
    saved_snapshot_is_loaded
    absent_snapshot_has_version_0
    version_below_1_is_refused
    snapshot_of_the_same_version_replaces
    newer_snapshot_replaces
    older_snapshot_is_not_written
    newest_of_concurrent_saves_is_stored
    reads_are_limited_to_the_tenant
}

clauses! {
    keys of keys_of_mongodb:
    key_is_held_until_rollback
    one_of_several_callers_prepares_a_key
    key_is_changed_only_with_the_expected_value
    key_is_rolled_back_only_with_the_expected_value
    expired_key_is_absent_for_every_operation
    end_of_a_key_is_returned
    key_is_moved_with_its_value
    key_that_cannot_be_moved_is_kept
    key_is_not_moved_to_itself
    key_is_rolled_back_when_its_work_fails
}

faults! {
    every_fault_of_an_event_store_is_found, events by faulty_events:
    ForgetsTheVersion by append_at_another_version_is_refused
    TakesAnAggregateTwice by duplicate_aggregate_is_refused
    LetsSeveralWin by one_of_several_appends_wins_a_version
    TakesARequestTwice by repeated_request_gets_the_first_answer
    JudgesTheVersionFirst by repeated_request_gets_the_first_answer
    KeepsRequestsForAll by request_ids_are_scoped_to_the_aggregate
    FindsRequestsAnywhere by request_is_found_in_its_aggregate_only
    TakesEmptyAppends by invalid_append_is_refused
    LosesAnEvent by appended_events_are_loaded
    LosesOneOfManyAppends by concurrent_appends_to_many_aggregates_are_stored
    LosesOneOfManyAppends by concurrent_appends_to_one_aggregate_leave_no_gap
    IgnoresTheTenant by reads_are_limited_to_the_tenant
    EndsBeforeTheLastVersion by versions_are_loaded_by_inclusive_range
    BeginsBehindTheFirstVersion by versions_are_loaded_by_inclusive_range
    IgnoresTheLimit by versions_are_loaded_by_inclusive_range
    EndsBeforeTheLastTime by times_are_loaded_by_inclusive_range
    LoadsBackwards by concurrent_loads_are_complete
    RepairsRanges by invalid_range_is_refused
    FindsWhatIsNotThere by absent_events_are_not_found
    TakesTheFirstForTheLast by single_and_last_versions_are_found
    TakesTheNearestVersion by single_and_last_versions_are_found
    ScansTheCursorToo by aggregates_are_listed_once_in_order
    ScansOthersToo by aggregates_are_listed_once_in_order
    ScansByLength by aggregates_are_listed_once_in_order
}

faults! {
    every_fault_of_a_snapshot_store_is_found, snapshots by faulty_snapshots:
    LetsTheLastWin by older_snapshot_is_not_written
    LetsTheLastWin by newest_of_concurrent_saves_is_stored
    SaysWrittenAlways by older_snapshot_is_not_written
    KeepsTheEqual by snapshot_of_the_same_version_replaces
    KeepsTheFirst by newer_snapshot_replaces
    ForgetsThatItIsDeleted by saved_snapshot_is_loaded
    LosesAField by saved_snapshot_is_loaded
    IgnoresTheTenant by reads_are_limited_to_the_tenant
    MakesAVersionUp by absent_snapshot_has_version_0
    TakesAnyVersion by version_below_1_is_refused
}

faults! {
    every_fault_of_prepare_keys_is_found, keys by faulty_keys:
    TakesAHeldKey by key_is_held_until_rollback
    LetsSeveralWin by one_of_several_callers_prepares_a_key
    NeverFreesAnExpiredKey by one_of_several_callers_prepares_a_key
    ShowsAnExpiredKey by expired_key_is_absent_for_every_operation
    RevivesAnExpiredKey by expired_key_is_absent_for_every_operation
    ReleasesAnExpiredKey by expired_key_is_absent_for_every_operation
    MovesAnExpiredKey by expired_key_is_absent_for_every_operation
    ForgetsTheEnd by end_of_a_key_is_returned
    ChangesAnyValue by key_is_changed_only_with_the_expected_value
    ReleasesAnyValue by key_is_rolled_back_only_with_the_expected_value
    ComparesFieldsInTheirOrder by key_is_changed_only_with_the_expected_value
    ComparesFieldsInTheirOrder by key_is_rolled_back_only_with_the_expected_value
    LeavesTheOldKey by key_is_moved_with_its_value
    LosesTheOldKey by key_that_cannot_be_moved_is_kept
    LeavesTheNewKey by key_that_cannot_be_moved_is_kept
    MovesAKeyToItself by key_is_not_moved_to_itself
    KeepsAKeyWhoseWorkFailed by key_is_rolled_back_when_its_work_fails
    ReleasesAKeyWhoseWorkIsDone by key_is_rolled_back_when_its_work_fails
    WorksWithoutTheKey by key_is_rolled_back_when_its_work_fails
}
