//! What an enqueued record is in MongoDB.

use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use postrider::outbox::partition;
use postrider::schema::{self, SchemaOptions};
use postrider::store::error::driver_code;
use serde_json::Value;

use crate::cases::{Case, bytes, cases, conformance_file, document, name, producer, record, text};
use crate::support::outbox::TestOutbox;

#[test]
fn partition_is_that_of_the_cases() {
    for case in cases("partitions") {
        let key = match case.get("units") {
            Some(units) => text(units),
            None => Some(case["key"].as_str().unwrap().to_owned()),
        };

        // A `String` holds no lone surrogate: the types exclude what is refused.
        let partition = key.map(|key| i64::from(partition::of_key(&key)));

        assert_eq!(partition, case.get("partition").and_then(Value::as_i64), "{}", name(&case));
        assert_eq!(partition.is_none(), case.contains_key("refused"), "{}", name(&case));
    }
}

/// On a collection whose validator is that of `postrider schema apply`.
#[fixture::test]
async fn record_is_stored_as_the_cases_say() {
    let test = TestOutbox::new().await;
    test.records().drop().await.unwrap();
    schema::apply(&test.admin, &SchemaOptions::default()).await.unwrap();

    for case in cases("enqueued") {
        stores(&test, &case).await;
    }
}

async fn stores(test: &TestOutbox, case: &Case) {
    let name = name(case);
    let producer = producer(test, case);
    let prefix = case.get("collectionPrefix").map_or("", |prefix| prefix.as_str().unwrap());
    let database = test.client.database(&test.database);
    let records: Collection<Document> = database.collection(&format!("{prefix}outbox_records"));
    records.delete_many(doc! {}).await.unwrap();
    let fields = document(&case["record"]);

    let before = DateTime::now();
    let new = record(&fields).unwrap();
    let id = new.record_id().clone();
    let mut session = test.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let returned = producer.enqueue(&mut session, new).await.unwrap();
    session.commit_transaction().await.unwrap();
    let after = DateTime::now();

    let stored = records.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(returned, id, "{name}");
    assert_eq!(
        stored.get("_id").cloned().map(bytes),
        Some(bytes(expected_id(&fields, &id))),
        "{name}"
    );
    let names: Vec<&str> = stored.keys().map(String::as_str).collect();
    let expected: Vec<&str> =
        case["fields"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names, expected, "{name}");
    for (field, value) in document(&case["stored"]) {
        let found = stored.get(&field).cloned().unwrap();
        assert_eq!(bytes(found), bytes(value), "{name}: {field}");
    }
    for (path, expected) in case["types"].as_object().unwrap() {
        let project = doc! { "$project": { "type": { "$type": format!("${path}") } } };
        let found: Vec<Document> =
            records.aggregate([project]).await.unwrap().try_collect().await.unwrap();
        assert_eq!(found[0].get_str("type").unwrap(), expected, "{name}: {path}");
    }
    assert!(stored.get_timestamp("seq").unwrap().time > 1_700_000_000, "{name}");
    if !fields.contains_key("createdAt") {
        let created = *stored.get_datetime("createdAt").unwrap();
        assert!((before..=after).contains(&created), "{name}: {created}");
    }
}

/// The `_id` of the record: its own, with its type, or a UUID of version 4.
fn expected_id(fields: &Document, id: &postrider::ids::RecordId) -> Bson {
    match fields.get("id") {
        None | Some(Bson::Null) => {
            let id = Bson::from(id);
            let Bson::Binary(binary) = &id else { panic!("expected a UUID: {id}") };
            assert_eq!(binary.to_uuid().unwrap().to_uuid_1().get_version_num(), 4);
            id
        }
        Some(id) => id.clone(),
    }
}

#[fixture::test]
async fn setup_of_the_cases_is_part_of_the_schema() {
    let test = TestOutbox::new().await;
    let database = test.client.database(&test.database);

    for command in conformance_file("cases.json")["setup"].as_array().unwrap() {
        let answer = database.run_command(document(command)).await.unwrap();
        let (before, after) = (answer.get("numIndexesBefore"), answer.get("numIndexesAfter"));
        assert!(before.is_some() && before == after, "makes something that is not there: {answer}");
    }

    let index = doc! { "createIndexes": "outbox_records", "indexes": [{ "name": "dedup_idx", "key": { "key": 1 } }] };
    let conflict = database.run_command(index).await.unwrap_err();
    assert_eq!(driver_code(&conflict), Some(86), "the name is not taken: {conflict}");
}
