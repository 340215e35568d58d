//! Each kind of invalid record, alone among good records of the same key and of others: it gets its
//! outcome at once, and all others are delivered at the first attempt, in the order of the keys.

use std::time::{Duration, Instant};

use crate::support::broker::Broker;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{mongo_settings, patient_settings};
use crate::support::rabbitmq::amqp_client::{AmqpClient, id};
use crate::support::rabbitmq::vhost::{PASSWORD, Vhost};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document, Regex, Timestamp, bson, doc};
use futures_util::TryStreamExt;
use postrider::ids::RecordId;
use serde_json::Value;

const QUEUE: &str = "q";

/// One record, and its expected outcome.
struct Case {
    /// Also its key.
    name: String,
    record: Document,
    verdict: Verdict,
}

enum Verdict {
    /// Dead, with a reason that begins so, after at most this many counted deliveries.
    Dead(String, i32),
    /// Delivered, with this `attempt`.
    Done(i32),
}

impl Case {
    /// The valid record of this name.
    fn new(name: impl Into<String>, verdict: Verdict) -> Self {
        let name = name.into();
        Self { record: record(&format!("{name}/odd"), &name), name, verdict }
    }

    fn with(mut self, field: &str, value: impl Into<Bson>) -> Self {
        self.record.insert(field, value);
        self
    }

    fn without(mut self, field: &str) -> Self {
        self.record.remove(field);
        self
    }

    /// The difference between the record's outcome and the expected one.
    fn judge(&self, found: &Document) -> Option<String> {
        let status = found.get_str("status").unwrap_or_default();
        let attempt = found.get("attempt").and_then(Bson::as_i32).unwrap_or_default();
        let leased = found.contains_key("leaseId") || found.contains_key("leaseUntil");
        let right = match &self.verdict {
            Verdict::Dead(reason, most) => {
                let said = found.get_str("deadReason").unwrap_or_default();
                status == "dead" && said.starts_with(reason) && attempt <= *most
            }
            Verdict::Done(count) => status == "done" && attempt == *count && !leased,
        };
        (!right).then(|| format!("{}: {found}", self.name))
    }
}

/// Dead at once, with a reason that begins so.
fn dies(name: impl Into<String>, reason: impl Into<String>) -> Case {
    Case::new(name, Verdict::Dead(reason.into(), 1))
}

/// Delivered at the first attempt.
fn goes(name: impl Into<String>) -> Case {
    Case::new(name, Verdict::Done(1))
}

/// Values of all kinds but the named ones.
fn kinds_but(right: &[&str]) -> Vec<(&'static str, Bson)> {
    let binary = |subtype, bytes: &[u8]| Binary { subtype, bytes: bytes.to_vec() };
    let regex = Regex { pattern: "a".try_into().unwrap(), options: "i".try_into().unwrap() };
    let kinds: [(&str, Bson); 17] = [
        ("string", "text".into()),
        ("int32", 7.into()),
        ("int64", (1_i64 << 60).into()),
        ("double", 2.5.into()),
        ("NaN", f64::NAN.into()),
        ("decimal", Bson::Decimal128("1E+6000".parse().unwrap())),
        ("bool", true.into()),
        ("date", DateTime::from_millis(4_000_000_000_000).into()),
        ("timestamp", Bson::Timestamp(Timestamp { time: 4_000_000_000, increment: 1 })),
        ("ObjectId", ObjectId::from_bytes([7; 12]).into()),
        ("UUID", binary(BinarySubtype::Uuid, &[7; 16]).into()),
        ("binary", binary(BinarySubtype::Generic, &[7; 16]).into()),
        ("regex", regex.into()),
        ("symbol", Bson::Symbol("text".into())),
        ("document", bson!({ "a": { "b": 1 } })),
        ("empty array", bson!([])),
        ("maxKey", Bson::MaxKey),
    ];
    kinds.into_iter().filter(|(kind, _)| !right.contains(kind)).collect()
}

/// Each kind as an element of an array, which a query matches like the element.
fn in_arrays(values: &[Bson]) -> Vec<(String, Bson)> {
    values.iter().map(|value| (format!("array of {value}"), bson!([value]))).collect()
}

