//! Limits of size, number and time.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::api::{Answer, Api, converse, read_to_end};
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, mongodb_uri};

const STATS: &str = "/v1/outbox/stats";

/// A process that reaches MongoDB by a proxy.
pub async fn behind_a_proxy(outbox: &TestOutbox, settings: &[&str]) -> (Api, FaultProxy) {
    let server = mongodb_uri();
    let server = server.strip_prefix("mongodb://").unwrap().split('/').next().unwrap().to_owned();
    let proxy = FaultProxy::to(&server).await;
    let uri = format!("mongo.uri=mongodb://{}/?directConnection=true", proxy.address());
    let api = Api::start(outbox, &[&[uri.as_str()], settings].concat()).await;
    (api, proxy)
}

#[fixture::test]
async fn slow_request_times_out() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_proxy(&outbox, &["api.timeout=500ms"]).await;
    proxy.freeze();

    let answer = api.get(STATS).await;

    answer.is(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.body["detail"], "no response within api.timeout; retry");
    let enqueued = api.post("/v1/outbox/records", &json!({ "type": "T", "payload": 1 })).await;
    enqueued.is(503, "unavailable");
    assert!(enqueued.text.contains("without an id"), "{enqueued:?}");
    let reserved = api.post("/v1/prepare/username/count", &json!({ "value": 1 })).await;
    reserved.is(503, "unavailable");
    assert!(reserved.text.contains("the key was changed is unknown; read it"), "{reserved:?}");
    proxy.open();
    api.stop().await;
}

#[fixture::test]
async fn excess_requests_are_refused_at_once() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_proxy(&outbox, &["api.max_concurrent=1"]).await;
    proxy.freeze();
    let stats = api.request(Method::GET, STATS);
    // Requests of the other page may hold the permit meanwhile.
    let held = tokio::spawn(async move {
        loop {
            let answer = Answer::of(stats.try_clone().unwrap()).await;
            if answer.status != 503 {
                return answer;
            }
        }
    });

    let turned_away = || async { api.get("/openapi.json").await.status == 503 };
    eventually("the place to be taken", turned_away).await;
    let answer = api.get("/openapi.json").await;

    answer.is(503, "overloaded");
    assert_eq!(answer.header("retry-after"), "1");
    proxy.open();
    assert_eq!(held.await.unwrap().status, 200);
    assert_eq!(api.get("/openapi.json").await.status, 200);
    api.stop().await;
}

#[fixture::test]
async fn incomplete_header_or_body_times_out() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.timeout=500ms"]).await;
    let body = "POST /v1/outbox/records HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\
                content-type: application/json\r\n\r\n{";
    let begin = Instant::now();

    let silent = tokio::spawn(read_to_end(api.connect().await));
    let header = converse(api.connect().await, "GET /openapi.json HTTP/1.1\r\nhos").await;
    let body = converse(api.connect().await, body).await;

    assert_eq!(header, "");
    assert_eq!(silent.await.unwrap(), "");
    assert!(body.starts_with("HTTP/1.1 503 "), "{body}");
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    api.stop().await;
}

#[fixture::test]
async fn header_size_is_limited() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let padded = |length| {
        format!(
            "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {}\r\n\r\n",
            "x".repeat(length)
        )
    };

    let fits = converse(api.connect().await, &padded(16 << 10)).await;
    let not = converse(api.connect().await, &padded(64 << 10)).await;

    assert!(fits.starts_with("HTTP/1.1 200 "), "{fits}");
    assert!(not.starts_with("HTTP/1.1 431 "), "{not}");
    api.stop().await;
}

#[fixture::test]
async fn excess_connections_wait() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_connections=1", "api.timeout=20s"]).await;
    // The client's own connection ends with its pool.
    let Api { postrider, address, client } = api;
    drop(client);
    let first = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut second = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    second.write_all(request).await.unwrap();

    let mut answering = tokio::spawn(read_to_end(second));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answering).await;
    assert!(early.is_err(), "it was answered beside the first");
    drop(first);
    let answer = answering.await;

    assert!(answer.unwrap().starts_with("HTTP/1.1 200 "));
    Api { postrider, address, client: reqwest::Client::new() }.stop().await;
}
