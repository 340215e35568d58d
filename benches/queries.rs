//! Queries of a million snapshots, compared with the same reads by the bare driver.
//!
//! `cargo bench --bench queries`; `POSTRIDER_BENCH_RECORDS` for another number of snapshots.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::net::TcpListener;
use std::pin::pin;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Collection, IndexModel};
use postrider::context::{Context, ContextSettings};
use postrider::events::query::{
    Direction, FieldName, Page, Query, QueryService, QuerySettings, SortKey, Target,
};
use postrider::names::AggregateName;
use serde_json::{Value, json};

/// Each status has this share of the snapshots.
const STATUSES: i32 = 100;

/// The items of a page.
const PAGE: u64 = 20;

/// The items of a list.
const LIST: i64 = 1_000;

const ROUNDS: u64 = 200;

fn count() -> i32 {
    let count = std::env::var("POSTRIDER_BENCH_RECORDS").ok().and_then(|n| n.parse().ok());
    count.unwrap_or(1_000_000)
}

#[tokio::main]
async fn main() {
    let collections = support::outbox().await;
    let database = collections.database().clone();
    let client = database.client().clone();
    let context = Context::new(client, ContextSettings::new(database.name()));
    let order = AggregateName::new("order").unwrap();
    let snapshots: Collection<Document> = database.collection("order_snapshot");
    context.apply(postrider::context::CollectionKind::Snapshots, "order").await.unwrap();
    fill(&database, count()).await;
    let keys = doc! { "state.status": 1, "state.total": -1, "_id": 1 };
    snapshots.create_index(IndexModel::builder().keys(keys).build()).await.unwrap();

    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("api.listen=127.0.0.1:{port}");
    let settings = ["relay.enabled=false".to_owned(), "api.enabled=true".to_owned(), listen];
    let daemon = support::daemon::Daemon::start(&collections, &settings);
    let http = Http { client: reqwest::Client::new(), port };
    http.until_open().await;

    println!("{} snapshots, {} of each status\n", count(), count() / STATUSES);
    pages(&snapshots, &QueryService::new(context, QuerySettings::default()), &order, &http).await;
    lists(&snapshots, &http).await;
    drop(daemon);
    support::drop(collections).await;
}

/// A page of one status by total: the driver's `find` and `count_documents`, the service, and HTTP, in turn.
async fn pages(
    snapshots: &Collection<Document>,
    service: &QueryService,
    order: &AggregateName,
    http: &Http,
) {
    let (mut bare, mut ours, mut by_http) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let status = format!("S{}", round % STATUSES as u64);
        let index = 1 + round % 5;

        let started = Instant::now();
        let filter = doc! { "deleted": false, "state.status": &status };
        let found = snapshots
            .find(filter.clone())
            .sort(doc! { "state.total": -1, "_id": 1 })
            .skip((index - 1) * PAGE)
            .limit(PAGE as i64)
            .await
            .unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        let total = snapshots.count_documents(filter).await.unwrap();
        bare.push(started.elapsed().as_secs_f64());

        let query = Query {
            condition: FieldName::new("state.status").unwrap().eq(status.as_str()),
            sort: vec![SortKey {
                field: FieldName::new("state.total").unwrap(),
                direction: Direction::Desc,
            }],
            ..Query::default()
        };
        let started = Instant::now();
        let page = Page { index, size: PAGE };
        let paged = service.page(Target::Snapshots, order, &query, page).await.unwrap();
        ours.push(started.elapsed().as_secs_f64());
        assert_eq!((paged.items, paged.total), (found, total));

        let body = json!({
            "condition": { "operator": "EQ", "field": "state.status", "value": status },
            "sort": [{ "field": "state.total", "direction": "DESC" }],
            "page": { "index": index, "size": PAGE },
        });
        let started = Instant::now();
        let answer =
            http.post("/v1/aggregates/order/snapshots/query", &body, "application/json").await;
        by_http.push(started.elapsed().as_secs_f64());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["total"], total);
    }
    let bare = support::median(&mut bare);
    println!("{:<44} {:>8} {:>8}", "a page of 20, with the total", "ms", "ratio");
    for (name, mut times) in [
        ("find and count_documents of the driver", vec![bare]),
        ("QueryService::page", ours),
        ("HTTP", by_http),
    ] {
        let time = support::median(&mut times);
        println!("{name:<44} {:>8.2} {:>8.2}", time * 1e3, time / bare);
    }
}

