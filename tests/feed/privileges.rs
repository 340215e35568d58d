//! The feed as a user with its role only.

use std::path::Path;
use std::time::Duration;

use bson::{Bson, Document, doc};
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::EventStore;
use postrider::events::feed::{Feed, FeedConfig, SequencerStatus};
use postrider::outbox::collections::Collections;
use postrider::schema::roles::{APPEND, Configured, FEED, RELAY, Role};
use postrider::store::connect;
use tokio_util::sync::CancellationToken;

use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::stdout_sink;
use crate::support::roles::{self, privileges_for, uri, user_with};
use crate::support::schema::mongosh;
use crate::util::{append, stream};

const ROLES_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-roles.js");

/// The privileges of roles in one database.
fn of(roles: &[&Role], database: &str) -> Vec<Document> {
    let configured = Configured {
        retention: Duration::MAX,
        change_stream: true,
        append: true,
        names: true,
        erasures: false,
    };
    let context = ContextSettings::new(database);
    let all = |role: &&Role| privileges_for(role, &context, database, "", configured);
    roles.iter().flat_map(all).collect()
}

/// The same without an action where a condition holds.
fn without(privileges: &[Document], action: &str, applies: impl Fn(&str) -> bool) -> Vec<Document> {
    let mut left = privileges.to_vec();
    for privilege in &mut left {
        let resource = privilege.get_document("resource").unwrap();
        if applies(resource.get_str("collection").unwrap()) {
            let actions = privilege.get_array_mut("actions").unwrap();
            actions.retain(|one| *one != Bson::from(action));
        }
    }
    left.retain(|privilege| !privilege.get_array("actions").unwrap().is_empty());
    left
}

#[fixture::test]
async fn feed_works_by_scans_without_the_change_stream() {
    for (user, status) in [("follows", SequencerStatus::Up), ("scans", SequencerStatus::Scanning)] {
        let outbox = TestOutbox::restricted().await;
        let (name, database) = (&outbox.database, outbox.client.database(&outbox.database));
        let settings = ContextSettings { feed: true, ..ContextSettings::new(name) };
        let admin = Context::new(outbox.client.clone(), settings.clone());
        for kind in [CollectionKind::Events, CollectionKind::Snapshots] {
            admin.apply(kind, "order").await.unwrap();
        }
        let mut privileges = of(&[&APPEND, &FEED], name);
        if user == "scans" {
            privileges = without(&privileges, "changeStream", |_| true);
        }
        user_with(&database, user, privileges).await;
        let client = connect::client(&uri(user, roles::PASSWORD, name)).await.unwrap();
        let settings = ContextSettings { auto_init_schema: false, ..settings };
        let context = Context::new(client.clone(), settings);
        let store = EventStore::new(context.clone(), Collections::new(client, name, ""));
        let feed = Feed::new(context);
        let (sequencer, stop) = (feed.sequencer(FeedConfig::default()), CancellationToken::new());
        let does = sequencer.status();
        let running = tokio::spawn(sequencer.run(stop.clone()));

        store.append(append("order", "1", "a", 1)).await.unwrap();
        feed.wait_beyond(0).await;
        let streams = admin.collection(CollectionKind::Events, "order");
        streams.insert_one(stream("order", "2", 1, doc! {})).await.unwrap();
        feed.wait_beyond(1).await;

        eventually("its status", async || *does.borrow() == status).await;
        assert_eq!(feed.state().await.unwrap().unwrap().head, 2);
        stop.cancel();
        running.await.unwrap();
    }
}

#[fixture::test]
async fn roles_of_the_script_suffice_with_a_database_of_events() {
    let outbox = TestOutbox::restricted().await;
    let (admin, name) = (&outbox.client, outbox.database.as_str());
    let events = format!("{name}_e");
    let said = [("EVENTS_DATABASE", events.as_str())];
    let made = mongosh(&roles::admin_uri(), name, Path::new(ROLES_SCRIPT), &said).await;
    assert!(made.status.success(), "{made:?}");
    let settings =
        ContextSettings { events: events.clone(), feed: true, ..ContextSettings::new(name) };
    let owner = Context::new(admin.clone(), settings.clone());
    owner.apply(CollectionKind::Events, "order").await.unwrap();
    let streams = owner.collection(CollectionKind::Events, "order");
    streams.insert_one(stream("order", "1", 1, doc! {})).await.unwrap();
    let command = doc! {
        "createUser": "feeds",
        "pwd": roles::PASSWORD,
        "roles": [{ "role": FEED.name, "db": &events }],
        "mechanisms": ["SCRAM-SHA-256"],
    };
    admin.database(name).run_command(command).await.unwrap();
    let client = connect::client(&uri("feeds", roles::PASSWORD, name)).await.unwrap();
    let context = Context::new(client, ContextSettings { auto_init_schema: false, ..settings });
    let (feed, stop) = (Feed::new(context.clone()), CancellationToken::new());
    let running = tokio::spawn(feed.sequencer(FeedConfig::default()).run(stop.clone()));

    feed.wait_beyond(0).await;
    stop.cancel();
    running.await.unwrap();
    let refused = context.collection(CollectionKind::Events, "order").delete_one(doc! {}).await;

    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("not authorized"), "{refused}");
    for database in [admin.database(&events)] {
        roles::forget(&database).await;
        database.drop().await.unwrap();
    }
}

