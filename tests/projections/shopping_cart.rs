//! The example: appends over HTTP, from the feed and from a queue, while everything is killed.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Collection, Database};
use postrider::context::{Context, ContextSettings};
use postrider::events::feed::{Feed, FeedEvent, FeedFilter};
use rand::RngExt;
use serde_json::{Value, json};

use crate::child::{ProjectorProcess, Projects};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, Signal, run_with};
use crate::support::queue::{Queue, amqp_uri, mongo_settings};
use crate::support::replica_set::ReplicaSet;

#[allow(dead_code, reason = "its main")]
#[path = "../../examples/shopping_cart.rs"]
pub mod example;

const CARTS: usize = 5;
const ROUNDS: usize = 60;

/// A daemon with an API, a feed, and a relay to a queue.
struct Daemon {
    settings: Vec<String>,
    process: Postrider,
    http: reqwest::Client,
}

impl Daemon {
    fn start(settings: Vec<String>) -> Self {
        let process = Postrider::of(run_with(&settings));
        Self { settings, process, http: reqwest::Client::new() }
    }

    async fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.until_ended(Duration::from_secs(10)).await;
        self.process = Postrider::of(run_with(&self.settings));
    }

    /// Appends, and asks again with the same request id until there is an answer.
    async fn append(&self, cart: &str, body: &Value) {
        loop {
            if let Some(200 | 201) = self.try_append(cart, body).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn try_append(&self, cart: &str, body: &Value) -> Option<u16> {
        let lines = self.process.lines();
        let line = lines.iter().find(|line| line["message"] == "serving the HTTP API")?;
        let address = line["address"].as_str()?;
        let url = format!("http://{address}/v1/aggregates/cart/{cart}/events");
        let answer = self.http.post(url).json(body).timeout(Duration::from_secs(5)).send().await;
        Some(answer.ok()?.status().as_u16())
    }
}

/// The events of one append, all valid for the quantities that a cart has.
fn events(items: &mut BTreeMap<&'static str, i32>, is_first: bool) -> Vec<Value> {
    let mut rng = rand::rng();
    let mut events = Vec::new();
    if is_first {
        events.push(json!({ "name": "ShoppingCartOpened", "body": { "client": "ada" } }));
    }
    for _ in 0..rng.random_range(1..=3) {
        let product = ["tea", "mug", "spoon"][rng.random_range(0..3)];
        let has = items.entry(product).or_default();
        let quantity = rng.random_range(1..=3);
        let (name, quantity) = if *has > 0 && rng.random() {
            ("ProductItemRemoved", quantity.min(*has))
        } else {
            ("ProductItemAdded", quantity)
        };
        *has += if name == "ProductItemAdded" { quantity } else { -quantity };
        events.push(json!({ "name": name, "body": { "product": product, "quantity": quantity } }));
    }
    events
}

/// The documents of a collection by their ids, without revisions and without the order of fields.
async fn contents(collection: Collection<Document>) -> BTreeMap<String, Value> {
    let found: Vec<Document> = collection.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    let content = |mut cart: Document| {
        cart.remove("revisions");
        (cart.get_str("_id").unwrap().to_owned(), bson::Bson::Document(cart).into_relaxed_extjson())
    };
    let sorted = |(id, value): (String, Value)| (id, sorted(value));
    found.into_iter().map(content).map(sorted).collect()
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> =
                fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.into_iter().collect()
        }
        other => other,
    }
}

/// What the carts must be.
async fn expected(database: &Database) -> BTreeMap<String, Value> {
    let feed = feed(database);
    let mut carts: BTreeMap<String, Document> = BTreeMap::new();
    let page = feed.page(None, 0, &FeedFilter::default(), 10_000).await.unwrap();
    assert_eq!(page.next, page.head);
    for event in &page.items {
        let FeedEvent { aggregate_id, name, body, .. } = event;
        let cart =
            carts.entry(aggregate_id.clone()).or_insert_with(|| doc! { "_id": aggregate_id });
        if let Some(set) = example::changed(Some(cart), name, body).unwrap() {
            cart.extend(set);
        }
    }
    let json = |cart: Document| sorted(bson::Bson::Document(cart).into_relaxed_extjson());
    carts.into_iter().map(|(id, cart)| (id, json(cart))).collect()
}

fn feed(database: &Database) -> Feed {
    let settings = ContextSettings { feed: true, ..ContextSettings::new(database.name()) };
    Feed::new(Context::new(database.client().clone(), settings))
}

#[fixture::test]
async fn carts_are_the_same_from_feed_and_queue_whatever_is_killed() {
    // The server ends transactions of dead clients soon: by default after a minute.
    let set = ReplicaSet::of(1).await;
    let soon = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 2 };
    set.direct(0).database("admin").run_command(soon).await.unwrap();
    let outbox = TestOutbox::at(&set.uri()).await;
    let database = outbox.client.database(&outbox.database);
    let queue = Queue::declare().await;
    let mut settings = mongo_settings(&outbox.database);
    settings.extend(queue.sink(&amqp_uri()));
    settings.extend([format!("mongo.uri={}", set.uri())]);
    settings.extend(
        ["api.enabled=true", "events.enabled=true", "feed.enabled=true"].map(str::to_owned),
    );
    let mut daemon = Daemon::start(settings);
    let kinds = [Projects::Feed, Projects::Queue { uri: amqp_uri(), name: queue.name.clone() }];
    let start = |kind: &Projects| ProjectorProcess::start(kind, &set.uri(), &outbox.database, "");
    let mut projectors: Vec<_> = kinds.iter().map(start).collect();
    let mut carts = vec![BTreeMap::new(); CARTS];
    let mut kills = 0;

    for round in 0..ROUNDS {
        let cart = round % CARTS;
        let events = events(&mut carts[cart], round < CARTS);
        let request = json!({ "requestId": format!("{round}"), "events": events });
        daemon.append(&format!("c-{cart}"), &request).await;
        if round % 20 == 15 {
            daemon.kill().await;
            kills += 1;
        }
        for (kind, projector) in kinds.iter().zip(&mut projectors) {
            // Ended by itself: the guard found a gap, the queue was closed.
            if rand::random_ratio(1, 6) || projector.has_ended() {
                *projector = start(kind);
                kills += 1;
            }
        }
    }
    assert!(kills > 5);
    for (kind, projector) in kinds.iter().zip(&mut projectors) {
        *projector = start(kind);
    }

    let of_feed = example::carts_of_feed(database.clone()).unwrap();
    let all_have_positions = || async {
        let streams = database.collection::<Document>("cart_event_stream");
        streams.count_documents(doc! { "position": { "$exists": false } }).await.unwrap() == 0
    };
    eventually("a position of each append", all_have_positions).await;
    eventually("the read model", async || {
        of_feed.status().await.is_ok_and(|status| status.generations[0].lag == 0)
    })
    .await;
    let expected = expected(&database).await;
    assert_eq!(expected.len(), CARTS);
    let resolver = of_feed.resolver();
    let first = example::read_cart(&resolver, "c-0").await.unwrap().unwrap();
    assert_eq!(sorted(bson::Bson::Document(first).into_relaxed_extjson()), expected["c-0"]);
    let live = resolver.resolve().await.unwrap();
    assert_eq!(contents(live.collection("carts")).await, expected);
    eventually("the carts of the queue", async || {
        contents(database.collection(example::OF_QUEUE)).await == expected
    })
    .await;
}
