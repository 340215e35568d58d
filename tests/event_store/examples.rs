//! The examples succeed; they end with an error otherwise.

#[allow(dead_code, reason = "its main")]
#[path = "../../examples/prepare.rs"]
mod prepare;
#[allow(dead_code, reason = "its main")]
#[path = "../../examples/snapshots.rs"]
mod snapshots;

use crate::home::Home;

#[fixture::test]
async fn prepare_keys_example_runs_repeatedly() {
    let home = Home::new().await;
    let database = &home.context.settings().prepare;
    for _ in 0..2 {
        prepare::run(home.context.client().clone(), database).await.unwrap();
    }
}

#[fixture::test]
async fn snapshots_example_runs_repeatedly() {
    let home = Home::new().await;
    let database = &home.context.settings().snapshots;
    for _ in 0..2 {
        snapshots::run(home.context.client().clone(), database).await.unwrap();
    }
}
