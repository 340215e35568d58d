//! Lists send little, whatever a producer has written.

use std::collections::BTreeSet;

use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::api::Api;
use crate::support::outbox::{TestOutbox, insert_broken, record};

const RECORDS: &str = "/v1/outbox/records";

/// Records with these fields.
async fn fill(outbox: &TestOutbox, count: usize, fields: impl Fn(usize) -> Document) {
    for some in (0..count).collect::<Vec<_>>().chunks(10) {
        let records = some.iter().map(|n| {
            let mut record = record(&format!("{n:03}"), "k");
            record.extend(fields(*n));
            record
        });
        outbox.insert(records).await;
    }
}

/// Follows `next` from the first page of a list; returns the items and the size of each page.
async fn all(api: &Api, list: &str) -> (Vec<Value>, Vec<usize>) {
    let (mut items, mut sizes) = (Vec::new(), Vec::new());
    let mut after = String::new();
    loop {
        let page = api.get(&format!("{list}{after}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        items.extend(page.body["items"].as_array().unwrap().clone());
        sizes.push(page.text.len());
        match page.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (items, sizes),
        }
    }
}

/// The largest reply of MongoDB to a read of this collection while `reads` ran, in bytes.
async fn largest_reply<T>(
    outbox: &TestOutbox,
    collection: &str,
    reads: impl Future<Output = T>,
) -> (T, i64) {
    let database = outbox.client.database(&outbox.database);
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    let done = reads.await;
    database.run_command(doc! { "profile": 0 }).await.unwrap();
    let ns = format!("{}.{collection}", outbox.database);
    let notes = database.collection::<Document>("system.profile");
    let notes: Vec<Document> =
        notes.find(doc! { "ns": ns }).await.unwrap().try_collect().await.unwrap();
    let lengths = notes.iter().map(|note| match note.get("responseLength") {
        Some(Bson::Int32(length)) => i64::from(*length),
        Some(Bson::Int64(length)) => *length,
        _ => 0,
    });
    (done, lengths.max().unwrap())
}

#[fixture::test]
async fn fields_of_others_are_not_in_lists() {
    let outbox = TestOutbox::new().await;
    let foreign = "x".repeat(1_000_000);
    fill(&outbox, 60, |n| {
        doc! { "foreign": &foreign, "attempt": i32::try_from(n).unwrap(), "lastError": "nack" }
    })
    .await;
    let api = Api::start(&outbox, &[]).await;

    for sort in ["seq", "attempt", "id"] {
        let list = format!("{RECORDS}?status=pending&limit=60&sort={sort}");
        let reads = all(&api, &list);
        let ((items, sizes), reply) = largest_reply(&outbox, "outbox_records", reads).await;

        assert!(sizes.len() == 1 && sizes[0] < 30_000, "{sort}: {sizes:?}");
        assert!(reply < 30_000, "{sort}: a reply of {reply} bytes");
        let listed: BTreeSet<&str> = items.iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!((items.len(), listed.len()), (60, 60), "{sort}");
        let one = &items[7];
        let id = one["id"].as_str().unwrap();
        let mut whole = api.get(&format!("{RECORDS}/{id}")).await.body;
        let whole = whole.as_object_mut().unwrap();
        assert_eq!(whole.remove("foreign").unwrap().as_str().unwrap().len(), 1_000_000);
        whole.remove("payload").unwrap();
        assert_eq!(one.as_object().unwrap(), whole, "{sort}");
    }
    api.stop().await;
}

#[fixture::test]
async fn pages_end_by_their_size_and_reach_each_record() {
    let outbox = TestOutbox::new().await;
    let error = "e".repeat(7_000);
    fill(&outbox, 400, |n| {
        // Many have the same date.
        let at = DateTime::from_millis(i64::try_from(n / 150).unwrap());
        let attempt = i32::try_from(n % 3).unwrap();
        doc! { "status": "dead", "deadAt": at, "lastError": &error, "attempt": attempt }
    })
    .await;
    let api = Api::start(&outbox, &[]).await;

    for sort in ["deadAt", "attempt", "id"] {
        let list = format!("{RECORDS}?status=dead&limit=1000&sort={sort}");
        let reads = all(&api, &list);
        let ((items, sizes), reply) = largest_reply(&outbox, "outbox_records", reads).await;

        let listed: BTreeSet<&str> = items.iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!((items.len(), listed.len(), sizes.len()), (400, 400, 3), "{sort}: {sizes:?}");
        assert!(sizes.iter().all(|size| *size < 1_200_000), "{sort}: {sizes:?}");
        assert!(reply < 1_000_000, "{sort}: a reply of {reply} bytes");
        assert_eq!(items[0]["lastError"], error);
    }
    api.stop().await;
}

#[fixture::test]
async fn long_values_are_cut_in_lists_alone() {
    let outbox = TestOutbox::new().await;
    let (long, list) = ("ü".repeat(6_000), format!("{RECORDS}?sort=id"));
    fill(&outbox, 1, |_| doc! { "key": &long, "attempt": { "a": &long }, "type": "ü" }).await;
    let api = Api::start(&outbox, &[]).await;
    let beginning = format!("{}…", "ü".repeat(2_000));

    let (items, _) = all(&api, &list).await;
    assert_eq!((&items[0]["key"], &items[0]["type"]), (&json!(beginning), &json!("ü")));
    assert_eq!(items[0]["attempt"], "…");
    let groups = api.get("/v1/outbox/groups?by=key").await;
    assert_eq!(groups.body["groups"][0]["value"], json!(beginning), "{groups:?}");
    let whole = api.get(&format!("{RECORDS}/str:000")).await;
    assert_eq!(whole.body["key"], json!(long));

    // MongoDB does not cut a text that is not UTF-8.
    let mut odd = record("odd", "MARK");
    odd.extend(doc! { "key": "MARK".repeat(3_000), "MARK": 1 });
    insert_broken(&outbox.records(), &odd).await;
    let (items, _) = all(&api, &list).await;
    assert_eq!((&items[0]["key"], &items[1]["key"]), (&json!("…"), &json!("…")));
    let invalid = r"\xff\xfe\xfd\xfc: the name of the field is not valid UTF-8";
    assert_eq!((&items[1]["id"], &items[1]["invalid"]), (&json!("odd"), &json!([invalid])));
    let groups = api.get("/v1/outbox/groups?by=key").await;
    assert_eq!(groups.body["groups"].as_array().unwrap().len(), 2, "{groups:?}");
    api.stop().await;
}

#[fixture::test]
async fn list_of_aggregates_reads_no_events() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["events.enabled=true"]).await;
    let text = "x".repeat(300_000);
    for id in 0..20 {
        let body = json!({ "requestId": "r", "events": [{ "name": "E", "body": { "t": text } }] });
        let path = format!("/v1/aggregates/order/o-{id:02}/events");
        let appended = api.post(&path, &body).await;
        assert_eq!(appended.status, 201, "{appended:?}");
    }

    let reads = all(&api, "/v1/aggregates/order?limit=7");
    let ((items, _), reply) = largest_reply(&outbox, "order_event_stream", reads).await;

    let expected: Vec<Value> = (0..20).map(|id| json!(format!("o-{id:02}"))).collect();
    assert_eq!(items, expected);
    assert!(reply < 10_000, "a reply of {reply} bytes");
    api.stop().await;
}
