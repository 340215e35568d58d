//! Clients that read an answer slowly, or not at all: they hold a text, and nothing of MongoDB.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::api::{Api, read_to_end};
use crate::support::outbox::{TestOutbox, eventually, mongodb_uri};

/// Larger than the buffers of a connection, so that an answer of some of them is not taken.
const EVENT_BYTES: usize = 200_000;

const EVENTS: usize = 24;

/// Appends large events to `order/big`, and returns their texts.
pub async fn with_large_events(api: &Api) -> Vec<String> {
    let mut texts = Vec::new();
    for at in 0..EVENTS {
        let text = format!("{at}:{}", "x".repeat(EVENT_BYTES));
        let body = json!({
            "requestId": format!("r-{at}"),
            "events": [{ "name": "Large", "body": { "text": text } }],
        });
        let appended = api.post("/v1/aggregates/order/big/events", &body).await;
        assert_eq!(appended.status, 201, "{appended:?}");
        texts.push(text);
    }
    texts
}

/// Requests a path, and reads nothing of the answer but its beginning.
pub async fn begin(api: &Api, path: &str, accept: &str) -> TcpStream {
    begin_with(api, &format!("GET {path} HTTP/1.1\r\naccept: {accept}\r\n"), "").await
}

/// The same with a body.
async fn begin_to_post(api: &Api, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let kind = "content-type: application/json";
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\n{kind}\r\ncontent-length: {length}\r\n");
    begin_with(api, &head, &body).await
}

async fn begin_with(api: &Api, head: &str, body: &str) -> TcpStream {
    // A small buffer: the system would take much of the answer for the client.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(128 << 10).unwrap();
    let mut stream = socket.connect(api.address).await.unwrap();
    let request = format!("{head}host: localhost\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

pub const LINES: &str = "application/x-ndjson";

/// The texts of large events in an answer of lines, in its chunks.
fn texts_of(answer: &str) -> Vec<String> {
    // A chunk may end within a line.
    let (_, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    let mut body = String::new();
    while let Some((size, following)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&following[..size]);
        rest = following[size..].strip_prefix("\r\n").unwrap();
    }
    let events = body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let body = |event: Value| event["body"][0]["body"]["text"].as_str().unwrap().to_owned();
    events.map(body).collect()
}

#[fixture::test]
async fn unread_answers_hold_no_connection_and_no_cursor() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["feed.enabled=true", "api.wow_routes=true"]).await;
    let texts = with_large_events(&api).await;
    eventually("positions", || async {
        api.get("/v1/feed?after=0&limit=1").await.body["head"] == EVENTS
    })
    .await;

    let mut readers = Vec::new();
    for _ in 0..16 {
        readers.push(begin(&api, "/v1/aggregates/order/big/events", LINES).await);
    }
    for accept in [LINES, "text/event-stream"].repeat(4) {
        readers.push(begin(&api, "/v1/feed", accept).await);
    }
    for path in ["/v1/aggregates/order/events/query", "/wow/order/event/list"].repeat(4) {
        let body = json!({ "condition": { "operator": "ALL" }, "limit": 1000 });
        readers.push(begin_to_post(&api, path, &body).await);
    }

    let body = json!({ "requestId": "after", "events": [{ "name": "Small", "body": {} }] });
    assert_eq!(api.post("/v1/aggregates/order/small/events", &body).await.status, 201);
    let waiting = format!("/v1/feed?after={EVENTS}&wait=20s");
    assert_eq!(api.get(&waiting).await.body["items"][0]["aggregateId"], "small");
    let admin = outbox.client.database("admin");
    let collection = format!("{}.order_event_stream", outbox.database);
    let idle = vec![
        doc! { "$currentOp": { "idleCursors": true, "allUsers": true } },
        doc! { "$match": { "type": "idleCursor", "ns": collection } },
    ];
    let idle = admin.aggregate(idle).read_concern(ReadConcern::local()).await.unwrap();
    let idle: Vec<_> = idle.try_collect().await.unwrap();
    assert_eq!(idle, Vec::<Document>::new());

    // A reader continues where it paused.
    let first = readers.swap_remove(0);
    assert_eq!(texts_of(&read_to_end(first).await), texts);
    drop(readers);
    api.stop().await;
}

