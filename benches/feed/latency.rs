//! From the request of an append to its server-sent event, in one daemon, at 200 appends a second.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::{body, support};

const PER_SECOND: u64 = 200;

pub async fn measure() {
    let collections = support::outbox().await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = [
        "relay.enabled=false".to_owned(),
        "api.enabled=true".to_owned(),
        "feed.enabled=true".to_owned(),
        format!("api.listen=127.0.0.1:{port}"),
    ];
    let daemon = support::daemon::Daemon::start(&collections, &settings);
    let base = format!("http://127.0.0.1:{port}");
    let client = reqwest::Client::new();
    while !client
        .get(format!("{base}/v1/feed"))
        .send()
        .await
        .is_ok_and(|answer| answer.status() == 200)
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let sent: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let request = client.get(format!("{base}/v1/feed")).header("accept", "text/event-stream");
    let mut stream = request.send().await.unwrap();
    let total = support::seconds() * PER_SECOND as usize;

    let appending = tokio::spawn({
        let (client, base, sent) = (client.clone(), base.clone(), sent.clone());
        async move {
            let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / PER_SECOND));
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..total {
                tick.tick().await;
                let request = format!("r{number}");
                let url = format!("{base}/v1/aggregates/order/o-{}/events", number % 1_000);
                let text = body().get_str("lines").unwrap().to_owned();
                let body = json!({
                    "requestId": request,
                    "events": [{ "name": "OrderCreated", "body": { "lines": text } }],
                });
                sent.lock().unwrap().insert(request, Instant::now());
                let client = client.clone();
                tasks.spawn(async move {
                    let answer = client.post(url).json(&body).send().await.unwrap();
                    assert_eq!(answer.status(), 201);
                });
            }
            tasks.join_all().await;
        }
    });
    let (mut text, mut waited) = (String::new(), Vec::new());
    while waited.len() < total {
        let piece = stream.chunk().await.unwrap().unwrap();
        let now = Instant::now();
        text.push_str(std::str::from_utf8(&piece).unwrap());
        while let Some(end) = text.find("\n\n") {
            let event: String = text.drain(..end + 2).collect();
            let Some(data) = event.lines().find_map(|line| line.strip_prefix("data:")) else {
                continue;
            };
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            let began = sent.lock().unwrap()[data["requestId"].as_str().unwrap()];
            waited.push((now - began).as_secs_f64() * 1e3);
        }
    }
    appending.await.unwrap();
    waited.sort_by(f64::total_cmp);
    println!(
        "\nappend to server-sent event at {PER_SECOND}/s: p50 {:.1} ms, p99 {:.1} ms",
        support::at(&waited, 0.5),
        support::at(&waited, 0.99)
    );
    drop(daemon);
    support::drop(collections).await;
}
