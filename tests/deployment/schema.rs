//! The schema on a real MongoDB, created by Postrider and by mongosh.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::outbox::eventually;
use crate::support::schema::BareDatabase;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp, doc};
use futures_util::future::join_all;
use postrider::schema::Validator;
use postrider::schema::{SchemaError, SchemaOptions, apply, script, verify};

const INDEXES: [&str; 6] =
    ["lane_idx", "blocks_idx", "scheduled_idx", "done_ttl_idx", "dedup_idx", "dead_idx"];

fn defaults() -> SchemaOptions {
    SchemaOptions::default()
}

fn with_retention(seconds: u64) -> SchemaOptions {
    SchemaOptions { retention: Duration::from_secs(seconds), ..defaults() }
}

fn with_validator(validator: Validator) -> SchemaOptions {
    SchemaOptions { validator, ..defaults() }
}

/// The smallest valid record.
fn smallest() -> Document {
    doc! {
        "key": "k",
        "type": "T",
        "payload": {},
        "status": "pending",
        "seq": Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
    }
}

/// The smallest record with one field added or changed.
fn smallest_with(field: &str, value: impl Into<Bson>) -> Document {
    let mut record = smallest();
    record.insert(field, value);
    record
}

fn code(error: &mongodb::error::Error) -> Option<i32> {
    use mongodb::error::{ErrorKind, WriteFailure};
    match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        _ => None,
    }
}

#[fixture::test]
async fn applying_twice_changes_nothing_and_leaves_no_difference() {
    let bare = BareDatabase::restricted("").await;

    let first = apply(&bare.collections, &defaults()).await.unwrap();
    let layout = bare.layout().await;
    let second = apply(&bare.collections, &defaults()).await.unwrap();

    assert_eq!(first.collections.len(), 4);
    assert_eq!(first.indexes, INDEXES);
    assert_eq!(second, Default::default());
    assert_eq!(bare.layout().await, layout);
    assert_eq!(layout.indexes.len(), 7, "with _id_: {layout:?}");
    assert_eq!(verify(&bare.collections, &defaults()).await.unwrap(), []);
}

#[fixture::test]
async fn ten_instances_that_apply_at_once_all_succeed() {
    for _ in 0..5 {
        let bare = BareDatabase::restricted("").await;

        let applied = join_all((0..10_u64).map(|instance| {
            let collections = bare.collections.clone();
            tokio::spawn(async move { apply(&collections, &with_retention(instance % 2)).await })
        }));
        for applied in applied.await {
            applied.unwrap().unwrap();
        }

        let differences = verify(&bare.collections, &with_retention(0)).await.unwrap();
        assert!(differences.len() <= 1, "only the retention may be the other one: {differences:?}");
    }
}

#[fixture::test]
async fn the_script_creates_the_same_schema_as_postrider() {
    for (prefix, retention, validator, environment) in [
        ("", 7 * 86_400, Validator::Error, vec![]),
        (
            "my.app-1_",
            5_400,
            Validator::Warn,
            vec![
                ("OUTBOX_PREFIX", "my.app-1_"),
                ("OUTBOX_RETENTION", "1h30m"),
                ("OUTBOX_VALIDATOR", "warn"),
            ],
        ),
        ("", 0, Validator::Off, vec![("OUTBOX_RETENTION", "0s"), ("OUTBOX_VALIDATOR", "off")]),
    ] {
        let by_script = BareDatabase::new(prefix).await;
        let by_postrider = BareDatabase::new(prefix).await;
        let options = SchemaOptions { validator, ..with_retention(retention) };

        let printed = by_script.mongosh_ok(&environment).await;
        apply(&by_postrider.collections, &options).await.unwrap();

        assert_eq!(by_script.layout().await, by_postrider.layout().await);
        assert_eq!(apply(&by_script.collections, &options).await.unwrap(), Default::default());
        assert!(printed.contains(&by_script.name), "{printed}");
        let records = format!("{prefix}outbox_records");
        assert!(printed.contains(&format!("created collection {records}\n")), "{printed}");
        for index in INDEXES {
            assert!(printed.contains(index), "{printed}");
        }
    }
}

