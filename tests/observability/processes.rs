//! The processes that are watched, and their faults.
//!
//! | job | what it is | its faults |
//! |---|---|---|
//! | `shop`, namespace `test` | two instances, RabbitMQ and Kafka, `on_dead = "block"`, the API, the feed | deaths, retries, a blocked key, a broker that is down for one instance and for both, a pause, an instance that loses MongoDB and dies, a subscription that stopped, a parked event |
//! | `lower` | fixed partitions, 0-127 of 256, the feed | a record of a partition without an owner, no change stream, an erasure that waits for such a record, records that are late, a stream with a missing version, a feed that MongoDB refuses, a slow MongoDB and then none |
//! | `upper` | fixed partitions, 128-255 | no instance counts the outbox; it stops |
//! | `bank`, namespace `test` | `postrider adopt` | a document that it skips |

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bson::{Bson, DateTime, Document, Timestamp, Uuid, doc};
use postrider::partition;
use serde_json::{Value, json};

use crate::prometheus::Prometheus;
use crate::support::fault_proxy::FaultProxy;
use crate::support::kafka::{brokers, topic::Topic};
use crate::support::outbox::{TestOutbox, eventually, insert_raw, mongodb_uri, record};
use crate::support::process::{Postrider, Signal, call_with, command};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of, mongo_settings, stdout_sink};

/// The labels of `shop`.
pub const SHOP: [(&str, &str); 2] = [("namespace", "test"), ("job", "shop")];

/// The labels of `bank`.
const BANK: [(&str, &str); 2] = [("namespace", "test"), ("job", "bank")];

/// A key of the upper half: partition 189.
const UPPER_KEY: &str = "order-123";

/// `mongo.uri` through a proxy.
fn mongo_uri(proxy: &FaultProxy) -> String {
    format!("mongo.uri={}&serverSelectionTimeoutMS=500", proxy.mongodb_uri(""))
}

fn later() -> DateTime {
    DateTime::from_system_time(SystemTime::now() + Duration::from_secs(3600))
}

fn with(id: &str, key: &str, more: Document) -> Document {
    let mut record = record(id, key);
    record.insert("createdAt", DateTime::now());
    record.extend(more);
    record
}

/// All of them.
pub struct Processes {
    pub shop: TestOutbox,
    /// The servers' objects that the processes use, until the end of the test.
    _rest: (TestOutbox, TestOutbox, Queue, Topic),
    /// From `shop` to RabbitMQ.
    pub to_broker: FaultProxy,
    /// From the second instance of `shop` to `to_broker`.
    pub to_broker_of_second: FaultProxy,
    /// From the second instance of `shop` to MongoDB.
    pub to_mongodb_of_second: FaultProxy,
    /// From `lower` to MongoDB.
    pub to_mongodb_of_lower: FaultProxy,
    settings: Vec<String>,
    pub first: Postrider,
    pub second: Postrider,
    pub low: Postrider,
    pub high: Postrider,
    bank: (TestOutbox, Postrider),
    http: reqwest::Client,
}

