//! How `postrider run` starts and stops (contract, section 9): the real process, real signals.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::{DateTime, Document, doc};
use futures_util::TryStreamExt;
use serde_json::{Value, json};
use support::mongod::Mongod;
use support::outbox::{TestOutbox, eventually, mongodb_uri, record};
use support::process::{Ended, Postrider, Signal, command};
use support::queue::{Queue, amqp_uri, amqp_uri_at, host_of, mongo_settings, stdout_sink};
use support::schema::Bare;
use support::tcp::{Door, dead_port};

/// A password as no other text holds it.
const PLANTED: &str = "pl4nted-s3cret";

/// A start that fails, or a stop with nothing in flight.
const PROMPTLY: Duration = Duration::from_secs(10);

fn with(settings: Vec<String>, more: &[&str]) -> Vec<String> {
    settings.into_iter().chain(more.iter().map(|setting| (*setting).to_owned())).collect()
}

/// Settings of an outbox behind a door. (The server must not tell its own address.)
fn mongo_through(door: &Door, database: &str) -> Vec<String> {
    let options = "directConnection=true&serverSelectionTimeoutMS=500";
    vec![format!("mongo.uri=mongodb://{}/{database}?{options}", door.address)]
}

async fn door_to_mongodb(state: impl AsyncFnOnce(&str) -> Door) -> Door {
    state(&host_of(&mongodb_uri())).await
}

async fn ended(settings: &[String]) -> Ended {
    Postrider::start(settings).until_ended(PROMPTLY).await
}

#[track_caller]
fn says(ended: &Ended, parts: &[&str]) {
    for part in parts {
        assert!(ended.stderr.contains(part), "no {part:?} in {ended}");
    }
}

/// `count` records of some keys, by whose ids their order can be told.
fn backlog(count: usize, keys: usize) -> Vec<Document> {
    (0..count).map(|n| record(&format!("{n:05}"), &format!("k{}", n % keys))).collect()
}

async fn ids(outbox: &TestOutbox, filter: Document) -> BTreeSet<String> {
    let found: Vec<Document> =
        outbox.records().find(filter).await.unwrap().try_collect().await.unwrap();
    found.iter().map(|record| record.get_str("_id").unwrap().to_owned()).collect()
}

async fn instances(outbox: &TestOutbox) -> u64 {
    let database = outbox.client.database(&outbox.database);
    let instances = database.collection::<Document>("outbox_instances");
    instances.count_documents(doc! {}).await.unwrap()
}

mod start {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_mongodb_that_comes_late_is_waited_for_with_a_line_per_backoff() {
        let outbox = TestOutbox::new().await;
        let door = door_to_mongodb(Door::shut_to).await;
        let settings = [mongo_through(&door, &outbox.database), stdout_sink()].concat();
        let mut postrider = Postrider::start(&settings);
        outbox.insert([record("a", "k")]).await;

        let waits = || -> Vec<String> {
            let lines = postrider.lines();
            let tries = lines.iter().filter(|line| line["message"] == "MongoDB is not reached");
            tries.map(|line| line["retry_in"].as_str().unwrap().to_owned()).collect()
        };
        eventually("three tries", || async { waits().len() >= 3 }).await;
        let (status, report) = postrider.readyz().await;
        let (live, _) = postrider.get("/livez").await;
        let tries = waits();
        door.open();

