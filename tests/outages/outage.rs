//! An outbox and a vhost in an outage, and the checks that each test of an outage makes on both.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::vhost::Vhost;

/// The series that reports whether the sink `rabbit` is up.
pub const RABBIT_UP: &str = "postrider_sink_up{sink=\"rabbit\"}";

/// An outbox that is relayed to a vhost of its own on the shared broker.
pub struct Outage {
    pub outbox: TestOutbox,
    pub vhost: Vhost,
    pub amqp: AmqpClient,
}

impl Outage {
    pub async fn new() -> Self {
        let outbox = TestOutbox::new().await;
        let vhost = Vhost::new().await;
        let amqp = vhost.amqp_client().await;
        Self { outbox, vhost, amqp }
    }

    /// Starts a relay to this vhost, and waits until it is healthy.
    pub async fn start(&self, uri: &str, more: &[&str]) -> Postrider {
        let postrider = Postrider::start(&settings(&self.outbox, uri, more));
        until_well(&postrider).await;
        postrider
    }

    pub async fn end(self, mut postrider: Postrider) {
        postrider.stop().await;
    }
}

/// Settings of a relay by the sink `rabbit` to the queue that each record names as its type, with
/// short waits.
pub fn settings(outbox: &TestOutbox, uri: &str, more: &[&str]) -> Vec<String> {
    let sink = [
        "sinks.rabbit.kind=rabbitmq",
        &format!("sinks.rabbit.uri={uri}"),
        "sinks.rabbit.timeout=2s",
    ];
    [mongo_settings(&outbox.database), waits(), owned(&sink), owned(more)].concat()
}

/// The short waits alone.
pub fn waits() -> Vec<String> {
    owned(&[
        "relay.lease=6s",
        "relay.poll_interval=100ms",
        "relay.sink_probe_interval_max=1s",
        "relay.backoff.kind=fixed",
        "relay.backoff.initial=100ms",
        "relay.backoff.jitter=0.0",
    ])
}

pub fn owned(settings: &[&str]) -> Vec<String> {
    settings.iter().map(|setting| (*setting).to_owned()).collect()
}

/// A record for a queue.
pub fn to(queue: &str, id: &str, key: &str) -> Document {
    let mut record = record(id, key);
    record.insert("type", queue);
    record
}

/// This many for a queue, each of a key of its own.
pub fn many(queue: &str, what: &str, count: usize) -> Vec<Document> {
    (0..count).map(|number| format!("{what} {number:03}")).map(|id| to(queue, &id, &id)).collect()
}

pub async fn until_well(postrider: &Postrider) {
    postrider.until_report("all well", |report| report["status"] == "ok").await;
}

/// Waits until log, metric and `/readyz` report the sink as down; returns the detail in `/readyz`.
pub async fn until_down(postrider: &Postrider, sink: &str) -> String {
    let part = format!("sink {sink}");
    let down = |report: &serde_json::Value| report["parts"][&part]["status"] == "degraded";
    postrider.until_report("a sink that is down", down).await;
    let up = format!("postrider_sink_up{{sink=\"{sink}\"}}");
    postrider.until_metric(&up, |up| up == 0.0).await;
    let (status, report) = postrider.readyz().await;
    assert_eq!(status, 200, "a broker is no reason to be taken out: {report}");
    assert_eq!(report["status"], "degraded", "{report}");
    let detail = report["parts"][&part]["detail"].as_str().unwrap().to_owned();
    assert!(!detail.is_empty());
    detail
}

/// Waits until the sink `rabbit` is down with these words in the detail of `/readyz`.
pub async fn until_down_with(postrider: &Postrider, words: &str) {
    until_down(postrider, "rabbit").await;
    let says = |report: &serde_json::Value| {
        report["parts"]["sink rabbit"]["detail"].as_str().unwrap().contains(words)
    };
    postrider.until_report(words, says).await;
}

