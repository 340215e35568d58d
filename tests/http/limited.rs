//! Tokens that may reach a part only: every call, within the limits and beyond them.

use std::collections::BTreeSet;

use bson::doc;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::{TestOutbox, eventually};

const TOKENS: &str = "api.tokens=[\"all-of-it\", {name=\"share\", token=\"a-share\", \
    aggregates=[\"order\"], types=[\"Order*\"], destinations=[\"orders.*\"], tenants=[\"a\"], \
    subscriptions=[\"b*\"]}]";

/// Contained in everything that the token must not see.
const FOREIGN: &str = "of-somebody-else";

/// A call of the limited token, and the status of its answer.
pub struct Row {
    pub call: &'static str,
    pub method: Method,
    pub path: String,
    pub body: Option<Value>,
    pub status: u16,
}

fn row(call: &'static str, method: &str, path: &str, body: Value, status: u16) -> Row {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let body = (!body.is_null()).then_some(body);
    Row { call, method, path: path.to_owned(), body, status }
}

/// Sends one as a holder of a token.
pub async fn send(
    api: &Api,
    token: &str,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let request = api.request(method, path).bearer_auth(token);
    Answer::of(match body {
        Some(body) => request.json(body),
        None => request,
    })
    .await
}

/// Two tenants with the same kinds of things.
pub async fn populate(outbox: &TestOutbox, api: &Api) {
    let post = async |path: &str, body: Value| {
        let answer = send(api, "all-of-it", Method::POST, path, Some(&body)).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
    };
    for (name, id, tenant) in [
        ("order", "a-1", "a"),
        ("order", "a-2", "a"),
        ("order", "a-3", "a"),
        ("order", "b-1", "b"),
        ("order", "b-2", "b"),
        ("person", "p-1", "a"),
    ] {
        let who = if id.starts_with('a') { "of-a" } else { FOREIGN };
        let event = json!({ "name": "OrderPlaced", "body": { "who": who } });
        let append = json!({ "requestId": "first", "tenantId": tenant, "events": [event] });
        post(&format!("/v1/aggregates/{name}/{id}/events"), append).await;
        let snapshot = json!({ "version": 1, "tenantId": tenant, "state": { "who": who } });
        let path = format!("/v1/aggregates/{name}/{id}/snapshot");
        let saved = send(api, "all-of-it", Method::PUT, &path, Some(&snapshot)).await;
        assert_eq!(saved.status, 200, "{saved:?}");
    }
    let end = json!({ "requestId": "end", "reason": FOREIGN });
    post("/v1/aggregates/order/b-2/end", end).await;
    for (id, kind, tenant, destination) in [
        ("own", "OrderNote", "a", Some("orders.x")),
        ("own-2", "OrderNote", "a", None),
        ("tenant", "OrderNote", "b", Some("orders.x")),
        ("type", "Invoice", "a", Some("orders.x")),
        ("destination", "OrderNote", "a", Some("secret.queue")),
    ] {
        let key = if id.starts_with("own") { "of-a" } else { FOREIGN };
        let record = json!({
            "id": id, "key": key, "type": kind, "tenantId": tenant, "destination": destination,
            "payload": { "who": key },
        });
        post("/v1/outbox/records", record).await;
    }
    let dead = doc! { "$set": { "status": "dead", "deadAt": bson::DateTime::now() } };
    outbox
        .records()
        .update_many(doc! { "destination": { "$exists": true } }, dead.clone())
        .await
        .unwrap();
    outbox.records().update_one(doc! { "_id": "own-2" }, dead).await.unwrap();
    post("/v1/prepare/username/ada", json!({ "value": FOREIGN })).await;
    // 5 streams of `order`, one of them with an end, and one of `person`.
    eventually("the feed", async || {
        send(api, "all-of-it", Method::GET, "/v1/feed", None).await.body["head"] == 7
    })
    .await;
    let own =
        json!({ "name": "billing", "kind": "pull", "aggregates": ["order"], "tenantId": "a" });
    post("/v1/subscriptions", own).await;
    for name in ["b-gone", "other"] {
        post("/v1/subscriptions", json!({ "name": name, "kind": "pull" })).await;
    }
}