/// Settings of a relay from this outbox to the queue [`QUEUE`], with short waits.
fn settings(outbox: &TestOutbox, uri: &str) -> Vec<String> {
    let sink = [
        "sinks.rabbit.kind=rabbitmq",
        &format!("sinks.rabbit.uri={uri}"),
        &format!("sinks.rabbit.routing_key={QUEUE}"),
        "relay.poll_interval=100ms",
        "relay.sink_probe_interval_max=500ms",
        "relay.backoff.kind=fixed",
        "relay.backoff.initial=100ms",
        "relay.backoff.jitter=0.0",
        "relay.max_attempts=3",
    ];
    [mongo_settings(&outbox.database), sink.map(str::to_owned).to_vec()].concat()
}

/// Waits until nothing is pending or scheduled any more; up to a minute, since the assertions on
/// the records report more.
async fn until_settled(outbox: &TestOutbox) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let unsettled = doc! { "status": { "$in": ["pending", "scheduled"] } };
    while outbox.count(unsettled.clone()).await > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Delivers each case between two good records of its key, and others around.
///
/// `again`: whether a neighbour may be delivered twice, because its connection was lost.
async fn each_alone(uri: &str, more: &[&str], cases: Vec<Case>, again: bool) {
    let outbox = TestOutbox::new().await;
    let amqp = AmqpClient::on(uri).await;
    amqp.classic(QUEUE).await;
    let good = |id: String, key: &str| record(&id, key);
    let mut records = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        records.push(good(format!("other {number}"), &format!("other {}", number % 5)));
        records.push(good(format!("{}/before", case.name), &case.name));
        records.push(case.record.clone());
        records.push(good(format!("{}/behind", case.name), &case.name));
    }
    outbox.insert(records).await;

    let mut settings = settings(&outbox, uri);
    settings.extend(more.iter().map(|setting| (*setting).to_owned()));
    let mut relay = Postrider::start(&settings);
    until_settled(&outbox).await;
    let ended = relay.stop().await;

    let found = outbox.records().find(doc! {}).projection(doc! { "payload": 0 }).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let mut wrong = Vec::new();
    for record in &found {
        let id = record.get("_id").unwrap();
        let id = RecordId::from(id.clone());
        let is_its = |case: &&Case| RecordId::from(case.record.get("_id").unwrap().clone()) == id;
        match cases.iter().find(is_its) {
            Some(case) => wrong.extend(case.judge(record)),
            None => {
                let status = record.get_str("status").unwrap();
                let attempt = record.get_i32("attempt").unwrap_or_default();
                if (status, attempt) != ("done", 1) || record.contains_key("lastError") {
                    wrong.push(format!("neighbour: {record}"));
                }
            }
        }
    }
    let mut arrived: Vec<String> = amqp.take_all(QUEUE).await.iter().map(id).collect();
    if again {
        let mut seen = std::collections::HashSet::new();
        arrived.retain(|id| seen.insert(id.clone()));
    }
    for case in &cases {
        let odd = format!("{}/odd", case.name);
        let of_key = arrived.iter().filter_map(|id| id.strip_prefix(&case.name)?.strip_prefix('/'));
        let neighbours: Vec<&str> = of_key.filter(|id| *id != "odd").collect();
        if neighbours != ["before", "behind"] {
            wrong.push(format!("{}: its neighbours arrived as {neighbours:?}", case.name));
        }
        let times = arrived.iter().filter(|id| **id == odd).count();
        if times != usize::from(matches!(case.verdict, Verdict::Done(_))) {
            wrong.push(format!("{}: arrived {times} times", case.name));
        }
    }
    let others: Vec<&String> = arrived.iter().filter(|id| id.starts_with("other ")).collect();
    if others.len() != cases.len() {
        wrong.push(format!("others: {others:?}"));
    }
    let count = wrong.len();
    assert!(count == 0, "{count} are wrong:\n{}\n{}", wrong.join("\n"), ended.stderr);
}

/// The same in a vhost for one test.
async fn each_alone_in_a_vhost(more: &[&str], cases: Vec<Case>) {
    let vhost = Vhost::new().await;
    each_alone(&vhost.uri(), more, cases, false).await;
}

