//! Hazard 7: a record that cannot be decoded or is invalid affects no other record.

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, Timestamp, doc};

use crate::support::outbox::{TestOutbox, broken, insert_bytes, record, unstamped};
use crate::support::relay::{settings, start};
use crate::support::sink::TestSink;

fn with(mut record: Document, field: &str, value: impl Into<Bson>) -> Document {
    record.insert(field, value);
    record
}

/// The reason of each death; panics if one is not dead.
async fn reason(outbox: &TestOutbox, id: &str) -> String {
    let only = doc! { "_id": 0, "status": 1, "deadReason": 1, "attempt": 1 };
    let records = outbox.records();
    let record = records.find_one(doc! { "_id": id }).projection(only).await.unwrap().unwrap();
    assert_eq!(record.get_str("status").unwrap(), "dead", "{id}: {record}");
    assert_eq!(record.get_i32("attempt").unwrap(), 1, "{id}: {record}");
    record.get_str("deadReason").unwrap().to_owned()
}

#[fixture::test]
async fn invalid_utf8_makes_its_record_dead_and_affects_no_other() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let wrong = ["type", "payload", "contentType", "destination", "tenantId", "key"];
    let raw = outbox.admin.records();
    for (number, field) in wrong.iter().enumerate() {
        let before = record(&format!("before {number}"), "k");
        let after = record(&format!("behind {number}"), "k");
        let wrong = with(record(field, "k"), field, "MARK");
        outbox.insert([before]).await;
        raw.insert_one(broken(&wrong)).await.unwrap();
        outbox.insert([after]).await;
    }

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "dead" }, 6).await;
    outbox.until_count(doc! { "status": "done" }, 12).await;
    assert_eq!(sink.ids().len(), 12);
    for field in wrong {
        let reason = reason(&outbox, field).await;
        assert!(reason.starts_with(&format!("malformed: {field}: ")), "{field}: {reason}");
    }
    relay.stop().await;
}

/// The driver stops reading at such a name: fields after it must be found all the same.
#[fixture::test]
async fn an_invalid_field_name_makes_its_record_dead_only() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let raw = outbox.admin.records();
    for (id, at_the_end) in [("first", false), ("last", true)] {
        let sound = record(id, "k");
        let mut wrong = doc! { "_id": id };
        if !at_the_end {
            wrong.insert("MARK", 1);
        }
        wrong.extend(sound);
        wrong.insert("MARK", 1);
        outbox.insert([record(&format!("before {id}"), "k")]).await;
        raw.insert_one(broken(&wrong)).await.unwrap();
        outbox.insert([record(&format!("behind {id}"), "k")]).await;
    }

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 4).await;
    outbox.until_count(doc! { "status": "dead" }, 2).await;
    assert_eq!(sink.ids(), ["before first", "behind first", "before last", "behind last"]);
    for id in ["first", "last"] {
        let only = doc! { "_id": 0, "deadReason": 1 };
        let records = outbox.records();
        let dead = records.find_one(doc! { "_id": id }).projection(only).await.unwrap().unwrap();
        let reason = dead.get_str("deadReason").unwrap();
        assert!(reason.starts_with("malformed: \\xff"), "{reason}");
    }
    relay.stop().await;
}

#[fixture::test]
async fn a_malformed_record_dies_at_once_and_its_key_continues() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut no_type = record("no type", "k");
    no_type.remove("type");
    let mut no_payload = record("no payload", "k");
    no_payload.remove("payload");
    let headers = doc! { "fine": 1, "list": [1] };
    outbox
        .insert([
            no_type,
            record("1", "k"),
            no_payload,
            with(record("headers", "k"), "headers", headers),
            with(record("type", "k"), "type", 7),
            record("2", "k"),
            with(record("number as key", "k"), "key", 7),
        ])
        .await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "dead" }, 5).await;
    outbox.until_count(doc! { "status": "done" }, 2).await;
    assert_eq!(sink.ids(), ["1", "2"]);
    assert_eq!(reason(&outbox, "no type").await, "malformed: type: is missing");
    assert_eq!(reason(&outbox, "no payload").await, "malformed: payload: is missing");
    assert!(reason(&outbox, "headers").await.starts_with("malformed: headers.list: must be "));
    assert!(reason(&outbox, "type").await.starts_with("malformed: type: must be a string, is "));
    assert!(
        reason(&outbox, "number as key").await.starts_with("malformed: key: must be a string, is ")
    );
    relay.stop().await;
}

