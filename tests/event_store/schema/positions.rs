//! The index of positions, which the feed needs: who creates it, and who does not wait for it.

use std::path::Path;

use bson::doc;
use postrider::context::{CollectionKind, ContextSettings};
use postrider::events::{Append, EventStore, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use postrider::outbox::collections::Collections;

use crate::schema::Home;
use crate::support::outbox::{TestOutbox, mongodb_uri};
use crate::support::process::call_with;
use crate::support::queue::mongo_settings;
use crate::support::schema::mongosh;

const INDEX: &str = "position_1_createTime_1";

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-aggregate.js");

#[fixture::test]
async fn schema_commands_create_the_index_only_with_a_feed() {
    let home = Home::new().await;
    let without = mongo_settings(&home.name);
    let with = [without.clone(), vec!["feed.enabled=true".into()]].concat();
    let order = |command: &'static str| ["schema", command, "--aggregate", "order"];

    let plain = call_with(&without, &order("apply")).await.with_code(0);
    let missing = call_with(&with, &order("verify")).await.with_code(1);
    let applied = call_with(&with, &order("apply")).await.with_code(0);
    call_with(&with, &order("verify")).await.with_code(0);
    // Another index than those required is allowed: a feed that was on once leaves it.
    call_with(&without, &order("verify")).await.with_code(0);

    assert!(!plain.stdout.contains(INDEX), "{plain}");
    let line = format!("index {INDEX} of order_event_stream");
    assert!(missing.stdout.lines().count() == 1 && missing.stdout.contains(&line), "{missing}");
    assert_eq!(applied.stdout, format!("created index {INDEX} of order_event_stream\n"));
}

#[fixture::test]
async fn script_creates_the_index_on_an_existing_collection() {
    let home = Home::new().await;
    let context = home.context(ContextSettings { feed: true, ..home.together() });
    let run = async |feed: &str| {
        let said = [("FEED_ENABLED", feed)];
        let ended = mongosh(&mongodb_uri(), &home.name, Path::new(SCRIPT), &said).await;
        assert!(ended.status.success(), "{ended:?}");
        home.indexes("order_event_stream").await.contains(&INDEX.to_owned())
    };

    assert!(!run("false").await);
    assert!(run("true").await);
    assert!(run("false").await, "it drops nothing");
    assert_eq!(context.verify(CollectionKind::Events, "order").await.unwrap(), []);
}

/// Its build on a large collection takes minutes.
#[fixture::test]
async fn append_neither_creates_nor_requires_the_index() {
    for auto_init_schema in [true, false] {
        let outbox = TestOutbox::new().await;
        let client = outbox.admin.client().clone();
        let plain = ContextSettings::new(&outbox.database);
        let before = postrider::context::Context::new(client.clone(), plain.clone());
        for kind in [CollectionKind::Events, CollectionKind::Snapshots] {
            before.apply(kind, "order").await.unwrap();
        }
        let settings = ContextSettings { auto_init_schema, feed: true, ..plain };
        let context = postrider::context::Context::new(client.clone(), settings);
        let store = EventStore::new(context, Collections::new(client, &outbox.database, ""));
        let (name, id) = (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap());

        store
            .append(Append::new(name, id, "a", vec![NewEvent::new("Placed", doc! {})]))
            .await
            .unwrap();

        let streams = store.context().collection(CollectionKind::Events, "order");
        let names = streams.list_index_names().await.unwrap();
        assert!(!names.contains(&INDEX.to_owned()), "{names:?}");
    }
}