#[fixture::test]
async fn an_id_of_an_illegal_kind_is_malformed() {
    // MongoDB itself refuses an array and a regex.
    let legal = ["string", "int32", "int64", "ObjectId", "UUID", "empty array", "regex"];
    let mut kinds = kinds_but(&legal);
    let binary = |subtype, bytes: &[u8]| Binary { subtype, bytes: bytes.to_vec() }.into();
    kinds.extend([
        ("null", Bson::Null),
        ("old UUID", binary(BinarySubtype::UuidOld, &[8; 16])),
        ("UUID of a wrong length", binary(BinarySubtype::Uuid, b"short")),
        ("integral double", 4.0.into()),
        ("infinity", f64::INFINITY.into()),
        ("empty document", bson!({})),
        ("deep document", (0..50).fold(bson!({}), |inner, _| bson!({ "d": inner }))),
        ("code", Bson::JavaScriptCode("f".into())),
        ("minKey", Bson::MinKey),
    ]);
    let cases = kinds
        .into_iter()
        .map(|(kind, id)| dies(kind, "malformed: _id: is not a UUID").with("_id", id));

    each_alone_in_a_vhost(&[], cases.collect()).await;
}

#[fixture::test]
async fn a_text_field_of_another_kind_is_malformed() {
    let fields = ["key", "type", "contentType", "destination", "tenantId", "dedupKey"];
    let cases = fields.into_iter().flat_map(|field| {
        let mut kinds: Vec<(String, Bson)> =
            kinds_but(&["string"]).into_iter().map(|(kind, value)| (kind.into(), value)).collect();
        kinds.extend(in_arrays(&["text".into()]));
        kinds.into_iter().map(move |(kind, value)| {
            dies(format!("{field}: {kind}"), format!("malformed: {field}: must be a string, is "))
                .with(field, value)
        })
    });
    // An array that contains another record's key.
    let theirs = dies("theirs", "malformed: key: must be a string, is ")
        .with("key", bson!(["key: int32", "other 0"]));

    each_alone_in_a_vhost(&[], cases.chain([theirs]).collect()).await;
}

#[fixture::test]
async fn a_missing_type_is_malformed_and_other_nulls_are_absent() {
    let mut cases = vec![
        dies("no type", "malformed: type: is missing").without("type"),
        dies("null type", "malformed: type: is missing").with("type", Bson::Null),
        dies("no payload", "malformed: payload: is missing").without("payload"),
        dies("neither", "malformed: type: is missing").without("payload").without("type"),
        goes("null payload").with("payload", Bson::Null),
        goes("no key").without("key"),
        goes("empty type").with("type", ""),
        goes("unknown fields").with("xMine", bson!({ "a": [1] })).with("priority", 9),
    ];
    let optional =
        ["key", "contentType", "headers", "destination", "tenantId", "createdAt", "dedupKey"];
    cases.extend(optional.map(|field| goes(format!("null {field}")).with(field, Bson::Null)));

    each_alone_in_a_vhost(&[], cases).await;
}

#[fixture::test]
async fn headers_that_no_broker_can_carry_are_malformed() {
    let mut cases: Vec<Case> = kinds_but(&["document"])
        .into_iter()
        .map(|(kind, value)| {
            let reason = "malformed: headers: must be a document, is ";
            dies(format!("headers: {kind}"), reason).with("headers", value)
        })
        .collect();
    let none = [
        ("document", bson!({ "a": 1 })),
        ("empty document", bson!({})),
        ("array", bson!([1])),
        (
            "regex",
            Regex { pattern: "a".try_into().unwrap(), options: "".try_into().unwrap() }.into(),
        ),
        ("code", Bson::JavaScriptCode("f".into())),
        ("symbol", Bson::Symbol("s".into())),
        ("timestamp", Bson::Timestamp(Timestamp { time: 1, increment: 1 })),
        ("undefined", Bson::Undefined),
        ("minKey", Bson::MinKey),
    ];
    cases.extend(none.into_iter().map(|(kind, value)| {
        dies(format!("a header: {kind}"), "malformed: headers.odd: ")
            .with("headers", doc! { "fine": 1, "odd": value, "fine too": "text" })
    }));
    cases.extend([
        goes("no headers").with("headers", doc! {}),
        goes("a header without a name").with("headers", doc! { "": "x" }),
        goes("non-finite numbers").with("headers", doc! { "n": f64::NAN, "i": f64::INFINITY }),
        goes("extreme dates").with(
            "headers",
            doc! { "min": DateTime::MIN, "max": DateTime::MAX, "old": DateTime::from_millis(-1) },
        ),
    ]);

    each_alone_in_a_vhost(&[], cases).await;
}

