//! MongoDB itself: reachable, login accepted, of the right kind, with its schema.

use std::path::Path;

use bson::{Document, doc};
use postrider::schema::roles::RELAY;

use crate::check::{Found, PLANTED, check, with};
use crate::support::authority::Authority;
use crate::support::mongod::Mongod;
use crate::support::outbox::{TestOutbox, record};
use crate::support::ports::free_port;
use crate::support::process::call_with;
use crate::support::queue::{host_of, mongo_settings, stdout_settings, stdout_sink};
use crate::support::roles;
use crate::support::schema::BareDatabase;

async fn check_uri(uri: &str) -> Found {
    check(&with(&stdout_sink(), &[&format!("mongo.uri={uri}")])).await
}

#[fixture::test]
async fn a_closed_port_has_the_remedy_to_start_mongodb() {
    let port = free_port();
    let options = "serverSelectionTimeoutMS=500";

    let found = check_uri(&format!("mongodb://u:{PLANTED}@127.0.0.1:{port}/app?{options}")).await;

    let detail = format!("cannot connect to MongoDB at 127.0.0.1:{port}: connection refused");
    found.only("mongodb", &detail, "start MongoDB");
    let names = ["mongodb version", "replica set", "clocks", "schema", "privileges"];
    let skipped: Vec<(&str, &str)> =
        names.into_iter().map(|name| (name, "since MongoDB was not reached")).collect();
    assert_eq!(found.skipped(), skipped);
}

#[fixture::test]
async fn summary_says_what_was_skipped_and_why() {
    let (mongodb, amqp) = (free_port(), free_port());
    let settings = [
        format!("mongo.uri=mongodb://127.0.0.1:{mongodb}/app?serverSelectionTimeoutMS=500"),
        "sinks.r.kind=rabbitmq".to_owned(),
        format!("sinks.r.uri=amqp://127.0.0.1:{amqp}"),
        "ops.listen=127.0.0.1:0".to_owned(),
    ];

    let ended = call_with(&settings, &["check"]).await.with_code(1);
    let offline = call_with(&settings, &["check", "--offline"]).await.with_code(0);

    let summary = "2 of 11 checks failed; 5 skipped, since MongoDB was not reached; \
                   1 skipped, since sink r was not reached";
    assert_eq!(ended.stdout.lines().last().unwrap(), summary, "{ended}");
    let summary = "the check passed; no server was checked (--offline)";
    assert_eq!(offline.stdout.lines().last().unwrap(), summary, "{offline}");
}

#[fixture::test]
async fn a_replica_set_of_another_name_is_reported() {
    let outbox = TestOutbox::new().await;
    let host = host_of(&outbox.uri);
    let options = "replicaSet=other&serverSelectionTimeoutMS=500";

    let found = check_uri(&format!("mongodb://{host}/app?{options}")).await;

    found.only("mongodb", "is a member of the replica set rs0, not of other", "replicaSet=rs0");
}

#[fixture::test]
async fn tls_to_a_server_without_it_is_reported() {
    let outbox = TestOutbox::new().await;
    let host = host_of(&outbox.uri);

    let found =
        check_uri(&format!("mongodb://{host}/app?tls=true&serverSelectionTimeoutMS=1000")).await;

    found.only("mongodb", "", "TLS options");
}

