//! One suite, which every store passes: the behaviours that the seed system tests for itself,
//! adapted to our contract.
//!
//! The clauses stand beside the trait of what they check: [`events`]. `of_mongodb` makes ours
//! fit; another store needs the same, and a line here. Faulty stores, one for each promise, show
//! that the clause that is meant for it can fail.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod events;
mod faulty_events;
mod of_mongodb;

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use postrider::names::AggregateName;
use support::outbox::TestOutbox;

fn name() -> AggregateName {
    AggregateName::new("order").unwrap()
}

/// Whether a clause fails.
async fn fails(clause: impl Future<Output = ()>) -> bool {
    AssertUnwindSafe(clause).catch_unwind().await.is_err()
}

macro_rules! every_clause_of_events_holds {
    ($($clause:ident)*) => {
        mod events_of_mongodb {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $clause() {
                    let outbox = TestOutbox::new().await;
                    events::$clause(&of_mongodb::events(&outbox), &name()).await;
                    outbox.drop().await;
                }
            )*
        }
    };
}

every_clause_of_events_holds! {
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
    a_range_that_cannot_be_is_refused
    aggregates_are_scanned_once_each_in_order_behind_a_cursor
    a_tenant_sees_what_is_his_alone
}

macro_rules! faulty_events_are_told {
    ($($fault:ident by $clause:ident)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn every_fault_of_an_event_store_is_told_by_the_clause_that_is_meant_for_it() {
            let outbox = TestOutbox::new().await;
            let mut names = (0..).map(|number| AggregateName::new(&format!("a{number}")).unwrap());
            $(
                let name = names.next().unwrap();
                let fault = faulty_events::Fault::$fault;
                let store = of_mongodb::events(&outbox);
                let faulty =
                    faulty_events::Faulty { store, fault, appends: Default::default() };
                assert!(fails(events::$clause(&faulty, &name)).await, "{fault:?}");
            )*
            outbox.drop().await;
        }
    };
}

faulty_events_are_told! {
    ForgetsTheVersion by a_version_that_is_not_the_aggregates_is_refused
    TakesAnAggregateTwice by a_duplicate_aggregate_is_refused
    LetsSeveralWin by of_racers_for_a_version_one_wins
    TakesARequestTwice by a_request_that_comes_again_is_answered_as_at_first
    JudgesTheVersionFirst by a_request_that_comes_again_is_answered_as_at_first
    KeepsRequestsForAll by the_same_request_in_another_aggregate_is_another
    FindsRequestsAnywhere by a_request_is_found_in_its_aggregate_alone
    TakesEmptyAppends by what_is_not_valid_is_refused
    LosesAnEvent by what_is_appended_is_loaded
    LosesAnAppendNowAndThen by appends_at_once_to_many_aggregates_are_all_there
    LosesAnAppendNowAndThen by appends_at_once_to_one_aggregate_leave_no_gap
    IgnoresTheTenant by a_tenant_sees_what_is_his_alone
    EndsBeforeTheLastVersion by versions_are_loaded_from_the_first_to_the_last
    BeginsBehindTheFirstVersion by versions_are_loaded_from_the_first_to_the_last
    IgnoresTheLimit by versions_are_loaded_from_the_first_to_the_last
    EndsBeforeTheLastTime by times_are_loaded_from_the_first_to_the_last
    LoadsBackwards by loads_at_once_are_each_complete
    MendsRanges by a_range_that_cannot_be_is_refused
    FindsWhatIsNotThere by what_is_not_there_is_not_found
    TakesTheFirstForTheLast by a_single_one_and_the_last_one_are_found
    TakesTheNearestVersion by a_single_one_and_the_last_one_are_found
    ScansTheCursorToo by aggregates_are_scanned_once_each_in_order_behind_a_cursor
    ScansOthersToo by aggregates_are_scanned_once_each_in_order_behind_a_cursor
    ScansByLength by aggregates_are_scanned_once_each_in_order_behind_a_cursor
}
