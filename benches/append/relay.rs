//! From a request over HTTP to the arrival at RabbitMQ: the daemon, with append path and relay in one process.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::quantile;
use crate::support;
use crate::support::daemon::{Daemon, until_divided};
use crate::support::queue::Queue;

/// Appends per second: single ones, and a steady flow.
const RATES: [u32; 2] = [5, 200];

pub async fn measure() {
    println!("from a POST of one event to its answer, and to its arrival at RabbitMQ");
    for rate in RATES {
        let collections = support::outbox().await;
        let queue = Queue::declare("classic").await;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut settings = queue.settings();
        settings.push("api.enabled=true".to_owned());
        settings.push(format!("api.listen=127.0.0.1:{port}"));
        let mut daemons = [Daemon::start(&collections, &settings)];
        until_divided(&mut daemons).await;
        let arrivals = queue.arrivals().await;
        let client = reqwest::Client::new();
        let count = if rate < 10 { 200 } else { 4_000 };
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        let mut appends = JoinSet::new();
        for number in 0..count {
            ticks.tick().await;
            let url = format!("http://127.0.0.1:{port}/v1/aggregates/order/{number}/events");
            let body = json!({
                "requestId": "r",
                "events": [{ "name": "OrderCreated", "body": { "lines": "x".repeat(370) } }],
            });
            let posting = client.post(url).header("content-type", "application/json");
            let posting = posting.body(body.to_string());
            appends.spawn(async move {
                let sent = Instant::now();
                let answer = posting.send().await.unwrap();
                assert_eq!(answer.status().as_u16(), 201);
                let answer: Value = answer.json().await.unwrap();
                let id = answer["records"][0].as_str().unwrap().to_owned();
                (id, sent, sent.elapsed())
            });
        }
        let sent = appends.join_all().await;
        while arrivals.count() < count {
            daemons[0].pause().await;
        }
        let first = arrivals.first();
        let (mut answered, mut arrived): (Vec<f64>, Vec<f64>) = sent
            .iter()
            .map(|(id, sent, answered)| {
                let arrived = first[id].duration_since(*sent);
                (answered.as_secs_f64() * 1e3, arrived.as_secs_f64() * 1e3)
            })
            .unzip();
        answered.sort_by(f64::total_cmp);
        arrived.sort_by(f64::total_cmp);
        println!(
            "{rate:>4}/s: answer p50 {:.1} p99 {:.1} ms, arrival p50 {:.1} p99 {:.1} ms",
            quantile(&answered, 0.5),
            quantile(&answered, 0.99),
            quantile(&arrived, 0.5),
            quantile(&arrived, 0.99),
        );
        drop(daemons);
        queue.delete().await;
        collections.database().drop().await.unwrap();
    }
}
