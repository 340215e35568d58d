//! `postrider check` against real servers: each finding, good and bad.

mod least;
mod members;
mod mongodb;
mod privileges;
mod roles;
mod sinks;

use std::time::{Duration, Instant};

use crate::support::outbox::TestOutbox;
use crate::support::process::{call, call_with};
use crate::support::queue::{Queue, mongo_settings, stdout_sink};
use serde_json::{Value, json};

/// A password as no other text holds it.
const PLANTED: &str = "pl4nted-s3cret";

/// What `check` found, and its exit code.
struct Found {
    code: Option<i32>,
    findings: Vec<Value>,
}

/// Checks these settings, on a free port.
async fn check(settings: &[String]) -> Found {
    check_at("127.0.0.1:0", settings).await
}

async fn check_at(listen: &str, settings: &[String]) -> Found {
    let listen = format!("ops.listen={listen}");
    let settings = [settings, &[listen]].concat();
    let ended = call_with(&settings, &["check", "--output", "json"]).await;
    assert!(ended.is_free_of(PLANTED), "{ended}");
    let Value::Array(findings) = ended.json() else { panic!("{ended}") };
    for finding in &findings {
        let fields: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["name", "ok", "detail", "remedy"]);
        let mends = !finding["remedy"].as_str().unwrap().is_empty();
        // What is wrong with the configuration says what to do.
        let is_due = finding["ok"] == json!(false) && finding["name"] != "configuration";
        assert_eq!(mends, is_due, "a remedy where it is due: {finding}");
        for dump in ["Kind:", "labels:", "Topology:", "server response", "source: None"] {
            assert!(!finding["detail"].as_str().unwrap().contains(dump), "{dump}: {finding}");
        }
    }
    Found { code: ended.code, findings }
}

impl Found {
    fn names(&self) -> Vec<&str> {
        self.findings.iter().map(|finding| finding["name"].as_str().unwrap()).collect()
    }

    fn bad(&self) -> Vec<&str> {
        let bad = self.findings.iter().filter(|finding| finding["ok"] == json!(false));
        bad.map(|finding| finding["name"].as_str().unwrap()).collect()
    }

    #[track_caller]
    fn of(&self, name: &str) -> &Value {
        let found = self.findings.iter().find(|finding| finding["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {:#?}", self.findings))
    }

    /// That this one is bad, and what its detail and its remedy must name.
    #[track_caller]
    fn is_bad(&self, name: &str, detail: &str, remedy: &str) {
        let finding = self.of(name);
        assert_eq!(finding["ok"], json!(false), "{finding:#}");
        for (field, words) in [("detail", detail), ("remedy", remedy)] {
            assert!(finding[field].as_str().unwrap().contains(words), "no {words:?}: {finding:#}");
        }
    }

    /// The same, where nothing else is.
    #[track_caller]
    fn only(&self, name: &str, detail: &str, remedy: &str) {
        assert_eq!((self.code, self.bad()), (Some(1), vec![name]), "{:#?}", self.findings);
        self.is_bad(name, detail, remedy);
    }

    /// That this one is good, and what its detail must name.
    #[track_caller]
    fn is_good(&self, name: &str, detail: &str) {
        let finding = self.of(name);
        assert_eq!(finding["ok"], json!(true), "{finding:#}");
        assert!(finding["detail"].as_str().unwrap().contains(detail), "{finding:#}");
    }
}

fn with(settings: &[String], more: &[&str]) -> Vec<String> {
    let more = more.iter().map(|setting| (*setting).to_owned());
    settings.iter().cloned().chain(more).collect()
}

/// This outbox, and nothing to deliver to but standard output.
fn to_stdout(outbox: &TestOutbox) -> Vec<String> {
    [mongo_settings(&outbox.database), stdout_sink()].concat()
}