        assert_eq!(tries[..3], ["500ms", "1s", "2s"]);
        assert_eq!((status, &report["status"]), (503, &json!("down")), "{report}");
        assert_eq!(report["parts"]["store"]["status"], "down", "{report}");
        assert_eq!(live, 200, "a restart would not help");
        postrider.until_ready().await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        postrider.stop().await;
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_mongodb_that_answers_nothing_is_waited_for() {
        let outbox = TestOutbox::new().await;
        let door = door_to_mongodb(Door::to).await;
        door.freeze();
        let settings = [mongo_through(&door, &outbox.database), stdout_sink()].concat();
        let mut postrider = Postrider::start(&settings);

        postrider.until_logged("MongoDB is not reached").await;
        assert_eq!(postrider.readyz().await.0, 503);
        door.open();

        postrider.until_ready().await;
        postrider.stop().await;
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn credentials_decide_and_the_remedy_is_told() {
        let server = Mongod::with_access_control().await;
        for (user, roles) in [
            ("enough", doc! { "role": "readWrite", "db": "app" }),
            ("reader", doc! { "role": "read", "db": "app" }),
            ("elsewhere", doc! { "role": "readWrite", "db": "other" }),
        ] {
            let user = doc! { "createUser": user, "pwd": PLANTED, "roles": [roles] };
            server.as_admin(user).await;
        }
        let of = |credentials: &str| {
            let uri = format!("mongo.uri={}", server.uri(credentials, "app"));
            [vec![uri], stdout_sink()].concat()
        };

        for credentials in [
            "enough:pl4nted-s3cret-not@",
            "",
            "reader:pl4nted-s3cret@",
            "elsewhere:pl4nted-s3cret@",
        ] {
            let refused = ended(&of(credentials)).await.with_code(1);

            says(&refused, &["error: ", "mongo.uri"]);
            assert!(
                refused.stderr.contains("credentials or privileges"),
                "{credentials}: {refused}"
            );
            assert!(refused.is_free_of(PLANTED), "{refused}");
        }

        let mut postrider = Postrider::start(&of("enough:pl4nted-s3cret@"));
        postrider.until_ready().await;
        let stopped = postrider.stop().await;
        assert!(stopped.is_free_of(PLANTED), "{stopped}");
        says(&stopped, &["mongodb://enough:***@"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_conflicting_index_ends_it_and_is_named_with_the_remedy() {
        let bare = Bare::new("").await;
        bare.create_index(doc! { "key": { "other": 1 }, "name": "lane_idx" }).await;

        let ended = ended(&[mongo_settings(&bare.name), stdout_sink()].concat()).await;

        says(&ended.with_code(1), &["lane_idx", "outbox_records", "dropIndex"]);
        bare.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_missing_schema_that_it_may_not_make_is_waited_for_and_told() {
        let bare = Bare::new("").await;
        let settings = [mongo_settings(&bare.name), stdout_sink()].concat();
        let mut postrider = Postrider::start(&with(settings, &["outbox.auto_init_schema=false"]));

        postrider.until_logged("run `postrider schema apply`").await;
        let (status, report) = postrider.readyz().await;
        assert_eq!((status, &report["parts"]["schema"]["status"]), (503, &json!("down")));
        assert_eq!(bare.collection_names().await, [""; 0]);
        postrider::schema::apply(&bare.collections, &Default::default()).await.unwrap();

        postrider.until_ready().await;
        postrider.stop().await;
        bare.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_address_that_is_taken_ends_it_and_the_key_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let listen = format!("ops.listen={address}");
        let settings = [mongo_settings("unused"), stdout_sink(), vec![listen]].concat();

        let ended = ended(&settings).await.with_code(1);

        says(&ended, &["ops.listen", &address.to_string(), "free the port"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_a_standalone_server_it_polls_and_warns() {
        let server = Mongod::standalone().await;
        let uri = server.uri("", "app");
        let mut postrider =
            Postrider::start(&[vec![format!("mongo.uri={uri}")], stdout_sink()].concat());
        postrider.until_ready().await;
        postrider.until_logged("standalone").await;
        let app = server.client("").await.client().database("app");
        let records = app.collection::<Document>("outbox_records");

        let mut scheduled = record("later", "k");
        scheduled.insert("status", "scheduled");
        scheduled.insert("visibleAt", DateTime::now());
        let mut unstamped = record("c", "other");
        unstamped.remove("partition");
        let all = [record("a", "k"), record("b", "k"), unstamped, scheduled];

        records.insert_many(all).await.unwrap();

        eventually("all are done", || async {
            records.count_documents(doc! { "status": "done" }).await.unwrap() == 4
        })
        .await;
        let out = postrider.stdout();
        assert!(out.find(r#""a""#) < out.find(r#""b""#), "{out}");
        postrider.stop().await.with_code(0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_broker_that_is_down_does_not_stop_the_start_and_is_used_when_it_is_up() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let door = Door::shut_to(&host_of(&amqp_uri())).await;
        let uri = amqp_uri_at(&door.address.to_string());
        let mut postrider = Postrider::start(&queue.settings_at(&outbox, &uri));
        outbox.insert(backlog(5, 2)).await;

        postrider.until_ready().await;
        postrider.until_report("a degraded sink", |report| report["status"] == "degraded").await;
        let (status, report) = postrider.readyz().await;
        door.open();

        assert_eq!(status, 200);
        assert_eq!(report["parts"]["sink rabbit"]["status"], "degraded", "{report}");
        assert!(!report["parts"]["sink rabbit"]["detail"].as_str().unwrap().is_empty());
        assert_eq!(queue.ids(5).await.len(), 5);
        outbox.until_count(doc! { "status": "done", "attempt": 1 }, 5).await;
        postrider.until_report("all well", |report| report["status"] == "ok").await;
        postrider.stop().await;
        queue.delete().await;
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_at_the_brokers_port_is_a_degraded_sink() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let uri = amqp_uri_at(&format!("127.0.0.1:{}", dead_port().await));
        let mut postrider = Postrider::start(&queue.settings_at(&outbox, &uri));

        postrider.until_ready().await;
        let degraded = |report: &Value| report["parts"]["sink rabbit"]["status"] == "degraded";
        postrider.until_report("a degraded sink", degraded).await;
        assert_eq!(postrider.readyz().await.0, 200);

        let stopping = Instant::now();
        postrider.stop().await;
        assert!(stopping.elapsed() < PROMPTLY, "nothing was in flight");
        queue.delete().await;
        outbox.drop().await;
    }
}

mod stop {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whatever_is_in_flight_is_settled_or_released_and_the_rest_is_the_next_ones() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        outbox.insert(backlog(4000, 20)).await;
        let mut first = Postrider::start(&queue.settings(&outbox));
        eventually("the first deliveries", || async {
            outbox.count(doc! { "status": "done" }).await > 50
        })
        .await;
        assert_eq!(instances(&outbox).await, 1);

        let stopped = first.stop().await;

        says(&stopped, &["everything in flight was settled or released"]);
        assert_eq!(instances(&outbox).await, 0);
        assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
        let (done, pending) = (doc! { "status": "done" }, doc! { "status": "pending" });
        let (done, pending) = (ids(&outbox, done).await, ids(&outbox, pending).await);
        assert!(!pending.is_empty(), "it was stopped under way");
        assert_eq!(done.len() + pending.len(), 4000, "none is lost");
        let charged = doc! { "status": "pending", "attempt": { "$gt": 0 } };
        assert_eq!(outbox.count(charged).await, 0, "released is not charged");
        let arrived = queue.ids(done.len()).await;
        assert_eq!(arrived.iter().cloned().collect::<BTreeSet<_>>(), done);
        assert_eq!(arrived.len(), done.len(), "each once");

        let mut second = Postrider::start(&queue.settings(&outbox));
        outbox.until_count(doc! { "status": "done", "attempt": 1 }, 4000).await;
        second.stop().await;
        queue.delete().await;
        outbox.drop().await;
    }

    /// A relay with a publish under way to a broker that has frozen.
    struct Hanging {
        outbox: TestOutbox,
        queue: Queue,
        door: Door,
        postrider: Postrider,
    }

    impl Hanging {
        async fn start(more: &[&str]) -> Self {
            let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
            let door = Door::to(&host_of(&amqp_uri())).await;
            let uri = amqp_uri_at(&door.address.to_string());
            let settings = with(queue.settings_at(&outbox, &uri), more);
            let postrider = Postrider::start(&settings);
            // Until then it is connected, and the exchange is known.
            outbox.insert([record("first", "k")]).await;
            outbox.until_count(doc! { "status": "done" }, 1).await;
            door.freeze();
            outbox.insert(backlog(10, 5)).await;
            outbox.until_count(doc! { "leaseId": { "$exists": true } }, 10).await;
            Self { outbox, queue, door, postrider }
        }

        async fn delete(self) {
            self.queue.delete().await;
            self.outbox.drop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_publish_that_hangs_beyond_the_shutdown_timeout_ends_it_with_1() {
        let settings = ["relay.shutdown_timeout=2s", "relay.lease=5s", "sinks.rabbit.timeout=4s"];
        let mut hanging = Hanging::start(&settings).await;

        hanging.postrider.signal(Signal::TERM);
        hanging.postrider.until_logged("a second signal ends at once").await;
        let (status, report) = hanging.postrider.readyz().await;
        let ended = hanging.postrider.until_ended(PROMPTLY).await.with_code(1);

        assert_eq!((status, &report["status"]), (503, &json!("down")), "draining: {report}");
        says(&ended, &["relay.shutdown_timeout", "wait out their lease"]);
        hanging.door.open();
        let mut next = Postrider::start(&hanging.queue.settings(&hanging.outbox));
        hanging.outbox.until_count(doc! { "status": "done" }, 11).await;
        next.stop().await;
        hanging.delete().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_publish_that_hangs_is_given_up_in_time_for_a_stop_in_good_order() {
        let mut hanging = Hanging::start(&["sinks.rabbit.timeout=2s"]).await;

        let stopped = hanging.postrider.stop().await;

        says(&stopped, &["everything in flight was settled or released"]);
        let outbox = &hanging.outbox;
        assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
        assert_eq!(outbox.count(doc! { "status": "pending" }).await, 10);
        assert_eq!(instances(outbox).await, 0);
        hanging.delete().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_second_signal_ends_it_at_once() {
        let mut hanging = Hanging::start(&[]).await;
        hanging.postrider.signal(Signal::TERM);
        hanging.postrider.until_logged("a second signal ends at once").await;

        let signalled = Instant::now();
        hanging.postrider.signal(Signal::INT);
        let ended = hanging.postrider.until_ended(PROMPTLY).await.with_code(1);

        assert!(signalled.elapsed() < Duration::from_secs(3), "{:?}", signalled.elapsed());
        says(&ended, &["a second signal: ending at once"]);
        hanging.delete().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn while_mongodb_is_waited_for_a_signal_ends_it_promptly_with_0() {
        let shut = door_to_mongodb(Door::shut_to).await;
        let frozen = door_to_mongodb(Door::to).await;
        frozen.freeze();
        for (door, signal) in [(shut, Signal::TERM), (frozen, Signal::INT)] {
            let settings = [mongo_through(&door, "unused"), stdout_sink()].concat();
            let mut postrider = Postrider::start(&settings);
            postrider.until_logged("MongoDB is not reached").await;

            let signalled = Instant::now();
            postrider.signal(signal);
            postrider.until_ended(PROMPTLY).await.with_code(0);

            assert!(signalled.elapsed() < Duration::from_secs(2), "{:?}", signalled.elapsed());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_idle_one_ends_with_0_though_mongodb_has_gone() {
        let outbox = TestOutbox::new().await;
        let door = door_to_mongodb(Door::to).await;
        let settings = [mongo_through(&door, &outbox.database), stdout_sink()].concat();
        let mut postrider = Postrider::start(&settings);
        postrider.until_ready().await;

        door.shut();
        postrider
            .until_report("a lost store", |report| report["parts"]["store"]["status"] == "down")
            .await;
        assert_eq!(postrider.readyz().await.0, 503);
        postrider.signal(Signal::TERM);
        postrider.until_ended(PROMPTLY).await.with_code(0);
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn after_a_kill_the_next_one_delivers_everything() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        // What was in flight goes on one by one: little of it.
        let settings = ["relay.lease=3s", "sinks.rabbit.timeout=1s", "relay.batch_size=10"];
        let settings = with(queue.settings(&outbox), &settings);
        outbox.insert(backlog(2000, 20)).await;
        let mut killed = Postrider::start(&settings);
        eventually("the first deliveries", || async {
            outbox.count(doc! { "status": "done" }).await > 50
        })
        .await;

        killed.signal(Signal::KILL);
        let ended = killed.until_ended(PROMPTLY).await;
        let left = outbox.count(doc! { "status": "pending" }).await;
        let mut next = Postrider::start(&settings);

        assert_eq!(ended.code, None, "{ended}");
        assert!(left > 0, "it was killed under way");
        outbox.until_count(doc! { "status": "done" }, 2000).await;
        queue.ids(2000).await;
        next.stop().await;
        queue.delete().await;
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_that_was_suspended_goes_on_and_nothing_is_lost() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let settings = ["relay.lease=2s", "sinks.rabbit.timeout=1s", "relay.batch_size=10"];
        outbox.insert(backlog(2000, 20)).await;
        let mut suspended = Postrider::start(&with(queue.settings(&outbox), &settings));
        eventually("the first deliveries", || async {
            outbox.count(doc! { "status": "done" }).await > 50
        })
        .await;

        suspended.signal(Signal::STOP);
        let mut other = Postrider::start(&with(queue.settings(&outbox), &settings));
        outbox.until_count(doc! { "status": "done" }, 2000).await;
        suspended.signal(Signal::CONT);
        outbox.insert([record("last", "k")]).await;

        outbox.until_count(doc! { "status": "done" }, 2001).await;
        queue.ids(2001).await;
        suspended.stop().await;
        other.stop().await;
        assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
        queue.delete().await;
        outbox.drop().await;
    }
}

mod log {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_is_json_by_the_line_or_text_and_never_on_standard_output() {
        let outbox = TestOutbox::new().await;
        let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
        let mut in_json = Postrider::start(&with(settings.clone(), &["log.format=json"]));
        in_json.until_ready().await;
        let in_json = in_json.stop().await;
        let mut in_text = Postrider::start(&with(settings, &["log.format=text"]));
        in_text.until_logged("serving /livez").await;
        let in_text = in_text.stop().await;

        for line in in_json.stderr.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            for field in ["timestamp", "level", "message", "target"] {
                assert!(line[field].is_string(), "{field}: {line}");
            }
        }
        assert!(in_json.stderr.lines().count() >= 4, "{in_json}");
        for line in in_text.stderr.lines() {
            assert!(serde_json::from_str::<Value>(line).is_err(), "{line}");
        }
        assert_eq!((&*in_json.stdout, &*in_text.stdout), ("", ""));
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn standard_output_has_the_messages_alone() {
        let outbox = TestOutbox::new().await;
        outbox.insert([record("a", "k")]).await;
        let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
        let mut postrider = Postrider::start(&settings);
        outbox.until_count(doc! { "status": "done" }, 1).await;

        let stopped = postrider.stop().await;

        let message = stopped.json();
        assert_eq!((&message["id"], &message["key"]), (&json!("a"), &json!("k")));
        assert_eq!(message["payload"], json!({ "id": "a" }));
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_brokers_absence_is_one_line_and_no_library_tells_of_every_try() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let door = Door::to(&host_of(&amqp_uri())).await;
        let uri = amqp_uri_at(&door.address.to_string());
        let settings = with(queue.settings_at(&outbox, &uri), &["relay.probe_max=200ms"]);
        let mut postrider = Postrider::start(&settings);
        postrider.until_report("all well", |report| report["status"] == "ok").await;

        door.shut();
        postrider.until_report("a cause", |report| report["status"] == "degraded").await;
        // The first one is told by whoever notices, the others by probes.
        let detail = async || postrider.readyz().await.1["parts"]["sink rabbit"].to_string();
        eventually("a probe", async || detail().await.contains("cannot connect")).await;
        door.open();
        postrider.until_report("all well", |report| report["status"] == "ok").await;
        let stopped = postrider.stop().await;

        let lines = stopped.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let (ours, others): (Vec<_>, Vec<_>) =
            lines.partition(|line| line["target"].as_str().unwrap().starts_with("postrider"));
        assert!(others.is_empty(), "{others:#?}");
        let warnings = ours.iter().filter(|line| line["level"] != "INFO").count();
        assert_eq!(warnings, 1, "{stopped}");
        queue.delete().await;
        outbox.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_and_the_environment_configure_a_run() {
    let outbox = TestOutbox::new().await;
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let text = format!(
        "[mongo]\nuri = {:?}\n[sinks.out]\nkind = \"stdout\"\n[ops]\nlisten = \"127.0.0.1:0\"\n",
        mongodb_uri()
    );
    std::fs::write(file.path(), text).unwrap();
    let mut command = command(&["run"]);
    command.env("POSTRIDER_CONFIG", file.path());
    command.env("POSTRIDER__MONGO__DATABASE", &outbox.database);
    let mut postrider = Postrider::of(command);

    postrider.until_ready().await;

    let starting = postrider.lines().into_iter().find(|line| line["message"] == "starting");
    assert_eq!(starting.unwrap()["database"], outbox.database);
    postrider.stop().await;
    outbox.drop().await;
}

/// Only with the feature `failpoints`: elsewhere nothing can be made to panic.
#[cfg(feature = "failpoints")]
mod panic {
    use super::*;

    fn start(outbox: &TestOutbox, queue: &Queue, place: &str) -> Postrider {
        let mut command = command(&["run"]);
        for setting in with(queue.settings(outbox), &["ops.listen=127.0.0.1:0"]) {
            command.args(["--set", &setting]);
        }
        command.env("FAILPOINTS", place);
        Postrider::of(command)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_part_that_ends_uninvited_ends_the_process_with_1() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        for place in ["relay::after_lease", "relay::before_publish", "relay::before_settle"] {
            outbox.insert([record(place, place)]).await;

            let mut postrider = start(&outbox, &queue, &format!("{place}=panic"));
            let ended = postrider.until_ended(PROMPTLY).await.with_code(1);

            says(&ended, &["error: a part of the relay ended by a panic"]);
        }
        queue.delete().await;
        outbox.drop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_publisher_that_panics_costs_a_connection_and_no_record() {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        outbox.insert(backlog(20, 4)).await;

        let mut postrider = start(&outbox, &queue, "sink::after_handover=1*panic");

        outbox.until_count(doc! { "status": "done" }, 20).await;
        queue.ids(20).await;
        assert!(postrider.stderr().contains("panicked"), "it was made to: {}", postrider.stderr());
        postrider.stop().await;
        queue.delete().await;
        outbox.drop().await;
    }
}
