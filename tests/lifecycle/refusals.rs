//! Starts that cannot succeed: the exit code is 1, and the error names the remedy.

use bson::{Document, doc};
use futures_util::future::join_all;

use crate::support::mongod::{ADMIN, Mongod};
use crate::support::process::Postrider;
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::support::schema::BareDatabase;
use crate::util::{PLANTED, PROMPT_LIMIT, ended, says};

#[fixture::test]
async fn wrong_credentials_end_the_start_with_the_remedy() {
    let server = Mongod::with_access_control().await;
    for (user, roles) in [
        ("enough", doc! { "role": "readWrite", "db": "app" }),
        ("reader", doc! { "role": "read", "db": "app" }),
        ("elsewhere", doc! { "role": "readWrite", "db": "other" }),
    ] {
        let user = doc! { "createUser": user, "pwd": PLANTED, "roles": [roles] };
        server.as_admin(user).await;
    }
    let of = |credentials: &str| {
        let uri = format!("mongo.uri={}", server.uri(credentials, "app"));
        [vec![uri], stdout_sink()].concat()
    };

    for credentials in
        ["enough:pl4nted-s3cret-not@", "", "reader:pl4nted-s3cret@", "elsewhere:pl4nted-s3cret@"]
    {
        let refused = ended(&of(credentials)).await.with_code(1);

        says(&refused, &["ended with a failure", "mongo.uri"]);
        assert!(refused.stderr.contains("credentials or privileges"), "{credentials}: {refused}");
        assert!(refused.is_free_of(PLANTED), "{refused}");
    }

    let mut postrider = Postrider::start(&of("enough:pl4nted-s3cret@"));
    postrider.until_ready().await;
    let stopped = postrider.stop().await;
    assert!(stopped.is_free_of(PLANTED), "{stopped}");
    says(&stopped, &["mongodb://enough:***@"]);
}

/// What a user needs, each by itself: the collection (empty: the whole database), and the action.
const PRIVILEGES: [(&str, &str); 16] = [
    ("", "listCollections"),
    ("", "createCollection"),
    ("outbox_records", "listIndexes"),
    ("outbox_records", "createIndex"),
    ("outbox_records", "find"),
    ("outbox_records", "update"),
    // With outbox.retention = "0s".
    ("outbox_records", "remove"),
    ("outbox_instances", "find"),
    ("outbox_instances", "insert"),
    ("outbox_instances", "update"),
    ("outbox_instances", "remove"),
    ("outbox_partition_assignments", "find"),
    ("outbox_partition_assignments", "insert"),
    ("outbox_partition_assignments", "update"),
    ("outbox_control", "find"),
    ("nothing", "find"),
];

#[fixture::test]
async fn each_missing_privilege_ends_the_start_and_is_named() {
    let server = Mongod::with_access_control().await;
    let starts = PRIVILEGES.iter().enumerate().map(|(number, missing)| {
        let server = &server;
        async move {
            let name = format!("without{number}");
            let all_but_one = PRIVILEGES.iter().filter(|held| *held != missing);
            let held = all_but_one.map(|(collection, action)| {
                let on = doc! { "db": &name, "collection": *collection };
                doc! { "resource": on, "actions": [*action] }
            });
            let held: Vec<Document> = held.collect();
            server.as_admin(doc! { "createRole": &name, "privileges": held, "roles": [] }).await;
            let user = doc! { "createUser": &name, "pwd": PLANTED, "roles": [&name] };
            server.as_admin(user).await;
            let uri = server.uri(&format!("{name}:{PLANTED}@"), &name);
            let settings = vec![format!("mongo.uri={uri}"), "outbox.retention=0s".to_owned()];
            (missing, name, Postrider::start(&[settings, stdout_sink()].concat()))
        }
    });
    let starts = join_all(starts).await;
    let (name, password) = ADMIN;
    let admin = server.client(&format!("{name}:{password}@")).await;

    for (missing, name, mut postrider) in starts {
        if missing.0 == "nothing" {
            // With all that it needs it starts.
            postrider.until_ready().await;
            postrider.stop().await;
            continue;
        }
        let refused = postrider.until_ended(PROMPT_LIMIT).await.with_code(1);

        says(&refused, &["\"error\":\"MongoDB rejects this instance", "mongo.uri", missing.0]);
        assert!(refused.is_free_of(PLANTED), "{refused}");
        let instances = admin.client().database(&name).collection::<Document>("outbox_instances");
        assert_eq!(instances.count_documents(doc! {}).await.unwrap(), 0, "{missing:?}");
    }
}

#[fixture::test]
async fn a_conflicting_index_ends_the_start_with_the_remedy() {
    let bare = BareDatabase::new("").await;
    bare.create_index(doc! { "key": { "other": 1 }, "name": "lane_idx" }).await;

    let ended = ended(&[mongo_settings(&bare.name), stdout_sink()].concat()).await;

    says(&ended.with_code(1), &["lane_idx", "outbox_records", "dropIndex"]);
    let instances = bare.collections.database().collection::<Document>("outbox_instances");
    assert_eq!(instances.count_documents(doc! {}).await.unwrap(), 0);
}

#[fixture::test]
async fn an_unusable_address_ends_the_start_and_names_the_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (address, remedy) in [
        (taken.as_str(), "stop the process that uses the port"),
        // Reserved for documentation: no host has it.
        ("192.0.2.1:9464", "an address of this host"),
        ("no-such-host.invalid:9464", "set host:port"),
    ] {
        let listen = format!("ops.listen={address}");
        let settings = [mongo_settings("unused"), stdout_sink(), vec![listen]].concat();

        let ended = ended(&settings).await.with_code(1);

        says(&ended, &["ops.listen", address, remedy]);
    }
}
