//! Metrics of requests.

use reqwest::Method;
use serde_json::json;

use crate::api::{Answer, Api, converse};
use crate::limits::behind_a_proxy;
use crate::support::outbox::{TestOutbox, eventually};

const REQUESTS: &str = "postrider_http_requests_total";

fn series(method: &str, route: &str, code: u16) -> String {
    format!("{REQUESTS}{{method=\"{method}\",route=\"{route}\",code=\"{code}\"}}")
}

async fn count(api: &Api, method: &str, route: &str, code: u16) -> f64 {
    api.postrider.metric(&series(method, route, code)).await.unwrap_or_default()
}

#[fixture::test]
async fn requests_are_counted_by_template_and_code() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.tokens=[\"t\"]", "api.max_body=1KiB"]).await;
    let events = "/v1/aggregates/{name}/{id}/events";
    let as_holder = |method, path: &str| api.request(method, path).bearer_auth("t");
    let body = |id: &str| json!({ "requestId": id, "events": [{ "name": "E", "body": {} }] });

    for id in ["planted-1", "planted-2", "planted-2"] {
        let path = format!("/v1/aggregates/order/{id}/events");
        Answer::of(as_holder(Method::POST, &path).json(&body(id))).await;
    }
    let path = "/v1/aggregates/order/planted-1/events";
    Answer::of(as_holder(Method::POST, path).json(&body(&"x".repeat(2000))))
        .await
        .is(413, "payload_too_large");
    Answer::of(as_holder(Method::POST, path).json(&json!({}))).await.is(422, "invalid");
    api.call(Method::POST, path).await.is(401, "unauthorized");
    let lines = as_holder(Method::GET, path).header("accept", "application/x-ndjson");
    assert_eq!(Answer::of(lines).await.status, 200);
    Answer::of(as_holder(Method::PATCH, path)).await.is(405, "method_not_allowed");
    let unknown = Method::from_bytes(b"PLANTED").unwrap();
    assert_eq!(Answer::of(as_holder(unknown, "/planted-path")).await.status, 404);
    api.get("/planted-path/2").await.is(404, "not_found");

    for (method, route, code, expected) in [
        ("POST", events, 201, 2.0),
        ("POST", events, 200, 1.0),
        ("POST", events, 413, 1.0),
        ("POST", events, 422, 1.0),
        ("POST", events, 401, 1.0),
        ("GET", events, 200, 1.0),
        ("PATCH", events, 405, 1.0),
        ("other", "", 404, 1.0),
        ("GET", "", 404, 1.0),
    ] {
        assert_eq!(count(&api, method, route, code).await, expected, "{method} {route} {code}");
    }
    let seconds = "postrider_http_request_duration_seconds";
    let labels = format!("method=\"POST\",route=\"{events}\"");
    let counted = api.postrider.metric(&format!("{seconds}_count{{{labels}}}")).await;
    let longest = api.postrider.metric(&format!("{seconds}_bucket{{{labels},le=\"30\"}}")).await;
    assert_eq!((counted, longest), (Some(6.0), Some(6.0)));
    let (_, page) = api.postrider.get("/metrics").await;
    assert!(!page.to_lowercase().contains("planted"), "no label has what a client sent: {page}");
    api.stop().await;
}

#[fixture::test]
async fn request_of_a_foreign_page_is_counted() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let request = "GET /v1/partitions HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";

    let answer = converse(api.connect().await, request).await;

    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
    assert_eq!(count(&api, "GET", "/v1/partitions", 421).await, 1.0);
    api.stop().await;
}

#[fixture::test]
async fn request_is_counted_as_499_when_its_client_leaves() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_proxy(&outbox, &["api.max_concurrent=1"]).await;
    proxy.freeze();
    let stats = api.request(Method::GET, "/v1/outbox/stats");
    let leaving = tokio::spawn(async move {
        loop {
            if Answer::of(stats.try_clone().unwrap()).await.status != 503 {
                return;
            }
        }
    });
    let is_taken = || async { api.get("/openapi.json").await.status == 503 };
    eventually("the place to be taken", is_taken).await;
    assert_eq!(count(&api, "GET", "/v1/outbox/stats", 499).await, 0.0);
    assert!(count(&api, "GET", "/openapi.json", 503).await > 0.0, "an overload is counted");

    leaving.abort();

    let is_counted = || async { count(&api, "GET", "/v1/outbox/stats", 499).await == 1.0 };
    eventually("the request to be counted", is_counted).await;
    proxy.open();
    api.stop().await;
}