#[fixture::test]
async fn tls_is_verified_against_the_authority_in_the_uri() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (authority, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let [server, client] = ["127.0.0.1", "relay"].map(|name| {
        let certified = authority.certify(&[name]);
        file(name, &(certified.certificate + &certified.key))
    });
    let [ours, strangers] = [("ours.pem", &authority), ("stranger.pem", &stranger)]
        .map(|(name, it)| file(name, &it.pem()));
    let mongod = Mongod::with_tls(&server, &ours).await;
    let plain = format!("{}&serverSelectionTimeoutMS=2000", mongod.uri("", "app"));
    let uri = |options: String| format!("{plain}&tls=true{options}");
    let with_key = format!("&tlsCertificateKeyFile={}", client.display());

    let known = uri(format!("&tlsCAFile={}{with_key}", ours.display()));
    let known = check_uri(&known).await;
    let wary = check_uri(&uri(format!("&tlsCAFile={}{with_key}", strangers.display()))).await;
    let public_ones = check_uri(&uri(with_key)).await;
    let foreign = check_uri(&uri(format!("&tlsCAFile={}", ours.display()))).await;
    let by_keys = async |authority: &Path| {
        let files = [("ca_file", authority), ("cert_file", &client), ("key_file", &client)];
        let keys = files.map(|(key, file)| format!("mongo.tls.{key}={}", file.display()));
        let settings = [[format!("mongo.uri={plain}")].as_slice(), &keys].concat();
        check(&[stdout_sink(), settings].concat()).await
    };
    let known_by_keys = by_keys(&ours).await;
    let wary_by_keys = by_keys(&strangers).await;

    for known in [known, known_by_keys] {
        assert_eq!(known.bad(), [""; 0], "{:#?}", known.findings);
    }
    for refused in [wary, public_ones, foreign, wary_by_keys] {
        refused.only("mongodb", "", "TLS options");
    }
}

#[fixture::test]
async fn username_and_password_file_log_in_as_a_user_in_the_uri_does() {
    let outbox = TestOutbox::restricted().await;
    let dir = tempfile::tempdir().unwrap();
    let (right, wrong) = (dir.path().join("right"), dir.path().join("wrong"));
    // As some editors on Windows write it.
    std::fs::write(&right, format!("\u{feff}{}\r\n", roles::PASSWORD)).unwrap();
    std::fs::write(&wrong, PLANTED).unwrap();
    let login = roles::uri_of(&RELAY, &outbox.database);
    let (_, host_and_options) = login.split_once('@').unwrap();
    let (host, options) = host_and_options.split_once('?').unwrap();
    let options: Vec<&str> = options.split('&').filter(|it| !it.contains("authSource")).collect();
    let by_database = format!("mongodb://{host}?{}", options.join("&"));
    let by_option = format!("mongodb://{host_and_options}");
    let by_keys = async |uri: &str, password_file: &Path| {
        let keys = [
            format!("mongo.uri={uri}"),
            format!("mongo.username={}", RELAY.name),
            format!("mongo.password_file={}", password_file.display()),
        ];
        check(&[stdout_sink(), keys.to_vec()].concat()).await
    };

    let by_mechanism = format!("{by_option}&authMechanism=SCRAM-SHA-256");
    for uri in [by_database, by_option, by_mechanism] {
        let found = by_keys(&uri, &right).await;
        assert!(!found.bad().contains(&"mongodb"), "{uri}: {:#?}", found.findings);
        by_keys(&uri, &wrong).await.only("mongodb", "", "correct the user, password or authSource");
    }
}

#[fixture::test]
async fn a_refused_login_differs_from_a_missing_one() {
    let outbox = TestOutbox::restricted().await;
    let wrong = roles::uri(RELAY.name, PLANTED, &outbox.database);
    let stranger = format!("mongodb://{}/app", host_of(&outbox.uri));

    let (wrong, stranger) = (check_uri(&wrong).await, check_uri(&stranger).await);

    wrong.only(
        "mongodb",
        "the user is in another database (authSource)",
        "correct the user, password or authSource",
    );
    stranger.only("mongodb", "requires authentication", "set a user in mongo.uri");
    for found in [wrong, stranger] {
        let detail = found.of("mongodb")["detail"].as_str().unwrap();
        assert!(!detail.contains("server response"), "not in clear: {detail}");
    }
}