#[fixture::test]
async fn the_script_reads_durations_as_the_configuration_does() {
    let bare = BareDatabase::new("").await;
    for text in ["500ms", "1.5m 20s", "0", "1w", "1month 2days", "100years", "1001ms", "3 hours"] {
        bare.mongosh_ok(&[("OUTBOX_RETENTION", text)]).await;

        let retention = humantime::parse_duration(text).unwrap();
        let options = SchemaOptions { retention, ..defaults() };
        assert_eq!(bare.expiry().await, i64::from(options.expire_after_seconds()), "{text}");
    }
}

#[fixture::test]
async fn the_script_refuses_a_wrong_environment_first() {
    let bare = BareDatabase::new("").await;
    for (name, value) in [
        ("OUTBOX_PREFIX", "a$b"),
        ("OUTBOX_PREFIX", "a b"),
        ("OUTBOX_RETENTION", "7"),
        ("OUTBOX_RETENTION", "soon"),
        ("OUTBOX_RETENTION", "7 fortnights"),
        ("OUTBOX_RETENTION", "-7d"),
        ("OUTBOX_VALIDATOR", "maybe"),
    ] {
        let complaint = bare.mongosh_err(&[(name, value)]).await;

        assert!(complaint.contains(&format!("{name} = \"{value}\": invalid")), "{complaint}");
        assert!(bare.collection_names().await.is_empty(), "{name}={value}");
    }
}