impl Processes {
    /// Starts them, on outboxes with records from before.
    pub async fn start() -> Self {
        let (shop, lower) = (TestOutbox::new().await, TestOutbox::new().await);
        let (upper, queue) = (TestOutbox::new().await, Queue::declare().await);
        let topic = Topic::new(1).await;
        let mongodb = host_of(&mongodb_uri());
        let to_broker = FaultProxy::to(&host_of(&amqp_uri())).await;
        let to_broker_of_second = FaultProxy::to_address(to_broker.address()).await;
        let to_mongodb_of_second = FaultProxy::to(&mongodb).await;
        let to_mongodb_of_lower = FaultProxy::to(&mongodb).await;
        before(&shop).await;
        add_hazard(&shop).await;
        lower.insert([record("nobody's", UPPER_KEY)]).await;
        let amqp = amqp_uri_at(&to_broker.address().to_string());
        let more = [
            "api.enabled=true",
            "feed.enabled=true",
            "sinks.kafka.kind=kafka",
            &format!("sinks.kafka.brokers={}", brokers()),
            &format!("sinks.kafka.topic={}", topic.name),
            "relay.default_sink=rabbit",
            "relay.on_dead=block",
            "relay.max_attempts=6",
            "relay.backoff.kind=fixed",
            "relay.backoff.initial=20ms",
            "relay.sink_probe_interval_max=500ms",
            // Refused: there is no such exchange.
            "relay.dead_letter={sink = \"rabbit\", destination = \"no-such-exchange\"}",
            "routes=[{type = \"lost\", sink = \"rabbit\", key = \"no-such-queue\"}, \
                     {type = \"K\", sink = \"kafka\"}]",
        ];
        let more = more.map(str::to_owned);
        let settings = [queue.settings_at(&shop, &amqp), more.to_vec()].concat();
        let fixed = |outbox: &TestOutbox, set: &str, more: &[String]| {
            let set = vec![format!("partitions.static={set}")];
            [mongo_settings(&outbox.database), stdout_sink(), set, more.to_vec()].concat()
        };
        // Its change stream gets no answer, and nothing wakes it.
        to_mongodb_of_lower.silence("$changeStream", 9);
        let amqp = amqp_uri_at(&to_broker_of_second.address().to_string());
        let own = vec![mongo_uri(&to_mongodb_of_second), format!("sinks.rabbit.uri={amqp}")];
        let second = [settings.clone(), own].concat();
        Self {
            first: Postrider::start(&settings),
            second: Postrider::start(&second),
            low: Postrider::start(&fixed(
                &lower,
                "0-127",
                &[
                    mongo_uri(&to_mongodb_of_lower),
                    "api.enabled=true".to_owned(),
                    "feed.enabled=true".to_owned(),
                ],
            )),
            high: Postrider::start(&fixed(&upper, "128-255", &[])),
            bank: adopting().await,
            shop,
            _rest: (lower, upper, queue, topic),
            to_broker,
            to_broker_of_second,
            to_mongodb_of_second,
            to_mongodb_of_lower,
            settings,
            http: reqwest::Client::new(),
        }
    }

    /// Makes Prometheus scrape them; waits until it has their first state.
    pub async fn watched_by(&self, prometheus: &Prometheus) {
        prometheus.scrape(&self.first, &SHOP).await;
        prometheus.scrape(&self.second, &SHOP).await;
        prometheus.scrape(&self.low, &[("job", "lower")]).await;
        prometheus.scrape(&self.high, &[("job", "upper")]).await;
        prometheus.scrape(&self.bank.1, &BANK).await;
        for known in [
            "count(postrider_sink_up == 1) == 6",
            "sum by (job) (postrider_partitions_owned{job=\"shop\"}) == 256",
            "postrider_partitions_unassigned == 0",
            "count(postrider_partitions_owned > 0) == 4",
            "postrider_outbox_records{job=\"shop\", status=\"invalid\"} == 1",
            "postrider_adopt_change_stream_up == 1",
            "process_resident_memory_bytes{job=\"bank\"} > 0",
        ] {
            prometheus.until(known).await;
        }
    }

    /// Appends the second version of an aggregate of `lower` whose first one is missing.
    pub async fn append_behind_a_gap(&self) {
        let (lower, ..) = &self._rest;
        let streams = lower.client.database(&lower.database).collection("order_event_stream");
        let second = doc! {
            "_id": "gap",
            "aggregateId": "gap",
            "requestId": "gap",
            "version": 2,
            "createTime": DateTime::now().timestamp_millis(),
            "size": 1,
            "body": [{ "id": "gap", "name": "Imported", "body": {} }],
        };
        streams.insert_one(second).await.unwrap();
    }

    /// Inserts a record into `lower` that was created a minute ago.
    pub async fn insert_late(&self, id: &str) {
        let (lower, ..) = &self._rest;
        let created = SystemTime::now() - Duration::from_secs(60);
        let created = doc! { "createdAt": DateTime::from_system_time(created) };
        let key = (0..).map(|n| format!("{id} {n}")).find(|key| partition::of_key(key) < 128);
        lower.insert([with(id, &key.unwrap(), created)]).await;
    }

