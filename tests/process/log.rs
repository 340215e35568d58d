//! What is logged, where, and what never is.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::queue::{Queue, amqp_uri, host_of, mongo_settings, stdout_sink};
use crate::support::tcp::Door;
use crate::util::{PLANTED, with};

/// A payload as no other text holds it.
const PAYLOAD: &str = "pl4nted-p4yload";

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
async fn neither_payloads_nor_passwords_are_told_anywhere() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let user = Broker::of_this_run().user(PLANTED).await;
    let door = Door::to(&host_of(&amqp_uri())).await;
    let uri = format!("amqp://{user}:{PLANTED}@{}/%2f", door.address);
    let refused = format!("amqp://{user}:{PLANTED}-wrong@{}/%2f", host_of(&amqp_uri()));
    let settings = with(
        queue.settings_at(&outbox, &uri),
        &[
            // However closely an operator names them.
            "log.level=trace,lapin=trace,lapin::channel=trace,lapin::channels=trace,\
             lapin::frames=trace,lapin::io_loop=trace,lapin::connection=trace,\
             lapin::returned_messages=trace,amq_protocol::frame=trace",
            "relay.backoff.initial=50ms",
            "relay.max_attempts=2",
            "sinks.rabbit.timeout=2s",
            "sinks.refused.kind=rabbitmq",
            &format!("sinks.refused.uri={refused}"),
            "routes=[{type = \"refused\", sink = \"refused\"}, \
             {type = \"lost\", sink = \"rabbit\", key = \"no-such-queue\"}]",
            "relay.default_sink=rabbit",
        ],
    );
    let planted = |id: &str, more: Document| {
        let mut record = record(id, id);
        record.insert("payload", doc! { "card": PAYLOAD });
        record.insert("headers", doc! { "h": 1 });
        record.extend(more);
        record
    };
    outbox
        .insert([
            planted("good", doc! {}),
            planted("returned", doc! { "type": "lost" }),
            planted("no exchange", doc! { "destination": "no-such-exchange" }),
            planted("to the refused", doc! { "type": "refused" }),
            planted("a header", doc! { "headers": { "h": { "card": PAYLOAD } } }),
            planted("a type", doc! { "type": { "card": PAYLOAD } }),
            planted("a tenant", doc! { "tenantId": [PAYLOAD] }),
            planted("a time", doc! { "createdAt": PAYLOAD }),
            planted("long", doc! { "type": "t".repeat(300) }),
        ])
        .await;
    let mut postrider = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done" }, 1).await;
    outbox.until_count(doc! { "status": "dead" }, 7).await;
    // The connection's end as well, with something under way.
    door.freeze();
    outbox.insert([planted("under way", doc! {})]).await;
    outbox.until_count(doc! { "_id": "under way", "leaseId": { "$exists": true } }, 1).await;
    door.shut();
    postrider
        .until_report("both sinks down", |report| {
            ["sink rabbit", "sink refused"]
                .iter()
                .all(|sink| report["parts"][sink]["status"] == "degraded")
        })
        .await;

    let (_, metrics) = postrider.get("/metrics").await;
    let (_, report) = postrider.get("/readyz").await;
    let stopped = postrider.stop().await;

    assert!(stopped.stderr.contains("***"), "the redacted URI is told: {stopped}");
    // As text, and as a list of bytes, which is how `Debug` shows a body.
    let forms = [PLANTED, PAYLOAD].map(|text| [text.to_owned(), bytes_of(text)]);
    for secret in forms.as_flattened() {
        assert!(stopped.is_free_of(secret), "{secret}: {stopped}");
        assert!(!metrics.contains(secret), "{metrics}");
        assert!(!report.contains(secret), "{report}");
    }
    let records: Vec<Document> =
        outbox.records().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    for record in records {
        for field in ["lastError", "deadReason"] {
            let told = record.get_str(field).unwrap_or_default();
            assert!(!told.contains(PAYLOAD) && !told.contains(PLANTED), "{told}");
        }
    }
    Broker::of_this_run().forget(&user).await;
    queue.delete().await;
    outbox.drop().await;
}

fn bytes_of(text: &str) -> String {
    text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ")
}

/// The management API of the test run's RabbitMQ.
struct Broker {
    api: String,
    http: reqwest::Client,
}

impl Broker {
    fn of_this_run() -> Self {
        let api = std::env::var("POSTRIDER_TEST_RABBITMQ_API").unwrap();
        Self { api, http: reqwest::Client::new() }
    }

    /// Makes a user who may do everything in `/`.
    async fn user(&self, password: &str) -> String {
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        let user = json!({ "password": password, "tags": "" });
        self.put(&format!("users/{name}"), user).await;
        let permissions = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.put(&format!("permissions/%2f/{name}"), permissions).await;
        name
    }

    async fn put(&self, path: &str, body: Value) {
        let request = self.http.put(format!("{}/api/{path}", self.api)).json(&body);
        let request = request.basic_auth("guest", Some("guest"));
        request.send().await.unwrap().error_for_status().unwrap();
    }

    async fn forget(&self, user: &str) {
        let request = self.http.delete(format!("{}/api/users/{user}", self.api));
        let request = request.basic_auth("guest", Some("guest"));
        request.send().await.unwrap().error_for_status().unwrap();
    }
}