#[fixture::test]
async fn a_changed_retention_is_adjusted_in_place_by_either() {
    let bare = BareDatabase::restricted("").await;
    apply(&bare.collections, &defaults()).await.unwrap();
    let done =
        doc! { "_id": 1, "type": "T", "payload": 1, "status": "done", "doneAt": DateTime::now() };
    bare.records().insert_one(done).await.unwrap();

    let by_postrider = apply(&bare.collections, &with_retention(3_600)).await.unwrap();
    let after_postrider = bare.expiry().await;
    let printed = bare.mongosh_ok(&[("OUTBOX_RETENTION", "2h")]).await;
    let after_script = bare.expiry().await;
    let back = apply(&bare.collections, &with_retention(3_600)).await.unwrap();

    assert_eq!(by_postrider.expire_after_seconds, Some(3_600));
    assert!(by_postrider.indexes.is_empty());
    assert_eq!((after_postrider, after_script), (3_600, 7_200));
    assert!(printed.contains("adjusted index done_ttl_idx"), "{printed}");
    assert_eq!(back.expire_after_seconds, Some(3_600));
    assert_eq!(bare.records().count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(verify(&bare.collections, &with_retention(3_600)).await.unwrap(), []);
}

#[fixture::test(long)]
async fn a_conflicting_index_is_named_in_an_error_and_stays() {
    let pending = doc! { "status": "pending" };
    for (mine, named) in [
        (doc! { "name": "lane_idx", "key": { "partition": 1, "seq": 1 } }, "lane_idx"),
        (
            doc! {
                "name": "lane_idx",
                "key": { "partition": 1, "key": 1, "seq": 1 },
                "partialFilterExpression": &pending,
                "hidden": true,
            },
            "lane_idx",
        ),
        (
            doc! {
                "name": "mine",
                "key": { "partition": 1, "key": 1, "seq": 1 },
                "partialFilterExpression": &pending,
            },
            "lane_idx",
        ),
        (
            doc! {
                "name": "mine",
                "key": { "doneAt": 1 },
                "partialFilterExpression": { "status": "done" },
                "expireAfterSeconds": 60,
            },
            "done_ttl_idx",
        ),
        (doc! { "name": "dedup_idx", "key": { "dedupKey": 1 }, "unique": true }, "dedup_idx"),
    ] {
        let bare = BareDatabase::new("app_").await;
        let by = mine.get_str("name").unwrap().to_owned();
        bare.create_index(mine.clone()).await;
        let before = bare.indexes().await;

        let error = apply(&bare.collections, &defaults()).await.unwrap_err();
        let complaint = bare.mongosh_err(&[("OUTBOX_PREFIX", "app_")]).await;
        let differences = verify(&bare.collections, &defaults()).await.unwrap();

        let SchemaError::Conflict { index, collection, .. } = &error else { panic!("{error:?}") };
        assert_eq!((index.as_str(), collection.as_str()), (named, "app_outbox_records"));
        let remedy = format!(r#"db.getCollection("app_outbox_records").dropIndex("{by}")"#);
        for text in [error.to_string(), complaint] {
            for part in [named, "app_outbox_records", &remedy] {
                assert!(text.contains(part), "no {part} in: {text}");
            }
        }
        let subject = format!("index {named} of app_outbox_records");
        assert!(differences.iter().any(|one| one.subject == subject), "{differences:?}");
        assert_eq!(bare.indexes().await, before);
    }
}

#[fixture::test]
async fn records_with_one_dedup_key_are_named_as_the_obstacle() {
    let bare = BareDatabase::new("").await;
    let twins = [smallest_with("dedupKey", "a"), smallest_with("dedupKey", "a")];
    bare.records().insert_many(twins).await.unwrap();

    let complaint = bare.mongosh_err(&[]).await;
    let error = apply(&bare.collections, &defaults()).await.unwrap_err();

    assert!(complaint.contains("outbox_records index: dedup_idx dup key"), "{complaint}");
    assert!(matches!(&error, SchemaError::Conflict { index, .. } if index == "dedup_idx"));
    assert!(error.to_string().contains("existing documents have the same dedupKey"), "{error}");
    assert!(!error.to_string().contains("RawDocumentBuf"), "{error}");
    assert_eq!(bare.records().count_documents(doc! {}).await.unwrap(), 2);
}

#[fixture::test(long)]
async fn a_view_or_capped_collection_is_refused_by_name() {
    for (create, found) in [
        (doc! { "create": "outbox_records", "viewOn": "other" }, "a view"),
        (doc! { "create": "outbox_control", "viewOn": "other" }, "a view"),
        (doc! { "create": "outbox_records", "capped": true, "size": 4096 }, "a capped collection"),
        (
            doc! { "create": "outbox_records", "collation": { "locale": "en", "strength": 2 } },
            "a collection with a default collation",
        ),
    ] {
        let bare = BareDatabase::new("").await;
        let name = create.get_str("create").unwrap().to_owned();
        bare.run(create).await;

        let error = apply(&bare.collections, &defaults()).await.unwrap_err().to_string();
        let complaint = bare.mongosh_err(&[]).await;
        let differences = verify(&bare.collections, &defaults()).await.unwrap();

        assert!(error.starts_with(&format!("cannot use {name}: it is {found},")), "{error}");
        assert!(
            complaint.contains(&format!("{name} cannot be used: it is {found}")),
            "{complaint}"
        );
        assert_eq!(
            differences[0].to_string(),
            format!("collection {name} is {found}, must be a plain collection")
        );
    }
}

#[fixture::test]
async fn the_validator_accepts_every_valid_record() {
    let bare = BareDatabase::new("").await;
    apply(&bare.collections, &defaults()).await.unwrap();
    let mut records = vec![smallest(), doc! { "type": "T", "payload": 1, "status": "scheduled" }];
    for field in [
        "key",
        "contentType",
        "headers",
        "destination",
        "tenantId",
        "partition",
        "createdAt",
        "visibleAt",
        "dedupKey",
        "attempt",
        "leaseId",
    ] {
        records.push(smallest_with(field, Bson::Null));
    }
    let payloads = every_kind();
    records.extend(payloads.into_iter().map(|payload| smallest_with("payload", payload)));
    for id in [Bson::Int32(1), Bson::Int64(1 << 40), "text".into(), ObjectId::new().into()] {
        records.push(smallest_with("_id", id));
    }
    records.push(smallest_with("_id", bson::Uuid::new()));
    for partition in [Bson::Int32(3), Bson::Int64(3), Bson::Double(3.0), decimal(), "7".into()] {
        records.push(smallest_with("partition", partition));
    }
    records.push(smallest_with("createdAt", DateTime::now()));
    records.push(smallest_with("visibleAt", DateTime::now()));
    records.push(smallest_with("xMine", regex()));
    records.push(smallest_with("attempt", "a relay's field is the relay's affair"));
    records.push(smallest_with("seq", "repaired by the relay"));
    let mut headers = Document::new();
    for (number, value) in scalars().into_iter().enumerate() {
        headers.insert(format!("h{number}"), value);
    }
    records.push(smallest_with("headers", headers));

    for record in records {
        bare.records().insert_one(&record).await.unwrap_or_else(|error| {
            panic!("{record} is refused: {error}");
        });
    }
}

#[fixture::test]
async fn the_validator_refuses_each_wrong_field_of_a_producer() {
    let bare = BareDatabase::new("").await;
    apply(&bare.collections, &defaults()).await.unwrap();
    let number = Bson::Int32(7);
    let mut wrong: Vec<Document> = ["type", "payload", "status"]
        .into_iter()
        .map(|field| {
            let mut record = smallest();
            record.remove(field);
            record
        })
        .collect();
    for (field, value) in [
        ("_id", Bson::Double(1.5)),
        ("_id", Bson::Boolean(true)),
        ("_id", Bson::Document(doc! { "a": 1 })),
        ("_id", Bson::Null),
        ("key", number.clone()),
        ("type", number.clone()),
        ("type", Bson::Null),
        ("contentType", number.clone()),
        ("headers", number.clone()),
        ("headers", Bson::Array(vec!["a".into()])),
        ("headers", Bson::Document(doc! { "a": { "b": 1 } })),
        ("headers", Bson::Document(doc! { "a": [1] })),
        ("destination", number.clone()),
        ("tenantId", number.clone()),
        ("status", "Pending".into()),
        ("status", number.clone()),
        ("status", Bson::Null),
        ("createdAt", "2020-01-01".into()),
        ("visibleAt", number.clone()),
        ("dedupKey", number.clone()),
        ("partition", Bson::Array(vec![Bson::Int32(3)])),
    ] {
        wrong.push(smallest_with(field, value));
    }

    for record in wrong {
        let error = bare.records().insert_one(&record).await.expect_err(&record.to_string());
        assert_eq!(code(&error), Some(121), "{record}: {error}");
    }
}

#[fixture::test]
async fn an_invalid_record_is_inserted_without_a_strict_validator() {
    for validator in [Validator::Warn, Validator::Off] {
        let bare = BareDatabase::new("").await;

        apply(&bare.collections, &with_validator(validator)).await.unwrap();

        bare.records().insert_one(smallest_with("type", 7)).await.unwrap();
        let options = &bare.layout().await.options["outbox_records"];
        assert_eq!(options.contains_key("validator"), validator == Validator::Warn, "{options}");
    }
}

#[fixture::test]
async fn an_existing_collection_keeps_its_validator() {
    let without = BareDatabase::new("").await;
    without.run(doc! { "create": "outbox_records" }).await;
    let with = BareDatabase::new("").await;
    with.run(doc! { "create": "outbox_records", "validator": { "mine": true } }).await;

    for bare in [&without, &with] {
        let before = bare.layout().await.options["outbox_records"].clone();

        assert!(apply(&bare.collections, &defaults()).await.unwrap().indexes.len() == 6);
        bare.mongosh_ok(&[]).await;

        assert_eq!(bare.layout().await.options["outbox_records"], before);
        assert_eq!(verify(&bare.collections, &defaults()).await.unwrap(), []);
    }
}

#[fixture::test]
async fn only_a_dedup_key_that_is_text_must_be_unique() {
    let bare = BareDatabase::new("").await;
    apply(&bare.collections, &defaults()).await.unwrap();
    let records = bare.records();

    for record in
        [smallest(), smallest(), smallest_with("dedupKey", "a"), smallest_with("dedupKey", "")]
    {
        records.insert_one(record).await.unwrap();
    }
    for _ in 0..2 {
        records.insert_one(smallest_with("dedupKey", Bson::Null)).await.unwrap();
    }
    let clash = records.insert_one(smallest_with("dedupKey", "a")).await.unwrap_err();

    assert_eq!(code(&clash), Some(11000));
}

#[fixture::test]
async fn verify_has_a_line_for_each_difference() {
    let bare = BareDatabase::restricted("app_").await;
    let missing = verify(&bare.collections, &defaults()).await.unwrap();
    apply(&bare.collections, &with_retention(60)).await.unwrap();
    bare.run(doc! { "dropIndexes": "app_outbox_records", "index": "blocks_idx" }).await;
    bare.run(doc! { "drop": "app_outbox_control" }).await;
    bare.create_index(doc! { "name": "xmine", "key": { "tenantId": 1 } }).await;
    bare.create_index(doc! { "name": "scheduled_too", "key": { "visibleAt": 1 } }).await;

    let differences = verify(&bare.collections, &with_retention(61)).await.unwrap();

    assert_eq!(missing.len(), 4 + 6, "{missing:?}");
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "collection app_outbox_control is missing, must be a plain collection",
            "index blocks_idx of app_outbox_records is missing, must be \
             {\"key\":{\"key\":1},\"partialFilterExpression\":{\"blocks\":true}}",
            "index done_ttl_idx of app_outbox_records is configured to delete records 60 s \
             after delivery, must be configured to delete them after 61 s",
        ]
    );
    apply(&bare.collections, &with_retention(61)).await.unwrap();
    assert_eq!(verify(&bare.collections, &with_retention(61)).await.unwrap(), []);
}

