//! Collections are created completely before the first write.

use bson::doc;
use futures_util::future::join_all;
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::schema::SchemaError;
use postrider::store::connect;

use crate::schema::Home;
use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::{TestOutbox, mongodb_uri};

#[fixture::test]
async fn eight_processes_create_a_collection_at_once() {
    for _ in 0..3 {
        let home = Home::new().await;
        let mut contexts = Vec::new();
        for _ in 0..8 {
            let client = connect::client(&mongodb_uri()).await.unwrap();
            contexts.push(Context::new(client, home.together()));
        }

        let coming = contexts.iter().flat_map(|context| {
            CollectionKind::ALL.map(|kind| {
                let context = context.clone();
                tokio::spawn(async move { context.ready(kind, "order").await.map(drop) })
            })
        });
        for came in join_all(coming).await {
            came.unwrap().unwrap();
        }

        for kind in CollectionKind::ALL {
            assert_eq!(contexts[0].verify(kind, "order").await.unwrap(), []);
        }
    }
}

#[fixture::test]
async fn concurrent_callers_share_one_schema_check() {
    let outbox = TestOutbox::new().await;
    let spied = CommandRecorder::on(&outbox).await;
    let settings = ContextSettings::new(&outbox.database);
    let context = Context::new(spied.collections.client().clone(), settings);

    let calls = (0..64).map(|_| {
        let context = context.clone();
        tokio::spawn(async move { context.ready(CollectionKind::Events, "order").await.map(drop) })
    });
    for called in join_all(calls).await {
        called.unwrap().unwrap();
    }
    context.ready(CollectionKind::Events, "order").await.unwrap();

    for (name, times) in [("create", 1), ("createIndexes", 1), ("findAndModify", 1), ("find", 1)] {
        let commands = spied.commands(name);
        assert_eq!(commands.len(), times, "{name}: {commands:?}");
    }
    for name in ["create", "createIndexes", "findAndModify"] {
        let sent = &spied.commands(name)[0].sent;
        let concern = sent.get_document("writeConcern").unwrap();
        assert_eq!(concern.get_str("w").unwrap(), "majority", "{sent}");
    }
}

#[fixture::test]
async fn schema_check_is_repeated_after_a_failure() {
    let home = Home::new().await;
    let context = home.context(home.together());
    let index = doc! { "name": "ttlAt_1", "key": { "ttlAt": -1 } };
    home.run(doc! { "createIndexes": "prepare_email", "indexes": [index] }).await;

    context.ready(CollectionKind::Prepare, "email").await.unwrap_err();
    home.run(doc! { "dropIndexes": "prepare_email", "index": "ttlAt_1" }).await;

    context.ready(CollectionKind::Prepare, "email").await.unwrap();
}

#[fixture::test]
async fn missing_schema_is_reported_with_the_command_that_creates_it() {
    let home = Home::new().await;
    let strict = home.context(ContextSettings { auto_init_schema: false, ..home.together() });
    for (kind, named) in [
        (CollectionKind::Events, "postrider schema apply --aggregate order"),
        (CollectionKind::Snapshots, "postrider schema apply --aggregate order"),
        (CollectionKind::Prepare, "postrider schema apply --prepare order"),
    ] {
        let missing = strict.ready(kind, "order").await.unwrap_err();
        assert!(missing.is_permanent());
        assert!(matches!(missing, SchemaError::Differs { .. }), "{missing:?}");
        assert!(missing.to_string().contains(named), "{missing}");
        assert!(missing.to_string().contains("outbox.auto_init_schema = true"), "{missing}");
        assert!(home.collection_names().await.is_empty());
    }

    strict.apply(CollectionKind::Events, "order").await.unwrap();
    strict.ready(CollectionKind::Events, "order").await.unwrap();
    let index = doc! { "dropIndexes": "order_event_stream", "index": "aggregateId_1_version_1" };
    home.run(index).await;
    let other = home.context(strict.settings().clone());
    let incomplete = other.ready(CollectionKind::Events, "order").await.unwrap_err();

    assert!(incomplete.to_string().contains("index aggregateId_1_version_1"), "{incomplete}");
}