/// What the token may do with events and snapshots, and what not.
pub fn streams() -> Vec<Row> {
    let none = Value::Null;
    let event = |request: &str, more: Value| {
        let mut append =
            json!({ "requestId": request, "events": [{ "name": "OrderPaid", "body": {} }] });
        append.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        append
    };
    let snapshot = json!({ "version": 1, "state": {} });
    let of_b = json!({ "version": 1, "state": {}, "tenantId": "b" });
    let invoice = json!({ "requestId": "r", "events": [{ "name": "Invoice", "body": {} }] });
    let at = |rest: &str| format!("/v1/aggregates/{rest}");
    let end = json!({ "requestId": "end", "reason": "over" });
    let erase = json!({ "requestId": "erase", "reason": "over", "discardPending": true });
    let mut rows = vec![
        row("listAggregates", "GET", &at("order"), none.clone(), 200),
        row("listAggregates", "GET", &at("order?tenantId=b"), none.clone(), 403),
        row("listAggregates", "GET", &at("person"), none.clone(), 403),
        row("appendEvents", "POST", &at("order/a-1/events"), event("own", json!({})), 201),
        row("appendEvents", "POST", &at("order/new/events"), event("own", json!({})), 201),
        row("appendEvents", "POST", &at("order/b-1/events"), event("r", json!({})), 404),
        // The answer of another tenant's request, and what it says about its versions.
        row("appendEvents", "POST", &at("order/b-1/events"), event("first", json!({})), 404),
        row(
            "appendEvents",
            "POST",
            &at("order/b-1/events"),
            event("r", json!({ "expectedVersion": 7 })),
            404,
        ),
        row(
            "appendEvents",
            "POST",
            &at("order/nowhere/events"),
            event("r", json!({ "expectedVersion": "exists" })),
            409,
        ),
        row(
            "appendEvents",
            "POST",
            &at("order/a-1/events"),
            event("r", json!({ "tenantId": "b" })),
            403,
        ),
        row("appendEvents", "POST", &at("order/a-1/events"), invoice, 403),
        row("appendEvents", "POST", &at("person/p-1/events"), event("r", json!({})), 403),
        row("saveSnapshot", "PUT", &at("order/a-1/snapshot"), snapshot.clone(), 200),
        row("saveSnapshot", "PUT", &at("order/a-1/snapshot"), of_b, 403),
        row("saveSnapshot", "PUT", &at("order/b-1/snapshot"), snapshot.clone(), 404),
        row("saveSnapshot", "PUT", &at("order/nowhere/snapshot"), snapshot.clone(), 404),
        row("saveSnapshot", "PUT", &at("person/p-1/snapshot"), snapshot, 403),
        row("readFeed", "GET", "/v1/feed", none.clone(), 200),
        row("readFeed", "GET", "/v1/feed?aggregates=order&tenantId=a", none.clone(), 200),
        row("readFeed", "GET", "/v1/feed?aggregates=order,person", none.clone(), 403),
        row("readFeed", "GET", "/v1/feed?tenantId=b", none.clone(), 403),
    ];
    // (A list of another tenant's stream is that of an unknown one.)
    for (call, rest, of_other) in [
        ("listEvents", "events", 200),
        ("getLastEvents", "events/last", 404),
        ("getEventsOfVersion", "events/1", 404),
        ("loadSnapshot", "snapshot", 404),
    ] {
        rows.push(row(call, "GET", &at(&format!("order/a-1/{rest}")), none.clone(), 200));
        for other in ["b-1", "b-2", "nowhere"] {
            let path = at(&format!("order/{other}/{rest}"));
            rows.push(row(call, "GET", &path, none.clone(), of_other));
        }
        let named = at(&format!("order/a-1/{rest}?tenantId=b"));
        rows.push(row(call, "GET", &named, none.clone(), 403));
        rows.push(row(call, "GET", &at(&format!("person/p-1/{rest}")), none.clone(), 403));
    }
    for (call, id, rest, body, done) in
        [("endStream", "a-2", "end", end, 201), ("eraseStream", "a-3", "erase", erase, 200)]
    {
        for (stream, status) in [
            (format!("order/{id}"), done),
            ("order/b-1".into(), 404),
            ("order/b-2".into(), 404),
            ("order/nowhere".into(), 404),
            ("person/p-1".into(), 403),
        ] {
            rows.push(row(call, "POST", &at(&format!("{stream}/{rest}")), body.clone(), status));
        }
    }
    for (call, rest) in [
        ("queryEvents", "events/query"),
        ("countEvents", "events/count"),
        ("querySnapshots", "snapshots/query"),
        ("countSnapshots", "snapshots/count"),
    ] {
        for (path, status) in [
            (at(&format!("order/{rest}")), 200),
            (at(&format!("order/{rest}?tenantId=b")), 403),
            (at(&format!("person/{rest}")), 403),
        ] {
            rows.push(row(call, "POST", &path, json!({}), status));
        }
    }
    rows.extend(wow());
    rows
}

