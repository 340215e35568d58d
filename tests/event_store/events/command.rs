//! `postrider append`.

use std::io::Write;

use bson::doc;
use serde_json::json;
use tempfile::NamedTempFile;

use crate::events::util::TestStore;
use crate::support::clock::faketime;
use crate::support::process::{Ended, call_with, command, finish};
use crate::support::queue::mongo_settings;
use crate::support::schema::BareDatabase;

fn body(value: &serde_json::Value) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".json").unwrap();
    file.write_all(value.to_string().as_bytes()).unwrap();
    file
}

fn one_event() -> serde_json::Value {
    json!({ "requestId": "r", "events": [{ "name": "E", "body": { "total": 5 } }] })
}

async fn appending(database: &str, file: &NamedTempFile, more: &[&str]) -> Ended {
    let path = file.path().to_str().unwrap();
    let arguments = [&["append", "order", "1", path], more].concat();
    call_with(&mongo_settings(database), &arguments).await
}

#[fixture::test]
async fn command_appends_a_file_with_the_answer_of_http() {
    // Only the outbox exists yet.
    let bare = BareDatabase::new("").await;
    call_with(&mongo_settings(&bare.name), &["schema", "apply"]).await.with_code(0);
    let file = body(&one_event());

    let first = appending(&bare.name, &file, &[]).await.with_code(0).json();
    let again = appending(&bare.name, &file, &[]).await.with_code(0).json();
    let second = appending(&bare.name, &file, &["--request-id", "s", "--expected-version", "1"])
        .await
        .with_code(0)
        .json();
    let stale = ["--request-id", "t", "--expected-version", "1"];
    let stale = appending(&bare.name, &file, &stale).await.with_code(1);
    let exists = ["--request-id", "t", "--expected-version", "none"];
    let exists = appending(&bare.name, &file, &exists).await.with_code(1);

    assert_eq!((&first["aggregateId"], &first["version"]), (&json!("1"), &json!(1)));
    assert_eq!(first["records"].as_array().unwrap().len(), 1);
    assert_eq!((&again["replayed"], &again["records"]), (&json!(true), &first["records"]));
    assert_eq!(second["version"], 2);
    assert!(stale.stderr.contains("aggregate is at version 2"), "{stale}");
    assert!(exists.stderr.contains("already exists, at version 2"), "{exists}");
}

#[fixture::test]
async fn command_reports_all_flaws_of_a_body_by_field() {
    let wrong = json!({ "event": [], "events": [{ "name": "E", "body": 5 }] });
    // MongoDB is not needed to report these.
    let nowhere = ["mongo.uri=mongodb://127.0.0.1:1/test_nobody_writes_here".to_owned()];
    let appending = async |file: &NamedTempFile| {
        let path = file.path().to_str().unwrap().to_owned();
        call_with(&nowhere, &["append", "order", "1", &path]).await.with_code(2)
    };

    let fields = appending(&body(&wrong)).await;
    let list = appending(&body(&json!([]))).await;
    let empty = json!({ "requestId": "r", "events": [] });
    let empty = appending(&body(&empty)).await;
    let name = call_with(&nowhere, &["append", "1x", "1"]).await.with_code(2);

    for field in ["requestId: ", "event: ", "events[0].body: "] {
        assert!(fields.stderr.contains(field), "{field}: {fields}");
    }
    assert!(list.stderr.contains("object"), "{list}");
    assert!(empty.stderr.contains("events: must contain at least one event"), "{empty}");
    assert!(name.stderr.contains("NAME: must start with a letter"), "{name}");
}

/// All written times are the server's.
#[fixture::test]
async fn times_of_appends_are_the_servers() {
    let test = TestStore::new().await;
    let file = body(&one_event());
    let settings = mongo_settings(&test.outbox.database);
    let settings = settings.iter().flat_map(|setting| ["--set", setting.as_str()]);
    let path = file.path().to_str().unwrap();
    let arguments: Vec<&str> = ["append", "order", "1", path].into_iter().chain(settings).collect();
    let mut command = command(&arguments);
    command.env("LD_PRELOAD", faketime()).env("FAKETIME", "+1d");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");

    let appended = finish(command).await.with_code(0).json();

    let hello = test.outbox.admin.database().run_command(doc! { "hello": 1 }).await.unwrap();
    let now = hello.get_datetime("localTime").unwrap().timestamp_millis();
    let created = appended["createTime"].as_i64().unwrap();
    assert!((now - 60_000..=now).contains(&created), "{created} is not about {now}");
    let record = test.records("1").await.remove(0);
    assert_eq!(record.get_datetime("createdAt").unwrap().timestamp_millis(), created);
}
