//! Graceful shutdown.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::{Answer, Api, read_to_end};
use crate::limits::behind_a_proxy;
use crate::readers::{LINES, begin, with_large_events};
use crate::support::fault_proxy::ProxyFault;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Signal;

#[fixture::test]
async fn requests_in_flight_are_finished_at_shutdown() {
    let outbox = TestOutbox::new().await;
    let (mut api, proxy) = behind_a_proxy(&outbox, &[]).await;
    let mut idle = api.connect().await;
    idle.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(idle.read_u8().await.unwrap(), b'H');
    proxy.on_request("in-flight", ProxyFault::Freeze);
    let record = json!({ "id": "in-flight", "type": "T", "payload": 1 });
    let held =
        tokio::spawn(Answer::of(api.request(Method::POST, "/v1/outbox/records").json(&record)));
    eventually("the insertion to be held", || async { proxy.has_caught() }).await;

    api.postrider.signal(Signal::TERM);
    let refused = || async { TcpStream::connect(api.address).await.is_err() };
    eventually("connections to be refused", refused).await;
    let idle = tokio::time::timeout(Duration::from_secs(5), read_to_end(idle)).await;
    proxy.open();

    let answer = held.await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.header("connection"), "close");
    assert!(idle.is_ok(), "an idle connection stood");
    api.postrider.until_ended(Duration::from_secs(20)).await.with_code(0);
    assert_eq!(outbox.record("in-flight").await.get_str("type").unwrap(), "T");
}

#[fixture::test]
async fn slow_requests_are_cut_at_shutdown_with_exit_code_1() {
    let outbox = TestOutbox::new().await;
    let (mut api, proxy) = behind_a_proxy(&outbox, &["relay.shutdown_timeout=1s"]).await;
    proxy.on_request("in-flight", ProxyFault::Freeze);
    let record = json!({ "id": "in-flight", "type": "T", "payload": 1 });
    let held = api.request(Method::POST, "/v1/outbox/records").json(&record).send();
    let held = tokio::spawn(held);
    eventually("the insertion to be held", || async { proxy.has_caught() }).await;

    api.postrider.signal(Signal::TERM);

    let ended = api.postrider.until_ended(Duration::from_secs(10)).await.with_code(1);
    assert!(ended.stderr.contains("connections of the HTTP API"), "{ended}");
    assert!(held.await.unwrap().is_err(), "it was answered");
}

#[fixture::test]
async fn body_that_does_not_arrive_delays_the_stop_by_2_seconds() {
    let outbox = TestOutbox::new().await;
    let mut api = Api::start(&outbox, &["api.max_concurrent=1"]).await;
    let half = "POST /v1/outbox/records HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\
                content-type: application/json\r\n\r\n{";
    let slow = tokio::sync::Mutex::new(Vec::new());
    // One has the only permit, and reads; the others were refused at once.
    let taken = || async {
        let mut connection = api.connect().await;
        connection.write_all(half.as_bytes()).await.unwrap();
        slow.lock().await.push(connection);
        api.get("/openapi.json").await.status == 503
    };
    eventually("its place to be taken", taken).await;

    let stopping = Instant::now();
    api.postrider.signal(Signal::TERM);
    let mut answers = Vec::new();
    for connection in slow.into_inner() {
        answers.push(read_to_end(connection).await);
    }

    let refused = answers.iter().find(|answer| answer.contains("the body has not arrived"));
    let refused = refused.unwrap_or_else(|| panic!("{answers:?}"));
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    api.postrider.until_ended(Duration::from_secs(20)).await.with_code(0);
    // The grace is 25 s; a busy machine may be slow.
    assert!(stopping.elapsed() < Duration::from_secs(12), "{:?}", stopping.elapsed());
}

#[fixture::test]
async fn answer_that_is_not_read_delays_the_stop_by_2_seconds() {
    let outbox = TestOutbox::new().await;
    let mut api = Api::start(&outbox, &[]).await;
    with_large_events(&api).await;
    let mut unread = Vec::new();
    for _ in 0..4 {
        unread.push(begin(&api, "/v1/aggregates/order/big/events", LINES).await);
    }

    let stopping = Instant::now();
    api.postrider.signal(Signal::TERM);

    api.postrider.until_ended(Duration::from_secs(20)).await.with_code(0);
    assert!(stopping.elapsed() < Duration::from_secs(12), "{:?}", stopping.elapsed());
    drop(unread);
}