/// `$inc` of a text stops an `updateMany` half-way, at an arbitrary record.
#[fixture::test]
async fn relay_fields_of_a_wrong_type_are_overwritten() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox
        .insert([
            record("sound before", "a"),
            with(record("attempt", "b"), "attempt", "many"),
            with(record("negative", "c"), "attempt", -3),
            with(record("fraction", "d"), "attempt", 1.5),
            with(record("nan", "e"), "attempt", f64::NAN),
            with(record("seq", "f"), "seq", "first"),
            with(record("leaseId", "g"), "leaseId", "mine"),
            with(record("leaseUntil", "h"), "leaseUntil", "tomorrow"),
            with(record("visibleAt", "i"), "visibleAt", "tomorrow"),
            with(record("partition", "j"), "partition", 3.5),
            record("sound behind", "z"),
        ])
        .await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    let count = 11;
    outbox.until_count(doc! { "status": "done", "attempt": 1, "leaseId": null }, count).await;
    assert_eq!(sink.ids().len() as u64, count);
    let seq = outbox.record("seq").await.get_timestamp("seq").unwrap();
    assert!(seq > Timestamp { time: 1, increment: 0 });
    assert!(outbox.record("partition").await.get_i32("partition").is_ok());
    relay.stop().await;
}

/// No command can name its `_id`: the driver writes valid text only.
#[fixture::test]
async fn an_invalid_id_makes_its_record_dead_and_affects_no_other() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([record("before", "k")]).await;
    insert_bytes(&outbox.records(), broken(&record("MARK", "k"))).await;
    let unstamped = unstamped("MARK", "l");
    let mut unstamped = broken(&unstamped).into_bytes();
    // Another `_id`, equally invalid.
    let at = unstamped.iter().position(|byte| *byte == 0xff).unwrap();
    unstamped[at] = 0xfb;
    let unstamped = RawDocumentBuf::from_bytes(unstamped).unwrap();
    insert_bytes(&outbox.records(), unstamped).await;
    outbox.insert([record("behind", "k"), record("behind too", "l")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    outbox
        .until_count(doc! { "status": "dead", "deadReason": { "$regex": "^malformed: _id: " } }, 2)
        .await;
    let of_k: Vec<String> = sink.ids().into_iter().filter(|id| id != "behind too").collect();
    assert_eq!(of_k, ["before", "behind"]);
    relay.stop().await;
}

/// The relay could not name any of these by what it read of them, and their key stayed blocked for
/// ever.
#[fixture::test]
async fn a_record_without_a_readable_id_dies_whatever_else_it_lacks() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let wrong = |key: &str, field: &str, value: Option<Bson>| {
        let mut wrong = record("MARK", key);
        match value {
            Some(value) => wrong.insert(field, value),
            None => wrong.remove(field),
        };
        wrong.insert("_id", format!("MARK {key}"));
        broken(&wrong)
    };
    for (key, wrong) in [
        ("invalid partition", wrong("invalid partition", "partition", Some((-5).into()))),
        ("no seq", wrong("no seq", "seq", None)),
    ] {
        insert_bytes(&outbox.records(), wrong).await;
        outbox.insert([record(&format!("behind {key}"), key)]).await;
    }

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 2).await;
    outbox.until_count(doc! { "status": "dead" }, 2).await;
    relay.stop().await;
}

/// The strict decoding failed, and no scheduled record of the outbox became pending any more.
#[fixture::test]
async fn an_undecodable_scheduled_record_delays_no_other() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let past = bson::DateTime::from_millis(1_000);
    let scheduled = |id: &str| {
        let mut made = record(id, id);
        made.remove("seq");
        made.extend(doc! { "status": "scheduled", "visibleAt": past });
        made
    };
    insert_bytes(&outbox.records(), broken(&scheduled("MARK"))).await;
    outbox.insert([scheduled("sound")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "_id": "sound", "status": "done" }, 1).await;
    outbox.until_count(doc! { "status": "dead" }, 1).await;
    relay.stop().await;
}
