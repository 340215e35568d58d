//! The examples succeed; they end with an error otherwise.

#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/event_store.rs"]
mod event_store;
#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/unit_of_work.rs"]
mod unit_of_work;

use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn event_store_example_runs_repeatedly() {
    let outbox = TestOutbox::new().await;
    for _ in 0..2 {
        event_store::run(outbox.admin.client().clone(), &outbox.database).await.unwrap();
    }
}

#[fixture::test]
async fn unit_of_work_example_runs_repeatedly() {
    let outbox = TestOutbox::new().await;
    for _ in 0..2 {
        unit_of_work::run(outbox.admin.client().clone(), &outbox.database).await.unwrap();
    }
}
