//! The examples do what they say; they end with an error where not.

#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/event_store.rs"]
mod event_store;
#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/unit_of_work.rs"]
mod unit_of_work;

use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn the_example_of_the_event_store_runs_again_and_again() {
    let outbox = TestOutbox::new().await;
    for _ in 0..2 {
        event_store::run(outbox.admin.client().clone(), &outbox.database).await.unwrap();
    }
}

#[fixture::test]
async fn the_example_of_a_unit_of_work_runs_again_and_again() {
    let outbox = TestOutbox::new().await;
    for _ in 0..2 {
        unit_of_work::run(outbox.admin.client().clone(), &outbox.database).await.unwrap();
    }
}