/// The queries of Wow's clients, in each form of their paths.
fn wow() -> Vec<Row> {
    let all = json!({ "operator": "ALL" });
    let query = json!({ "condition": all });
    let calls = [
        ("wowCountEvents", "event/count"),
        ("wowListEvents", "event/list"),
        ("wowPageEvents", "event/paged"),
        ("wowCountSnapshots", "snapshot/count"),
        ("wowListSnapshots", "snapshot/list"),
        ("wowListStates", "snapshot/list/state"),
        ("wowPageSnapshots", "snapshot/paged"),
        ("wowPageStates", "snapshot/paged/state"),
        ("wowSingleSnapshot", "snapshot/single"),
        ("wowSingleState", "snapshot/single/state"),
    ];
    let mut rows = Vec::new();
    for (call, rest) in calls {
        let body = if rest.ends_with("count") { &all } else { &query };
        for (path, status) in [
            ("order", 200),
            ("tenant/a/order", 200),
            ("person", 403),
            ("tenant/b/order", 403),
            ("owner/o/person", 403),
        ] {
            rows.push(row(call, "POST", &format!("/wow/{path}/{rest}"), body.clone(), status));
        }
    }
    rows
}

/// What the token may do with records and subscriptions, and what cannot be limited.
pub fn others() -> Vec<Row> {
    let none = Value::Null;
    let note = |more: Value| {
        let mut record = json!({ "type": "OrderNote", "payload": 1 });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record
    };
    let records = "/v1/outbox/records";
    let enqueue = |more, status| row("enqueueOutboxRecord", "POST", records, note(more), status);
    let mut rows = vec![
        enqueue(json!({}), 201),
        enqueue(json!({ "destination": "orders.y", "tenantId": "a" }), 201),
        enqueue(json!({ "type": "Invoice" }), 403),
        enqueue(json!({ "destination": "secret.queue" }), 403),
        enqueue(json!({ "tenantId": "b" }), 403),
        row("listOutboxRecords", "GET", records, none.clone(), 200),
        row("listOutboxRecords", "GET", &format!("{records}?status=dead"), none.clone(), 200),
        row("listOutboxRecords", "GET", &format!("{records}?type=Invoice"), none.clone(), 200),
        row("requeueOutboxRecord", "POST", &format!("{records}/own/requeue"), none.clone(), 200),
        row("discardOutboxRecord", "DELETE", &format!("{records}/own-2"), none.clone(), 204),
        row("listOutboxGroups", "GET", "/v1/outbox/groups?by=key", none.clone(), 403),
        row("getOutboxStats", "GET", "/v1/outbox/stats", none.clone(), 403),
        row("requeueOutboxRecords", "POST", "/v1/outbox/requeue", json!({}), 403),
        row("listInstances", "GET", "/v1/instances", none.clone(), 403),
        row("listPartitions", "GET", "/v1/partitions", none.clone(), 403),
        row("pauseRelay", "POST", "/v1/relay/pause", none.clone(), 403),
        row("resumeRelay", "POST", "/v1/relay/resume", none.clone(), 403),
        row("listSubscriptions", "GET", "/v1/subscriptions", none.clone(), 403),
        row(
            "createSubscription",
            "POST",
            "/v1/subscriptions",
            json!({ "name": "b-new", "kind": "pull" }),
            403,
        ),
        row("deleteSubscription", "DELETE", "/v1/subscriptions/b-gone", none.clone(), 204),
    ];
    for id in ["tenant", "type", "destination"] {
        let record = format!("{records}/{id}");
        let requeue = format!("{record}/requeue");
        let dry = [format!("{requeue}?dryRun=true"), format!("{record}?dryRun=true")];
        rows.push(row("getOutboxRecord", "GET", &record, none.clone(), 404));
        rows.push(row("requeueOutboxRecord", "POST", &requeue, none.clone(), 404));
        rows.push(row("requeueOutboxRecord", "POST", &dry[0], none.clone(), 404));
        rows.push(row("discardOutboxRecord", "DELETE", &record, none.clone(), 404));
        rows.push(row("discardOutboxRecord", "DELETE", &dry[1], none.clone(), 404));
    }
    rows.push(row("getOutboxRecord", "GET", &format!("{records}/own"), none.clone(), 200));
    for (call, method, body) in [
        ("getPreparedKey", "GET", none.clone()),
        ("prepareKey", "POST", json!({ "value": 1 })),
        ("reprepareKey", "PUT", json!({ "value": 1 })),
        ("rollbackPreparedKey", "DELETE", none.clone()),
    ] {
        rows.push(row(call, method, "/v1/prepare/username/ada", body, 403));
    }
    let lease = json!({ "lease": "u.1.m", "position": 1 });
    let park = json!({ "lease": "u.1.m", "position": 1, "reason": "odd" });
    for (call, method, rest, body, status) in [
        ("getSubscription", "GET", "", none.clone(), 200),
        ("pullSubscriptionEvents", "POST", "/pull", json!({ "member": "m" }), 200),
        ("acknowledgeSubscriptionEvents", "POST", "/ack", lease, 409),
        ("parkSubscriptionEvent", "POST", "/park", park, 409),
        ("listParkedEvents", "GET", "/parked", none.clone(), 200),
        ("discardParkedEvents", "DELETE", "/parked", none.clone(), 200),
        ("pauseSubscription", "POST", "/pause", none.clone(), 200),
        ("resumeSubscription", "POST", "/resume", none.clone(), 200),
        ("replaySubscription", "POST", "/replay", none.clone(), 200),
    ] {
        let path = |name: &str| format!("/v1/subscriptions/{name}{rest}");
        rows.push(row(call, method, &path("billing"), body.clone(), status));
        rows.push(row(call, method, &path("other"), body, 403));
    }
    rows.push(row("deleteSubscription", "DELETE", "/v1/subscriptions/other", none, 403));
    rows
}