    /// Lets MongoDB refuse each change of the feed of `lower`, or none.
    pub async fn refuse_the_feed(&self, refuse: bool) {
        let (lower, ..) = &self._rest;
        let validator = if refuse {
            doc! { "head": { "$lt": 0 } }
        } else {
            doc! {}
        };
        let strict = doc! { "collMod": "postrider_feed", "validator": validator };
        lower.client.database(&lower.database).run_command(strict).await.unwrap();
    }

    /// Records that are delivered, and others that are not.
    pub async fn traffic(&self) {
        let records = (0..60).map(|n| {
            let kind = if n % 2 == 0 { "T" } else { "K" };
            with(&format!("r{n}"), &format!("k{}", n % 7), doc! { "type": kind })
        });
        self.shop.insert(records).await;
        let lost = |id: &str| with(id, &format!("key of {id}"), doc! { "type": "lost" });
        let malformed = with("malformed", "malformed", doc! { "headers": 5 });
        self.shop.insert([lost("lost 1"), lost("lost 2"), lost("lost 3"), malformed]).await;
        let mut odd = with("odd", "odd", doc! {});
        odd.remove("seq");
        odd.remove("partition");
        insert_raw(&self.shop.admin, odd).await;
        self.shop.until_count(doc! { "status": "dead" }, 4).await;
        self.shop.insert([with("behind", "key of lost 1", doc! {})]).await;
        let done = doc! { "status": "done", "_id": { "$regex": "^(r[0-9]|odd)" } };
        self.shop.until_count(done, 61).await;
    }

    /// Records whose leases ended without an outcome.
    pub async fn poison_records(&self) {
        let expired = |n: i32| {
            let lease = doc! {
                "attempt": 1, "leaseCrashes": 1, "leaseId": Uuid::new(), "leaseOwner": Uuid::new(),
                "leaseUntil": DateTime::from_millis(1),
            };
            with(&format!("suspect {n}"), &format!("suspect {n}"), lease)
        };
        self.shop.insert((0..6).map(expired)).await;
    }

    /// Appends with every outcome but a failure.
    pub async fn appends(&self) {
        for (request, expected, status) in [
            ("1", json!("any"), 201),
            ("1", json!("any"), 200),
            ("2", json!(1), 201),
            ("3", json!(1), 409),
            ("4", json!("nonsense"), 422),
        ] {
            assert_eq!(self.append(&self.first, request, expected).await, status, "{request}");
        }
    }

    /// Appends to an aggregate by one of the processes; returns the status of the answer.
    pub async fn append(&self, postrider: &Postrider, request: &str, expected: Value) -> u16 {
        let path = "v1/aggregates/order/o-1/events";
        let events = json!([{ "name": "T", "body": {} }]);
        let body = json!({ "requestId": request, "expectedVersion": expected, "events": events });
        self.post(postrider, path, &body).await
    }

    /// Inserts a document that `bank` copies, and one that it skips.
    pub async fn adopt(&self) {
        insert_old(&self.bank.0, &["NEW", "UNKNOWN"]).await;
    }

    /// Creates two subscriptions of `shop`, of which one is stopped as by a renewed feed.
    pub async fn subscribe(&self) {
        for name in ["billing", "stopped"] {
            let body = json!({ "name": name, "kind": "pull" });
            eventually("a subscription", async || {
                self.post(&self.first, "v1/subscriptions", &body).await == 201
            })
            .await;
        }
        let database = self.shop.client.database(&self.shop.database);
        let subscriptions = database.collection::<Document>("postrider_subscriptions");
        let stopped = doc! { "$set": { "state": "wrong_feed" } };
        subscriptions.update_one(doc! { "_id": "stopped" }, stopped).await.unwrap();
    }

    /// Parks the first event of `billing`.
    pub async fn park(&self) {
        let read = async || {
            let url = self.url(&self.first, "v1/subscriptions/billing/pull").await;
            let pull = self.http.post(url).json(&json!({ "member": "a", "wait": "5s" }));
            let answer: Value = pull.send().await.unwrap().json().await.unwrap();
            (answer["next"] != 0).then(|| answer["lease"].clone())
        };
        eventually("an event", async || read().await.is_some()).await;
        let body = json!({ "lease": read().await, "position": 1, "reason": "unreadable" });
        assert_eq!(self.post(&self.first, "v1/subscriptions/billing/park", &body).await, 200);
    }

