//! The user's privileges, compared with what `run` needs.

use std::time::Duration;

use bson::{Document, doc};
use postrider::schema::roles::{RELAY, SCHEMA};

use crate::check::{Found, check, with};
use crate::support::outbox::TestOutbox;
use crate::support::queue::stdout_sink;
use crate::support::roles::{self, uri, user_with};

/// Checks the outbox as this user of its database.
async fn check_as(user: &str, outbox: &TestOutbox, more: &[&str]) -> Found {
    let uri = format!("mongo.uri={}", uri(user, roles::PASSWORD, &outbox.database));
    check(&with(&stdout_sink(), &[&[uri.as_str()], more].concat())).await
}

const STRICT: &str = "outbox.auto_init_schema=false";

/// All privileges of the relay, with schema creation, one action each.
fn single_actions(database: &str) -> Vec<(Document, String)> {
    let all = [&RELAY, &SCHEMA]
        .into_iter()
        .flat_map(|role| roles::privileges(role, database, "", Duration::MAX));
    let mut single: Vec<(Document, String)> = Vec::new();
    for privilege in all {
        for action in privilege.get_array("actions").unwrap() {
            let action = action.as_str().unwrap().to_owned();
            let mut one = privilege.clone();
            one.insert("actions", [action.as_str()].as_slice());
            if !single.iter().any(|(other, _)| *other == one) {
                single.push((one, action));
            }
        }
    }
    single
}

#[fixture::test]
async fn each_missing_action_is_reported_with_its_collection() {
    let outbox = TestOutbox::restricted().await;
    let database = outbox.client.database(&outbox.database);
    let single = single_actions(&outbox.database);
    assert_eq!(single.len(), 22, "{single:?}");
    // The schema is there, except for its retention; and then it is missing.
    let is_making = |action: &str| action.starts_with("create");
    let (making, others): (Vec<_>, Vec<_>) =
        single.iter().enumerate().partition(|(_, (_, action))| is_making(action));
    for (index, (lacking, action)) in others.into_iter().chain(making) {
        if is_making(action) {
            for collection in database.list_collection_names().await.unwrap() {
                database.collection::<Document>(&collection).drop().await.unwrap();
            }
        }
        let user = format!("lacking{index}");
        let left: Vec<Document> =
            single.iter().filter(|one| one.0 != *lacking).map(|one| one.0.clone()).collect();
        user_with(&database, &user, left).await;

        let found = check_as(&user, &outbox, &["outbox.retention=8d"]).await;

        assert_eq!(found.code, Some(1), "{action}: {:#?}", found.findings);
        let collection = lacking.get_document("resource").unwrap().get_str("collection").unwrap();
        let on = match collection {
            "" => format!("database {}", outbox.database),
            collection => format!("{}.{collection}", outbox.database),
        };
        let detail = format!("{user}@{} lacks {action} on {on}", outbox.database);
        assert_eq!(found.of("privileges")["detail"], detail);
        let of_schema = ["createCollection", "createIndex", "collMod"];
        let is_relays = !of_schema.contains(&action.as_str());
        let role = if is_relays { "postrider_relay" } else { "postrider_schema" };
        found.is_bad("privileges", "", &format!("{{ role: {role:?}, db: "));
        found.is_bad("privileges", "", "schema print --roles");
        if ["listCollections", "listIndexes"].contains(&action.as_str()) {
            found.is_bad("schema", "not authorized", "that the check `privileges` lists");
        }
    }
}

#[fixture::test]
async fn required_privileges_depend_on_the_configuration() {
    let outbox = TestOutbox::restricted().await;
    let relay = RELAY.name;

    let strict = check_as(relay, &outbox, &[STRICT]).await;
    let making = check_as(relay, &outbox, &[]).await;
    let deleting = check_as(relay, &outbox, &[STRICT, "outbox.retention=0s"]).await;
    let elsewhere = check_as(relay, &outbox, &[STRICT, "outbox.collection_prefix=shop_"]).await;

    assert_eq!(strict.bad(), [""; 0], "{:#?}", strict.findings);
    strict.is_good("privileges", "postrider_relay@");
    // Without the right to read the members' states, `check` asks the members themselves.
    strict.is_good("replica set", "1 of 1 members with data are up");
    strict.is_good("clocks", "one member, one clock");
    // There is nothing to create.
    assert_eq!(making.bad(), [""; 0], "{:#?}", making.findings);
    deleting.is_bad("privileges", "lacks remove on", "postrider_relay");
    elsewhere.is_bad("privileges", "shop_outbox_records", "postrider_relay");
    let database = outbox.client.database(&outbox.database);
    let polls = roles::privileges(&RELAY, &outbox.database, "", Duration::MAX);
    let is_following = |privilege: &Document| {
        privilege.get_array("actions").unwrap().contains(&"changeStream".into())
    };
    user_with(&database, "polls", polls.into_iter().filter(|one| !is_following(one)).collect())
        .await;
    let following = check_as("polls", &outbox, &[STRICT]).await;
    following.is_bad("privileges", "polls@", "postrider_relay");
    following.is_bad("privileges", "lacks changeStream on", "");
    let polling = check_as("polls", &outbox, &[STRICT, "relay.change_stream=false"]).await;
    assert_eq!(polling.bad(), [""; 0], "{:#?}", polling.findings);
    database.collection::<Document>("outbox_control").drop().await.unwrap();
    let missing = check_as(relay, &outbox, &[]).await;
    missing.only("privileges", "createCollection", "auto_init_schema = false");
}

#[fixture::test]
async fn built_in_roles_count_by_their_privileges() {
    let outbox = TestOutbox::restricted().await;
    let database = outbox.client.database(&outbox.database);
    for (user, role, on) in [
        ("writer", "readWrite", outbox.database.as_str()),
        ("elsewhere", "readWrite", "other"),
        ("anywhere", "readWriteAnyDatabase", "admin"),
        ("reader", "read", outbox.database.as_str()),
        ("root", "root", "admin"),
    ] {
        let user = doc! {
            "createUser": user,
            "pwd": roles::PASSWORD,
            "roles": [{ "role": role, "db": on }],
            "mechanisms": ["SCRAM-SHA-256"],
        };
        database.run_command(user).await.unwrap();
    }

    for user in ["writer", "anywhere", "root"] {
        let found = check_as(user, &outbox, &[STRICT]).await;
        found.is_good("privileges", user);
        assert_eq!(found.code, Some(0), "{:#?}", found.findings);
    }
    let reader = check_as("reader", &outbox, &[STRICT]).await;
    reader.only("privileges", "lacks insert, update, remove on", "postrider_relay");
    let elsewhere = check_as("elsewhere", &outbox, &[STRICT]).await;
    elsewhere.is_bad("privileges", "listCollections on database", "postrider_relay");
    elsewhere.is_bad("mongodb", "not authorized", "schema print --roles");
}