#[fixture::test]
async fn only_done_records_expire() {
    let bare = BareDatabase::new("").await;
    apply(&bare.collections, &with_retention(1)).await.unwrap();
    let stale = DateTime::from_millis(DateTime::now().timestamp_millis() - 60_000);
    let statuses = ["pending", "scheduled", "done", "dead"];
    let records = statuses.map(|status| {
        let mut record = smallest_with("doneAt", stale);
        record.insert("_id", status);
        record.insert("status", status);
        record
    });
    bare.records().insert_many(records).await.unwrap();
    let fresh = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    let mut kept = smallest_with("doneAt", fresh);
    kept.insert("_id", "done just now");
    kept.insert("status", "done");
    bare.records().insert_one(kept).await.unwrap();

    eventually("the TTL monitor deletes the done record", || async {
        bare.records().count_documents(doc! { "_id": "done" }).await.unwrap() == 0
    })
    .await;

    assert_eq!(bare.records().count_documents(doc! {}).await.unwrap(), 4);
}

#[fixture::test]
async fn each_query_uses_its_index() {
    let bare = BareDatabase::new("").await;
    apply(&bare.collections, &defaults()).await.unwrap();
    let mut records = Vec::new();
    for status in ["pending", "scheduled", "done", "dead"] {
        for partition in 0..20 {
            let mut record = smallest_with("partition", partition);
            record.insert("status", status);
            record.insert("dedupKey", format!("{status}/{partition}"));
            record.insert("visibleAt", DateTime::now());
            record.insert("blocks", status == "dead");
            records.push(record);
        }
    }
    bare.records().insert_many(records).await.unwrap();
    let now = DateTime::now();

    for (index, filter, sort) in [
        (
            "lane_idx",
            doc! { "status": "pending", "partition": { "$gte": 3, "$lte": 9 } },
            doc! { "partition": 1, "key": 1, "seq": 1 },
        ),
        (
            "lane_idx",
            doc! { "status": "pending", "partition": 3, "key": "k" },
            doc! { "partition": 1, "key": 1, "seq": 1 },
        ),
        (
            "lane_idx",
            doc! { "status": "pending", "partition": Bson::Null },
            doc! { "partition": 1, "key": 1, "seq": 1 },
        ),
        ("blocks_idx", doc! { "blocks": true, "status": "dead", "key": "k" }, doc! {}),
        (
            "scheduled_idx",
            doc! { "status": "scheduled", "visibleAt": { "$lte": now } },
            doc! { "visibleAt": 1 },
        ),
        ("done_ttl_idx", doc! { "status": "done", "doneAt": { "$lte": now } }, doc! {}),
        ("dedup_idx", doc! { "dedupKey": { "$eq": "pending/3", "$type": "string" } }, doc! {}),
        ("dead_idx", doc! { "status": "dead" }, doc! { "deadAt": 1 }),
    ] {
        let find = doc! { "find": "outbox_records", "filter": &filter, "sort": sort };
        let explained = bare.run(doc! { "explain": find, "verbosity": "queryPlanner" }).await;

        let plan = explained.get_document("queryPlanner").unwrap();
        let plan = plan.get_document("winningPlan").unwrap().to_string();
        assert!(plan.contains(&format!("\"{index}\"")), "{filter}: {plan}");
        for stage in ["COLLSCAN", "\"SORT\""] {
            assert!(!plan.contains(stage), "{filter}: {plan}");
        }
    }
}

