//! A blocked key goes on within `poll_interval` of whatever frees it, with and without the change
//! stream; and what is blocked can be inspected.

use std::time::{Duration, Instant};

use bson::{Bson, DateTime, Document, Timestamp, doc};
use serde_json::Value;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{Queue, amqp_uri, mongo_settings};
use crate::{in_seconds, outbox_does};

/// `relay.poll_interval` of these relays.
const POLL: Duration = Duration::from_secs(1);

/// What a freed key may take: far below what any record here waits for, far above `POLL` on a busy
/// machine.
const SOON: Duration = Duration::from_secs(10);

/// A relay to a queue of its own, beside a Kafka that does not answer: records of type `X` go there.
struct Blocked {
    outbox: TestOutbox,
    queue: Queue,
    relay: Postrider,
    settings: Vec<String>,
}

impl Blocked {
    async fn start(follow: bool) -> Self {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let more = [
            "sinks.kafka.kind=kafka".to_owned(),
            "sinks.kafka.brokers=[\"127.0.0.1:1\"]".to_owned(),
            "routes=[{type = \"X\", sink = \"kafka\", destination = \"t\"}]".to_owned(),
            "relay.default_sink=rabbit".to_owned(),
            format!("relay.follow={follow}"),
            format!("relay.poll_interval={}ms", POLL.as_millis()),
        ];
        let settings = [mongo_settings(&outbox.database), queue.sink(&amqp_uri()), more.to_vec()];
        let settings = settings.concat();
        let relay = Postrider::start(&settings);
        relay.until_ready().await;
        Self { outbox, queue, relay, settings }
    }

    /// Inserts records of key `k`, in this order, and waits until their key is blocked.
    async fn with(follow: bool, reason: &str, records: Vec<Document>) -> Self {
        let blocked = Self::start(follow).await;
        blocked.outbox.insert(records).await;
        blocked.until_blocked(reason, 1).await;
        blocked
    }

    async fn until_blocked(&self, reason: &str, keys: u32) {
        let series = format!("postrider_keys_held{{reason=\"{reason}\"}}");
        self.relay.until_metric(&series, |count| count == f64::from(keys)).await;
    }

    /// These arrive, in this order, within `SOON` of `freed`.
    async fn arrive(&self, ids: &[&str], freed: Instant) {
        assert_eq!(self.queue.arrivals(ids.len()).await, ids);
        let took = freed.elapsed();
        assert!(took < SOON, "{took:?}");
    }

    async fn end(mut self) {
        self.relay.stop().await;
        self.queue.delete().await;
        self.outbox.drop().await;
    }
}

fn of_type(kind: &str, id: &str) -> Document {
    let mut record = record(id, "k");
    record.insert("type", kind);
    record
}

fn due_in(seconds: i64, id: &str) -> Document {
    let mut record = record(id, "k");
    record.insert("visibleAt", in_seconds(seconds));
    record
}

