//! A blocked key continues within `poll_interval` when its blocker is resolved, with and without
//! the change stream; and operators can inspect what is blocked.

use std::time::{Duration, Instant};

use bson::{Bson, DateTime, Document, Timestamp, doc};
use postrider::outbox::settle::Outcome;
use serde_json::Value;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{Queue, amqp_uri, mongo_settings};
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rival_relay::RivalRelay;
use crate::{in_seconds, outbox_command};

/// `relay.poll_interval` of these relays.
const POLL: Duration = Duration::from_secs(1);

/// The limit for a freed key: two intervals, and a margin for a busy machine. All other events that
/// might free a key come later: the end of a wait, of a lease, an audit.
const FREED_LIMIT: Duration = Duration::from_secs(10);

/// A relay to a queue of its own, and to a Kafka that does not answer: records of type `X` go
/// there.
struct Blocked {
    outbox: TestOutbox,
    queue: Queue,
    amqp: AmqpClient,
    relay: Postrider,
    settings: Vec<String>,
}

impl Blocked {
    /// Starts the relay, which finds these records.
    async fn start(follow: bool, records: Vec<Document>) -> Self {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        if !records.is_empty() {
            outbox.insert(records).await;
        }
        let more = [
            "sinks.kafka.kind=kafka".to_owned(),
            "sinks.kafka.brokers=[\"127.0.0.1:1\"]".to_owned(),
            "routes=[{type = \"X\", sink = \"kafka\", destination = \"t\"}]".to_owned(),
            "relay.default_sink=rabbit".to_owned(),
            format!("relay.change_stream={follow}"),
            format!("relay.poll_interval={}ms", POLL.as_millis()),
            "relay.audit_interval=1h".to_owned(),
        ];
        let settings = [mongo_settings(&outbox.database), queue.sink(&amqp_uri()), more.to_vec()];
        let settings = settings.concat();
        let relay = Postrider::start(&settings);
        relay.until_ready().await;
        let amqp = AmqpClient::on(&amqp_uri()).await;
        Self { outbox, queue, amqp, relay, settings }
    }

    /// Inserts records of key `k`, in this order, and waits until their key is blocked.
    async fn with(follow: bool, reason: &str, records: Vec<Document>) -> Self {
        let blocked = Self::start(follow, Vec::new()).await;
        blocked.outbox.insert(records).await;
        blocked.until_blocked(reason, 1).await;
        blocked
    }

    async fn until_blocked(&self, reason: &str, keys: usize) {
        let series = format!("postrider_blocked_keys{{reason=\"{reason}\"}}");
        self.relay.until_metric(&series, |count| count == keys as f64).await;
    }

