//! The memory of the daemon while clients read nothing of its answers, with all of its limits used.
//!
//! `cargo bench --bench readers [-- PART…]`; parts: `feed`, `lists`, `pages`, `uploads`, `all`.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use support::cost;
use support::daemon::Daemon;

/// Events of one aggregate: each nearly as large as a request may be.
const EVENTS: usize = 40;
const EVENT_BYTES: usize = 900_000;

/// `feed.max_readers` and `api.max_concurrent`.
const READERS: usize = 64;
const REQUESTS: usize = 256;

/// How long clients read nothing. An answer of which nothing is taken ends after 30 s.
const ATTACK: Duration = Duration::from_secs(25);

/// How long after the clients are gone the memory is looked at.
const AFTER: Duration = Duration::from_secs(30);

const PARTS: [&str; 5] = ["feed", "lists", "pages", "uploads", "all"];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for part in PARTS {
            if support::is_chosen(&PARTS, part) {
                measure(part).await;
            }
        }
    });
}

async fn measure(part: &str) {
    let collections = support::outbox().await;
    let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = [
        "sinks.out.kind=stdout".to_owned(),
        "api.enabled=true".to_owned(),
        format!("api.listen={api}"),
        "feed.enabled=true".to_owned(),
    ];
    let daemon = Daemon::start(&collections, &settings);
    let base = format!("http://{api}");
    let client = reqwest::Client::new();
    fill(&client, &base).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let pid = daemon.pid();
    let idle = cost::resident_mb(&pid);
    cost::forget_peak(&pid);

    let feed = ("/v1/feed", "text/event-stream");
    let list = ("/v1/aggregates/order/big/events", "application/x-ndjson");
    let page = ("/v1/feed?limit=1000", "application/json");
    let reads: Vec<(&str, &str)> = match part {
        "feed" => vec![feed; READERS],
        "lists" => vec![list; REQUESTS],
        "pages" => vec![page; REQUESTS],
        "uploads" => Vec::new(),
        _ => [vec![feed; READERS], vec![list; REQUESTS / 2], vec![page; REQUESTS / 4]].concat(),
    };
    let uploads = match part {
        "uploads" => REQUESTS,
        "all" => REQUESTS / 4,
        _ => 0,
    };
    let began = Instant::now();
    let mut clients = join_all(reads.iter().map(|(path, accept)| ask(api, path, accept))).await;
    clients.extend(join_all((0..uploads).map(|_| upload(api))).await);
    // What others notice: an append every second.
    let (mut appends, mut slowest) = (0, Duration::ZERO);
    while began.elapsed() < ATTACK {
        let asked = Instant::now();
        let status = append(&client, &base, "small", &format!("{part}-{appends}"), 10).await;
        slowest = slowest.max(asked.elapsed());
        assert!(status == 201 || status == 503, "{status}");
        appends += usize::from(status == 201);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let peak = cost::peak_mb(&pid);
    drop(clients);
    tokio::time::sleep(AFTER).await;
    let after = cost::resident_mb(&pid);
    println!(
        "readers  {part:<8} idle {idle} MB; peak {peak} MB (+{}); {AFTER:.0?} after them {after} MB (+{}); {appends} \
         appends meanwhile, the slowest {slowest:.1?}",
        peak.saturating_sub(idle),
        after.saturating_sub(idle),
    );
    daemon.stop().await;
    support::drop(collections).await;
}

/// Appends the large events, and waits until all have positions.
async fn fill(client: &reqwest::Client, base: &str) {
    while client.get(format!("{base}/v1/feed")).send().await.is_err_and(|error| error.is_connect())
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for at in 0..EVENTS {
        while append(client, base, "big", &format!("big-{at}"), EVENT_BYTES).await == 503 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    loop {
        let page = client.get(format!("{base}/v1/feed?limit=1")).send().await.unwrap();
        let page: Value = page.json().await.unwrap();
        if page["head"] == EVENTS {
            return;
        }
    }
}

async fn append(
    client: &reqwest::Client,
    base: &str,
    id: &str,
    request: &str,
    bytes: usize,
) -> u16 {
    let body = json!({
        "requestId": request,
        "events": [{ "name": "OrderPlaced", "body": { "text": "x".repeat(bytes) } }],
    });
    let url = format!("{base}/v1/aggregates/order/{id}/events");
    client.post(url).json(&body).send().await.unwrap().status().as_u16()
}

async fn connect(api: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    // The system would take much of an answer for a client with a large buffer.
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(api).await.unwrap()
}

/// Asks, and reads the status at most.
async fn ask(api: std::net::SocketAddr, path: &str, accept: &str) -> TcpStream {
    let mut stream = connect(api).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut [0; 12])).await;
    stream
}

/// Sends a body of 1 MB but for its last byte.
async fn upload(api: std::net::SocketAddr) -> TcpStream {
    let mut stream = connect(api).await;
    let length = 1 << 20;
    let head = format!(
        "POST /v1/aggregates/order/up/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let body = vec![b' '; length - 1];
    let _ = tokio::time::timeout(Duration::from_secs(5), stream.write_all(&body)).await;
    stream
}
