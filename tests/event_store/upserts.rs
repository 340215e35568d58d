//! Upserts that meet another caller's insert: MongoDB answers with a duplicate key, unless it retries
//! itself.

use bson::{bson, doc};
use mongodb::Client;
use postrider::context::{Context, ContextSettings};
use postrider::prepare::{PrepareKey, PrepareName, Ttl};
use postrider::snapshot::{Saved, Snapshot, SnapshotStore};

use crate::home::{id, order};
use crate::support::mongod::Mongod;

/// Refuses the next `times` upserts.
async fn refuse(client: &Client, times: i32) {
    let admin = client.database("admin");
    let refusing = doc! {
        "configureFailPoint": "failCommand",
        "mode": { "times": times },
        "data": {
            "failCommands": ["update"],
            "errorCode": 11000,
            "errorExtraInfo": { "keyPattern": { "_id": 1 }, "keyValue": { "_id": "ada" } },
        },
    };
    admin.run_command(refusing).await.unwrap();
}

#[fixture::test]
async fn upsert_is_retried_after_another_callers_insert() {
    let server = Mongod::with_fail_points().await;
    let client = Client::with_uri_str(server.uri("", "")).await.unwrap();
    let context = Context::new(client.clone(), ContextSettings::new("test"));
    let keys = PrepareKey::new(context.clone(), PrepareName::new("username").unwrap());
    let snapshots = SnapshotStore::new(context);
    // The collections are created first.
    keys.prepare("other", &bson!(1), Ttl::Forever).await.unwrap();
    snapshots.save(&order(), Snapshot::new(id("other"), 1, doc! {})).await.unwrap();

    refuse(&client, 3).await;
    assert!(keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap());
    refuse(&client, 3).await;
    let saved = snapshots.save(&order(), Snapshot::new(id("order-1"), 1, doc! {})).await.unwrap();
    assert_eq!(saved, Saved { written: true, version: 1 });
    // No further upsert is refused.
    refuse(&client, 1).await;
    assert!(!keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap());
}
