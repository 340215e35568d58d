//! Collections and indexes as Postrider and mongosh create them, and conflicts.

use std::path::Path;

use bson::{Bson, Document, doc};
use postrider::config::Config;
use postrider::context::{CollectionKind, ContextSettings, RequestIds};
use postrider::schema::{SchemaError, aggregate_script};

use crate::schema::Home;
use crate::support::outbox::mongodb_uri;
use crate::support::schema::mongosh;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-aggregate.js");

async fn run_script(home: &Home, script: &Path, said: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = mongosh(&mongodb_uri(), &home.name, script, said).await;
    let report = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(report).unwrap())
}

#[fixture::test]
async fn collections_have_the_indexes_of_the_wow_framework() {
    let home = Home::new().await;
    let context = home.context(home.together());

    for kind in CollectionKind::ALL {
        context.ready(kind, "order").await.unwrap();
    }

    let events = ["_id_", "aggregateId_hashed", "aggregateId_1_version_1"];
    let others = ["aggregateId_1_requestId_1", "tenantId_hashed", "ownerId_hashed"];
    let snapshots = ["_id_", "tenantId_hashed", "ownerId_hashed", "_id_hashed", "deleted_hashed"];
    // For queries: not one of Wow's.
    let own = ["deleted_1__id_1"];
    assert_eq!(home.indexes("order_event_stream").await, [events, others].concat());
    assert_eq!(home.indexes("order_snapshot").await, [snapshots.as_slice(), &own].concat());
    assert_eq!(home.indexes("prepare_order").await, ["_id_", "ttlAt_1", "_id_hashed"]);
    let layout = &home.layout().await[""];
    let (_, keys) = &layout.collections["prepare_order"];
    assert_eq!(keys[1].get("expireAfterSeconds"), Some(&Bson::Int32(0)));
    let (_, streams) = &layout.collections["order_event_stream"];
    let unique = streams.iter().filter(|index| index.get_bool("unique").unwrap_or(false));
    assert_eq!(unique.count(), 2);
    let guard = doc! { "_id": "boundedContext", "contextName": "default", "layoutVersion": 1 };
    assert_eq!(layout.guard, Some(guard));
}

#[fixture::test]
async fn script_creates_the_same_schema_as_postrider() {
    for (mode, apart, feed) in [
        (RequestIds::Aggregate, false, false),
        (RequestIds::Global, true, false),
        (RequestIds::Aggregate, true, true),
    ] {
        let (by_script, by_us) = (Home::new().await, Home::new().await);
        let settings = |home: &Home| ContextSettings {
            request_ids: mode,
            name: "shop".into(),
            feed,
            ..if apart { home.apart() } else { home.together() }
        };
        let theirs = settings(&by_script);
        let mut config = Config::default();
        config.events.context = "shop".into();
        config.events.request_id_unique = mode;
        config.feed.enabled = feed;
        if apart {
            config.events.database = Some(theirs.events.clone());
            config.snapshots.database = Some(theirs.snapshots.clone());
            config.prepare.database = Some(theirs.prepare.clone());
        }
        let names = ["order".to_owned(), "line-item.v2".to_owned()];
        let file = tempfile::Builder::new().suffix(".js").tempfile().unwrap();
        std::fs::write(file.path(), aggregate_script(&config, &names, &["email".into()])).unwrap();

        let first = run_script(&by_script, file.path(), &[]).await;
        let context = by_us.context(settings(&by_us));
        for name in &names {
            context.apply(CollectionKind::Events, name).await.unwrap();
            context.apply(CollectionKind::Snapshots, name).await.unwrap();
        }
        context.apply(CollectionKind::Prepare, "email").await.unwrap();

        assert_eq!(first.0, Some(0), "{first:?}");
        assert_eq!(by_script.layout().await, by_us.layout().await);
        let other = by_script.context(theirs);
        assert_eq!(other.apply(CollectionKind::Events, "order").await.unwrap(), Default::default());
    }
}

#[fixture::test]
async fn script_of_the_repository_reads_its_environment() {
    let (home, other) = (Home::new().await, Home::new().await);
    let apart = home.apart();
    let said = [
        ("AGGREGATES", "cart, order"),
        ("PREPARE_KEYS", "email"),
        ("EVENTS_CONTEXT", "shop"),
        ("EVENTS_REQUEST_ID_UNIQUE", "global"),
        ("EVENTS_DATABASE", &apart.events),
        ("SNAPSHOTS_DATABASE", &apart.snapshots),
        ("PREPARE_DATABASE", &apart.prepare),
    ];

    let made = run_script(&home, Path::new(SCRIPT), &said).await;
    let again = run_script(&home, Path::new(SCRIPT), &said).await;
    let plain = run_script(&other, Path::new(SCRIPT), &[]).await;

    for (code, report) in [&made, &again, &plain] {
        assert_eq!(*code, Some(0), "{report}");
    }
    assert!(!again.1.contains("created"), "{}", again.1);
    let global = ContextSettings { request_ids: RequestIds::Global, name: "shop".into(), ..apart };
    let context = home.context(global);
    for (kind, name) in [
        (CollectionKind::Events, "cart"),
        (CollectionKind::Snapshots, "order"),
        (CollectionKind::Prepare, "email"),
    ] {
        assert_eq!(context.verify(kind, name).await.unwrap(), []);
    }
    let context = other.context(other.together());
    assert_eq!(context.verify(CollectionKind::Events, "order").await.unwrap(), []);
    for (name, value) in
        [("AGGREGATES", "a$b"), ("EVENTS_REQUEST_ID_UNIQUE", "toString"), ("FEED_ENABLED", "yes")]
    {
        let (code, report) = run_script(&home, Path::new(SCRIPT), &[(name, value)]).await;
        assert!(code == Some(1) && report.contains(value), "{report}");
        assert!(home.collection_names().await.is_empty());
    }
}

