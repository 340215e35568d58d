//! The log: its content, its destination, and what it never contains.

use bson::{Bson, doc};
use postrider::partition::of_key;
use serde_json::{Value, json};

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Ended, Postrider, call_with, run_with};
use crate::support::queue::{
    Queue, amqp_uri, amqp_uri_at, host_of, mongo_settings, patient_settings, stdout_sink,
};
use crate::util::with;

#[fixture::test]
async fn the_log_is_json_lines_or_text_on_standard_error() {
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
}

#[fixture::test]
async fn standard_output_has_only_messages() {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("a", "k")]).await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done" }, 1).await;

    let stopped = postrider.stop().await;

    let message = stopped.json();
    assert_eq!((&message["id"], &message["key"]), (&json!("a"), &json!("k")));
    assert_eq!(message["payload"], json!({ "id": "a" }));
}

/// Two underscores separate the parts of a name. Kubernetes makes the second variable for a
/// Service.
#[fixture::test]
async fn a_variable_with_single_underscores_is_ignored_with_a_warning() {
    let outbox = TestOutbox::new().await;
    let mut command = run_with(&[mongo_settings(&outbox.database), stdout_sink()].concat());
    // Not valid: were it read, the process would end with 2.
    command.env("POSTRIDER_RELAY_BATCH_SIZE", "0");
    command.env("POSTRIDER_API_SERVICE_HOST", "10.0.0.7");
    let mut postrider = Postrider::of(command);
    postrider.until_ready().await;

    let stopped = postrider.stop().await;

    let lines = postrider.lines();
    let warned = |name: &str| -> Vec<&Value> {
        let message = |line: &&Value| line["message"].as_str().unwrap().contains(name);
        lines.iter().filter(message).collect()
    };
    let slips = warned("POSTRIDER_RELAY_BATCH_SIZE");
    assert_eq!(slips.len(), 1, "{stopped}");
    let words =
        "POSTRIDER_RELAY_BATCH_SIZE is not read; did you mean POSTRIDER__RELAY__BATCH_SIZE?";
    assert_eq!((&slips[0]["level"], &slips[0]["message"]), (&json!("WARN"), &json!(words)));
    assert!(warned("POSTRIDER_API_SERVICE_HOST").is_empty(), "{stopped}");
}

/// The lines of one delivery must be found among those of a thousand.
#[fixture::test]
async fn a_debug_line_names_its_lane_and_publish() {
    let stopped = deliver_with_debug_log("a").await;

    let lines = stopped.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let confirmed: Vec<Value> = lines.filter(|line| line["message"] == "confirmed").collect();
    assert_eq!(confirmed.len(), 1, "{stopped}");
    let spans = &confirmed[0]["spans"];
    assert_eq!(spans[0], json!({ "name": "lane", "key": "k", "partition": of_key("k") }));
    let publish = &spans[1];
    assert_eq!(publish["name"], "publish");
    assert_eq!((&publish["record.id"], &publish["key"]), (&json!("a"), &json!("k")));
    assert_eq!((&publish["attempt"], &publish["sink"]), (&json!(1), &json!("out")));
}

#[fixture::test]
async fn a_debug_log_follows_a_record_by_its_id() {
    let stopped = deliver_with_debug_log("r-7").await;

    let lines = stopped.stderr.lines().filter(|line| line.contains("r-7"));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let named: Vec<&str> = lines
        .iter()
        .filter(|line| line["record.id"] == "r-7" || line["spans"][1]["record.id"] == "r-7")
        .map(|line| line["message"].as_str().unwrap())
        .collect();
    let life: Vec<&str> = named
        .into_iter()
        .filter(|message| *message != "received a record from the change stream")
        .collect();
    assert_eq!(
        life,
        ["leased a record", "publishing", "confirmed", "settled a record"],
        "{stopped}"
    );
    let settled = lines.last().unwrap();
    assert_eq!((&settled["outcome"], &settled["attempt"]), (&json!("done"), &json!(1)));
    assert!(!stopped.stderr.contains("secret"), "a payload or header: {stopped}");
}

/// Delivers one record of the key `k` while debug lines are logged.
async fn deliver_with_debug_log(id: &str) -> Ended {
    let outbox = TestOutbox::new().await;
    let mut document = record(id, "k");
    document.insert("headers", doc! { "x": "secret" });
    document.insert("payload", doc! { "x": "secret" });
    outbox.insert([document]).await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let more = ["log.format=json", "log.level=postrider=debug,warn"];
    let mut postrider = Postrider::start(&with(settings, &more));
    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider.stop().await
}

