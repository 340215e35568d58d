//! The kinds of attacks, each by a client with a token of the scopes `read`, or with none.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::doc;
use serde_json::{Value, json};

/// The token of who may read.
pub const READER: &str = "the-token-of-a-reader";
/// The token of who may do everything.
pub const ALL: &str = "the-token-for-everything";

/// Aggregate names that exist, for a page of the feed.
pub const NAMES: usize = 300;

pub enum Port {
    Ops,
    Api,
}

pub enum Manner {
    /// Reads each answer.
    Read,
    /// Reads nothing of an answer for this time.
    Unread { held: Duration },
    /// Holds back the last byte of a request for this time.
    Half { held: Duration },
    /// Changes each request at random places, and reads the answer.
    Mutated,
}

pub struct Attack {
    pub name: &'static str,
    pub ports: &'static [Port],
    /// Clients per port.
    pub clients: usize,
    /// Between two requests of a client.
    pub pause: Duration,
    pub manner: Manner,
    pub requests: fn() -> Vec<String>,
}

const NO_PAUSE: Duration = Duration::ZERO;
const API: &[Port] = &[Port::Api];
const OPS: &[Port] = &[Port::Ops];
const BOTH: &[Port] = &[Port::Ops, Port::Api];

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// H1 to H13 of the review that asked for this, without the records and the broker of a producer.
pub const ATTACKS: [Attack; 10] = [
    attack("readers", API, 64, NO_PAUSE, Manner::Unread { held: seconds(40) }, streams),
    attack("pages", API, 150, NO_PAUSE, Manner::Unread { held: seconds(20) }, pages),
    attack("ids", API, 16, NO_PAUSE, Manner::Read, conditions_as_ids),
    attack("halves", BOTH, 1_000, NO_PAUSE, Manner::Half { held: seconds(5) }, plain),
    attack("uploads", API, 256, NO_PAUSE, Manner::Half { held: seconds(8) }, uploads),
    attack("metrics", OPS, 50, NO_PAUSE, Manner::Unread { held: seconds(10) }, metrics),
    attack("logins", API, 16, Duration::from_millis(5), Manner::Read, guesses),
    attack("queries", API, 32, Duration::from_millis(20), Manner::Read, scans),
    attack("names", API, 16, Duration::from_millis(20), Manner::Read, feeds),
    attack("mutations", BOTH, 16, Duration::from_millis(5), Manner::Mutated, described),
];

const fn attack(
    name: &'static str,
    ports: &'static [Port],
    clients: usize,
    pause: Duration,
    manner: Manner,
    requests: fn() -> Vec<String>,
) -> Attack {
    Attack { name, ports, clients, pause, manner, requests }
}

fn request(method: &str, path: &str, fields: &str, body: Option<&str>) -> String {
    let body = body.map_or_else(String::new, |body| {
        format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    });
    let end = if body.is_empty() { "\r\n" } else { "" };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}{body}{end}"
    )
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

fn get(path: &str, accept: &str) -> String {
    request("GET", path, &format!("{}accept: {accept}\r\n", bearer(READER)), None)
}

fn post(path: &str, body: &Value) -> String {
    request("POST", path, &bearer(READER), Some(&body.to_string()))
}

fn streams() -> Vec<String> {
    vec![
        get("/v1/feed", "text/event-stream"),
        get("/v1/aggregates/order/big/events", "application/x-ndjson"),
    ]
}

fn pages() -> Vec<String> {
    vec![
        get("/v1/feed?limit=1000", "application/json"),
        get("/v1/outbox/records?limit=1000", "application/json"),
        get("/v1/aggregates/order/big/events?limit=1000", "application/json"),
        post("/v1/aggregates/order/events/query", &json!({ "limit": 1000 })),
    ]
}