    /// Asserts that these arrive and no others, in this order, within the limit after `freed`.
    async fn arrive(&self, ids: &[&str], freed: Instant) {
        let mut arrived: Vec<String> = Vec::new();
        while arrived.len() < ids.len() && freed.elapsed() < FREED_LIMIT {
            arrived.extend(self.amqp.take_ids(&self.queue.name).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(arrived, ids, "{:?} after it was freed", freed.elapsed());
    }

    async fn end(mut self) {
        self.relay.stop().await;
        assert_eq!(self.amqp.take_ids(&self.queue.name).await, [""; 0], "nothing came twice");
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

/// A record that blocks its key.
struct Head {
    /// The reason, as in the metric.
    reason: &'static str,
    /// The fields that make it block.
    fields: Document,
    /// An update after which it no longer blocks.
    edit: Document,
}

impl Head {
    fn is_dead(&self) -> bool {
        self.fields.contains_key("deadReason")
    }

    /// The head of this key.
    fn of(&self, key: &str) -> Document {
        let mut head = record(&format!("{key}-head"), key);
        head.extend(self.fields.clone());
        head
    }
}

/// An action on the head of a key.
#[derive(Clone, Copy, Debug)]
enum Action {
    Discard,
    Delete,
    Edit,
    /// Delivered by another instance.
    Done,
    Requeue,
}

impl Action {
    /// Executes it; returns when it was done.
    async fn on(self, outbox: &TestOutbox, head: &Head, id: &str) -> Instant {
        let (records, it) = (outbox.records(), doc! { "_id": id });
        match self {
            Self::Discard => {
                _ = outbox_command(outbox, &["discard", id, "--yes"]).await.with_code(0)
            }
            Self::Requeue => _ = outbox_command(outbox, &["requeue", id]).await.with_code(0),
            Self::Delete => _ = records.delete_one(it).await.unwrap(),
            Self::Edit => _ = records.update_one(it, head.edit.clone()).await.unwrap(),
            Self::Done => {
                let done = doc! { "$set": { "status": "done", "doneAt": DateTime::now() } };
                records.update_one(it, done).await.unwrap();
            }
        }
        Instant::now()
    }

    /// Whether the head is delivered then, before those behind it.
    fn delivers(self, head: &Head) -> bool {
        match self {
            Self::Requeue => true,
            Self::Edit => !head.is_dead(),
            Self::Discard | Self::Delete | Self::Done => false,
        }
    }
}

/// Each action frees the key that its head has blocked, and no other key.
async fn assert_each_frees(head: &Head, acts: &[Action]) {
    let key = |act: &Action| format!("{act:?}");
    let follower = |act: &Action, number: usize| format!("{}-{number}", key(act));
    for follow in [true, false] {
        let mut heads: Vec<Document> = acts.iter().map(|act| head.of(&key(act))).collect();
        let followers =
            acts.iter().flat_map(|act| [1, 2].map(|n| record(&follower(act, n), &key(act))));
        // Records that are inserted while the relay runs are never dead.
        let before = if head.is_dead() { std::mem::take(&mut heads) } else { Vec::new() };
        let blocked = Blocked::start(follow, before).await;
        blocked.outbox.insert(heads.into_iter().chain(followers)).await;
        blocked.until_blocked(head.reason, acts.len()).await;
        // Found after the others, of which none is delivered.
        blocked.outbox.insert([record("free", "free")]).await;
        blocked.arrive(&["free"], Instant::now()).await;

        for act in acts {
            let (id, followers) = (format!("{}-head", key(act)), [1, 2].map(|n| follower(act, n)));

            let freed = act.on(&blocked.outbox, head, &id).await;

            let delivered = act.delivers(head).then_some(&id).into_iter().chain(&followers);
            let delivered: Vec<&str> = delivered.map(String::as_str).collect();
            blocked.arrive(&delivered, freed).await;
        }
        blocked.end().await;
    }
}

#[fixture::test]
async fn a_key_continues_when_its_head_for_a_sink_that_is_down_is_resolved() {
    let head = Head {
        reason: "sink_down",
        fields: doc! { "type": "X" },
        edit: doc! { "$set": { "type": "Y" } },
    };

    assert_each_frees(&head, &[Action::Discard, Action::Delete, Action::Edit, Action::Done]).await;
}

#[fixture::test]
async fn a_key_continues_when_its_scheduled_head_is_resolved() {
    let head = Head {
        reason: "not_due",
        fields: doc! { "visibleAt": in_seconds(3_600) },
        edit: doc! { "$set": { "visibleAt": DateTime::now() } },
    };

    assert_each_frees(&head, &[Action::Discard, Action::Delete, Action::Edit, Action::Done]).await;
}

#[fixture::test]
async fn a_key_continues_when_its_dead_head_is_resolved() {
    let mut fields = crate::dead("", "", "refused: no");
    for own in ["_id", "key", "partition"] {
        fields.remove(own);
    }
    fields.insert("blocks", true);
    let edit = doc! { "$unset": { "blocks": "" } };
    let head = Head { reason: "blocked", fields, edit };

    assert_each_frees(&head, &[Action::Discard, Action::Delete, Action::Edit, Action::Requeue])
        .await;
}

/// More keys than a read skips.
#[fixture::test]
async fn thousands_of_keys_of_dead_records_are_counted_and_cost_no_scan() {
    const KEYS: usize = 2_500;
    let dead = |n: usize| {
        let mut dead = crate::dead(&format!("dead {n}"), &format!("k{n}"), "refused: no");
        dead.insert("blocks", true);
        dead
    };
    let behind = |n: usize| record(&format!("behind {n}"), &format!("k{n}"));
    for follow in [true, false] {
        let records: Vec<Document> = (0..KEYS).flat_map(|n| [dead(n), behind(n)]).collect();
        let blocked = Blocked::start(follow, records).await;
        let relay = &blocked.relay;
        blocked.until_blocked("blocked", KEYS).await;
        let live = if follow { 256.0 } else { 0.0 };
        relay.until_metric("postrider_partitions_live", |partitions| partitions == live).await;
        let scanned = async || {
            let series = "postrider_records_seen_total{source=\"scan\"}";
            relay.metric(series).await.unwrap()
        };
        // The rotation that has found them may be under way.
        eventually("no record is scanned", || async {
            let before = scanned().await;
            tokio::time::sleep(2 * POLL).await;
            scanned().await == before
        })
        .await;

        let freed = Instant::now();
        outbox_command(&blocked.outbox, &["requeue", "dead 0"]).await.with_code(0);
        blocked.arrive(&["dead 0", "behind 0"], freed).await;
        let freed = Instant::now();
        blocked.outbox.records().delete_one(doc! { "_id": "dead 1" }).await.unwrap();
        blocked.arrive(&["behind 1"], freed).await;

        let (_, page) = relay.get("/blocked-keys?limit=1").await;
        let page: Value = serde_json::from_str(&page).unwrap();
        let counted = (&page["counts"]["blocked"], &page["countsAtLeast"]);
        assert_eq!(counted, (&Value::from(KEYS - 2), &Value::from(false)), "{page}");
        blocked.end().await;
    }
}

/// The peer has a connection to the broker. Its lease ends long after the limit.
#[fixture::test]
async fn a_key_continues_when_a_peer_delivers_its_blocker() {
    for follow in [true, false] {
        let records = vec![of_type("X", "x1"), of_type("Y", "y1"), of_type("Y", "y2")];
        let blocked = Blocked::with(follow, "sink_down", records).await;
        let peer = RivalRelay::alive(&blocked.outbox.collections).await;
        let lease = peer.take(&["x1"]).await;
        blocked.until_blocked("leased", 1).await;

        peer.settle(lease, "x1", Outcome::Done).await;

        blocked.arrive(&["y1", "y2"], Instant::now()).await;
        blocked.end().await;
    }
}

/// Its place is before the one that waits, and it waits for nothing.
#[fixture::test]
async fn an_earlier_record_that_appears_in_a_blocked_key_goes() {
    for follow in [true, false] {
        let mut dead = crate::dead("dead", "k", "refused: no");
        dead.insert("seq", Timestamp { time: 5, increment: 1 });
        let records = vec![dead, due_in(3_600, "a"), record("b", "k")];
        let blocked = Blocked::with(follow, "not_due", records).await;

        outbox_command(&blocked.outbox, &["requeue", "dead"]).await.with_code(0);
        let requeued = Instant::now();
        blocked.outbox.until_count(doc! { "_id": "dead", "status": "done" }, 1).await;
        assert!(requeued.elapsed() < FREED_LIMIT);
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

#[fixture::test]
async fn blocked_keys_are_listed_by_the_ops_server_and_the_command() {
    let blocked = Blocked::start(true, Vec::new()).await;
    let mut other = of_type("X", "x2");
    other.insert("key", "l");
    other.insert("partition", i32::from(postrider::partition::of_key("l")));
    let mut dead = crate::dead("d", "m", "refused: no");
    dead.insert("blocks", true);
    let (outbox, relay) = (&blocked.outbox, &blocked.relay);
    outbox.insert([due_in(3_600, "a"), record("b", "k"), other, dead]).await;
    blocked.until_blocked("not_due", 1).await;
    blocked.until_blocked("sink_down", 1).await;

    let (status, page) = relay.get("/blocked-keys").await;

    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!((status, &page["counts"]["sink_down"]), (200, &Value::from(1)), "{page}");
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
    let unreachable = call_with(&listen, &["relay", "blocked-keys"]).await.with_code(1);
    assert!(unreachable.stderr.contains("/blocked-keys"), "{unreachable}");
}

#[fixture::test]
async fn show_names_the_instance_and_its_report_of_the_sink() {
    let records = vec![of_type("X", "x1"), of_type("Y", "y1")];
    let blocked = Blocked::with(true, "sink_down", records).await;

    // The command knows the sink by the routes of the same configuration.
    let waits = async |id| {
        let arguments = ["outbox", "show", id, "--output", "json"];
        call_with(&blocked.settings, &arguments).await.with_code(0).json()["waits"].take()
    };
    // The instance reports it with its next heartbeat.
    eventually("the sink is named", || async { waits("x1").await["for"] == "sink_down" }).await;
    let (first, second) = (waits("x1").await, waits("y1").await);

    let detail = |waits: &Value| waits["detail"].as_str().unwrap().to_owned();
    assert!(
        detail(&first)
            .starts_with("waits for its sink kafka, which is down according to instance ")
    );
    assert!(detail(&second).starts_with("behind x1, which waits for its sink kafka"), "{second}");
    assert_eq!((&second["for"], &second["sink"]), (&"sink_down".into(), &"kafka".into()));
    assert!(second["instance"].is_string() && second["behind"] == "x1", "{second}");
    blocked.end().await;
}
