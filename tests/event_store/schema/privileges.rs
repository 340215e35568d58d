//! The privileges of the append path, on a server with access control.

use std::path::Path;
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Client;
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::schema::roles::{APPEND, Configured, RELAY, SCHEMA};
use postrider::store::connect;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::stdout_sink;
use crate::support::roles::{self, privileges_for, uri, user_with};
use crate::support::schema::mongosh;

const ROLES_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-roles.js");

const CONFIGURED: Configured = Configured {
    retention: Duration::MAX,
    change_stream: true,
    append: true,
    names: true,
    erasures: true,
};

/// Uses each collection as the append path does.
async fn use_all(context: &Context, outbox: &str) -> mongodb::error::Result<()> {
    let client = context.client();
    let streams = context.collection(CollectionKind::Events, "order");
    let records = client.database(outbox).collection::<Document>("outbox_records");
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let stream = doc! { "aggregateId": "a", "version": 1, "requestId": "r" };
    streams.insert_one(stream).session(&mut session).await?;
    records.insert_one(record("r", "a")).session(&mut session).await?;
    session.commit_transaction().await?;
    streams.find_one(doc! { "aggregateId": "a" }).await?;
    let snapshots = context.collection(CollectionKind::Snapshots, "order");
    let set = doc! { "$set": { "version": 1 } };
    snapshots.update_one(doc! { "_id": "a" }, set.clone()).upsert(true).await?;
    snapshots.find_one(doc! { "_id": "a" }).await?;
    let keys = context.collection(CollectionKind::Prepare, "email");
    keys.update_one(doc! { "_id": "k" }, set).upsert(true).await?;
    keys.find_one(doc! { "_id": "k" }).await?;
    keys.delete_one(doc! { "_id": "k" }).await?;
    Ok(())
}

/// A user of the outbox's database with these roles in these databases.
async fn user(admin: &Client, outbox: &str, name: &str, granted: &[(&str, &str)]) -> String {
    let granted: Vec<Document> =
        granted.iter().map(|(role, db)| doc! { "role": *role, "db": *db }).collect();
    let command = doc! {
        "createUser": name,
        "pwd": roles::PASSWORD,
        "roles": granted,
        "mechanisms": ["SCRAM-SHA-256"],
    };
    admin.database(outbox).run_command(command).await.unwrap();
    uri(name, roles::PASSWORD, outbox)
}

#[fixture::test]
async fn roles_of_the_script_suffice_with_a_database_per_kind() {
    let outbox = TestOutbox::restricted().await;
    let (admin, name) = (&outbox.client, outbox.database.as_str());
    let names = ["e", "s", "p"].map(|ending| format!("{name}_{ending}"));
    let settings = ContextSettings {
        events: names[0].clone(),
        snapshots: names[1].clone(),
        prepare: names[2].clone(),
        ..ContextSettings::new(name)
    };
    let said = [
        ("EVENTS_DATABASE", names[0].as_str()),
        ("SNAPSHOTS_DATABASE", &names[1]),
        ("PREPARE_DATABASE", &names[2]),
    ];
    for _ in 0..2 {
        let made = mongosh(&roles::admin_uri(), name, Path::new(ROLES_SCRIPT), &said).await;
        assert!(made.status.success(), "{made:?}");
    }
    let places = [name, &names[0], &names[1], &names[2]];
    let append = places.map(|place| (APPEND.name, place));
    let all = [append, places.map(|place| (SCHEMA.name, place))].concat();
    let makes = connect::client(&user(admin, name, "makes", &all).await).await.unwrap();
    let uses = connect::client(&user(admin, name, "uses", &append).await).await.unwrap();
    let makes = Context::new(makes, settings.clone());
    let uses = Context::new(uses, ContextSettings { auto_init_schema: false, ..settings.clone() });

    for (kind, called) in [
        (CollectionKind::Events, "order"),
        (CollectionKind::Snapshots, "order"),
        (CollectionKind::Prepare, "email"),
    ] {
        uses.ready(kind, called).await.unwrap_err();
        makes.ready(kind, called).await.unwrap();
        uses.ready(kind, called).await.unwrap();
    }
    use_all(&uses, name).await.unwrap();
    uses.guard().await.unwrap();
    let too_much = uses.apply(CollectionKind::Events, "cart").await.unwrap_err();
    let removal =
        uses.collection(CollectionKind::Events, "order").delete_one(doc! {}).await.unwrap_err();

    let too_much = postrider::telemetry::chain(&too_much);
    assert!(too_much.contains("not authorized"), "{too_much}");
    assert!(removal.to_string().contains("not authorized"), "events are for ever: {removal}");
    for place in &names {
        let database = admin.database(place);
        roles::forget(&database).await;
        database.drop().await.unwrap();
    }
}

