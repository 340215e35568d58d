//! Whatever fails, no output contains a payload, a header's value, or a secret. (`outbox show` and
//! a sink to standard output must print the payload.)

use bson::{Document, doc};
use futures_util::TryStreamExt;
use lapin::types::AMQPValue;

use crate::outage::{Outage, owned, to, until_down, waits};
use crate::support::fault_proxy::FaultProxy;
use crate::support::kafka;
use crate::support::mongod::Mongod;
use crate::support::outbox::TestOutbox;
use crate::support::process::{Ended, Postrider, call_with, command, finish};
use crate::support::prometheus::Scraped;
use crate::support::rabbitmq::amqp_client::text;
use crate::support::rabbitmq::vhost::PASSWORD;
use crate::support::rabbitmq::{address, at};

/// Texts that no other text contains.
const SECRET: &str = "pl4nted-s3cret";
const PAYLOAD: &str = "pl4nted-p4yload";
const HEADER: &str = "pl4nted-h3ader";
/// In other fields, which only `outbox list` prints.
const FIELD: &str = "pl4nted-f1eld";

/// The most detailed log that an operator can configure.
const TRACE: &str = "log.level=trace,lapin=trace,lapin::channel=trace,lapin::channels=trace,\
    lapin::frames=trace,lapin::io_loop=trace,lapin::connection=trace,\
    lapin::returned_messages=trace,amq_protocol::frame=trace,mongodb=trace,rdkafka=trace,\
    librdkafka=trace";

/// Asserts that none of these is in the output: as text, or as a list of bytes, which is how `Debug`
/// prints a body.
#[track_caller]
fn assert_no_secret(where_: &str, output: &str) {
    for secret in [SECRET, PASSWORD, PAYLOAD, HEADER, FIELD] {
        let bytes: Vec<String> = secret.bytes().map(|byte| byte.to_string()).collect();
        for form in [secret.to_owned(), bytes.join(", ")] {
            assert!(!output.contains(&form), "{where_} tells {form}: {output}");
        }
    }
}

fn both(ended: &Ended) -> String {
    format!("{ended}")
}

/// Records that fail, each in its way, and some valid ones.
fn records() -> Vec<Document> {
    let planted = |id: &str, kind: &str, more: Document| {
        let mut record = to(kind, id, id);
        record.insert("payload", doc! { "card": PAYLOAD });
        record.insert("headers", doc! { "h": HEADER });
        record.extend(more);
        record
    };
    vec![
        planted("good", "open", doc! {}),
        planted("nacked", "full", doc! {}),
        planted("nacked too", "full", doc! {}),
        planted("or nacked", "full", doc! {}),
        planted("returned", "no-such-queue", doc! {}),
        planted("no exchange", "open", doc! { "destination": "no-such-exchange" }),
        planted("to the refused", "refused", doc! {}),
        planted("to kafka", "stream", doc! {}),
        planted("template", "template", doc! {}),
        planted("a header", "open", doc! { "headers": { "h": { "card": HEADER } } }),
        planted("headers", "open", doc! { "headers": [HEADER] }),
        planted("large", "open", doc! { "headers": { "h": HEADER.repeat(20_000) } }),
        // (Types are printed, even this one.)
        planted("a type", "open", doc! { "type": 7 }),
        planted("a tenant", "open", doc! { "tenantId": [FIELD] }),
        planted("a time", "open", doc! { "createdAt": FIELD }),
        planted("a destination", "open", doc! { "destination": { "card": FIELD } }),
        planted("a content type", "open", doc! { "contentType": [FIELD] }),
        planted("larger", "small", doc! { "payload": PAYLOAD.repeat(500) }),
        planted("long", &"t".repeat(300), doc! {}),
    ]
}