fn conditions_as_ids() -> Vec<String> {
    let regular =
        bson::Regex { pattern: "^(a+)+$".try_into().unwrap(), options: "".try_into().unwrap() };
    let ids = [
        doc! { "_id": { "$gt": "" } },
        doc! { "_id": { "$regex": "^(a+)+$" } },
        doc! { "_id": { "$in": [] } },
        doc! { "_id": regular },
    ];
    let paths = ids.map(|id| {
        format!("/v1/outbox/records/raw:{}", URL_SAFE_NO_PAD.encode(id.to_vec().unwrap()))
    });
    let deletions = paths.iter().map(|path| request("DELETE", path, &bearer(ALL), None));
    paths.iter().map(|path| get(path, "application/json")).chain(deletions).collect()
}

fn plain() -> Vec<String> {
    vec![request("GET", "/livez", "", None)]
}

fn uploads() -> Vec<String> {
    let body = json!({ "type": "T", "payload": "x".repeat(1 << 20) }).to_string();
    vec![request("POST", "/v1/outbox/records", &bearer(ALL), Some(&body))]
}

fn metrics() -> Vec<String> {
    let one = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    vec![one.repeat(1_000), "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1_000)]
}

fn guesses() -> Vec<String> {
    let guess = |n: usize| request("GET", "/v1/outbox/stats", &bearer(&format!("guess-{n}")), None);
    let pull = post("/v1/subscriptions/billing/pull", &json!({ "member": "intruder" }));
    let park = post(
        "/v1/subscriptions/billing/park",
        &json!({ "lease": "x", "position": 1, "reason": "x" }),
    );
    (0..100).map(guess).chain([pull, park]).collect()
}

fn scans() -> Vec<String> {
    let of = |operator: &str, field: &str, value: Value| json!({ "operator": operator, "field": field, "value": value });
    let needle = of("CONTAINS", "body.body.note", json!("needle"));
    let many: Vec<Value> =
        (0..60).map(|n| of("CONTAINS", "body.body.note", json!(format!("{n:0>2700}")))).collect();
    let always = [
        of("GTE", "aggregateId", json!(" ")),
        of("GTE", "id", json!(" ")),
        of("GTE", "position", json!(-1)),
        of("BETWEEN", "id", json!(["!", "~"])),
        of("LTE", "aggregateId", json!("~")),
        of("NE", "aggregateId", json!("none")),
        of("STARTS_WITH", "id", json!("0")),
        json!({ "operator": "OR", "children": [of("LT", "id", json!("8")), of("GTE", "id", json!("8"))] }),
        json!({ "operator": "NOR", "children": many }),
    ];
    let query = |always: &Value| {
        let condition = json!({ "operator": "AND", "children": [always, needle] });
        post("/v1/aggregates/small/events/query", &json!({ "condition": condition }))
    };
    always.iter().map(query).collect()
}

fn feeds() -> Vec<String> {
    let names: Vec<String> = (0..NAMES).map(|n| format!("name-{n}")).collect();
    vec![
        get("/v1/feed?limit=100", "application/json"),
        get(&format!("/v1/feed?aggregates={}", names.join(",")), "application/json"),
    ]
}

/// A valid request for each call of the API, and for each page of the operations port.
fn described() -> Vec<String> {
    let api: Value = serde_json::from_str(include_str!("../../schema/openapi.json")).unwrap();
    // These would change what is measured.
    let left_out = ["/v1/relay/pause", "/v1/outbox/requeue"];
    let paths = api["paths"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(path, _)| !left_out.contains(&path.as_str()));
    let calls = paths.flat_map(|(path, calls)| {
        let path = path
            .replace("{name}", if path.contains("subscriptions") { "billing" } else { "small" })
            .replace("{id}", "s-1")
            .replace("{version}", "1")
            .replace("{key}", "ada");
        let calls =
            calls.as_object().unwrap().iter().filter(|(_, call)| call["responses"].is_object());
        calls.map(move |(method, call)| {
            let example = &call["requestBody"]["content"]["application/json"]["example"];
            let body = example.is_object().then(|| example.to_string());
            request(&method.to_uppercase(), &path, &bearer(ALL), body.as_deref())
        })
    });
    let ops = ["/livez", "/readyz", "/metrics", "/blocked-keys"]
        .map(|path| request("GET", path, "", None));
    calls.chain(ops).collect()
}