#[fixture::test]
async fn check_names_each_missing_action_of_the_append_path() {
    let outbox = TestOutbox::restricted().await;
    let sets = |user: &str| {
        let uri = uri(user, roles::PASSWORD, &outbox.database);
        let always = [
            "ops.listen=127.0.0.1:0",
            "log.format=json",
            "outbox.auto_init_schema=false",
            "api.enabled=true",
        ];
        let always = always.iter().map(ToString::to_string);
        stdout_sink().into_iter().chain(always).chain([format!("mongo.uri={uri}")]).collect()
    };
    let settings: Vec<String> = sets(RELAY.name);

    let mut postrider = Postrider::start(&settings);
    postrider.until_ready().await;
    outbox.insert([record("a", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    let ended = postrider.stop().await;

    assert_eq!(ended.stderr.matches("appends will be rejected").count(), 1, "{ended}");
    let database = &outbox.database;
    let lacks = format!("insert, update, remove on database {database}");
    let grant = format!("{{ role: \\\"postrider_append\\\", db: \\\"{database}\\\" }}");
    for part in [lacks.as_str(), &grant, "events.enabled = false"] {
        assert!(ended.stderr.contains(part), "no {part}: {ended}");
    }
    assert!(!ended.stderr.contains("not authorized"), "{ended}");

    // Each missing action is named.
    let context = ContextSettings::new(database);
    let privileges = |role| privileges_for(role, &context, database, "", CONFIGURED);
    let mut single: Vec<(Document, String)> = Vec::new();
    for privilege in privileges(&APPEND) {
        for action in privilege.get_array("actions").unwrap() {
            let mut one = privilege.clone();
            one.insert("actions", [action.as_str().unwrap()].as_slice());
            if !single.iter().any(|(other, _)| *other == one) {
                single.push((one, action.as_str().unwrap().to_owned()));
            }
        }
    }
    let on_database = |one: &Document| {
        one.get_document("resource").unwrap().get_str("collection").unwrap().is_empty()
    };
    // A privilege on the database covers its collections.
    single.retain(|(one, _)| on_database(one));
    assert_eq!(single.len(), 6, "{single:?}");
    let relay: Vec<Document> =
        privileges(&RELAY).into_iter().filter(|privilege| !on_database(privilege)).collect();
    for (lacking, action) in &single {
        let others = single.iter().filter(|(one, _)| one != lacking).map(|(one, _)| one.clone());
        let mut left: Vec<Document> = others.chain(relay.clone()).collect();
        if action == "insert" {
            left.push(doc! {
                "resource": { "db": database, "collection": "outbox_records" },
                "actions": ["insert"],
            });
        }
        let name = format!("lacks_{action}");
        user_with(&outbox.client.database(database), &name, left).await;

        let found = call_with(&sets(&name), &["check", "--output", "json"]).await;

        let found = found.with_code(1).json();
        let found = found.as_array().unwrap();
        // Without this one the database cannot be read, which is another finding.
        if let Some(append) = found.iter().find(|one| one["name"] == "append privileges") {
            let detail = format!("{name}@{database} lacks {action} on database {database}");
            assert_eq!(append["detail"], detail.as_str(), "{found:#?}");
            assert!(append["remedy"].as_str().unwrap().contains("events.enabled = false"));
        } else {
            assert_eq!(action, "listCollections", "{found:#?}");
        }
    }
    let enough: Vec<Document> = single.into_iter().map(|(one, _)| one).chain(relay).collect();
    user_with(&outbox.client.database(database), "enough", enough).await;
    let found = call_with(&sets("enough"), &["check", "--output", "json"]).await;
    found.with_code(0);
}
