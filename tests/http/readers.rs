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
async fn with_large_events(api: &Api) -> Vec<String> {
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
async fn begin(api: &Api, path: &str, accept: &str) -> TcpStream {
    // A small buffer: the system would take much of the answer for the client.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(128 << 10).unwrap();
    let mut stream = socket.connect(api.address).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

const LINES: &str = "application/x-ndjson";

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
    let api = Api::start(&outbox, &["feed.enabled=true"]).await;
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
