//! The examples do what they say; they end with an error where not.

#[allow(dead_code, reason = "its main")]
#[path = "../../examples/prepare.rs"]
mod prepare;
#[allow(dead_code, reason = "its main")]
#[path = "../../examples/snapshots.rs"]
mod snapshots;

use crate::home::Home;

#[fixture::test]
async fn the_example_of_prepare_keys_runs_again_and_again() {
    let home = Home::new().await;
    let database = &home.context.settings().prepare;
    for _ in 0..2 {
        prepare::run(home.context.client().clone(), database).await.unwrap();
    }
}

#[fixture::test]
async fn the_example_of_snapshots_runs_again_and_again() {
    let home = Home::new().await;
    let database = &home.context.settings().snapshots;
    for _ in 0..2 {
        snapshots::run(home.context.client().clone(), database).await.unwrap();
    }
}