#[fixture::test]
async fn an_invalid_created_at_is_malformed_and_an_extreme_one_is_not() {
    let mut cases: Vec<Case> = kinds_but(&["date"])
        .into_iter()
        .map(|(kind, value)| {
            dies(kind, "malformed: createdAt: must be a date, is ").with("createdAt", value)
        })
        .collect();
    let dates =
        [("min", DateTime::MIN), ("max", DateTime::MAX), ("old", DateTime::from_millis(-1))];
    cases.extend(dates.map(|(name, date)| goes(name).with("createdAt", date)));

    each_alone_in_a_vhost(&[], cases).await;
}

#[fixture::test]
async fn an_invalid_visible_at_means_now() {
    let mut cases = Vec::new();
    for status in ["pending", "scheduled"] {
        let kinds = kinds_but(&["date"]).into_iter().map(|(kind, value)| (kind.to_owned(), value));
        let late = in_arrays(&[DateTime::from_millis(4_000_000_000_000).into()]);
        for (kind, value) in kinds.chain(late).chain([("null".to_owned(), Bson::Null)]) {
            let case = goes(format!("{status}: {kind}"));
            cases.push(case.with("visibleAt", value).with("status", status));
        }
    }

    each_alone_in_a_vhost(&[], cases).await;
}

#[fixture::test]
async fn a_relays_field_of_another_kind_is_absent() {
    let mut cases = Vec::new();
    let mut add = |field: &str, kinds: Vec<(String, Bson)>| {
        for (kind, value) in kinds {
            cases.push(goes(format!("{field}: {kind}")).with(field, value));
        }
    };
    let kinds = |right: &[&str], more: Vec<(String, Bson)>| {
        let kinds = kinds_but(right).into_iter().map(|(kind, value)| (kind.to_owned(), value));
        kinds.chain([("null".to_owned(), Bson::Null)]).chain(more).collect::<Vec<_>>()
    };
    let named = |values: &[(&str, Bson)]| {
        values.iter().map(|(kind, value)| ((*kind).to_owned(), value.clone())).collect::<Vec<_>>()
    };
    let late = Bson::DateTime(DateTime::from_millis(4_000_000_000_000));
    let lease = Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] });
    // An integral number counts, however great: see below.
    let fractions = named(&[("negative", (-3).into()), ("fraction", 1.5.into())]);
    add("attempt", kinds(&["int32", "int64", "decimal"], fractions));
    add("attempt", in_arrays(&[3.into()]));
    add("leaseId", kinds(&[], in_arrays(std::slice::from_ref(&lease))));
    add("leaseUntil", kinds(&[], in_arrays(std::slice::from_ref(&late))));
    add("leaseOwner", kinds(&[], Vec::new()));
    let numbers = [("negative", (-1).into()), ("256", 256.into()), ("3.5", 3.5.into())];
    add("partition", kinds(&["int32"], named(&numbers)));
    add("partition", in_arrays(&[3.into(), 300.into(), 7.5.into(), Bson::Null]));
    let zero = Timestamp { time: 0, increment: 0 };
    add("seq", kinds(&["timestamp"], in_arrays(&[Bson::Timestamp(zero)])));
    let stamp = Timestamp { time: 4_000_000_000, increment: 1 };
    add("seq", in_arrays(&[Bson::Timestamp(stamp)]));
    cases.push(goes("no seq").without("seq"));
    cases.push(goes("no partition").without("partition"));
    // Half a lease is not a lease; nor is one that is an array.
    let half = kinds(&["UUID"], in_arrays(std::slice::from_ref(&lease)));
    cases.extend(half.into_iter().map(|(kind, value)| {
        goes(format!("leased until late by {kind}"))
            .with("leaseUntil", late.clone())
            .with("leaseId", value)
    }));
    let half = kinds(&["date"], in_arrays(std::slice::from_ref(&late)));
    cases.extend(half.into_iter().map(|(kind, value)| {
        goes(format!("leased until {kind}"))
            .with("leaseId", lease.clone())
            .with("leaseUntil", value)
    }));
    for (name, value, attempt) in [
        ("attempts: two", Bson::Int64(2), 3),
        ("attempts: integral double", Bson::Double(2.0), 3),
        ("attempts: many", Bson::Int64(i64::MAX), 1_000_000),
        ("attempts: a decimal of them", Bson::Decimal128("2".parse().unwrap()), 3),
        ("attempts: infinite", Bson::Double(f64::INFINITY), 1),
    ] {
        cases.push(Case::new(name, Verdict::Done(attempt)).with("attempt", value));
    }

    each_alone_in_a_vhost(&[], cases).await;
}

