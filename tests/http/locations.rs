//! `Location`: the path of what a request has created.

use serde_json::{Value, json};

use crate::api::Api;
use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn created_thing_is_read_at_its_location() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["feed.enabled=true"]).await;
    let events = json!({ "requestId": "r", "events": [{ "name": "E", "body": {} }] });
    let record = |id: &str| json!({ "id": id, "type": "T", "payload": 1 });
    let (odd, key) = ("a%2F%C3%B6%20b", "/v1/prepare/username/ada%2Fb");
    let append = format!("/v1/aggregates/order/{odd}/events");
    let records = "/v1/outbox/records";
    let subscription = json!({ "name": "billing", "kind": "pull" });

    for (path, body, expected) in [
        (&*append, events, format!("{append}/1")),
        (key, json!({ "value": 1 }), key.to_owned()),
        ("/v1/subscriptions", subscription, "/v1/subscriptions/billing".to_owned()),
        (records, record("int:7"), format!("{records}/int:7")),
        (records, record("str:7"), format!("{records}/str:7")),
        (records, record("order 1/a?"), format!("{records}/str:order%201%2Fa%3F")),
    ] {
        let created = api.post(path, &body).await;

        assert_eq!((created.status, created.header("location")), (201, &*expected), "{created:?}");
        let read = api.get(created.header("location")).await;
        assert_eq!(read.status, 200, "{read:?}");
        let id: &Value = &created.body["id"];
        assert!(
            id.is_null() || read.body["id"].to_string().contains(id.as_str().unwrap()),
            "{read:?}"
        );
    }
    let number = api.get(&format!("{records}/int:7")).await;
    let text = api.get(&format!("{records}/str:7")).await;
    assert_ne!(number.body, text.body, "each location leads to its own record");
    api.stop().await;
}

#[fixture::test]
async fn end_of_a_stream_has_no_location() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let events = json!({ "requestId": "r", "events": [{ "name": "E", "body": {} }] });
    assert_eq!(api.post("/v1/aggregates/order/1/events", &events).await.status, 201);

    let end = json!({ "requestId": "e", "reason": "over" });
    let ended = api.post("/v1/aggregates/order/1/end", &end).await;

    assert_eq!((ended.status, ended.header("location")), (201, ""), "the end cannot be read");
    api.stop().await;
}