#[fixture::test]
async fn a_standalone_server_has_the_remedy_of_a_replica_set() {
    let server = Mongod::standalone().await;
    let outbox = TestOutbox::at(&server.uri("", "")).await;

    let uri = server.uri("", &outbox.database);
    let found = check_uri(&uri).await;
    let mark = if uri.contains('?') { '&' } else { '?' };
    let as_member = format!("{uri}{mark}replicaSet=rs9&serverSelectionTimeoutMS=500");
    let as_member = check_uri(&as_member).await;

    let host = host_of(&uri);
    let detail = format!("{host} answers, but as a standalone server, not as a member of rs9");
    as_member.only("mongodb", &detail, "remove replicaSet from mongo.uri");
    found.only("replica set", "standalone", "rs.initiate()");
    found.is_good("mongodb", "a standalone server");
    assert!(!found.names().contains(&"clocks"), "{:?}", found.names());
}

#[fixture::test]
async fn a_missing_schema_is_an_error_without_auto_init() {
    let bare = BareDatabase::new("").await;
    let settings = [mongo_settings(&bare.name), stdout_sink()].concat();

    let found = check(&settings).await;
    let strict = check(&with(&settings, &["outbox.auto_init_schema=false"])).await;

    assert_eq!((found.code, found.bad()), (Some(0), vec![]), "{:#?}", found.findings);
    found.is_good("schema", "`run` creates: collection outbox_records, collection");
    strict.only("schema", "outbox_records", "run `postrider schema apply`");
    strict.is_bad("schema", "dead_idx", "outbox.auto_init_schema = true");
    assert_eq!(bare.collection_names().await, [""; 0], "a check makes nothing");
}

#[fixture::test]
async fn a_conflicting_index_is_reported_with_its_difference() {
    let bare = BareDatabase::new("").await;
    bare.create_index(doc! { "key": { "other": 1 }, "name": "lane_idx" }).await;

    let found = check(&[mongo_settings(&bare.name), stdout_sink()].concat()).await;

    found.only("schema", "index lane_idx of outbox_records is", "reports the conflict");
}

#[fixture::test]
async fn index_that_deletes_undelivered_documents_is_a_failure() {
    let outbox = TestOutbox::new().await;
    let database = outbox.client.database(&outbox.database);
    let ttl = async |collection: &str, field: &str, filter: Option<Document>| {
        let mut index = doc! { "name": format!("by_{field}"), "key": { field: 1 }, "expireAfterSeconds": 3_600 };
        filter.map(|filter| index.insert("partialFilterExpression", filter));
        database
            .run_command(doc! { "createIndexes": collection, "indexes": [index] })
            .await
            .unwrap();
    };
    let settings = with(&stdout_settings(&outbox), &["api.enabled=true", "api.listen=127.0.0.1:0"]);
    let verify =
        async |code| call_with(&settings, &["schema", "verify"]).await.with_code(code).stdout;

    ttl("outbox_records", "deadAt", Some(doc! { "status": "done" })).await;
    let harmless = check(&settings).await;
    assert_eq!((harmless.code, harmless.bad()), (Some(0), vec![]), "{:#?}", harmless.findings);
    assert_eq!(verify(0).await, "");
    for (collection, field) in [
        ("outbox_records", "createdAt"),
        ("outbox_instances", "lastHeartbeat"),
        ("order_event_stream", "createTime"),
        ("order_snapshot", "snapshotTime"),
        ("postrider_subscriptions", "createdAt"),
    ] {
        ttl(collection, field, None).await;
    }
    let unique = doc! {
        "name": "one_pending", "key": { "key": 1 }, "unique": true,
        "partialFilterExpression": { "status": "pending" },
    };
    let unique = doc! { "createIndexes": "outbox_records", "indexes": [unique] };
    database.run_command(unique).await.unwrap();
    let found = check(&settings).await;
    let lines = verify(1).await;

    let named = [
        "index by_createdAt of outbox_records deletes documents 3600 s after createdAt",
        "index by_lastHeartbeat of outbox_instances deletes",
        "index by_createTime of order_event_stream deletes",
        "index by_snapshotTime of order_snapshot deletes",
        "index by_createdAt of postrider_subscriptions deletes",
        "index one_pending of outbox_records is unique, and depends on status",
    ];
    for named in named {
        found.only("schema", named, "drop it with db.getCollection(");
        assert!(lines.lines().any(|line| line.starts_with(named)), "{named}: {lines}");
    }
    assert!(!lines.contains("by_deadAt"), "{lines}");
}