#[fixture::test]
async fn an_unaddressable_record_dies_for_its_own_reason() {
    let routes = r#"routes=[
        { type = "Tenant", key = "{tenantId}" },
        { type = "Keyed", key = "{key}" },
        { type = "Header", headers = { "x" = "{header.region}" } },
        { type = "Aggregate", destination = "{aggregate}" },
        { type = "RoutingKey", key = "{header.rk}" },
    ]"#;
    let long = "x".repeat(256);
    let typed = |name: &str, reason: &str, kind: &str| dies(name, reason).with("type", kind);
    let header = |name: &str, value: Bson| doc! { name: value };
    let cases = vec![
        typed("no tenant", "template: ", "Tenant"),
        typed("no key", "template: ", "Keyed").without("key"),
        typed("no header", "template: ", "Header"),
        typed("no aggregate", "template: ", "Aggregate"),
        typed("null header", "template: ", "Header").with("headers", header("region", Bson::Null)),
        typed("long routing key", "refused: its routing key has 256 bytes", "RoutingKey")
            .with("headers", header("rk", long.as_str().into())),
        typed("long type", "refused: its type has 256 bytes", &long),
        dies("long id", "refused: its message id has 256 bytes").with("_id", long.as_str()),
        dies("long content type", "refused: its content type has 256 bytes")
            .with("contentType", long.as_str()),
        dies("long header name", "refused: its header name has 256 bytes")
            .with("headers", header(&long, 1.into())),
        dies("long destination", "refused: its exchange name has 256 bytes")
            .with("destination", long.as_str()),
        dies("large headers", "refused: its headers have ")
            .with("headers", header("h", "x".repeat(200_000).into())),
        dies("forbidden", "refused: its destination is not among").with("destination", "secret.x"),
    ];

    each_alone_in_a_vhost(
        &[routes, r#"sinks.rabbit.allowed_destinations=["", "amq.*", "x*"]"#],
        cases,
    )
    .await;
}

#[fixture::test]
async fn a_missing_destination_counts_attempts_of_its_records_alone() {
    let vhost = Vhost::new().await;
    let exhausted = |name: &str, words: &str| {
        let reason = format!("attempts exhausted: 3 deliveries failed, the last one with: {words}");
        Case::new(name, Verdict::Dead(reason, 3))
    };
    let cases = vec![
        exhausted("missing", "the broker replied: NOT_FOUND")
            .with("destination", "no.such.exchange"),
        exhausted("missing too", "the broker replied: NOT_FOUND")
            .with("destination", "nor.this.one"),
        exhausted("bound to nothing", "no queue is bound for it").with("destination", "amq.direct"),
    ];

    each_alone(&vhost.uri(), &[], cases, false).await;
}

#[fixture::test]
async fn a_record_that_closes_the_channel_affects_no_other() {
    let vhost = Vhost::new().await;
    // The user may write to the default exchange only, and declare the queue.
    let user = format!("{}-limited", vhost.name);
    vhost.add_user(&user, &format!("^(amq\\.default|{QUEUE})$")).await;
    let rejected = Verdict::Dead("attempts exhausted: ".into(), 3);
    let cases = vec![
        Case::new("forbidden", rejected).with("destination", "amq.topic"),
        // RabbitMQ reads these headers itself, and wants lists.
        dies("CC", "refused: ").with("headers", doc! { "CC": "elsewhere" }),
        dies("BCC", "refused: ").with("headers", doc! { "BCC": 1 }),
    ];

    each_alone(&vhost.uri_of(&user, PASSWORD), &[], cases, true).await;
    vhost.drop_user(&user).await;
}

#[fixture::test]
async fn a_message_above_the_brokers_limit_dies_alone() {
    let broker = Broker::start_with("max_message_size = 100000\n").await;
    let payload = |length| Binary { subtype: BinarySubtype::Generic, bytes: vec![b'x'; length] };
    let cases = vec![
        dies("large", "too large: ").with("payload", payload(100_001)),
        dies("huge", "too large: ").with("payload", payload(3_000_000)),
        goes("largest").with("payload", payload(100_000)),
    ];

    each_alone(&broker.uri(), &[], cases, true).await;
}

