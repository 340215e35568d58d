//! Problems have one form.

use reqwest::Method;
use serde_json::json;

use crate::api::{Answer, Api, converse};
use crate::support::outbox::{TestOutbox, mongodb_uri};
use crate::support::queue::mongo_settings;

const RECORDS: &str = "/v1/outbox/records";

#[fixture::test]
async fn client_errors_have_their_codes() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_body=1KiB"]).await;

    api.get("/nowhere").await.is(404, "not_found");
    api.get("/v1/outbox/records/none").await.is(404, "not_found");
    let other = api.call(Method::PUT, RECORDS).await;
    other.is(405, "method_not_allowed");
    assert!(other.header("allow").contains("POST"), "{other:?}");
    for broken in ["", "{", "{\"a\":1}x", "[1,]", "{\"a\":01}", "\u{feff}{}"] {
        api.post_text(RECORDS, broken).await.is(400, "malformed_json");
    }
    assert_eq!(api.post_text(RECORDS, "[]").await.wrong(), [""]);
    let large = json!({ "type": "T", "payload": "x".repeat(1 << 10) });
    api.post(RECORDS, &large).await.is(413, "payload_too_large");
    let text = api.request(Method::POST, RECORDS).body("{}");
    Answer::of(text).await.is(415, "unsupported_media_type");
    api.stop().await;
}

#[fixture::test]
async fn body_without_a_length_is_limited() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_body=1KiB"]).await;
    let piece = format!("400\r\n{}\r\n", " ".repeat(0x400));

    let answer = converse(
        api.connect().await,
        &format!(
            "POST {RECORDS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{piece}{piece}0\r\n\r\n"
        ),
    )
    .await;

    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("payload_too_large"), "{answer}");
    api.stop().await;
}

#[fixture::test]
async fn body_of_a_request_without_one_has_the_code_of_its_error() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_body=1KiB"]).await;
    let pause = "/v1/relay/pause";

    api.post(pause, &json!({ "reason": "x".repeat(1 << 10) })).await.is(413, "payload_too_large");
    assert_eq!(api.post(pause, &json!({ "reason": "x" })).await.wrong(), [""]);
    let head = format!("POST {pause} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let broken = format!("{head}transfer-encoding: chunked\r\n\r\nno length\r\n");
    let broken = converse(api.connect().await, &broken).await;
    assert!(broken.starts_with("HTTP/1.1 400 ") && broken.contains("malformed_json"), "{broken}");
    api.stop().await;
}

#[fixture::test]
async fn all_flaws_of_a_request_are_reported() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    let text = r#"{"key": 7, "payload": {"a": [1, 1e400], "b\u0000": 1, "c": 1, "c": 2},
        "payloadBase64": "?", "headers": {"h": {}}, "visibleAt": "soon", "tenant": 1}"#;
    let mut wrong = api.post_text(RECORDS, text).await;
    let mut fields = wrong.wrong();
    fields.sort_unstable();

    assert_eq!(
        fields,
        [
            "headers.h",
            "key",
            "payload",
            "payload.a[1]",
            "payload.b\0",
            "payload.c",
            "payloadBase64",
            "tenant",
            "type",
            "visibleAt",
        ]
    );
    wrong = api.get("/v1/outbox/records?limit=0&status=gone&kye=x&key=a&key=b").await;
    let mut fields = wrong.wrong();
    fields.sort_unstable();
    assert_eq!(fields, ["key", "kye", "limit", "status"]);
    const EVENTS: &str = "/v1/aggregates/order/1/events";
    for (text, wrong) in [
        (
            r#"{"requestId":"x","events":[{"name":""}],"foo":1,"expectedVersion":-4}"#,
            ["events[0].body", "events[0].name", "expectedVersion", "foo"].as_slice(),
        ),
        (
            r#"{"requestId":"","tenantId":"","events":[5,{"name":"","body":{}}]}"#,
            &["events[0]", "events[1].name", "requestId", "tenantId"],
        ),
        (r#"{"events":[]}"#, &["events", "requestId"]),
        (r#"{"requestId":5,"events":[7]}"#, &["events[0]", "requestId"]),
    ] {
        let answer = api.post_text(EVENTS, text).await;
        let mut fields = answer.wrong();
        fields.sort_unstable();
        assert_eq!(fields, wrong, "{text}");
    }
    assert_eq!(api.get("/v1/outbox/stats?x=1").await.wrong(), ["x"]);
    assert_eq!(api.get("/v1/outbox/records/oid:7").await.wrong(), ["id"]);
    assert_eq!(api.get("/v1/aggregates/1x/1/events").await.wrong(), ["name"]);
    let long = "a".repeat(256);
    let answer = api.get(&format!("/v1/aggregates/1x/{long}/events?limit=0")).await;
    assert_eq!(answer.wrong(), ["name", "id", "limit"]);
    let many = format!(r#"{{"requestId":"r","events":[{}5]}}"#, "5,".repeat(1000));
    let answer = api.post_text(EVENTS, &many).await;
    assert_eq!((answer.wrong().len(), answer.wrong()[100]), (101, ""));
    assert_eq!(answer.body["detail"], "more than 100 fields are wrong");
    assert_eq!(api.get("/v1/aggregates/%ff/1/events").await.status, 422);
    let deep = format!("{{\"type\":\"T\",\"payload\":{}1{}}}", "[".repeat(110), "]".repeat(110));
    assert!(api.post_text(RECORDS, &deep).await.wrong()[0].starts_with("payload[0]"));
    api.stop().await;
}

#[fixture::test]
async fn panic_reveals_nothing_and_ends_no_other_request() {
    let outbox = TestOutbox::new().await;
    let points = "http::request=1*panic(hush)->off";
    let api = Api::begin(&mongo_settings(&outbox.database), points).await;

    let broken = api.get("/v1/outbox/stats").await;

    broken.is(500, "internal");
    assert!(!broken.text.contains("hush"), "{broken:?}");
    api.until_open().await;
    assert_eq!(api.get("/v1/outbox/stats").await.status, 200);
    api.stop().await;
}

#[fixture::test]
async fn calls_are_unavailable_before_mongodb_is_reached() {
    let port = crate::support::ports::free_port();
    let uri = format!("mongo.uri=mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=500");
    assert!(!mongodb_uri().contains(&port.to_string()));
    let api = Api::begin(&[uri, "mongo.database=none".into()], "").await;

    let answer = api.get("/v1/outbox/stats").await;

    answer.is(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(api.get("/openapi.json").await.status, 200);
    api.stop().await;
}

#[fixture::test]
async fn request_id_of_the_client_is_kept_when_valid() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let long = "x".repeat(129);
    for (given, is_kept) in [("abc-1", true), ("a b", false), ("", false), (&long, false)] {
        let request = api.request(Method::GET, "/nowhere").header("x-request-id", given);

        let answer = Answer::of(request).await;

        answer.is(404, "not_found");
        assert_eq!(answer.header("x-request-id") == given, is_kept, "{answer:?}");
        assert!(!answer.header("x-request-id").is_empty());
    }
    api.stop().await;
}
