//! `postrider check` against real servers: each finding, good and bad.

mod least;
mod members;
mod mongodb;
mod privileges;
mod roles;
mod sinks;

use std::time::{Duration, Instant};

use crate::support::command_line::PLANTED;
use crate::support::outbox::TestOutbox;
use crate::support::ports::free_port;
use crate::support::process::{Postrider, call, call_with, command_with, finish};
use crate::support::queue::{Queue, mongo_settings, stdout_settings};
use serde_json::{Value, json};

/// The findings of `check`, and its exit code.
struct Found {
    code: Option<i32>,
    findings: Vec<Value>,
}

/// Checks these settings, on a free port.
async fn check(settings: &[String]) -> Found {
    check_at("127.0.0.1:0", settings).await
}

async fn check_at(listen: &str, settings: &[String]) -> Found {
    check_with(listen, settings, "").await
}

/// Checks with these fail points.
async fn check_with(listen: &str, settings: &[String], fail_points: &str) -> Found {
    let listen = format!("ops.listen={listen}");
    let settings = [settings, &[listen]].concat();
    let mut command = command_with(&settings, &["check", "--output", "json"]);
    command.env("FAILPOINTS", fail_points);
    let ended = finish(command).await;
    assert!(ended.is_free_of(PLANTED), "{ended}");
    let Value::Array(findings) = ended.json() else { panic!("{ended}") };
    for finding in &findings {
        let fields: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["name", "ok", "skipped", "detail", "remedy"]);
        let has_remedy = !finding["remedy"].as_str().unwrap().is_empty();
        // Errors of the configuration contain the remedy.
        let is_skipped = finding["skipped"] == json!(true);
        let is_failed = finding["ok"] == json!(false) && !is_skipped;
        let is_due = is_failed && finding["name"] != "configuration";
        assert_eq!(has_remedy, is_due, "a remedy where it is due: {finding}");
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
        let failed = bad.filter(|finding| finding["skipped"] == json!(false));
        failed.map(|finding| finding["name"].as_str().unwrap()).collect()
    }

    /// The checks that were skipped, each with the reason.
    fn skipped(&self) -> Vec<(&str, &str)> {
        let skipped = self.findings.iter().filter(|finding| finding["skipped"] == json!(true));
        skipped
            .map(|finding| (finding["name"].as_str().unwrap(), finding["detail"].as_str().unwrap()))
            .collect()
    }

    #[track_caller]
    fn of(&self, name: &str) -> &Value {
        let found = self.findings.iter().find(|finding| finding["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {:#?}", self.findings))
    }

    /// Asserts that this one is bad, and what its detail and its remedy name.
    #[track_caller]
    fn is_bad(&self, name: &str, detail: &str, remedy: &str) {
        let finding = self.of(name);
        assert_eq!(finding["ok"], json!(false), "{finding:#}");
        for (field, words) in [("detail", detail), ("remedy", remedy)] {
            assert!(finding[field].as_str().unwrap().contains(words), "no {words:?}: {finding:#}");
        }
    }

    /// The same, where no other is bad.
    #[track_caller]
    fn only(&self, name: &str, detail: &str, remedy: &str) {
        assert_eq!((self.code, self.bad()), (Some(1), vec![name]), "{:#?}", self.findings);
        self.is_bad(name, detail, remedy);
    }

    /// Asserts that this one is good, and what its detail names.
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

#[fixture::test]
async fn check_finds_nothing_on_healthy_servers() {
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
        "descriptors",
        "ops.listen",
        "api.listen",
    ];
    assert_eq!(found.names(), names);
    found.is_good("mongodb", "replica set rs0");
    found.is_good("mongodb version", "5.0 or newer");
    found.is_good("replica set", "1 of 1 members with data are up");
    found.is_good("clocks", "one member, one clock");
    found.is_good("privileges", "access control is disabled");
    let table = call_with(&with(&settings, &["ops.listen=127.0.0.1:0"]), &["check"]).await;
    let table = table.with_code(0);
    assert!(!table.stdout.contains("FAILED"), "{table}");
    assert_eq!(table.stdout.lines().last().unwrap(), "all 14 checks passed", "{table}");
}

#[fixture::test]
async fn a_port_that_is_taken_is_one_finding() {
    let outbox = TestOutbox::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();

    let found = check_at(&listen, &stdout_settings(&outbox)).await;

    found.only("ops.listen", &listen, "stop the process that uses the port");
}

#[fixture::test]
async fn ports_of_a_running_postrider_are_no_failure() {
    let outbox = TestOutbox::new().await;
    let api = format!("api.listen=127.0.0.1:{}", free_port());
    let settings = with(&stdout_settings(&outbox), &["api.enabled=true", &api]);
    let mut postrider = Postrider::start(&with(&settings, &["ops.listen=127.0.0.1:0"]));
    let listen = postrider.address().await.to_string();
    postrider.until_ready().await;

    let found = check_at(&listen, &settings).await;

    assert_eq!((found.code, found.bad()), (Some(0), vec![]), "{:#?}", found.findings);
    for name in ["ops.listen", "api.listen"] {
        found.is_good(name, "in use by a Postrider");
    }
    postrider.stop().await;
}

#[fixture::test]
async fn check_needs_no_sink_without_a_relay() {
    let outbox = TestOutbox::new().await;
    let sink = ["sinks.r.kind=rabbitmq", "sinks.r.uri=amqp://127.0.0.1:1", "relay.enabled=false"];

    let found = check(&with(&mongo_settings(&outbox.database), &sink)).await;

    assert_eq!(found.code, Some(0), "{:#?}", found.findings);
    assert!(!found.names().iter().any(|name| name.starts_with("sink")), "{:?}", found.names());
}

#[fixture::test]
async fn check_ends_within_seconds_without_answers() {
    // It accepts every connection, and sends nothing.
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
    found.is_bad("sink r", "no response within 5s", "sinks.r: uri");
    found.is_bad("sink k", "no response within 5s", "sinks.k: brokers");
}

#[fixture::test]
async fn check_offline_contacts_no_server() {
    // No server listens at any of these addresses, and the port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = [
        "mongo.uri=mongodb://127.0.0.1:1/app",
        "sinks.out.kind=rabbitmq",
        "sinks.out.uri=amqp://127.0.0.1:1",
        "relay.ordering=none",
        "relay.on_dead=block",
        &format!("ops.listen={}", taken.local_addr().unwrap()),
    ];

    let report =
        call_with(&with(&[], &settings), &["check", "--offline", "--output", "json"]).await;

    let report = report.with_code(0).json();
    assert_eq!(report.as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report[0]["name"], "configuration");
    let detail = report[0]["detail"].as_str().unwrap();
    assert!(detail.contains("relay.on_dead = \"block\" has no effect"), "{report}");
}

#[fixture::test]
async fn an_invalid_configuration_is_reported_by_rule_and_ends_with_2() {
    let arguments = ["check", "--offline", "--output", "json", "--set", "relay.lease=1ms"];

    let report = call(&arguments).await.with_code(2).json();

    let details: Vec<&str> =
        report.as_array().unwrap().iter().map(|found| found["detail"].as_str().unwrap()).collect();
    assert_eq!(details.len(), 3, "{report:#}");
    for key in ["mongo.uri", "--set: relay.lease", "sinks"] {
        assert!(details.iter().any(|detail| detail.starts_with(key)), "{key}: {report:#}");
    }
}