#[fixture::test]
async fn an_unknown_status_is_counted_and_never_delivered() {
    let outbox = TestOutbox::new().await;
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let mut kinds: Vec<(String, Bson)> =
        kinds_but(&[]).into_iter().map(|(kind, value)| (kind.into(), value)).collect();
    kinds.extend(["Pending", "pending ", "", "failed"].map(|text| (text.into(), text.into())));
    kinds.extend(in_arrays(&["pending".into(), "scheduled".into(), "done".into(), "dead".into()]));
    kinds.push(("null".into(), Bson::Null));
    let mut records = vec![record("before", "k")];
    for (kind, status) in &kinds {
        let mut odd = record(&format!("odd {kind}"), "k");
        odd.insert("status", status.clone());
        records.push(odd);
    }
    let mut without = record("odd without", "k");
    without.remove("status");
    records.extend([without, record("behind", "k")]);
    outbox.insert(records).await;

    let settings = settings(&outbox, &vhost.uri());
    let mut relay = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 2).await;
    // Within a few rounds the relay would have leased it.
    for number in 0..3 {
        let id = format!("later {number}");
        outbox.insert([record(&id, &id)]).await;
        outbox.until_count(doc! { "_id": id, "status": "done" }, 1).await;
    }
    relay.stop().await;

    let ids: Vec<String> = amqp.take_all(QUEUE).await.iter().map(id).collect();
    assert_eq!(ids, ["before", "behind", "later 0", "later 1", "later 2"]);
    let stats = call_with(&settings, &["outbox", "stats", "--output", "json"]).await;
    let stats = stats.with_code(0).json();
    assert_eq!(stats["invalid"], kinds.len() + 1, "{stats}");
    assert_eq!((&stats["pending"], &stats["done"]), (&0.into(), &5.into()), "{stats}");
}