#[fixture::test]
async fn check_names_each_missing_action_of_the_feed() {
    let outbox = TestOutbox::restricted().await;
    let (name, database) = (&outbox.database, outbox.client.database(&outbox.database));
    let all = of(&[&RELAY, &FEED], name);
    let whole = |collection: &str| collection.is_empty();
    let own = |collection: &str| collection == "postrider_feed";
    let checked = async |user: &str, privileges: Vec<Document>| {
        user_with(&database, user, privileges).await;
        let settings = settings(&outbox, user);
        call_with(&settings, &["check", "--output", "json"]).await
    };

    checked("enough", all.clone()).await.with_code(0);
    for (action, left, on) in [
        ("listIndexes", without(&all, "listIndexes", whole), format!("database {name}")),
        ("find", without(&all, "find", whole), format!("database {name}")),
        ("changeStream", without(&all, "changeStream", whole), format!("database {name}")),
        ("update", without(&all, "update", whole), format!("database {name}")),
        ("insert", without(&all, "insert", own), format!("{name}.postrider_feed")),
    ] {
        let user = format!("lacks_{action}");
        let found = checked(&user, left).await.with_code(1).json();

        let found = found.as_array().unwrap();
        let finding = found.iter().find(|one| one["name"] == "feed privileges").unwrap();
        let detail = format!("{user}@{name} lacks {action} on {on}");
        assert_eq!(finding["detail"], detail.as_str(), "{found:#?}");
        let remedy = finding["remedy"].as_str().unwrap();
        for part in ["{ role: \"postrider_feed\", db: ", "feed.enabled = false"] {
            assert!(remedy.contains(part), "no {part}: {remedy}");
        }
    }
}

fn settings(outbox: &TestOutbox, user: &str) -> Vec<String> {
    let more = [
        format!("mongo.uri={}", uri(user, roles::PASSWORD, &outbox.database)),
        "ops.listen=127.0.0.1:0".to_owned(),
        "outbox.auto_init_schema=false".to_owned(),
        "feed.enabled=true".to_owned(),
        "log.format=json".to_owned(),
    ];
    [stdout_sink(), more.to_vec()].concat()
}

#[fixture::test]
async fn process_is_degraded_while_its_feed_fails() {
    let outbox = TestOutbox::restricted().await;
    let (name, database) = (&outbox.database, outbox.client.database(&outbox.database));
    let all = of(&[&RELAY, &FEED], name);
    let is_of_feed = |collection: &str| collection.is_empty() || collection == "postrider_feed";
    user_with(&database, "feeds", without(&all, "update", is_of_feed)).await;

    let mut postrider = Postrider::start(&settings(&outbox, "feeds"));
    postrider.until_ready().await;
    postrider.until_metric("postrider_feed_failing", |failing| failing == 1.0).await;
    postrider.until_ready().await;
    let (ready, report) = postrider.readyz().await;
    roles::permit(&database, "feeds", all).await.unwrap();
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.until_metric("postrider_feed_failing", |failing| failing == 0.0).await;
    postrider.until_metric("postrider_feed_owner", |owner| owner == 1.0).await;
    let ended = postrider.stop().await;

    assert_eq!((ready, &report["parts"]["feed"]["status"]), (200, &"degraded".into()), "{report}");
    let detail = report["parts"]["feed"]["detail"].as_str().unwrap();
    assert!(detail.starts_with("failed to assign positions: "), "{report}");
    assert_eq!(ended.stderr.matches("the feed will assign no positions").count(), 1, "{ended}");
    assert!(ended.stderr.contains("postrider_feed"), "{ended}");
}
