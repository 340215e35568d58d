//! The statements of docs/producers.md about `seq`: which writes make the server fill it in.

use bson::{Bson, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;

use crate::support::outbox::TestOutbox;

const ZERO: Bson = Bson::Timestamp(Timestamp { time: 0, increment: 0 });

#[fixture::test]
async fn inserts_and_replacements_get_a_seq_and_updates_do_not() {
    let outbox = TestOutbox::new().await;
    let own = outbox.client.database(&outbox.database).collection::<Document>("own");

    own.insert_one(doc! { "_id": "insert", "seq": ZERO }).await.unwrap();
    own.replace_one(doc! { "_id": "replace" }, doc! { "seq": ZERO }).upsert(true).await.unwrap();
    let set = doc! { "$set": { "seq": ZERO } };
    own.update_one(doc! { "_id": "set" }, set).upsert(true).await.unwrap();
    let on_insert = doc! { "$setOnInsert": { "seq": ZERO } };
    own.update_one(doc! { "_id": "setOnInsert" }, on_insert).upsert(true).await.unwrap();
    let pipeline = vec![doc! { "$set": { "seq": ZERO } }];
    own.update_one(doc! { "_id": "pipeline" }, pipeline).upsert(true).await.unwrap();
    let merge = vec![
        doc! { "$documents": [{ "_id": "merge", "seq": ZERO }] },
        doc! { "$merge": { "into": "own" } },
    ];
    outbox.client.database(&outbox.database).aggregate(merge).await.unwrap();

    for (id, is_filled_in) in [
        ("insert", true),
        ("replace", true),
        ("set", false),
        ("setOnInsert", false),
        ("pipeline", false),
        ("merge", false),
    ] {
        assert_eq!(seq(&own, id).await.time > 0, is_filled_in, "{id}");
    }
}

#[fixture::test]
async fn records_inserted_together_get_seqs_in_their_order() {
    let outbox = TestOutbox::new().await;
    let own = outbox.client.database(&outbox.database).collection::<Document>("own");
    let many = || (0..20).map(|n| doc! { "n": n, "of": "many", "seq": ZERO });

    own.insert_many(many()).await.unwrap();
    let mut session = outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    own.insert_many(many()).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();

    let cursor = own.find(doc! {}).sort(doc! { "$natural": 1 }).await.unwrap();
    let all: Vec<Document> = cursor.try_collect().await.unwrap();
    let seqs: Vec<Timestamp> = all.iter().map(|one| one.get_timestamp("seq").unwrap()).collect();
    assert_eq!(seqs.len(), 40);
    assert!(seqs.is_sorted_by(|one, next| one < next), "{seqs:?}");
}

#[fixture::test]
async fn only_a_field_of_the_document_itself_is_filled_in() {
    let outbox = TestOutbox::new().await;
    let own = outbox.client.database(&outbox.database).collection::<Document>("own");

    own.insert_one(doc! { "first": 1, "below": { "seq": ZERO }, "list": [ZERO], "last": ZERO })
        .await
        .unwrap();

    let found = own.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(found.get_document("below").unwrap().get("seq"), Some(&ZERO));
    assert_eq!(found.get_array("list").unwrap()[0], ZERO);
    assert!(found.get_timestamp("last").unwrap().time > 0);
}

async fn seq(own: &Collection<Document>, id: &str) -> Timestamp {
    let found = own.find_one(doc! { "_id": id }).await.unwrap().unwrap();
    found.get_timestamp("seq").unwrap()
}