/// Postrider's own validator permits whatever the relay writes; an operator's may not.
#[fixture::test]
async fn a_validator_that_forbids_the_lease_is_logged_once() {
    let outbox = TestOutbox::new().await;
    let database = outbox.client.database(&outbox.database);
    let validator = |validator: Document| {
        let command = doc! { "collMod": "outbox_records", "validator": validator };
        async { database.run_command(command).await.unwrap() }
    };
    let strict =
        doc! { "$or": [{ "key": { "$ne": "strict" } }, { "leaseId": { "$exists": false } }] };
    validator(strict).await;
    outbox.insert(["s1", "s2"].map(|id| record(id, "strict"))).await;
    outbox.insert((0..50).map(|n| record(&format!("{n}"), &format!("k{}", n % 5)))).await;
    let settings = [mongo_settings(&outbox.database), vec!["sinks.out.kind=stdout".to_owned()]];

    let mut relay = Postrider::start(&settings.concat());
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 50).await;
    relay.until_logged("change the validator of outbox_records to permit").await;
    let arguments = ["outbox", "show", "s1", "--output", "json"];
    let shown = call_with(&mongo_settings(&outbox.database), &arguments).await.with_code(0).json();
    assert_eq!(shown["status"], "pending", "{shown}");
    // The relay tries again after a pause.
    validator(doc! {}).await;
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 52).await;

    let stopped = relay.stop().await;
    let count = stopped.stderr.matches("MongoDB rejects a change of a record").count();
    assert_eq!(count, 1, "{stopped}");
    let out = &stopped.stdout;
    assert!(out.find(r#""id":"s1""#) < out.find(r#""id":"s2""#), "{out}");
}

/// This validator permits the lease, and neither a failure nor a death. It holds up only the keys
/// of these records.
#[fixture::test]
async fn a_validator_that_forbids_outcomes_holds_up_their_keys_alone() {
    let (outbox, vhost) = (TestOutbox::new().await, Vhost::new().await);
    let amqp = vhost.amqp_client().await;
    amqp.classic(QUEUE).await;
    validate(&outbox, doc! { "status": { "$ne": "dead" }, "lastError": { "$exists": false } })
        .await;
    let mut refused = Vec::new();
    for number in 0..4 {
        let id = format!("missing {number}");
        let mut missing = record(&id, &id);
        missing.insert("destination", "no.such.exchange");
        let id = format!("malformed {number}");
        let mut malformed = record(&id, &id);
        malformed.remove("type");
        refused.extend([missing, malformed]);
    }
    outbox.insert(refused).await;
    outbox.insert((0..1_000).map(|n| record(&format!("{n}"), &format!("k{}", n % 50)))).await;

    let mut relay =
        Postrider::start(&[settings(&outbox, &vhost.uri()), patient_settings()].concat());
    outbox.until_count(doc! { "status": "done" }, 1_000).await;
    relay.until_metric("postrider_blocked_keys{reason=\"refused\"}", |keys| keys == 8.0).await;
    let report = relay.readyz().await.1;
    let more = (0..100).map(|n| record(&format!("more {n}"), &format!("k{}", n % 50)));
    outbox.insert(more).await;
    outbox.until_count(doc! { "status": "done" }, 1_100).await;
    // The relay reports them, and notices that one is gone long before it writes its outcome again:
    // after the second refusal that is 10 s later.
    let (_, page) = relay.get("/blocked-keys?key=missing%200").await;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["counts"]["refused"], 8, "{page}");
    assert_eq!(page["keys"][0]["blocker"], "missing 0", "{page}");
    outbox.insert([record("behind", "missing 0")]).await;
    // Refused twice by now: at once, and after 5 s.
    let since = page["keys"][0]["since"].as_str().unwrap();
    let since = DateTime::parse_rfc3339_str(since).unwrap().timestamp_millis();
    eventually("it was refused twice", || async {
        DateTime::now().timestamp_millis() > since + 7_000
    })
    .await;
    let refusals = "postrider_blocked_keys{reason=\"refused\"}";
    outbox.records().delete_one(doc! { "_id": "missing 0" }).await.unwrap();
    let deleted = Instant::now();
    outbox.until_count(doc! { "_id": "behind", "status": "done" }, 1).await;
    assert!(deleted.elapsed() < Duration::from_secs(4), "{:?}", deleted.elapsed());
    relay.until_metric(refusals, |keys| keys == 7.0).await;

    let store = &report["parts"]["store"];
    assert_eq!(store["status"], "degraded", "{report}");
    assert!(store["detail"].as_str().unwrap().contains("the outcome of 8 records"), "{report}");
    assert_eq!(outbox.count(doc! { "status": "pending", "attempt": 1 }).await, 7);
    let stopped = relay.stop().await.with_code(0);
    let count = stopped.stderr.matches("MongoDB rejects the outcome of a record").count();
    assert_eq!(count, 8, "{stopped}");
}

/// A record that a broker has confirmed is not published again because MongoDB refuses to mark it
/// done.
#[fixture::test]
async fn a_record_that_cannot_be_marked_done_is_published_once() {
    let outbox = TestOutbox::new().await;
    validate(&outbox, doc! { "$or": [{ "key": { "$ne": "strict" } }, { "status": "pending" }] })
        .await;
    outbox.insert(["s1", "s2"].map(|id| record(id, "strict"))).await;
    outbox.insert((0..50).map(|n| record(&format!("{n}"), &format!("k{}", n % 5)))).await;
    let own =
        ["sinks.out.kind=stdout", "sinks.out.timeout=1s", "relay.lease=3s"].map(str::to_owned);
    let settings = [mongo_settings(&outbox.database), own.to_vec(), patient_settings()];

    let mut relay = Postrider::start(&settings.concat());
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 50).await;
    // Its lease has expired long ago.
    let ended = doc! { "$lt": ["$leaseUntil", { "$subtract": ["$$NOW", 4_000] }] };
    outbox.until_count(doc! { "_id": "s1", "attempt": 1, "$expr": ended }, 1).await;
    validate(&outbox, doc! {}).await;
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 52).await;

    let stopped = relay.stop().await.with_code(0);
    let out = &stopped.stdout;
    let published = |id: &str| out.matches(&format!(r#"{{"id":"{id}","#)).count();
    assert_eq!((published("s1"), published("s2")), (1, 1), "{stopped}");
    assert!(out.find(r#""id":"s1""#) < out.find(r#""id":"s2""#), "{out}");
}

/// Sets a validator on the collection, as an operator may.
async fn validate(outbox: &TestOutbox, validator: Document) {
    let command = doc! { "collMod": "outbox_records", "validator": validator };
    outbox.client.database(&outbox.database).run_command(command).await.unwrap();
}
