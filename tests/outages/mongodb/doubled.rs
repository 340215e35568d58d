//! Records with a field twice: MongoDB stores them, and aborts where a lease changes such a field.

use bson::raw::{CString, RawDocumentBuf};
use bson::{Bson, doc};
use postrider::outbox::fields;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::replica_set::ReplicaSet;

/// A record of a key of its own that has this field twice.
fn doubled(field: &str, key: &str) -> RawDocumentBuf {
    let mut made = record(&format!("{key} doubled"), key);
    let value = match field {
        fields::PARTITION => 300.into(),
        fields::SEQ | fields::KEY | fields::TYPE | fields::STATUS => "x".into(),
        fields::LEASE_OWNER => "nobody".into(),
        fields::ATTEMPT => Bson::Int32(0),
        _ => Bson::Null,
    };
    if !made.contains_key(field) || field == fields::PARTITION {
        made.insert(field, value.clone());
    }
    let mut raw = RawDocumentBuf::try_from(&made).unwrap();
    let name = CString::try_from(field).unwrap();
    raw.append(name, bson::raw::RawBson::try_from(value).unwrap());
    raw
}

async fn insert(outbox: &TestOutbox, round: &str) {
    for field in fields::ALL.into_iter().filter(|field| *field != fields::ID) {
        let key = format!("{round} {field}");
        let sound = |place: &str| record(&format!("{key} {place}"), &key);
        outbox.insert([sound("before")]).await;
        let raw = outbox.admin.records();
        raw.insert_one(doubled(field, &key)).await.unwrap();
        outbox.insert([sound("behind")]).await;
    }
}

/// Inserted before the relay starts, and delivered by the change stream. The server is this test's
/// own.
#[fixture::test]
async fn a_record_with_a_field_twice_dies_and_mongod_survives() {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let count = fields::ALL.len() as u64 - 1;
    insert(&outbox, "early").await;
    let mut postrider = Postrider::start(&[
        format!("mongo.uri={}", set.uri()),
        format!("mongo.database={}", outbox.database),
        "sinks.out.kind=stdout".into(),
        "relay.on_dead=skip".into(),
    ]);
    outbox.until_count(doc! { "status": "done" }, 2 * count).await;

    insert(&outbox, "live").await;

    outbox.until_count(doc! { "status": "done" }, 4 * count).await;
    outbox.until_count(doc! { "status": "dead" }, 2 * count).await;
    for round in ["early", "live"] {
        for field in fields::ALL.into_iter().filter(|field| *field != fields::ID) {
            let id = format!("{round} {field} doubled");
            let reason = format!("malformed: {field}: appears twice in the record");
            let dead = doc! { "_id": &id, "status": "dead", "deadReason": reason };
            // (As a document the driver returns the last of them.)
            assert_eq!(outbox.count(dead).await, 1, "{id}");
        }
    }
    postrider.stop().await.with_code(0);
}
