//! `postrider subscriptions`.

use serde_json::json;

use crate::support::process::call_with;
use crate::support::queue::mongo_settings;
use crate::util::TestSubscriptions;

#[fixture::test]
async fn commands_manage_subscriptions() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    let settings = mongo_settings(&all.test.outbox.database);
    let run = async |arguments: &[&str]| {
        let arguments = [&["subscriptions"], arguments].concat();
        call_with(&settings, &arguments).await
    };

    let created = run(&["create", "billing", "--pull", "--lease", "5s", "--output", "json"]).await;
    assert_eq!(created.with_code(0).json()["leaseMillis"], 5_000);
    let push =
        ["create", "copies", "--push", "orders", "--max-pending", "7", "--aggregate", "order"];
    let created = run(&push).await.with_code(0);
    assert!(created.stdout.contains("orders"), "{created}");
    let taken = run(&push).await.with_code(1);
    assert!(taken.stderr.contains("already"), "{taken}");
    let wrong = ["create", "1", "--push", "", "--aggregate", "1"];
    let wrong = run(&wrong).await.with_code(2);
    let ahead = run(&["create", "x", "--pull", "--after", "3"]).await.with_code(1);
    assert!(ahead.stderr.contains("position 3 is ahead"), "{ahead}");
    for field in ["name: ", "--push: ", "--aggregate: "] {
        assert!(wrong.stderr.contains(field), "{wrong}");
    }

    let listed = run(&["list", "--output", "json"]).await.with_code(0).json();
    assert_eq!(listed[0]["name"], "billing");
    assert_eq!((&listed[1]["lagEvents"], &listed[1]["maxPending"]), (&json!(2), &json!(7)));
    let table = run(&["list"]).await.with_code(0).stdout;
    assert!(table.lines().count() == 3 && table.contains("lagSeconds"), "{table}");
    run(&["pause", "billing"]).await.with_code(0);
    let shown = run(&["show", "billing", "--output", "json"]).await.with_code(0);
    assert_eq!(shown.json()["state"], "paused");
    run(&["resume", "billing"]).await.with_code(0);
    run(&["replay", "billing", "--position", "1"]).await.with_code(0);
    let read = all.pull("billing", "a").await.unwrap();
    assert_eq!(read.items.len(), 1);
    all.subscriptions.park("billing", &read.lease, 2, "odd").await.unwrap();
    let parked = run(&["parked", "billing"]).await.with_code(0);
    assert!(parked.stdout.contains("order 2") && parked.stdout.contains("odd"), "{parked}");
    let parked = run(&["parked", "billing", "--output", "json"]).await.with_code(0);
    assert_eq!(parked.json()[0]["position"], 2);
    let discarded = run(&["parked", "billing", "--discard", "2"]).await.with_code(0);
    assert_eq!(discarded.stdout, "billing: discarded 1\n");
    run(&["delete", "billing"]).await.with_code(0);
    let gone = run(&["show", "billing"]).await.with_code(1);
    assert!(gone.stderr.contains("unknown subscription"), "{gone}");
    all.stop().await;
}