#[fixture::test]
async fn conflicting_index_is_named_and_kept() {
    let version = doc! { "aggregateId": 1, "version": 1 };
    for (kind, mine, named) in [
        (
            CollectionKind::Events,
            doc! { "name": "aggregateId_1_version_1", "key": &version },
            "aggregateId_1_version_1",
        ),
        (
            CollectionKind::Events,
            doc! { "name": "mine", "key": &version, "unique": true },
            "aggregateId_1_version_1",
        ),
        (
            CollectionKind::Snapshots,
            doc! { "name": "mine", "key": { "tenantId": "hashed" } },
            "tenantId_hashed",
        ),
        (
            CollectionKind::Prepare,
            doc! { "name": "ttlAt_1", "key": { "ttlAt": 1 }, "expireAfterSeconds": 60 },
            "ttlAt_1",
        ),
    ] {
        let home = Home::new().await;
        let context = home.context(home.together());
        let by = mine.get_str("name").unwrap().to_owned();
        let collection = kind.collection("order");
        home.run(doc! { "createIndexes": &collection, "indexes": [mine] }).await;

        let error = context.ready(kind, "order").await.unwrap_err();
        let differences = context.verify(kind, "order").await.unwrap();
        let said = [("PREPARE_KEYS", "order")];
        let (code, complaint) = run_script(&home, Path::new(SCRIPT), &said).await;

        assert!(matches!(&error, SchemaError::Conflict { index, .. } if index == named));
        let remedy = format!("db.getCollection({collection:?}).dropIndex({by:?})");
        assert_eq!(code, Some(1), "{complaint}");
        for text in [error.to_string(), complaint] {
            for part in [named, collection.as_str(), &remedy] {
                assert!(text.contains(part), "no {part} in: {text}");
            }
        }
        let subject = format!("index {named} of {collection}");
        assert!(differences.iter().any(|one| one.subject == subject), "{differences:?}");
        assert_eq!(home.indexes(&collection).await, ["_id_", by.as_str()]);
    }
}

#[fixture::test]
async fn scopes_of_request_ids_exclude_each_other() {
    let modes = [RequestIds::Aggregate, RequestIds::Global];
    for (first, second, word, by) in [
        (modes[0], modes[1], "aggregate", "aggregateId_1_requestId_1"),
        (modes[1], modes[0], "global", "requestId_1"),
    ] {
        let home = Home::new().await;
        let with = |request_ids| home.context(ContextSettings { request_ids, ..home.together() });
        with(first).ready(CollectionKind::Events, "order").await.unwrap();
        let before = home.indexes("order_event_stream").await;

        let error =
            with(second).ready(CollectionKind::Events, "order").await.unwrap_err().to_string();
        let differences = with(second).verify(CollectionKind::Events, "order").await.unwrap();
        let other = if word == "global" { "aggregate" } else { "global" };
        let said = [("EVENTS_REQUEST_ID_UNIQUE", other)];
        let (code, complaint) = run_script(&home, Path::new(SCRIPT), &said).await;

        let remedy = format!("set events.request_id_unique = \"{word}\"");
        assert_eq!(code, Some(1), "{complaint}");
        for text in [&error, &complaint] {
            assert!(
                text.contains(&remedy) && text.contains(&format!("dropIndex(\"{by}\")")),
                "{text}"
            );
        }
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].to_string().contains(by), "{differences:?}");
        assert_eq!(home.indexes("order_event_stream").await, before);
        with(first).ready(CollectionKind::Events, "order").await.unwrap();
    }
}

#[fixture::test]
async fn views_and_special_collections_are_refused_by_name() {
    let english = doc! { "locale": "en", "strength": 2 };
    for (kind, options, found) in [
        (CollectionKind::Events, doc! { "viewOn": "other" }, "a view"),
        (CollectionKind::Snapshots, doc! { "capped": true, "size": 4096 }, "a capped collection"),
        (
            CollectionKind::Prepare,
            doc! { "collation": english },
            "a collection with a default collation",
        ),
    ] {
        let home = Home::new().await;
        let collection = kind.collection("order");
        let mut create = doc! { "create": &collection };
        create.extend(options);
        home.run(create).await;

        let error = home.context(home.together()).ready(kind, "order").await.unwrap_err();

        let error = error.to_string();
        assert!(error.starts_with(&format!("cannot use {collection}: it is {found},")), "{error}");
        assert!(error.ends_with(&format!("set another {}", kind.setting())), "{error}");
    }
}

#[fixture::test]
async fn duplicate_documents_are_named_when_an_index_fails() {
    let home = Home::new().await;
    let streams = home.database().collection::<Document>("order_event_stream");
    let twin = || doc! { "aggregateId": "a", "version": 1 };
    streams.insert_many([twin(), twin()]).await.unwrap();

    let error =
        home.context(home.together()).ready(CollectionKind::Events, "order").await.unwrap_err();

    assert!(
        error.to_string().contains("existing documents have the same aggregateId, version"),
        "{error}"
    );
    assert_eq!(streams.count_documents(doc! {}).await.unwrap(), 2);
}
