//! Processes that die while they copy.

use std::time::Duration;

use crate::api::{Api, with};
use crate::support::queue::mongo_settings;
use crate::util::{TestSubscriptions, assert_once_in_order, push};

/// Neither before nor after a commit is anything lost, or copied twice.
#[fixture::test]
async fn killed_owner_leaves_whole_transactions() {
    let all = TestSubscriptions::new().await;
    let settings = mongo_settings(&all.test.outbox.database);
    let settings = with(settings, &["events.enabled=true", "feed.enabled=true"]);
    all.create(&push("everything", 1_000)).await;
    let mut total = 0;
    for (round, place) in ["before_commit", "after_commit", "before_copy"].iter().enumerate() {
        all.append("order", &["1", "2"], &round.to_string()).await;
        total += 2;
        let fail_point = format!("subscriptions::{place}=return");
        let mut doomed = Api::begin(&settings, &fail_point).await;
        let ended = doomed.postrider.until_ended(Duration::from_secs(40)).await;
        assert_eq!(ended.code, None, "{ended}");
    }

    let survivor = Api::begin(&settings, "").await;

    all.until_position("everything", total).await;
    assert_once_in_order(&all.copies("everything").await, 1..=total);
    survivor.stop().await;
    all.stop().await;
}
