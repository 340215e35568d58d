//! Keys that dead records block.

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, Timestamp, doc};
use postrider::outbox::collections::Collections;

/// Inserts records that are made one by one.
pub async fn insert(collections: &Collections, records: impl Iterator<Item = Document>) {
    let all: Vec<Document> = records.collect();
    for some in all.chunks(10_000) {
        let raw = some.iter().map(|record| RawDocumentBuf::try_from(record).unwrap());
        collections.records().insert_many(raw).await.unwrap();
    }
}

/// A dead record that blocks the key of this number.
pub fn dead(n: usize) -> Document {
    let mut record = record(format!("dead-{n}"), format!("order-{n:0>8}"));
    let dead = doc! {
        "status": "dead", "blocks": true, "deadReason": "refused: no", "deadAt": DateTime::now(),
    };
    record.extend(dead);
    record
}

/// The pending record behind [`dead`].
pub fn behind(n: usize) -> Document {
    record(format!("behind-{n}"), format!("order-{n:0>8}"))
}

/// A small pending record.
pub fn record(id: String, key: String) -> Document {
    doc! {
        "_id": id,
        "partition": i32::from(postrider::partition::of_key(&key)),
        "key": key,
        "type": super::KIND,
        "payload": "of a record",
        "status": "pending",
        "seq": Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
    }
}