/// More of them than requests are answered at a time.
#[fixture::test]
async fn unread_answers_keep_out_no_request() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.max_concurrent=4"]).await;
    with_large_events(&api).await;
    let list = "/v1/aggregates/order/big/events";
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(begin(&api, list, LINES).await);
    }

    let body = json!({ "requestId": "after", "events": [{ "name": "Small", "body": {} }] });
    let appended = api.post("/v1/aggregates/order/small/events", &body).await;
    assert_eq!(appended.status, 201, "{appended:?}");
    assert_eq!(api.get("/v1/aggregates/order/small/events/last").await.status, 200);
    // One more than there are places: an unread one ends for it.
    let whole = read_to_end(begin(&api, list, LINES).await).await;
    assert_eq!(texts_of(&whole).len(), EVENTS);
    let mut cut = 0;
    for reader in readers {
        cut += usize::from(!read_to_end(reader).await.ends_with("0\r\n\r\n"));
    }
    assert!(cut > 0, "no unread answer ended");
    api.stop().await;
}

#[fixture::test(long)]
async fn client_that_takes_nothing_is_cut_and_a_slow_one_is_not() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let texts = with_large_events(&api).await;
    let silent = begin(&api, "/v1/aggregates/order/big/events", LINES).await;
    let mut slow = begin(&api, "/v1/aggregates/order/big/events", LINES).await;

    // Slower than the answer is made, for longer than a client may take nothing.
    let mut answer = Vec::new();
    let mut piece = vec![0; 100 << 10];
    loop {
        let count = slow.read(&mut piece).await.unwrap();
        if count == 0 {
            break;
        }
        answer.extend_from_slice(&piece[..count]);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }

    assert_eq!(texts_of(&String::from_utf8(answer).unwrap()), texts);
    let cut = read_to_end(silent).await;
    assert!(!cut.ends_with("0\r\n\r\n"), "the answer was not cut");
    api.stop().await;
}

/// Its buffers are full meanwhile, as those of a client that reads slowly.
#[fixture::test]
async fn client_may_pause_for_longer_than_a_small_api_timeout() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let texts = with_large_events(&api).await;
    api.stop().await;
    let api = Api::start(&outbox, &["api.timeout=1s"]).await;
    let reader = begin(&api, "/v1/aggregates/order/big/events", LINES).await;

    tokio::time::sleep(Duration::from_secs(4)).await;

    let answer = read_to_end(reader).await;
    assert!(answer.ends_with("0\r\n\r\n"), "the answer was cut after {} bytes", answer.len());
    assert_eq!(texts_of(&answer), texts);
    api.stop().await;
}

/// As when each connection waits for an answer that MongoDB does not give.
#[fixture::test]
async fn pool_without_a_free_connection_is_reported() {
    let outbox = TestOutbox::new().await;
    let name = outbox.database.clone();
    let uri = mongodb_uri();
    let (server, _) = uri.rsplit_once('/').unwrap();
    let uri = format!("mongo.uri={server}/?replicaSet=rs0&maxPoolSize=1&appName={name}");
    let api = Api::start(&outbox, &[&uri, "relay.enabled=false", "api.timeout=60s"]).await;
    let admin = outbox.client.database("admin");
    let fault = |mode: &str| {
        doc! {
            "configureFailPoint": "failCommand", "mode": mode,
            "data": {
                "failCommands": ["find"], "appName": &name, "blockConnection": true,
                "blockTimeMS": 12_000, "namespace": format!("{name}.order_event_stream"),
            },
        }
    };
    admin.run_command(fault("alwaysOn")).await.unwrap();

    // One holds the only connection until it is given up; the others wait for it.
    let read = "/v1/aggregates/order/o-1/events/last";
    let asking = async || loop {
        api.get(read).await;
    };
    let asking = async { tokio::join!(asking(), asking(), asking()) };
    let starved = |report: &Value| report["parts"]["mongodb pools"]["status"] == "down";
    let series = r#"postrider_mongodb_pool_starved{pool="api"}"#;
    let reported = async {
        api.postrider.until_report("the pool of the API is starved", starved).await;
        api.postrider.until_metric(series, |value| value == 1.0).await;
    };
    tokio::select! {
        _ = asking => {}
        () = reported => {}
    }

    admin.run_command(fault("off")).await.unwrap();
    assert_eq!(api.get(read).await.status, 404);
    api.postrider.until_metric(series, |value| value == 0.0).await;
    assert_eq!(api.postrider.readyz().await.1["parts"]["mongodb pools"]["status"], "ok");
    api.stop().await;
}