#[fixture::test]
async fn validator_that_refuses_the_relays_changes_is_a_failure() {
    let outbox = TestOutbox::new().await;
    let validate = async |schema: Document| {
        let command = doc! { "collMod": "outbox_records", "validator": { "$jsonSchema": schema } };
        outbox.client.database(&outbox.database).run_command(command).await.unwrap();
        check(&stdout_settings(&outbox)).await
    };

    let own_rule = validate(doc! { "required": ["payload"] }).await;
    let no_reason = doc! { "properties": { "deadReason": { "not": {} } } };
    let without_records = validate(no_reason.clone()).await;
    outbox.insert([record("a", "k")]).await;
    let with_records = validate(no_reason).await;

    assert_eq!(own_rule.bad(), [""; 0], "{:#?}", own_rule.findings);
    for found in [without_records, with_records] {
        let detail = "outbox_records has a validator that refuses a record when it becomes dead";
        found.only("schema", detail, "change the validator");
    }
}

#[fixture::test]
async fn indexes_that_may_not_be_listed_are_a_note() {
    let outbox = TestOutbox::restricted().await;
    let uri = format!("mongo.uri={}", roles::uri_of(&RELAY, &outbox.database));

    let found = check(&with(&stdout_sink(), &[&uri, "outbox.auto_init_schema=false"])).await;

    found.is_good("schema", "no privilege to list the indexes of outbox_instances");
}

#[fixture::test]
async fn name_of_a_database_that_differs_in_case_is_a_failure() {
    let outbox = TestOutbox::new().await;
    let other = outbox.database.to_uppercase();
    let settings = [mongo_settings(&other), stdout_sink()].concat();

    let found = check(&settings).await;
    let run = call_with(&with(&settings, &["ops.listen=127.0.0.1:0"]), &["run"]).await;

    let detail = format!("MongoDB has a database {:?}", outbox.database);
    assert_eq!((found.code, found.bad()), (Some(1), vec!["mongodb"]), "{:#?}", found.findings);
    found.is_bad("mongodb", &detail, "the name of the existing database");
    assert!(run.with_code(1).stderr.contains(&outbox.database));
}

#[fixture::test]
async fn options_of_other_drivers_do_not_prevent_a_connection() {
    let outbox = TestOutbox::new().await;
    let host = host_of(&outbox.uri);
    let options = "compressors=zlib,snappy,zstd&socketTimeoutMS=30000&replicaSet=rs0";

    let found = check_uri(&format!("mongodb://{host}/{}?{options}", outbox.database)).await;

    assert_eq!((found.code, found.bad()), (Some(0), vec![]), "{:#?}", found.findings);
    found.is_good("configuration", "mongo.uri: some options have no effect (compressors: ");
}

#[fixture::test]
async fn a_changed_retention_is_adjusted_at_start() {
    let outbox = TestOutbox::new().await;
    let settings = with(&stdout_settings(&outbox), &["outbox.retention=8d"]);

    let found = check(&settings).await;
    let strict = check(&with(&settings, &["outbox.auto_init_schema=false"])).await;

    found.is_good("schema", "`run` creates: index done_ttl_idx");
    strict.only("schema", "done_ttl_idx", "schema apply");
}

#[fixture::test]
async fn an_index_without_an_order_is_reported() {
    let outbox = TestOutbox::new().await;
    let mut record = record("of two partitions", "k");
    record.insert("partition", vec![1, 2]);
    outbox.insert([record]).await;
    outbox.records().delete_many(doc! {}).await.unwrap();

    let found = check(&stdout_settings(&outbox)).await;

    found.only("schema", "lane_idx is multikey", "drop lane_idx");
}
