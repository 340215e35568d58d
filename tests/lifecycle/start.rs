//! Starts: what the process waits for, and what it does not wait for.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use bson::{DateTime, Document, doc};
use serde_json::json;

use crate::support::fault_proxy::FaultProxy;
use crate::support::kafka;
use crate::support::mongod::Mongod;
use crate::support::outbox::{TestOutbox, eventually, record, unstamped};
use crate::support::ports::free_port;
use crate::support::process::{Postrider, run_with};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of, mongo_settings, stdout_sink};
use crate::support::schema::BareDatabase;
use crate::util::{PLANTED, PROMPT_LIMIT, backlog, mongo_through, proxy_to_mongodb, with};

#[fixture::test]
async fn the_start_waits_for_mongodb_with_a_line_per_backoff() {
    let outbox = TestOutbox::new().await;
    let proxy = proxy_to_mongodb(FaultProxy::closed_to).await;
    let settings = [mongo_through(&proxy, &outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);
    outbox.insert([record("a", "k")]).await;

    let waits = || -> Vec<String> {
        let lines = postrider.lines();
        let tries =
            lines.iter().filter(|line| line["message"] == "failed to connect to MongoDB; retrying");
        tries.map(|line| line["retry_in"].as_str().unwrap().to_owned()).collect()
    };
    eventually("three tries", || async { waits().len() >= 3 }).await;
    let (status, report) = postrider.readyz().await;
    let (live, _) = postrider.get("/livez").await;
    let tries = waits();
    proxy.open();

    assert_eq!(tries[..3], ["500ms", "1s", "2s"]);
    assert_eq!((status, &report["status"]), (503, &json!("down")), "{report}");
    assert_eq!(report["parts"]["store"]["status"], "down", "{report}");
    assert_eq!(live, 200, "a restart would not help");
    postrider.until_ready().await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider.stop().await;
}

/// As by a core file or a debugger. The environment has the password in `mongo.uri`.
#[fixture::test]
async fn memory_and_environment_are_not_for_other_processes_of_the_user() {
    let outbox = TestOutbox::new().await;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("postrider");
    std::fs::copy(env!("CARGO_BIN_EXE_postrider"), &program).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Root may read everything.
    let as_user = |mut command: Command| {
        if rustix::process::geteuid().is_root() {
            command.uid(65532).gid(65532);
        }
        command
    };
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    for (setting, is_readable) in [("log.level=info", false), ("ops.core_dumps=true", true)] {
        let configured = run_with(&with(settings.clone(), &[setting]));
        let mut command = Command::new(&program);
        command.args(configured.get_args()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut postrider = Postrider::of(as_user(command));
        postrider.until_ready().await;

        for file in ["environ", "mem"] {
            let mut read = Command::new("head");
            read.args(["-c", "0", &format!("/proc/{}/{file}", postrider.id())]);
            let read = as_user(read).output().unwrap();

            assert_eq!(read.status.success(), is_readable, "{setting}: {file}: {read:?}");
        }
        // It measures itself as before.
        for series in ["process_resident_memory_bytes", "process_open_fds", "process_max_fds"] {
            assert!(postrider.metric(series).await.unwrap() > 0.0, "{series}");
        }
        postrider.stop().await;
    }
}

#[fixture::test]
async fn the_start_waits_for_a_mongodb_that_answers_nothing() {
    let outbox = TestOutbox::new().await;
    let proxy = proxy_to_mongodb(FaultProxy::to).await;
    proxy.freeze();
    let settings = [mongo_through(&proxy, &outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);

    postrider.until_logged("failed to connect to MongoDB").await;
    assert_eq!(postrider.readyz().await.0, 503);
    proxy.open();

    postrider.until_ready().await;
    postrider.stop().await;
}

#[fixture::test]
async fn the_start_waits_for_a_schema_that_it_may_not_create() {
    let bare = BareDatabase::new("").await;
    let settings = [mongo_settings(&bare.name), stdout_sink()].concat();
    let mut postrider = Postrider::start(&with(settings, &["outbox.auto_init_schema=false"]));

    postrider.until_logged("run `postrider schema apply`").await;
    let (status, report) = postrider.readyz().await;
    assert_eq!((status, &report["parts"]["schema"]["status"]), (503, &json!("down")));
    assert_eq!(bare.collection_names().await, [""; 0]);
    postrider::schema::apply(&bare.collections, &Default::default()).await.unwrap();

    postrider.until_ready().await;
    postrider.stop().await;
}

#[fixture::test]
async fn a_standalone_server_is_polled_with_a_warning() {
    let server = Mongod::standalone().await;
    let uri = server.uri("", "app");
    let settings = [vec![format!("mongo.uri={uri}")], stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);
    postrider.until_ready().await;
    postrider.until_logged("standalone").await;
    let app = server.client("").await.client().database("app");
    let records = app.collection::<Document>("outbox_records");

    let mut scheduled = record("later", "k");
    scheduled.insert("status", "scheduled");
    scheduled.insert("visibleAt", DateTime::now());
    let unstamped = unstamped("c", "other");
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

#[fixture::test]
async fn a_broker_that_is_down_does_not_stop_the_start() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let proxy = FaultProxy::closed_to(&host_of(&amqp_uri())).await;
    let uri = amqp_uri_at(&proxy.address().to_string());
    let mut postrider = Postrider::start(&queue.settings_at(&outbox, &uri));
    outbox.insert(backlog(5, 2)).await;

    postrider.until_ready().await;
    postrider.until_report("a degraded sink", |report| report["status"] == "degraded").await;
    let (status, report) = postrider.readyz().await;
    proxy.open();

    assert_eq!(status, 200);
    assert_eq!(report["parts"]["sink rabbit"]["status"], "degraded", "{report}");
    assert!(!report["parts"]["sink rabbit"]["detail"].as_str().unwrap().is_empty());
    assert_eq!(queue.ids(5).await.len(), 5);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 5).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.stop().await;
}

/// Sinks by name, each to a broker that is down in another way.
struct Down {
    settings: Vec<String>,
    /// The frozen brokers.
    _frozen: [FaultProxy; 2],
}

impl Down {
    const NAMES: [&str; 7] =
        ["refused", "unknown", "frozen", "login", "kafka_refused", "kafka_unknown", "kafka_frozen"];

    async fn new() -> Self {
        let closed = format!("127.0.0.1:{}", free_port());
        let unknown = "no-such-host.invalid:5672";
        let proxies =
            [FaultProxy::to(&host_of(&amqp_uri())).await, FaultProxy::to(&kafka::brokers()).await];
        proxies.iter().for_each(FaultProxy::freeze);
        let [frozen, kafka_frozen] = [0, 1].map(|at: usize| proxies[at].address().to_string());
        let login = format!("amqp://guest:{PLANTED}@{}/%2f", host_of(&amqp_uri()));
        let rabbitmq = |at: &str| ("rabbitmq", "uri", amqp_uri_at(at));
        let kafka = |at: &str| ("kafka", "brokers", at.to_owned());
        let sinks = [
            rabbitmq(&closed),
            rabbitmq(unknown),
            rabbitmq(&frozen),
            ("rabbitmq", "uri", login),
            kafka(&closed),
            kafka(unknown),
            kafka(&kafka_frozen),
        ];
        let settings = Self::NAMES.iter().zip(sinks).flat_map(|(name, (kind, key, value))| {
            [
                format!("sinks.{name}.kind={kind}"),
                format!("sinks.{name}.{key}={value}"),
                format!("sinks.{name}.timeout=1s"),
            ]
        });
        Self { settings: settings.collect(), _frozen: proxies }
    }
}

#[fixture::test]
async fn brokers_that_are_down_affect_no_other_broker_or_the_stop() {
    let (outbox, queue, down) =
        (TestOutbox::new().await, Queue::declare().await, Down::new().await);
    let routes = Down::NAMES.map(|name| format!("{{type = {name:?}, sink = {name:?}}}")).join(",");
    let more = [format!("routes=[{routes}]"), "relay.default_sink=rabbit".to_owned()];
    let settings = [queue.settings(&outbox), down.settings.clone(), more.to_vec()].concat();
    let mut postrider = Postrider::start(&settings);
    outbox.insert(backlog(5, 5)).await;
    outbox
        .insert(Down::NAMES.map(|name| {
            let mut record = record(name, name);
            record.insert("type", name);
            record
        }))
        .await;

    postrider.until_ready().await;
    assert_eq!(queue.ids(5).await.len(), 5);
    postrider
        .until_report("all of them degraded", |report| {
            let part = |name: &&str| &report["parts"][format!("sink {name}")];
            report["status"] == "degraded"
                && report["parts"]["sink rabbit"]["status"] == "ok"
                && Down::NAMES.iter().all(|name| part(name)["status"] == "degraded")
        })
        .await;
    let (status, report) = postrider.readyz().await;
    let stopping = Instant::now();
    let stopped = postrider.stop().await;

    assert_eq!(status, 200);
    for name in Down::NAMES {
        let detail = report["parts"][format!("sink {name}")]["detail"].as_str().unwrap();
        assert!(!detail.is_empty(), "{name}: {report}");
    }
    assert!(stopping.elapsed() < PROMPT_LIMIT, "nothing was in flight");
    assert!(stopped.is_free_of(PLANTED), "{stopped}");
    let untouched = doc! { "status": "pending", "attempt": { "$in": [0, null] } };
    assert_eq!(outbox.count(untouched).await, Down::NAMES.len() as u64);
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
}

#[fixture::test]
async fn the_start_waits_for_a_primary() {
    let server = Mongod::without_primary().await;
    let set = format!(
        "mongo.uri=mongodb://127.0.0.1:{}/app?replicaSet=rs0&serverSelectionTimeoutMS=500",
        server.port
    );
    let direct = format!("mongo.uri={}", server.uri("", "app"));
    let mut started =
        [set, direct].map(|uri| Postrider::start(&[vec![uri], stdout_sink()].concat()));
    for postrider in &started {
        postrider.until_logged("failed to connect to MongoDB").await;
        assert_eq!(postrider.readyz().await.0, 503);
    }

    server.initiate().await;

    for postrider in &mut started {
        postrider.until_ready().await;
        let stopped = postrider.stop().await;
        assert!(stopped.is_free_of("standalone"), "{stopped}");
    }
}