/// A new call that is not in the table, or not refused beyond the limits, is found here.
#[fixture::test]
async fn limited_token_reaches_its_part_by_every_call() {
    let outbox = TestOutbox::new().await;
    let settings = [TOKENS, "feed.enabled=true", "api.wow_routes=true"];
    let api = Api::start(&outbox, &settings).await;
    populate(&outbox, &api).await;
    let rows: Vec<Row> = streams().into_iter().chain(others()).collect();

    let description = api.get("/openapi.json").await;
    let paths = description.body["paths"].as_object().unwrap().values();
    let calls = paths.flat_map(|methods| methods.as_object().unwrap().values());
    let calls: BTreeSet<&str> = calls.map(|call| call["operationId"].as_str().unwrap()).collect();
    assert_eq!(calls, rows.iter().map(|row| row.call).collect(), "calls and rows of the table");
    // A list of records has nothing to be refused: it leaves out what is beyond the limits.
    for call in calls.into_iter().filter(|call| *call != "listOutboxRecords") {
        let mut of_call = rows.iter().filter(|row| row.call == call);
        assert!(of_call.any(|row| matches!(row.status, 403 | 404)), "{call} beyond the limits");
    }

    for Row { call, method, path, body, status } in &rows {
        let answer = send(&api, "a-share", method.clone(), path, body.as_ref()).await;

        assert_eq!(answer.status, *status, "{call} {path}: {answer:?}");
        assert!(!answer.text.contains(FOREIGN), "{call} {path}: {answer:?}");
        if *status == 403 {
            answer.is(403, "forbidden");
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(detail.contains("the token \"share\" is limited"), "{call} {path}: {detail}");
        }
    }

    // What the token may see is there.
    let get = async |path: &str| send(&api, "a-share", Method::GET, path, None).await;
    let ids = |answer: &Answer| -> Vec<String> {
        let items = answer.body["items"].as_array().unwrap().iter();
        items.map(|item| item["id"].as_str().or(item.as_str()).unwrap().to_owned()).collect()
    };
    let aggregates = get("/v1/aggregates/order").await;
    assert_eq!(ids(&aggregates), ["a-1", "a-2", "a-3", "new"]);
    let done = get("/v1/outbox/records/own").await;
    assert_eq!((done.status, &done.body["status"]), (200, &json!("pending")));
    let unknown = get("/v1/aggregates/order/nowhere/events").await;
    for foreign in ["b-1", "b-2"] {
        let list = get(&format!("/v1/aggregates/order/{foreign}/events")).await;
        assert_eq!((list.header("etag"), &list.body), ("\"0\"", &unknown.body));
    }
    let count = json!({ "condition": { "operator": "ALL" } });
    let path = "/v1/aggregates/order/snapshots/count";
    let counted = send(&api, "a-share", Method::POST, path, Some(&count)).await;
    assert_eq!(counted.body["count"], 1, "those of a-2 and a-3 are deleted");
    // And what it must not change is as before.
    for id in ["tenant", "type", "destination"] {
        assert_eq!(outbox.record(id).await.get_str("status").unwrap(), "dead");
    }
    let other = "/v1/aggregates/order/b-1/events/last";
    let other = send(&api, "all-of-it", Method::GET, other, None).await;
    assert_eq!(other.header("etag"), "\"1\"");
    api.stop().await;
}

/// The header of Wow's clients and a projection lead to no other tenant.
#[fixture::test]
async fn tenant_is_forced_whatever_a_query_asks_for() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[TOKENS, "feed.enabled=true", "api.wow_routes=true"]).await;
    populate(&outbox, &api).await;
    let not_own = json!({ "operator": "NE", "field": "tenantId", "value": "a" });
    let of_b = json!({ "operator": "TENANT_ID", "value": "b" });
    let either = json!({ "operator": "OR", "children": [{ "operator": "ALL" }, of_b] });

    for condition in [not_own, of_b.clone(), either] {
        for path in ["/v1/aggregates/order/events/query", "/wow/order/event/list"] {
            let query = json!({ "condition": condition, "limit": 100 });
            let found = send(&api, "a-share", Method::POST, path, Some(&query)).await;
            assert_eq!(found.status, 200, "{found:?}");
            assert!(!found.text.contains(FOREIGN), "{found:?}");
        }
    }
    let request = api.request(Method::POST, "/wow/order/event/list").bearer_auth("a-share");
    let request = request.header("command-tenant-id", "b");
    let named = Answer::of(request.json(&json!({ "condition": of_b }))).await;
    named.is(403, "forbidden");
    api.stop().await;
}