    /// Erases a stream of `lower` whose record belongs to a partition without an owner.
    pub async fn erase(&self) {
        let stream = format!("v1/aggregates/order/{UPPER_KEY}");
        let append = json!({ "requestId": "a", "events": [{ "name": "T", "body": {} }] });
        assert_eq!(self.post(&self.low, &format!("{stream}/events"), &append).await, 201);
        let erase = json!({ "requestId": "x", "reason": "asked" });
        assert_eq!(self.post(&self.low, &format!("{stream}/erase"), &erase).await, 202);
    }

    async fn url(&self, postrider: &Postrider, path: &str) -> String {
        postrider.until_logged("serving the HTTP API").await;
        let lines = postrider.lines();
        let line = lines.iter().find(|line| line["message"] == "serving the HTTP API").unwrap();
        let address: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
        format!("http://{address}/{path}")
    }

    async fn post(&self, postrider: &Postrider, path: &str, body: &Value) -> u16 {
        let url = self.url(postrider, path).await;
        self.http.post(url).json(body).send().await.unwrap().status().as_u16()
    }

    /// `relay pause`, or `relay resume`.
    pub async fn switch(&self, what: &str) {
        call_with(&self.settings, &["relay", what]).await.with_code(0);
    }

    /// Ends what still runs, and removes what it left.
    pub async fn stop(mut self) {
        self.second.signal(Signal::KILL);
        self.low.signal(Signal::KILL);
        self.bank.1.signal(Signal::KILL);
        self.first.stop().await;
    }
}

/// A bridge from an outbox of namastack, and its own outbox.
async fn adopting() -> (TestOutbox, Postrider) {
    let outbox = TestOutbox::new().await;
    insert_old(&outbox, &["COMPLETED"]).await;
    let own = ["adopt.collection=old_outbox_records", "adopt.handler=h", "ops.listen=127.0.0.1:0"];
    let settings = [mongo_settings(&outbox.database), own.map(str::to_owned).to_vec()].concat();
    let mut arguments = vec!["adopt", "--preset", "namastack", "--old-relay-stopped"];
    for setting in &settings {
        arguments.extend(["--set", setting]);
    }
    let bridge = Postrider::of(command(&arguments));
    (outbox, bridge)
}

/// Inserts a document with each of these statuses into the other outbox.
async fn insert_old(outbox: &TestOutbox, statuses: &[&str]) {
    let documents = outbox.client.database(&outbox.database).collection("old_outbox_records");
    let document = |status: &&str| {
        doc! {
            "_id": *status, "status": *status, "recordKey": "k", "recordType": "T", "payload": "{}",
            "createdAt": DateTime::now(), "handlerId": "h",
        }
    };
    documents.insert_many(statuses.iter().map(document)).await.unwrap();
}

/// The records in the outbox of `shop` at the start.
async fn before(shop: &TestOutbox) {
    let scheduled = doc! { "status": "scheduled", "visibleAt": later() };
    shop.insert([
        with("invalid", "invalid", doc! { "status": "Done" }),
        with("scheduled", "scheduled", scheduled),
    ])
    .await;
    // Two hours old, and due in an hour.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let time = u32::try_from(now.as_secs()).unwrap() - 7200;
    let seq = Bson::Timestamp(Timestamp { time, increment: 1 });
    insert_raw(&shop.admin, with("old", "old", doc! { "seq": seq, "visibleAt": later() })).await;
}

/// An index of others that would delete records.
async fn add_hazard(shop: &TestOutbox) {
    let index =
        doc! { "name": "foreign", "key": { "createdAt": 1 }, "expireAfterSeconds": i32::MAX };
    let command = doc! { "createIndexes": "outbox_records", "indexes": [index] };
    shop.client.database(&shop.database).run_command(command).await.unwrap();
}