#[fixture::test]
async fn everything_is_well_on_good_servers() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let settings = with(&queue.settings(&outbox), &["api.enabled=true"]);

    let found = check(&settings).await;

    assert_eq!((found.code, found.bad()), (Some(0), vec![]), "{:#?}", found.findings);
    let names = [
        "configuration",
        "mongodb",
        "mongodb version",
        "replica set",
        "clocks",
        "schema",
        "privileges",
        "append privileges",
        "context",
        "sink rabbit",
        "sink rabbit destinations",
        "ops.listen",
        "api.listen",
    ];
    assert_eq!(found.names(), names);
    found.is_good("mongodb", "replica set rs0");
    found.is_good("mongodb version", "5.0 or newer");
    found.is_good("replica set", "1 of 1 members are up");
    found.is_good("clocks", "one member, one clock");
    found.is_good("privileges", "no access control");
    let table = call_with(&with(&settings, &["ops.listen=127.0.0.1:0"]), &["check"]).await;
    let table = table.with_code(0);
    assert_eq!(table.stdout.lines().count(), names.len(), "{table}");
    assert!(!table.stdout.contains("NOT OK"), "{table}");
}

#[fixture::test]
async fn a_port_that_is_taken_is_one_finding() {
    let outbox = TestOutbox::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();

    let found = check_at(&listen, &to_stdout(&outbox)).await;

    found.only("ops.listen", &listen, "free the port");
}

#[fixture::test]
async fn what_is_not_relayed_needs_no_sink() {
    let outbox = TestOutbox::new().await;
    let sink = ["sinks.r.kind=rabbitmq", "sinks.r.uri=amqp://127.0.0.1:1", "relay.enabled=false"];

    let found = check(&with(&mongo_settings(&outbox.database), &sink)).await;

    assert_eq!(found.code, Some(0), "{:#?}", found.findings);
    assert!(!found.names().iter().any(|name| name.starts_with("sink")), "{:?}", found.names());
}

#[fixture::test]
async fn where_nobody_answers_it_ends_within_seconds() {
    // It lets everybody in, and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = [
        &format!("mongo.uri=mongodb://u:{PLANTED}@{address}/app?serverSelectionTimeoutMS=60000"),
        "sinks.r.kind=rabbitmq",
        &format!("sinks.r.uri=amqp://u:{PLANTED}@{address}"),
        "sinks.k.kind=kafka",
        &format!("sinks.k.brokers={address}"),
        "relay.default_sink=r",
        "sinks.r.timeout=25s",
        "sinks.k.timeout=25s",
    ];
    let begin = Instant::now();

    let found = check(&with(&[], &settings)).await;

    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
    assert_eq!(found.bad(), ["mongodb", "sink k", "sink r"], "{:#?}", found.findings);
    found.is_bad("mongodb", "does not answer within", "mongo.uri");
    found.is_bad("sink r", "no answer within 5s", "sinks.r: uri");
    found.is_bad("sink k", "no answer within 5s", "sinks.k: brokers");
}

#[fixture::test]
async fn offline_asks_no_server() {
    // Nobody listens at any of these addresses, and the port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = [
        "mongo.uri=mongodb://127.0.0.1:1/app",
        "sinks.out.kind=rabbitmq",
        "sinks.out.uri=amqp://127.0.0.1:1",
        "relay.ordering=none",
        "relay.on_dead=block",
        &format!("ops.listen={}", taken.local_addr().unwrap()),
    ];

    let told = call_with(&with(&[], &settings), &["check", "--offline", "--output", "json"]).await;

    let told = told.with_code(0).json();
    assert_eq!(told.as_array().unwrap().len(), 1, "{told}");
    assert_eq!(told[0]["name"], "configuration");
    let detail = told[0]["detail"].as_str().unwrap();
    assert!(detail.contains("relay.on_dead = \"block\" has no effect"), "{told}");
}

#[fixture::test]
async fn a_wrong_configuration_is_found_rule_by_rule_and_ends_with_2() {
    let arguments = ["check", "--offline", "--output", "json", "--set", "relay.lease=1ms"];

    let told = call(&arguments).await.with_code(2).json();

    let details: Vec<&str> =
        told.as_array().unwrap().iter().map(|found| found["detail"].as_str().unwrap()).collect();
    assert_eq!(details.len(), 3, "{told:#}");
    for key in ["mongo.uri", "--set: relay.lease", "sinks"] {
        assert!(details.iter().any(|detail| detail.starts_with(key)), "{key}: {told:#}");
    }
}