async fn discard(outbox: &TestOutbox, id: &str) -> Instant {
    outbox_does(outbox, &["discard", id]).await.with_code(0);
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_goes_on_when_the_record_for_a_paused_sink_is_discarded() {
    for follow in [true, false] {
        let records = vec![of_type("X", "x1"), of_type("Y", "y1"), of_type("Y", "y2")];
        let blocked = Blocked::with(follow, "sink_paused", records).await;

        let freed = discard(&blocked.outbox, "x1").await;

        blocked.arrive(&["y1", "y2"], freed).await;
        blocked.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_goes_on_when_its_waiting_head_is_discarded_deleted_or_delivered_elsewhere() {
    for (follow, act) in [(true, "discard"), (false, "discard"), (true, "delete"), (false, "done")]
    {
        let records = vec![due_in(3_600, "a"), record("b", "k")];
        let blocked = Blocked::with(follow, "not_due", records).await;
        let (records, a) = (blocked.outbox.records(), doc! { "_id": "a" });

        let freed = match act {
            "discard" => discard(&blocked.outbox, "a").await,
            "delete" => {
                records.delete_one(a).await.unwrap();
                Instant::now()
            }
            _ => {
                let done = doc! { "status": "done", "doneAt": DateTime::now() };
                records.update_one(a, doc! { "$set": done }).await.unwrap();
                Instant::now()
            }
        };

        blocked.arrive(&["b"], freed).await;
        blocked.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_goes_on_when_its_waiting_head_is_edited() {
    for follow in [true, false] {
        let records = vec![due_in(3_600, "a"), record("b", "k")];
        let blocked = Blocked::with(follow, "not_due", records).await;

        let now = doc! { "$set": { "visibleAt": DateTime::now() } };
        blocked.outbox.records().update_one(doc! { "_id": "a" }, now).await.unwrap();

        blocked.arrive(&["a", "b"], Instant::now()).await;
        blocked.end().await;
    }
}

/// It has a place before the one that waits, and waits for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_record_that_appears_in_a_blocked_key_goes() {
    for follow in [true, false] {
        let mut dead = crate::dead("dead", "k", "refused: no");
        dead.insert("seq", Timestamp { time: 5, increment: 1 });
        let records = vec![dead, due_in(3_600, "a"), record("b", "k")];
        let blocked = Blocked::with(follow, "not_due", records).await;

        outbox_does(&blocked.outbox, &["requeue", "dead"]).await.with_code(0);
        let requeued = Instant::now();
        blocked.outbox.until_count(doc! { "_id": "dead", "status": "done" }, 1).await;
        assert!(requeued.elapsed() < SOON);
        // As by a transaction that was slow to commit.
        let mut earlier = record("earlier", "k");
        earlier.insert("seq", Bson::Timestamp(Timestamp { time: 6, increment: 1 }));
        blocked.outbox.insert([earlier]).await;
        blocked.arrive(&["dead", "earlier"], Instant::now()).await;

        // a and b wait.
        blocked.outbox.until_count(doc! { "status": "pending" }, 2).await;
        blocked.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_keys_are_listed_by_the_ops_server_and_the_command() {
    let blocked = Blocked::start(true).await;
    let mut other = of_type("X", "x2");
    other.insert("key", "l");
    other.insert("partition", i32::from(postrider::partition::of_key("l")));
    let mut dead = crate::dead("d", "m", "refused: no");
    dead.insert("blocks", true);
    let (outbox, relay) = (&blocked.outbox, &blocked.relay);
    outbox.insert([due_in(3_600, "a"), record("b", "k"), other, dead]).await;
    blocked.until_blocked("not_due", 1).await;
    blocked.until_blocked("sink_paused", 1).await;

    let (status, page) = relay.get("/blocked-keys").await;

    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!((status, &page["counts"]["sink_paused"]), (200, &Value::from(1)), "{page}");
    let key = |name: &str| {
        let keys = page["keys"].as_array().unwrap();
        keys.iter().find(|key| key["key"] == name).unwrap_or_else(|| panic!("no {name} in {page}"))
    };
    assert_eq!((&key("k")["reason"], &key("k")["blocker"]), (&"not_due".into(), &"a".into()));
    assert!(key("k")["until"].as_str().is_some() && key("k")["since"].as_str().is_some(), "{page}");
    assert_eq!((&key("l")["sink"], &key("l")["blocker"]), (&"kafka".into(), &"x2".into()));
    assert!(!page.to_string().contains("payload"), "{page}");
    let (_, one) = relay.get("/blocked-keys?key=l&limit=1").await;
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["keys"].as_array().unwrap().len(), 1, "{one}");
    for wrong in ["limit=0", "limit=many", "limit=100000", "colour=red"] {
        assert_eq!(relay.get(&format!("/blocked-keys?{wrong}")).await.0, 400, "{wrong}");
    }
    let listen = vec![format!("ops.listen={}", relay.address().await)];
    let asked = call_with(&listen, &["relay", "blocked-keys", "--key", "l", "--output", "json"]);
    let asked = asked.await.with_code(0).json();
    assert_eq!(asked["keys"][0]["blocker"], "x2", "{asked}");
    let table = call_with(&listen, &["relay", "blocked-keys"]).await.with_code(0);
    for word in ["key", "reason", "blocker", "since", "until", "sink", "not_due", "x2"] {
        assert!(table.stdout.contains(word), "no {word:?} in {table}");
    }
    blocked.end().await;
    let nobody = call_with(&listen, &["relay", "blocked-keys"]).await.with_code(1);
    assert!(nobody.stderr.contains("/blocked-keys"), "{nobody}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn show_names_the_instance_and_what_it_says_of_the_sink() {
    let records = vec![of_type("X", "x1"), of_type("Y", "y1")];
    let blocked = Blocked::with(true, "sink_paused", records).await;

    // The command knows the sink by the routes of the same configuration.
    let waits = async |id| {
        let arguments = ["outbox", "show", id, "--output", "json"];
        call_with(&blocked.settings, &arguments).await.with_code(0).json()["waits"].take()
    };
    // The instance says so with its next heartbeat.
    eventually("the sink is named", || async { waits("x1").await["for"] == "sink_paused" }).await;
    let (first, second) = (waits("x1").await, waits("y1").await);

    let detail = |waits: &Value| waits["detail"].as_str().unwrap().to_owned();
    assert!(detail(&first).starts_with("waits for its sink kafka, which is down, instance "));
    assert!(detail(&second).starts_with("behind x1, which waits for its sink kafka"), "{second}");
    assert_eq!((&second["for"], &second["sink"]), (&"sink_paused".into(), &"kafka".into()));
    assert!(second["instance"].is_string() && second["behind"] == "x1", "{second}");
    blocked.end().await;
}