/// Waits until a failed attempt of this record is counted and no new lease follows; checks its
/// fields, and returns them. `backoff` is in milliseconds, after this many attempts.
pub async fn until_counted(
    outbox: &TestOutbox,
    id: &str,
    backoff: impl Fn(u32) -> i64,
) -> Document {
    let found = std::sync::Mutex::new(None);
    let failed =
        doc! { "_id": id, "status": "pending", "leaseId": null, "lastError": { "$ne": null } };
    eventually(&format!("a failure of {id}"), async || {
        *found.lock().unwrap() = outbox.records().find_one(failed.clone()).await.unwrap();
        found.lock().unwrap().is_some()
    })
    .await;
    let record = found.into_inner().unwrap().unwrap();
    let attempt = u32::try_from(record.get_i32("attempt").unwrap()).unwrap();
    let time = |field| record.get_datetime(field).unwrap().timestamp_millis();
    assert_eq!(time("visibleAt") - time("lastErrorAt"), backoff(attempt), "{record}");
    assert!(attempt >= 1 && has_no_lease(&record), "{record}");
    for absent in ["doneAt", "deadAt", "deadReason", "blocks"] {
        assert!(!record.contains_key(absent), "{record}");
    }
    record
}

fn has_no_lease(record: &Document) -> bool {
    ["leaseId", "leaseUntil", "leaseOwner"].iter().all(|field| !record.contains_key(field))
}

/// Asserts that every record is done or dead, with the fields of that status and no others; returns
/// the records by status.
pub async fn all_settled(outbox: &TestOutbox) -> (Vec<Document>, Vec<Document>) {
    let all: Vec<Document> =
        outbox.records().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    let (done, dead): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|record| record.get_str("status").unwrap() == "done");
    for record in &done {
        assert!(record.get_datetime("doneAt").is_ok() && has_no_lease(record), "{record}");
        let ends = ["deadAt", "deadReason", "blocks"];
        assert!(ends.iter().all(|field| !record.contains_key(field)), "{record}");
    }
    for record in &dead {
        assert_eq!(record.get_str("status").unwrap(), "dead", "{record}");
        assert!(record.get_datetime("deadAt").is_ok() && has_no_lease(record), "{record}");
        assert!(record.get_str("deadReason").is_ok(), "{record}");
        assert!(!record.contains_key("doneAt"), "{record}");
    }
    (done, dead)
}

/// Whether it was delivered, without an error.
pub fn has_no_error(record: &Document) -> bool {
    let failed =
        ["lastError", "lastErrorAt", "visibleAt"].iter().any(|name| record.contains_key(name));
    let is = |field: &str, value: Bson| record.get(field) == Some(&value);
    is("status", "done".into()) && is("attempt", Bson::Int32(1)) && !failed
}

/// How often the log reports the sink as down, and as up.
pub fn logged(postrider: &Postrider) -> (usize, usize) {
    let lines = postrider.lines();
    let count = |level: &str, words: &str| {
        let is_it = |line: &&serde_json::Value| {
            line["level"] == level && line["message"].as_str().unwrap().starts_with(words)
        };
        lines.iter().filter(is_it).count()
    };
    (count("WARN", "sink is down"), count("INFO", "sink is up"))
}

/// Asserts that the log reports the sink as down this often, and not at each try. A busy machine may interrupt it
/// again.
#[track_caller]
pub fn assert_downs(postrider: &Postrider, expected: usize) {
    let (downs, ups) = logged(postrider);
    let is_right = (expected..=expected + 1).contains(&downs) && ups <= downs + 1;
    assert!(is_right, "{downs} times down, {ups} times up: {}", postrider.stderr());
}

/// Asserts that nothing in the log is an error or a panic.
#[track_caller]
pub fn no_errors(postrider: &Postrider) {
    let log = postrider.stderr();
    assert!(!log.contains("\"level\":\"ERROR\"") && !log.contains("panicked"), "{log}");
}
