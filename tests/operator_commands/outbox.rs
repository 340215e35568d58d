//! `postrider outbox` and `postrider outbox list|show`, as tables and as JSON.

use bson::oid::ObjectId;
use bson::{Bson, DateTime, doc};
use postrider::outbox::collections::names;
use serde_json::{Value, json};

use crate::support::command_line::{PLANTED, says, valid, with};
use crate::support::outbox::{TestOutbox, record};
use crate::support::ports::free_port;
use crate::support::process::call_with;
use crate::support::queue::{mongo_settings, stdout_settings, stdout_sink};
use crate::support::schema::BareDatabase;

async fn ids(outbox: &TestOutbox, arguments: &[&str]) -> Vec<String> {
    let arguments = [&["outbox", "list", "--output", "json"], arguments].concat();
    let listed = call_with(&stdout_settings(outbox), &arguments).await.with_code(0).json();
    let listed = listed.as_array().expect("a list is an array");
    listed.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
}

#[fixture::test]
async fn statistics_count_every_status() {
    let outbox = TestOutbox::new().await;
    let empty =
        call_with(&stdout_settings(&outbox), &["outbox", "stats", "--output", "json"]).await;
    let of = |id: &str, status: &str| {
        let mut record = record(id, "k");
        record.insert("status", status);
        record
    };
    outbox.insert(["a", "b", "c", "d", "e"].map(|id| of(id, "done"))).await;
    outbox.insert([of("f", "dead"), of("g", "dead"), of("h", "scheduled")]).await;
    outbox.insert([of("i", "Pending"), of("j", "pending"), of("k", "pending")]).await;

    let json = call_with(&stdout_settings(&outbox), &["outbox", "stats", "--output", "json"]).await;
    let table = call_with(&stdout_settings(&outbox), &["outbox", "stats"]).await.with_code(0);

    let nothing = json!({
        "pending": 0, "scheduled": 0, "done": 0, "dead": 0, "invalid": 0, "oldestPendingSeconds": null,
        "partitionsSampled": 0, "partitionsMismatched": 0,
    });
    assert_eq!(empty.with_code(0).json(), nothing);
    let counts = json.with_code(0).json();
    let age = counts["oldestPendingSeconds"].as_u64().expect("one is pending");
    assert!(age < 60, "{age}");
    for (name, count) in
        [("pending", 2), ("scheduled", 1), ("done", 5), ("dead", 2), ("invalid", 1)]
    {
        assert_eq!(counts[name], count, "{name}: {counts}");
    }
    let row = |name: &str| {
        let line = table.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((row("done"), row("dead"), row("invalid")), ("5".into(), "2".into(), "1".into()));
}

#[fixture::test]
async fn statistics_report_partitions_that_do_not_match_their_keys() {
    let outbox = TestOutbox::new().await;
    let of = |n: i32, partition: i32, status: &str| {
        let mut wrong = record(&format!("{n}"), &format!("k{n}"));
        wrong.extend(doc! { "partition": partition, "status": status, "doneAt": DateTime::now() });
        wrong
    };
    outbox.insert((0..256).map(|n| of(n, (n * 7) % 256, "pending"))).await;
    outbox.insert((256..300).map(|n| of(n, n % 256, "done"))).await;
    let mut keyless = of(300, 1, "pending");
    keyless.remove("key");
    outbox.insert([keyless, record("right", "right")]).await;

    let stats =
        call_with(&stdout_settings(&outbox), &["outbox", "stats", "--output", "json"]).await;

    let stats = stats.with_code(0);
    let wrong = stats.json()["partitionsMismatched"].as_u64().unwrap();
    assert!(wrong > 200, "{stats}");
    says(&stats, &["not the hash of their key", "order across instances"]);
    outbox.records().delete_many(doc! { "_id": { "$ne": "right" } }).await.unwrap();
    let stats =
        call_with(&stdout_settings(&outbox), &["outbox", "stats", "--output", "json"]).await;
    assert!(stats.stderr.is_empty() && stats.json()["partitionsMismatched"] == 0, "{stats}");
}

#[fixture::test]
async fn a_list_is_chosen_by_status_key_type_place_and_length() {
    let outbox = TestOutbox::new().await;
    for (id, key, kind, status) in [
        ("a", "k1", "T1", "pending"),
        ("b", "k1", "T2", "dead"),
        ("c", "k2", "T1", "dead"),
        ("d", "k2", "T2", "done"),
    ] {
        let mut record = record(id, key);
        record.extend(doc! { "type": kind, "status": status });
        outbox.insert([record]).await;
    }

    assert_eq!(ids(&outbox, &[]).await, ["a", "b", "c", "d"]);
    assert_eq!(ids(&outbox, &["--status", "dead"]).await, ["b", "c"]);
    assert_eq!(ids(&outbox, &["--key", "k1"]).await, ["a", "b"]);
    assert_eq!(ids(&outbox, &["--type", "T1"]).await, ["a", "c"]);
    assert_eq!(ids(&outbox, &["--type", "T2", "--status", "dead"]).await, ["b"]);
    assert_eq!(ids(&outbox, &["--limit", "2"]).await, ["a", "b"]);
    assert_eq!(ids(&outbox, &["--after", "b", "--limit", "1"]).await, ["c"]);
    assert_eq!(ids(&outbox, &["--after", "d"]).await, [""; 0]);
    assert_eq!(ids(&outbox, &["--status", "scheduled"]).await, [""; 0]);
    let table = call_with(&stdout_settings(&outbox), &["outbox", "list"]).await.with_code(0);
    assert_eq!(table.stdout.lines().count(), 5, "{table}");
    assert!(table.stdout.starts_with("id "), "{table}");
}

#[fixture::test]
async fn a_list_continues_after_a_record_that_is_gone() {
    let outbox = TestOutbox::new().await;
    outbox.insert(["a", "b", "c"].map(|id| record(id, "k"))).await;
    outbox.records().delete_one(doc! { "_id": "b" }).await.unwrap();

    assert_eq!(ids(&outbox, &["--after", "str:b"]).await, ["c"]);
}

#[fixture::test]
async fn a_list_continues_with_ids_of_the_next_kind() {
    let outbox = TestOutbox::new().await;
    let (oid, uuid) = (ObjectId::new(), bson::Uuid::new());
    let all: [Bson; 5] = [7.into(), "a".into(), "b".into(), uuid.into(), oid.into()];
    for id in all {
        let mut record = record("", "k");
        record.insert("_id", id);
        outbox.insert([record]).await;
    }

    let mut pages: Vec<String> = Vec::new();
    while pages.len() < 6 {
        let mut arguments = vec!["outbox", "list", "--limit", "1", "--output", "json"];
        if let Some(last) = pages.last() {
            arguments.extend(["--after", last]);
        }
        let page = call_with(&stdout_settings(&outbox), &arguments).await.with_code(0).json();
        match page.get(0).map(|record| &record["id"]) {
            Some(Value::String(id)) => pages.push(id.clone()),
            Some(number) => pages.push(number.to_string()),
            None => break,
        }
    }

    let wanted = ["7".to_owned(), "a".into(), "b".into(), uuid.to_string(), oid.to_hex()];
    assert_eq!(pages, wanted);
}

#[fixture::test]
async fn a_record_is_shown_in_the_documented_forms() {
    let outbox = TestOutbox::new().await;
    let id = bson::Uuid::new();
    let mut record = record("", "k");
    record.extend(doc! {
        "_id": id,
        "createdAt": DateTime::from_millis(1_700_000_000_123),
        "payload": { "n": 1, "at": DateTime::from_millis(0), "of": ObjectId::from_bytes([1; 12]) },
    });
    outbox.insert([record]).await;

    let arguments = ["outbox", "show", &id.to_string(), "--output", "json"];
    let shown = call_with(&stdout_settings(&outbox), &arguments).await.with_code(0).json();
    let table = call_with(&stdout_settings(&outbox), &["outbox", "show", &id.to_string()]).await;
    let arguments = ["outbox", "list", "--output", "json"];
    let listed = call_with(&stdout_settings(&outbox), &arguments).await.with_code(0).json();

    assert_eq!(shown["id"], id.to_string());
    assert!(shown.get("_id").is_none(), "{shown}");
    assert_eq!(shown["createdAt"], "2023-11-14T22:13:20.123Z");
    let seq = outbox.record(id).await.get_timestamp("seq").unwrap();
    assert_eq!(shown["seq"], json!({ "t": seq.time, "i": seq.increment }));
    let payload = json!({ "n": 1, "at": "1970-01-01T00:00:00Z", "of": "010101010101010101010101" });
    assert_eq!(shown["payload"], payload);
    assert!(listed[0].get("payload").is_none(), "a list is without payloads: {listed}");
    let table = table.with_code(0);
    assert!(table.stdout.contains(&format!("id         {id}")), "{table}");
    assert!(table.stdout.contains("2023-11-14T22:13:20.123Z"), "{table}");
}

#[fixture::test]
async fn a_table_holds_wide_cells_and_no_control_characters() {
    let outbox = TestOutbox::new().await;
    let wide = "x".repeat(70_000);
    let mut wide_payload = record("payload", "k");
    wide_payload.insert("payload", format!("\u{1b}[2J\u{9b}\n{wide}"));
    let mut escapes = record("\u{1b}[31mid", "k\r\u{202e}");
    escapes.insert("type", "\u{7f}");
    outbox.insert([wide_payload, record("key", &wide), escapes]).await;

    let shown = call_with(&stdout_settings(&outbox), &["outbox", "show", "payload"]).await;
    let listed = call_with(&stdout_settings(&outbox), &["outbox", "list"]).await.with_code(0);
    let arguments = ["outbox", "show", "key", "--output", "json"];
    let whole = call_with(&stdout_settings(&outbox), &arguments).await.with_code(0).json();

    let shown = shown.with_code(0).stdout;
    assert!(shown.contains(&format!("\\u{{1b}}[2J\\u{{9b}}\\n{wide}")), "{shown:.2000}");
    for page in [shown, listed.stdout.clone()] {
        let mut obeyed = page.chars().filter(|one| one.is_control() && *one != '\n');
        assert_eq!(obeyed.next(), None, "{page:.2000}");
    }
    assert!(listed.stdout.lines().all(|line| line.chars().count() < 400), "{listed}");
    assert!(listed.stdout.contains("xxx…  "), "{listed}");
    assert!(whole["key"].as_str() == Some(&wide), "one record is whole");
}

#[fixture::test]
async fn an_id_is_tried_as_each_kind_and_a_prefix_forces_one() {
    let outbox = TestOutbox::new().await;
    let (uuid, oid) = (bson::Uuid::new(), ObjectId::new());
    let texts = [uuid.to_string(), oid.to_hex(), "42".to_owned()];
    let real: [Bson; 3] = [uuid.into(), oid.into(), Bson::Int32(42)];
    for (text, id) in texts.iter().zip(real) {
        for (id, kind) in [(id, "real"), (text.as_str().into(), "text")] {
            let mut record = record("", "k");
            record.extend(doc! { "_id": id, "type": kind });
            outbox.insert([record]).await;
        }
    }
    let kind_of = async |id: &str| {
        let arguments = ["outbox", "show", id, "--output", "json"];
        let shown = call_with(&stdout_settings(&outbox), &arguments).await.with_code(0).json();
        shown["type"].as_str().unwrap().to_owned()
    };

    for (text, prefix) in texts.iter().zip(["uuid", "oid", "int"]) {
        assert_eq!(kind_of(text).await, "real", "{text}");
        assert_eq!(kind_of(&format!("{prefix}:{text}")).await, "real", "{prefix}:{text}");
        assert_eq!(kind_of(&format!("str:{text}")).await, "text", "str:{text}");
    }
}

#[fixture::test]
async fn a_missing_id_ends_with_1_and_names_it() {
    let outbox = TestOutbox::new().await;

    for id in ["missing", "int:7", "uuid:00112233-4455-6677-8899-aabbccddeeff"] {
        let ended =
            call_with(&stdout_settings(&outbox), &["outbox", "show", id]).await.with_code(1);

        says(&ended, &[id]);
    }
}

#[fixture::test]
async fn an_id_that_does_not_fit_its_prefix_is_wrong_usage() {
    for id in ["uuid:nine", "oid:1", "int:x"] {
        let ended = call_with(&valid(), &["outbox", "show", id]).await.with_code(2);

        says(&ended, &[id]);
    }
}

#[fixture::test]
async fn a_database_that_does_not_answer_ends_with_1() {
    let uri = format!(
        "mongo.uri=mongodb://u:{PLANTED}@127.0.0.1:{}/app?serverSelectionTimeoutMS=300",
        free_port()
    );

    for arguments in [&["outbox", "stats"][..], &["outbox", "list"], &["schema", "verify"]] {
        let ended = call_with(&with(stdout_sink(), &[&uri]), arguments).await.with_code(1);

        assert!(!ended.stderr.is_empty() && ended.is_free_of(PLANTED), "{ended}");
    }
}

#[fixture::test]
async fn read_commands_need_no_sink() {
    let outbox = TestOutbox::new().await;

    let settings = mongo_settings(&outbox.database);
    for arguments in [&["outbox", "stats"][..], &["schema", "verify"], &["schema", "apply"]] {
        call_with(&settings, arguments).await.with_code(0);
    }
}

#[fixture::test]
async fn collection_names_have_the_configured_prefix() {
    let bare = BareDatabase::new("shop_").await;
    let settings = [mongo_settings(&bare.name), stdout_sink()].concat();
    let settings = with(settings, &["outbox.collection_prefix=shop_"]);
    call_with(&settings, &["schema", "apply"]).await.with_code(0);
    bare.records().insert_one(record("a", "k")).await.unwrap();

    let stats = call_with(&settings, &["outbox", "stats", "--output", "json"]).await;

    assert_eq!(bare.collections.name(names::RECORDS), "shop_outbox_records");
    assert_eq!(stats.with_code(0).json()["pending"], 1);
}
