//! One context per database.

use std::path::Path;

use bson::{Bson, Document, doc};
use futures_util::future::join_all;
use postrider::context::{CollectionKind, ContextSettings};
use postrider::schema::SchemaError;

use crate::schema::Home;
use crate::support::outbox::mongodb_uri;
use crate::support::schema::mongosh;

fn named(name: &str, settings: ContextSettings) -> ContextSettings {
    ContextSettings { name: name.into(), ..settings }
}

#[fixture::test]
async fn database_of_another_context_is_refused_with_remedies() {
    let home = Home::new().await;
    home.context(named("shop", home.together()))
        .ready(CollectionKind::Events, "order")
        .await
        .unwrap();
    let before = home.layout().await;
    let other = home.context(named("bank", home.together()));

    let errors = [
        other.ready(CollectionKind::Snapshots, "order").await.unwrap_err(),
        other.apply(CollectionKind::Prepare, "order").await.unwrap_err(),
        other.verify(CollectionKind::Events, "order").await.unwrap_err(),
        other.guard().await.unwrap_err(),
    ];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-aggregate.js");
    let said = [("EVENTS_CONTEXT", "bank"), ("AGGREGATES", "account")];
    let output = mongosh(&mongodb_uri(), &home.name, Path::new(script), &said).await;

    for error in errors {
        assert!(error.is_permanent());
        assert!(matches!(error, SchemaError::Foreign(_)), "{error:?}");
        let remedies = ["events.context = \"shop\"", "another events.database"];
        for part in [&home.name, "\"shop\"", "\"bank\"", remedies[0], remedies[1]] {
            assert!(error.to_string().contains(part), "no {part} in: {error}");
        }
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("belongs to the context \"shop\""));
    assert_eq!(home.layout().await, before);
}

#[fixture::test]
async fn unknown_layout_is_refused_and_number_types_are_equal() {
    let home = Home::new().await;
    let metadata = home.database().collection::<Document>("wow_database_metadata");
    let context = home.context(home.together());
    for (version, is_known) in [
        (Bson::Int64(1), true),
        (Bson::Double(1.0), true),
        (Bson::Int32(2), false),
        (Bson::Double(1.5), false),
        (Bson::Null, false),
        ("1".into(), false),
    ] {
        let found = doc! { "contextName": "default", "layoutVersion": version.clone() };
        let replacing = metadata.replace_one(doc! { "_id": "boundedContext" }, found);
        replacing.upsert(true).await.unwrap();

        match context.guard().await {
            Ok(()) => assert!(is_known, "{version}"),
            Err(error) => {
                assert!(!is_known, "{version}: {error}");
                assert!(
                    error.to_string().contains("a release that supports its layout"),
                    "{error}"
                );
            }
        }
    }
}

#[fixture::test]
async fn one_of_several_contexts_claims_a_fresh_database() {
    for _ in 0..4 {
        let home = Home::new().await;

        let racing = (0..8).map(|number| {
            let context = home.context(named(&format!("context{}", number % 4), home.together()));
            let name = format!("a{}", number % 4);
            tokio::spawn(async move {
                let ready = context.ready(CollectionKind::Events, &name).await;
                ready.map(|_| context.settings().name.clone())
            })
        });
        let mut winners = Vec::new();
        for raced in join_all(racing).await {
            match raced.unwrap() {
                Ok(name) => winners.push(name),
                Err(error) => assert!(matches!(error, SchemaError::Foreign(_)), "{error}"),
            }
        }

        assert_eq!(winners.len(), 2, "{winners:?}");
        assert_eq!(winners[0], winners[1]);
        assert_eq!(home.collection_names().await.len(), 2);
    }
}

#[fixture::test]
async fn database_is_claimed_when_its_first_collection_is_created() {
    let home = Home::new().await;
    let context = home.context(home.apart());
    context.guard().await.unwrap();
    assert!(home.layout().await.values().all(|layout| layout.guard.is_none()), "it never inserts");

    context.ready(CollectionKind::Events, "order").await.unwrap();
    let after_events = home.layout().await;
    context.ready(CollectionKind::Prepare, "email").await.unwrap();
    let after_keys = home.layout().await;
    let settings = ContextSettings { events: home.name.clone(), ..home.apart() };
    let foreign = home.context(named("bank", settings)).guard().await.unwrap_err();

    let claimed = |layout: &std::collections::BTreeMap<String, crate::schema::Layout>| {
        let claimed = layout.iter().filter(|(_, layout)| layout.guard.is_some());
        claimed.map(|(ending, _)| ending.clone()).collect::<Vec<_>>()
    };
    assert_eq!(claimed(&after_events), ["_e"]);
    assert_eq!(claimed(&after_keys), ["_e", "_p"]);
    assert!(foreign.to_string().contains("another prepare.database"), "{foreign}");
}