#[fixture::test]
async fn no_output_contains_a_payload_a_header_or_a_secret() {
    let server = Mongod::with_access_control().await;
    let roles = vec!["readWriteAnyDatabase"];
    server.as_admin(doc! { "createUser": "relay", "pwd": SECRET, "roles": roles }).await;
    let mongo = server.uri(&format!("relay:{SECRET}@"), "");
    let outbox = TestOutbox::at(&mongo).await;
    let outage = Outage::new().await;
    outage.amqp.classic("open").await;
    let one = [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", text("reject-publish"))];
    outage.amqp.queue("full", &one).await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let settings = [
        waits(),
        owned(&[
            TRACE,
            &format!("mongo.uri={mongo}"),
            &format!("mongo.database={}", outbox.database),
            "relay.max_attempts=2",
            "relay.default_sink=rabbit",
            "sinks.rabbit.kind=rabbitmq",
            &format!("sinks.rabbit.uri={}", at(&outage.vhost.uri(), proxy.address())),
            "sinks.rabbit.timeout=1s",
            "sinks.small.kind=kafka",
            &format!("sinks.small.brokers={}", kafka::brokers()),
            "sinks.small.timeout=2s",
            "sinks.small.properties.\"message.max.bytes\"=2000",
            "sinks.refused.kind=rabbitmq",
            &format!("sinks.refused.uri={}", outage.vhost.uri_of(&outage.vhost.name, SECRET)),
            "sinks.refused.timeout=1s",
            "sinks.stream.kind=kafka",
            &format!("sinks.stream.brokers={}", kafka::brokers()),
            "sinks.stream.timeout=2s",
            "sinks.stream.properties.\"debug\"=all",
            "sinks.stream.properties.\"security.protocol\"=SASL_PLAINTEXT",
            "sinks.stream.properties.\"sasl.mechanism\"=PLAIN",
            "sinks.stream.properties.\"sasl.username\"=u",
            &format!("sinks.stream.properties.\"sasl.password\"={SECRET}"),
            "routes=[{type = \"refused\", sink = \"refused\"}, \
             {type = \"stream\", sink = \"stream\"}, {type = \"small\", sink = \"small\"}, \
             {type = \"template\", key = \"{header.absent}\"}]",
        ]),
    ]
    .concat();
    outbox.insert(records()).await;

    let mut postrider = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "dead" }, 15).await;
    outbox.until_count(doc! { "status": "done" }, 2).await;
    // The end of a connection as well, during a publish.
    proxy.freeze();
    let mut under_way = to("open", "under way", "under way");
    under_way.insert("payload", PAYLOAD);
    outbox.insert([under_way]).await;
    for sink in ["rabbit", "refused", "stream"] {
        let detail = until_down(&postrider, sink).await;
        assert_no_secret(sink, &detail);
    }
    let (_, page) = postrider.get("/metrics").await;
    let (_, report) = postrider.get("/readyz").await;
    let scraped = Scraped::new(&postrider).await.everything().await;
    proxy.thaw();
    outbox.until_count(doc! { "status": "done" }, 3).await;
    let stopped = postrider.stop().await;

    assert!(stopped.stderr.contains("***"), "the redacted URI is output: {stopped}");
    assert!(stopped.stderr.contains("\"TRACE\"") && stopped.stderr.contains("SASL"), "{stopped}");
    assert_no_secret("the log", &both(&stopped));
    assert_no_secret("/metrics", &page);
    assert_no_secret("/readyz", &report);
    assert!(scraped.contains("postrider_sink_up"), "{scraped}");
    assert_no_secret("Prometheus", &scraped);
    let records: Vec<Document> =
        outbox.records().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    let words = ["malformed: ", "template: ", "too large: ", "refused: ", "attempts exhausted: "];
    for word in words {
        let has = |record: &&Document| {
            record.get_str("deadReason").is_ok_and(|reason| reason.starts_with(word))
        };
        assert!(records.iter().any(|record| has(&record)), "none died of {word}: {records:#?}");
    }
    for record in records {
        for field in ["lastError", "deadReason"] {
            assert_no_secret(field, record.get_str(field).unwrap_or_default());
        }
    }

    for (arguments, code) in [
        (&["check"][..], 1),
        (&["check", "--output", "json"], 1),
        (&["check", "--offline"], 0),
        (&["config", "print"], 0),
        (&["schema", "print"], 0),
        (&["schema", "verify"], 0),
        (&["outbox", "stats"], 0),
        (&["outbox", "list"], 0),
        (&["outbox", "list", "--output", "json"], 0),
        (&["outbox", "list", "--status", "dead", "--output", "json"], 0),
    ] {
        let ended = call_with(&settings, arguments).await.with_code(code);
        let output = both(&ended);
        let output =
            if arguments[1..].contains(&"list") { output.replace(FIELD, "") } else { output };
        assert_no_secret(&arguments.join(" "), &output);
    }
}

