//! What is attacked: a daemon with both ports and a queue, in a database with large events, many names
//! and many blocked keys.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use postrider::outbox::collections::Collections;
use serde_json::{Value, json};

use crate::attacks::{ALL, NAMES, READER};
use crate::support;
use crate::support::blocked::{behind, dead, insert};
use crate::support::daemon::Daemon;
use crate::support::queue::{Arrivals, Queue};

/// Keys that dead records block.
const BLOCKED: usize = 20_000;

/// Events of `order/big`, nearly as large as a request may be.
const LARGE: usize = 40;
const LARGE_BYTES: usize = 900_000;

/// Events of `small`, more than a query may examine.
const SMALL: usize = 30_000;
const PER_REQUEST: usize = 100;

pub struct World {
    pub collections: Collections,
    pub daemon: Daemon,
    pub arrivals: Arrivals,
    pub ops: SocketAddr,
    pub api: SocketAddr,
    queue: Queue,
}

impl World {
    pub async fn start() -> Self {
        let collections = support::outbox().await;
        insert(&collections, (0..BLOCKED).flat_map(|n| [dead(n), behind(n)])).await;
        let queue = Queue::declare("classic").await;
        let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let tokens = format!(
            "api.tokens=[{{name=\"reader\", token=\"{READER}\", scopes=[\"read\"]}}, {{name=\"all\", token=\"{ALL}\"}}]"
        );
        let own = [
            "api.enabled=true".into(),
            format!("api.listen={api}"),
            "feed.enabled=true".into(),
            tokens,
        ];
        let settings: Vec<String> = queue.settings().into_iter().chain(own).collect();
        let daemon = Daemon::start(&collections, &settings);
        let (arrivals, ops) = (queue.arrivals().await, daemon.ops());
        let world = Self { collections, daemon, arrivals, ops, api, queue };
        world.fill().await;
        world
    }

    async fn fill(&self) {
        let client = reqwest::Client::new();
        let events = |count: usize, bytes: usize| {
            let event = json!({ "name": "OrderPlaced", "body": { "note": "x".repeat(bytes) } });
            vec![event; count]
        };
        let large = (0..LARGE).map(|n| ("order".into(), "big".into(), n, events(1, LARGE_BYTES)));
        let small = (0..SMALL / PER_REQUEST)
            .map(|n| ("small".into(), format!("s-{n}"), n, events(PER_REQUEST, 100)));
        let names = (0..NAMES).map(|n| (format!("name-{n}"), "one".into(), n, events(1, 100)));
        let all: Vec<(String, String, usize, Vec<Value>)> =
            large.chain(small).chain(names).collect();
        let appends = stream::iter(all).map(|(name, id, n, events)| {
            let path = format!("/v1/aggregates/{name}/{id}/events");
            let body = json!({ "requestId": format!("{name}-{id}-{n}"), "events": events });
            self.post(&client, path, body)
        });
        // One after the other of the large ones: their versions follow each other.
        appends.buffered(1).collect::<Vec<()>>().await;
        let billing = json!({ "name": "billing", "kind": "pull", "aggregates": ["order"] });
        self.post(&client, "/v1/subscriptions".into(), billing).await;
    }

    async fn post(&self, client: &reqwest::Client, path: String, body: Value) {
        let url = format!("http://{}{path}", self.api);
        loop {
            let answer = client.post(&url).bearer_auth(ALL).json(&body).send().await;
            match answer.map(|answer| answer.status().as_u16()) {
                Ok(200 | 201) => return,
                // It starts.
                Ok(503) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                Ok(status) => panic!("{status}: {path}"),
            }
        }
    }

    /// Waits until everything that was sent has arrived, or no more arrives.
    pub async fn until_arrived(&self, sent: usize) {
        let mut before = usize::MAX;
        while self.arrivals.count() < sent && self.arrivals.count() != before {
            before = self.arrivals.count();
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        // What an attacker enqueued is counted too.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    pub async fn stop(self) {
        self.daemon.stop().await;
        support::drop(self.collections).await;
        self.queue.delete().await;
    }
}