/// Lists of a thousand, one after the other by their cursors: the driver's `find`, and NDJSON, in turn.
async fn lists(snapshots: &Collection<Document>, http: &Http) {
    let path = "/v1/aggregates/order/snapshots/query";
    let (mut bare, mut lines) = (Vec::new(), Vec::new());
    let (mut last, mut body) = (String::new(), json!({ "limit": LIST }));
    for _ in 0..60 {
        let started = Instant::now();
        let filter = doc! { "deleted": false, "_id": { "$gt": &last } };
        let found = snapshots.find(filter).sort(doc! { "_id": 1 }).limit(LIST).await.unwrap();
        let mut found = pin!(found);
        let mut documents = 0;
        while let Some(document) = found.try_next().await.unwrap() {
            documents += 1;
            last = document.get_str("_id").unwrap().to_owned();
        }
        bare.push(documents as f64 / started.elapsed().as_secs_f64());

        let started = Instant::now();
        let text = http.post(path, &body, "application/x-ndjson").await;
        lines.push(documents as f64 / started.elapsed().as_secs_f64());
        assert_eq!(text.lines().count(), documents);
        assert!(text.lines().last().unwrap().contains(&last));
        let answer: Value =
            serde_json::from_str(&http.post(path, &body, "application/json").await).unwrap();
        body["after"] = answer["next"].clone();
    }
    let (bare, lines) = (support::median(&mut bare), support::median(&mut lines));
    println!("\n{:<44} {:>8} {:>8}", "a list of 1,000", "docs/s", "ratio");
    println!("{:<44} {bare:>8.0} {:>8.2}", "find of the driver", 1.0);
    println!("{:<44} {lines:>8.0} {:>8.2}", "NDJSON", lines / bare);
}

/// Fills the collection on the server, with states of about the README's payload.
async fn fill(database: &mongodb::Database, count: i32) {
    let text =
        |prefix: &str, number: bson::Bson| doc! { "$concat": [prefix, { "$toString": number }] };
    let modulo = |within: i32| bson::Bson::from(doc! { "$mod": ["$n", within] });
    let snapshot = doc! {
        "_id": text("o-", "$n".into()),
        "contextName": "default",
        "aggregateName": "order",
        "tenantId": text("t-", modulo(10)),
        "version": { "$literal": 3 },
        "snapshotTime": { "$toLong": "$$NOW" },
        "deleted": { "$literal": false },
        "state": {
            "status": text("S", modulo(STATUSES)),
            "total": { "$mod": [{ "$multiply": ["$n", 7_919] }, 100_003] },
            "customer": text("customer-", modulo(1_000)),
            "note": "x".repeat(350),
        },
    };
    // In parts: a document of the numbers has at most 16 MiB.
    for begin in (0..count).step_by(100_000) {
        let range = doc! { "$range": [begin, (begin + 100_000).min(count)] };
        let pipeline = vec![
            doc! { "$documents": [{ "n": range }] },
            doc! { "$unwind": "$n" },
            doc! { "$replaceWith": &snapshot },
            doc! { "$merge": "order_snapshot" },
        ];
        database.aggregate(pipeline).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    }
}

struct Http {
    client: reqwest::Client,
    port: u16,
}

impl Http {
    async fn until_open(&self) {
        let url = format!("http://127.0.0.1:{}/v1/instances", self.port);
        while !self.client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn post(&self, path: &str, body: &Value, accept: &str) -> String {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let request = self.client.post(url).json(body).header("accept", accept);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.text().await.unwrap()
    }
}