/// Invalid settings, with a secret in them or next to them.
#[fixture::test]
async fn an_invalid_setting_is_reported_without_its_secret() {
    let right = owned(&[
        "mongo.uri=mongodb://127.0.0.1:1/app?serverSelectionTimeoutMS=100",
        "sinks.r.kind=rabbitmq",
        "sinks.r.uri=amqp://127.0.0.1:1",
        "sinks.k.kind=kafka",
        "sinks.k.brokers=127.0.0.1:1",
    ]);
    for wrong in [
        format!("mongo.uri=mongodb://u:x?{SECRET}@127.0.0.1:1/app?serverSelectionTimeoutMS=100"),
        format!("mongo.uri=mongodb://u:x#{SECRET}@127.0.0.1:1/app?serverSelectionTimeoutMS=100"),
        format!("mongo.uri=mongodb://u:x/{SECRET}@127.0.0.1:1/app?serverSelectionTimeoutMS=100"),
        format!("mongo.uri=mongodb://u:x@{SECRET}@127.0.0.1:1/app?serverSelectionTimeoutMS=100"),
        format!("mongo.uri=[\"{SECRET}\"]"),
        format!("mongo.password={SECRET}"),
        format!("mongo.sources={SECRET}"),
        format!("sinks.r.uri=amqp://u:x?{SECRET}@h:port/%2f"),
        format!("sinks.r.uri=amqp://u:x#{SECRET}@h:port/%2f"),
        format!("sinks.r.uri=[\"amqp://u:{SECRET}@h\"]"),
        format!("sinks.r.uri={{ password = \"{SECRET}\" }}"),
        format!("sinks.r.password={SECRET}"),
        format!("sinks.r={SECRET}"),
        format!("sinks.k.properties={SECRET}"),
        format!("sinks.k.properties=[\"sasl.password={SECRET}\"]"),
        format!("sinks.k.properties.\"sasl.password\"=[\"{SECRET}\"]"),
        format!("api.tokens={SECRET}"),
        format!("api.tokens={{ token = \"{SECRET}\" }}"),
        format!("api.tokens=[{{ tokn = \"{SECRET}\" }}]"),
        format!("api.tokens=[[\"{SECRET}\"]]"),
    ] {
        for arguments in [&["check"][..], &["config", "print"]] {
            let settings = [right.clone(), vec![wrong.clone()]].concat();
            let ended = call_with(&settings, arguments).await;

            let what = format!("{wrong} {arguments:?}");
            // Much of it is valid in itself: printed, and an error where it is used.
            assert!(ended.code != Some(0) || arguments[0] == "config", "{what}: {ended}");
            assert_no_secret(&what, &both(&ended));
        }
    }
    for name in ["POSTRIDER__SINKS__R__PASSWORD", "POSTRIDER__MONGO__URI", "POSTRIDER__API__TOKENS"]
    {
        let mut command = command(&["run"]);
        command.env(name, format!("x:{SECRET}"));
        assert_no_secret(name, &both(&finish(command).await.with_code(2)));
    }
}
