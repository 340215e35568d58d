//! The header `Idempotency-Key`, in place of `requestId`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;

const EVENTS: &str = "/v1/aggregates/order/o-1/events";
const END: &str = "/v1/aggregates/order/o-1/end";
const ERASE: &str = "/v1/aggregates/order/o-1/erase";

async fn post(api: &Api, path: &str, key: &str, body: &Value) -> Answer {
    Answer::of(api.request(Method::POST, path).header("idempotency-key", key).json(body)).await
}

fn events() -> Value {
    json!({ "events": [{ "name": "E", "body": {} }] })
}

#[fixture::test]
async fn header_is_the_request_id_of_each_command() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    let first = post(&api, EVENTS, "\"place \\\"1\\\"\"", &events()).await;
    let bare = post(&api, EVENTS, "place \"1\"", &events()).await;
    let mut both = events();
    both["requestId"] = json!("place \"1\"");
    let by_field = api.post(EVENTS, &both).await;
    let by_both = post(&api, EVENTS, "\"place \\\"1\\\"\"", &both).await;
    let mut null = events();
    null["requestId"] = Value::Null;
    let by_null = post(&api, EVENTS, "place \"1\"", &null).await;

    assert_eq!(first.status, 201, "{first:?}");
    for again in [bare, by_field, by_both, by_null] {
        assert_eq!((again.status, &again.body["id"]), (200, &first.body["id"]), "{again:?}");
    }
    let last = api.get(&format!("{EVENTS}/last")).await;
    assert_eq!(last.body["requestId"], "place \"1\"");
    let reason = json!({ "reason": "over" });
    let ended = post(&api, END, "\"end\"", &reason).await;
    assert_eq!(
        (ended.status, post(&api, END, "end", &reason).await.status),
        (201, 200),
        "{ended:?}"
    );
    let erased = post(&api, ERASE, "\"erase\"", &reason).await;
    assert!([200, 202].contains(&erased.status), "{erased:?}");
    let again =
        post(&api, ERASE, "erase", &json!({ "reason": "over", "requestId": "erase" })).await;
    assert!([200, 202].contains(&again.status), "{again:?}");
    api.stop().await;
}

#[fixture::test]
async fn header_and_field_that_differ_are_refused() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let reason = json!({ "requestId": "a", "reason": "over" });
    let mut append = events();
    append["requestId"] = json!("a");

    for (path, body) in [(EVENTS, append), (END, reason.clone()), (ERASE, reason)] {
        let answer = post(&api, path, "\"b\"", &body).await;

        assert_eq!(answer.wrong(), ["requestId"], "{path}");
        let detail = answer.body["detail"].as_str().unwrap();
        assert_eq!(
            detail,
            "requestId: differs from the header Idempotency-Key; remove one of the two"
        );
    }
    assert_eq!(api.get(EVENTS).await.body["items"], json!([]));
    api.stop().await;
}

#[fixture::test]
async fn missing_or_invalid_request_id_is_reported_with_its_header() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    let missing = api.post(EVENTS, &events()).await;
    let typed = post(&api, EVENTS, "k", &json!({ "requestId": 5, "events": [] })).await;

    assert_eq!(missing.wrong(), ["requestId"]);
    let detail = missing.body["detail"].as_str().unwrap();
    assert_eq!(detail, "requestId: is missing, and the header Idempotency-Key too");
    assert_eq!(typed.wrong(), ["requestId", "events"]);
    for key in ["", "\"open", "\"a\", \"b\"", &"k".repeat(256)] {
        let answer = post(&api, EVENTS, key, &events()).await;
        assert_eq!(answer.wrong(), ["Idempotency-Key"], "{key}");
    }
    let twice = api.request(Method::POST, EVENTS).header("idempotency-key", "a");
    let twice = Answer::of(twice.header("idempotency-key", "a").json(&events())).await;
    assert_eq!(twice.wrong(), ["Idempotency-Key"]);
    api.stop().await;
}

#[fixture::test]
async fn enqueuing_refuses_the_header() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    let answer = post(&api, "/v1/outbox/records", "k", &json!({ "type": "T", "payload": 1 })).await;

    assert_eq!(answer.wrong(), ["Idempotency-Key"]);
    assert_eq!(api.get("/v1/outbox/records").await.body["items"], json!([]));
    api.stop().await;
}