#[fixture::test]
async fn a_printed_script_has_the_configured_values_as_its_defaults() {
    let bare = BareDatabase::new("cfg_").await;
    let options = SchemaOptions { validator: Validator::Off, ..with_retention(5_400) };
    let file = tempfile::Builder::new().suffix(".js").tempfile().unwrap();
    std::fs::write(file.path(), script("cfg_", &options)).unwrap();

    let output = bare.mongosh_file(file.path(), &[]).await;

    assert!(output.status.success(), "{output:?}");
    assert_eq!(verify(&bare.collections, &options).await.unwrap(), []);
    let created: BTreeMap<_, _> = bare.layout().await.options;
    assert_eq!(created["cfg_outbox_records"], doc! {});
}

fn regex() -> Bson {
    Bson::RegularExpression(Regex {
        pattern: "a".try_into().expect("it has no NUL"),
        options: "i".try_into().expect("it has no NUL"),
    })
}

fn decimal() -> Bson {
    Bson::Decimal128("3".parse::<Decimal128>().expect("3 is a number"))
}

fn binary(subtype: BinarySubtype) -> Bson {
    Bson::Binary(Binary { subtype, bytes: vec![1, 2, 3] })
}

/// The permitted values of a header.
fn scalars() -> Vec<Bson> {
    vec![
        "text".into(),
        Bson::Int32(1),
        Bson::Int64(1),
        Bson::Double(f64::NAN),
        decimal(),
        Bson::Boolean(true),
        DateTime::now().into(),
        ObjectId::new().into(),
        bson::Uuid::new().into(),
        binary(BinarySubtype::Generic),
        Bson::Null,
    ]
}

/// The permitted values of a payload.
fn every_kind() -> Vec<Bson> {
    let mut kinds = scalars();
    kinds.extend([
        Bson::Document(doc! { "a": [1, { "b": Bson::Null }] }),
        Bson::Array(vec![]),
        binary(BinarySubtype::UserDefined(0x80)),
        Bson::Timestamp(Timestamp { time: 1, increment: 1 }),
        regex(),
        Bson::JavaScriptCode("f()".into()),
        Bson::MinKey,
        Bson::MaxKey,
    ]);
    kinds
}
