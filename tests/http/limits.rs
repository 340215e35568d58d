//! Limits of size, number and time.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::api::{Answer, Api, converse, read_to_end};
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, mongodb_uri};

const STATS: &str = "/v1/outbox/stats";

/// A request whose body the server awaits, and says so.
const AWAITED_BODY: &str = "POST /v1/outbox/records HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
    content-type: application/json\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n";

const PLAIN_REQUEST: &str =
    "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// A process that reaches MongoDB by a proxy.
pub async fn behind_a_proxy(outbox: &TestOutbox, settings: &[&str]) -> (Api, FaultProxy) {
    behind_a_small_pool(outbox, 10, settings).await
}

/// The same with this number of connections for appends.
pub async fn behind_a_small_pool(
    outbox: &TestOutbox,
    connections: u32,
    settings: &[&str],
) -> (Api, FaultProxy) {
    let server = mongodb_uri();
    let server = server.strip_prefix("mongodb://").unwrap().split('/').next().unwrap().to_owned();
    let proxy = FaultProxy::to(&server).await;
    let options = format!("directConnection=true&maxPoolSize={connections}");
    let uri = format!("mongo.uri=mongodb://{}/?{options}", proxy.address());
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

/// A request whose header has this many bytes, by its path or by a field.
fn request_of(bytes: usize, by_path: bool) -> String {
    let request = |pad: &str| {
        let (path, field) = if by_path { (pad, "") } else { ("", pad) };
        format!(
            "GET /livez?{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {field}\r\n\r\n"
        )
    };
    let pad = "x".repeat(bytes - request("").len());
    request(&pad)
}

#[fixture::test]
async fn header_size_is_limited_to_32_kib_on_both_ports() {
    const LIMIT: usize = 32 << 10;
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    // (The API has no such page.)
    let ports = [(api.postrider.address().await, "200"), (api.address, "404")];

    for (address, status) in ports {
        for by_path in [true, false] {
            for (bytes, expected) in [(LIMIT, status), (LIMIT + 1, "431"), (3 * LIMIT, "431")] {
                let stream = TcpStream::connect(address).await.unwrap();
                let answer = converse(stream, &request_of(bytes, by_path)).await;
                let expected = format!("HTTP/1.1 {expected} ");
                assert!(answer.starts_with(&expected), "{bytes}, {by_path}: {answer}");
            }
        }
    }
    api.stop().await;
}

#[fixture::test]
async fn full_listener_closes_the_oldest_idle_connection() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_connections=2"]).await;

    // (The connection of an earlier request may still have a place, so that one more is closed.)
    eventually("the oldest gives way, and it alone", || async {
        let mut half = api.connect().await;
        half.write_all(b"GET /openapi.json HTTP/1.1\r\nhos").await.unwrap();
        let idle = api.connect().await;
        let answer = converse(api.connect().await, PLAIN_REQUEST).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(read_to_end(half).await, "");
        // The place of the third is free again.
        converse(idle, PLAIN_REQUEST).await.starts_with("HTTP/1.1 200 ")
    })
    .await;
    api.stop().await;
}

#[fixture::test]
async fn connections_that_are_answered_keep_their_places() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_connections=1"]).await;
    let mut first = api.connect().await;
    first.write_all(AWAITED_BODY.as_bytes()).await.unwrap();
    let mut begun = [0; b"HTTP/1.1 100 ".len()];
    first.read_exact(&mut begun).await.unwrap();
    let mut second = tokio::spawn(converse(api.connect().await, PLAIN_REQUEST));

    let early = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
    assert!(early.is_err(), "it was answered next to the first");
    let answer = converse(first, "{}").await;

    assert!(answer.contains("HTTP/1.1 422 "), "{answer}");
    assert!(second.await.unwrap().starts_with("HTTP/1.1 200 "));
    api.stop().await;
}

/// Clients that request long pages and read nothing occupied the port for operators.
#[fixture::test]
async fn clients_that_read_nothing_stop_no_probe() {
    const CLIENTS: usize = 100;
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let ops = api.postrider.address().await;
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(ops).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1_000);
        stream.write_all(request.as_bytes()).await.unwrap();
        held.push(stream);
    }

    let begin = Instant::now();
    let request = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = converse(TcpStream::connect(ops).await.unwrap(), request).await;

    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    api.stop().await;
}

/// The others of its limit are still under way.
#[fixture::test]
async fn excess_queries_are_refused_soon() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_proxy(&outbox, &["queries.max_concurrent=1"]).await;
    let path = "/v1/aggregates/order/events/query";
    let all = json!({ "limit": 1 });
    let first = api.post(path, &all).await;
    assert_eq!(first.status, 200, "{first:?}");
    proxy.freeze();
    let query = api.request(Method::POST, path).json(&all);
    // Whichever arrives first is executed, and the other is refused.
    let held = tokio::spawn(async move {
        loop {
            let answer = Answer::of(query.try_clone().unwrap()).await;
            if answer.body["code"] != "overloaded" {
                return answer;
            }
        }
    });

    let refused = loop {
        let answer = api.post("/v1/aggregates/order/events/count", &json!({})).await;
        if answer.body["code"] == "overloaded" {
            break answer;
        }
    };

    refused.is(503, "overloaded");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(
        refused.body["detail"],
        "1 other queries are under way (queries.max_concurrent); retry"
    );
    proxy.open();
    held.await.unwrap();
    eventually("queries are executed again", || async { api.post(path, &all).await.status == 200 })
        .await;
    api.stop().await;
}

/// No name makes a collection but those that may be created; data that exist stay usable.
#[fixture::test]
async fn names_beyond_the_globs_make_no_collection() {
    let outbox = TestOutbox::new().await;
    let free = Api::start(&outbox, &[]).await;
    let append = json!({ "requestId": "r", "events": [{ "name": "Placed", "body": {} }] });
    let events = |name: &str| format!("/v1/aggregates/{name}/o-1/events");
    assert_eq!(free.post(&events("legacy"), &append).await.status, 201);
    free.stop().await;
    let api = Api::start(&outbox, &["events.aggregates=[\"order\", \"x-*\"]"]).await;
    let collections = async || {
        let mut names = outbox.admin.database().list_collection_names().await.unwrap();
        names.sort();
        names
    };
    for name in ["order", "x-1"] {
        let answer = api.post(&events(name), &append).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let legacy = json!({ "requestId": "r2", "events": [{ "name": "Placed", "body": {} }] });
    assert_eq!(api.post(&events("legacy"), &legacy).await.status, 201);
    let before = collections().await;

    let snapshot = json!({ "version": 1, "state": {} });
    for answer in [
        api.post(&events("other"), &append).await,
        api.put("/v1/aggregates/other/o-1/snapshot", &snapshot).await,
        api.post("/v1/prepare/other/key", &json!({ "value": 1 })).await,
    ] {
        answer.is(422, "invalid");
        assert_eq!(answer.body["errors"][0]["field"], "name");
        assert_eq!(
            answer.body["errors"][0]["detail"],
            "the name \"other\" matches none of events.aggregates; use a name that does, or add it there"
        );
    }

    assert_eq!(collections().await, before);
    let unknown = api.get(&events("other")).await;
    let known = api.get("/v1/aggregates/order/unknown/events").await;
    assert_eq!((unknown.status, &unknown.body["items"]), (known.status, &known.body["items"]));
    api.stop().await;
}