#[fixture::test]
async fn a_brokers_absence_is_one_line_and_no_library_logs_retries() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let proxy = FaultProxy::to(&host_of(&amqp_uri())).await;
    let uri = amqp_uri_at(&proxy.address().to_string());
    // A heartbeat that fails is another line.
    let settings = [queue.settings_at(&outbox, &uri), patient_settings()].concat();
    let settings = with(settings, &["relay.sink_probe_interval_max=200ms"]);
    let mut postrider = Postrider::start(&settings);
    postrider.until_report("all well", |report| report["status"] == "ok").await;

    proxy.close();
    postrider.until_report("a cause", |report| report["status"] == "degraded").await;
    // The first line is logged by the part that notices, the others by probes.
    let detail = async || postrider.readyz().await.1["parts"]["sink rabbit"].to_string();
    eventually("a probe", async || detail().await.contains("cannot connect")).await;
    proxy.open();
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let stopped = postrider.stop().await;

    let lines = stopped.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (ours, others): (Vec<_>, Vec<_>) =
        lines.partition(|line| line["target"].as_str().unwrap().starts_with("postrider"));
    assert!(others.is_empty(), "{others:#?}");
    let warnings = ours.iter().filter(|line| line["level"] != "INFO").count();
    assert_eq!(warnings, 1, "{stopped}");
}

/// By the right to insert a record.
#[fixture::test]
async fn no_record_forges_a_line_of_the_log() {
    const FORGED: &str =
        "x\u{1b}[31m\r\n2026-01-01T00:00:00Z ERROR forged\u{7}\u{9b}1m\u{202e}\u{2028}\u{e0041}é";
    for format in ["log.format=text", "log.format=json"] {
        let outbox = TestOutbox::new().await;
        let mut malformed = record(&format!("dead {FORGED}"), FORGED);
        malformed.remove("type");
        outbox.insert([record(FORGED, FORGED), malformed]).await;
        let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
        let settings = with(settings, &[format, "log.level=postrider=debug,warn"]);
        let mut postrider = Postrider::start(&settings);
        outbox.until_count(doc! { "status": { "$in": ["done", "dead"] } }, 2).await;

        let stopped = postrider.stop().await;

        let log = &stopped.stderr;
        let is_text =
            |one: char| one == '\n' || one == 'é' || one == '…' || matches!(one, ' '..='~');
        assert_eq!(log.chars().find(|one| !is_text(*one)), None, "{stopped}");
        let is_forged = |line: &str| line.starts_with("2026-01-01T00:00:00Z ERROR");
        assert!(!log.lines().any(is_forged), "{stopped}");
        // It is there, and JSON has it as it is.
        assert!(log.contains("2026-01-01T00:00:00Z ERROR forged"), "{stopped}");
        let is_whole = |line: &Value| line["record.id"] == FORGED;
        assert!(format.ends_with("text") || postrider.lines().iter().any(is_whole), "{stopped}");
    }
}

/// Both are dead at once, and the log has their ids as commands accept them.
#[fixture::test]
async fn dead_records_add_a_bounded_line_with_a_usable_id() {
    let outbox = TestOutbox::new().await;
    let long = "k".repeat(1_000_000);
    let ids = [Bson::Null, true.into(), "long".into()];
    for id in &ids {
        let mut malformed = record("", &long);
        malformed.insert("_id", id.clone());
        malformed.remove("type");
        malformed.insert(long.as_str(), 1);
        outbox.insert([malformed]).await;
    }
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();

    let mut postrider = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "dead" }, 3).await;
    let stopped = postrider.stop().await;

    let lines = postrider.lines();
    let dead: Vec<&Value> =
        lines.iter().filter(|line| line["message"] == "record is dead").collect();
    assert_eq!(dead.len(), 3, "{}", stopped.stderr.len());
    assert!(stopped.stderr.lines().all(|line| line.len() < 5_000), "{}", stopped.stderr.len());
    let key = format!("{}… (1000000 characters)", "k".repeat(200));
    for line in dead {
        assert_eq!(line["key"], key, "{line}");
        let id = line["id"].as_str().unwrap();
        let show = ["outbox", "show", id, "--output", "json"];
        let shown = call_with(&settings, &show).await.with_code(0).json();
        assert_eq!(shown["status"], "dead", "{id}");
    }
}
