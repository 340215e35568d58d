//! Queries of events and snapshots by conditions.

use std::collections::BTreeSet;

use mongodb::IndexModel;
use mongodb::bson::{Decimal128, Document, doc};
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;

const EVENTS: &str = "/v1/aggregates/order/events";
const SNAPSHOTS: &str = "/v1/aggregates/order/snapshots";

/// An API with these settings, and three snapshots: o-1 and o-2 of tenant t-1, o-3 deleted.
async fn with_orders(outbox: &TestOutbox, settings: &[&str]) -> Api {
    let api = Api::start(outbox, settings).await;
    for (id, total, tenant, deleted) in
        [("o-1", 120, "t-1", false), ("o-2", 80, "t-1", false), ("o-3", 200, "t-2", true)]
    {
        let state = json!({
            "status": "PAID", "total": total, "paid": true, "returned": false, "note": "Very urgent",
            "tags": ["gift", "express"], "lines": [{ "sku": "A-1", "count": 2 }], "orderedOn": "2024-01-31"
        });
        let body = json!({
            "version": 3, "tenantId": tenant, "ownerId": "u-7", "deleted": deleted, "state": state
        });
        let saved = api.put(&format!("/v1/aggregates/order/{id}/snapshot"), &body).await;
        assert_eq!(saved.status, 200, "{saved:?}");
        let append = json!({
            "requestId": "r", "tenantId": tenant, "events": [{ "name": "Paid", "body": { "total": total } }]
        });
        let appended = api.post(&format!("/v1/aggregates/order/{id}/events"), &append).await;
        assert_eq!(appended.status, 201, "{appended:?}");
    }
    api
}

#[track_caller]
fn ids(answer: &Answer) -> Vec<&str> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let items = answer.body["items"].as_array().unwrap();
    items.iter().map(|item| item["aggregateId"].as_str().unwrap()).collect()
}

#[fixture::test]
async fn list_continues_behind_its_cursor() {
    let outbox = TestOutbox::new().await;
    let api = with_orders(&outbox, &[]).await;
    let path = format!("{SNAPSHOTS}/query");
    let mut body = json!({
        "condition": { "operator": "DELETED", "value": "ALL" },
        "sort": [{ "field": "state.total", "direction": "DESC" }],
        "projection": { "include": ["version"] }, "limit": 2
    });

    let first = api.post(&path, &body).await;

    assert_eq!(ids(&first), ["o-3", "o-1"]);
    assert_eq!(first.body["items"][0], json!({ "aggregateId": "o-3", "version": 3 }));
    body["after"] = first.body["next"].clone();
    let second = api.post(&path, &body).await;
    assert_eq!(ids(&second), ["o-2"]);
    assert_eq!(second.body["next"], json!(null));
    body["sort"][0]["direction"] = json!("ASC");
    assert_eq!(api.post(&path, &body).await.wrong(), ["after"]);
    api.stop().await;
}

#[fixture::test]
async fn pages_and_counts_have_all_documents() {
    let outbox = TestOutbox::new().await;
    let api = with_orders(&outbox, &[]).await;
    let page = json!({ "page": { "index": 2, "size": 1 }, "projection": { "exclude": ["state"] } });

    let found = api.post(&format!("{SNAPSHOTS}/query"), &page).await;

    assert_eq!(ids(&found), ["o-2"]);
    assert_eq!(found.body["total"], 2);
    assert!(found.body["items"][0].get("state").is_none(), "{found:?}");
    for (path, condition, count) in [
        (format!("{SNAPSHOTS}/count"), json!({}), 2),
        (format!("{SNAPSHOTS}/count"), json!({ "operator": "DELETED", "value": true }), 1),
        (format!("{EVENTS}/count"), json!({}), 3),
        (format!("{EVENTS}/count?tenantId=t-2"), json!({}), 1),
        (
            format!("{EVENTS}/count"),
            json!({ "operator": "GT", "field": "body.body.total", "value": 100 }),
            2,
        ),
    ] {
        let counted = api.post(&path, &json!({ "condition": condition })).await;
        assert_eq!(counted.body, json!({ "count": count }), "{path} {condition}");
    }
    api.stop().await;
}

#[fixture::test]
async fn lines_have_one_document_each() {
    let outbox = TestOutbox::new().await;
    let api = with_orders(&outbox, &[]).await;
    let body = json!({ "condition": { "operator": "EQ", "field": "tenantId", "value": "t-1" } });
    let request = api.request(reqwest::Method::POST, &format!("{EVENTS}/query")).json(&body);

    let lines = Answer::of(request.header("accept", "application/x-ndjson")).await;

    assert_eq!(lines.header("content-type"), "application/x-ndjson");
    let lines: Vec<Value> =
        lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        // The id of the append, and the aggregate's.
        assert!(line["id"].is_string() && line["aggregateId"].is_string(), "{line}");
        assert_eq!(line["body"][0]["name"], "Paid");
    }
    api.stop().await;
}

#[fixture::test]
async fn all_flaws_of_a_query_are_reported_at_once() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let path = format!("{SNAPSHOTS}/query");
    let flawed = json!({
        "condition": { "operator": "AND", "children": [
            { "operator": "EQ", "field": "$where", "value": 1 },
            { "operator": "BETWEEN", "field": "a", "value": [1] },
            { "operator": "TODAY", "field": "a", "options": { "zoneId": "Mars", "datePattern": "dd/MM/yyyy" } },
            { "operator": "ELEM_MATCH", "field": "a" },
        ] },
        "projection": { "include": ["a"], "exclude": ["b"] },
        "sort": [{ "field": "a..b" }], "page": { "index": 0 }, "limit": 5
    });

    let answer = api.post(&path, &flawed).await;

    let wrong: BTreeSet<&str> = answer.wrong().into_iter().collect();
    let expected = [
        "condition.children[0].field",
        "condition.children[1].value",
        "condition.children[2].options.datePattern",
        "condition.children[2].options.zoneId",
        "condition.children[3].children",
        "limit",
        "page.index",
        "projection",
        "sort[0].field",
    ];
    assert_eq!(wrong, expected.into());
    for (body, wrong) in [
        (json!({ "condition": { "operator": "EQUALS", "field": "a" } }), "condition.operator"),
        // Without an operator it would find all.
        (json!({ "condition": { "field": "a", "value": 1 } }), "condition.field"),
        (
            json!({ "condition": { "operator": "RAW", "value": { "$where": "1" } } }),
            "condition.value",
        ),
        // RAW is off.
        (json!({ "condition": { "operator": "RAW", "value": { "a": 1 } } }), "condition.operator"),
        (json!({ "page": { "index": 101, "size": 100 } }), "page.index"),
        (json!({ "page": { "size": 101 } }), "page.size"),
        (json!({ "limit": 1_001 }), "limit"),
        (json!({ "projection": { "include": ["_id.x"] } }), "projection"),
        (json!({ "sort": [{ "field": "aggregateId.x" }] }), "sort"),
        (json!({ "filter": {} }), "filter"),
        (json!({ "condition": { "operator": "MATCH", "value": "x" } }), "condition"),
    ] {
        let answer = api.post(&path, &body).await;
        assert_eq!(answer.wrong().first(), Some(&wrong), "{body} {answer:?}");
    }
    api.stop().await;
}

/// The conditions in the tables of docs/queries.md.
fn documented() -> Vec<Value> {
    let page = std::fs::read_to_string("docs/queries.md").unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let examples =
        rows.filter_map(|row| row.split('`').find(|part| part.starts_with("{\"operator\"")));
    examples.map(|example| serde_json::from_str(example).unwrap()).collect()
}

#[fixture::test]
async fn every_example_of_the_documentation_is_answered() {
    let outbox = TestOutbox::new().await;
    let api = with_orders(&outbox, &["queries.raw=true"]).await;
    let database = outbox.client.database(&outbox.database);
    let text = IndexModel::builder().keys(doc! { "state.note": "text" }).build();
    database.collection::<Document>("order_snapshot").create_index(text).await.unwrap();
    // True of none of the orders, or only on some days.
    let others = ["SPACE_ID", "TOMORROW", "NEXT_WEEK", "LAST_WEEK", "LAST_MONTH", "BEFORE_TODAY"];
    let mut operators = BTreeSet::new();

    for condition in documented() {
        let operator = condition["operator"].as_str().unwrap().to_owned();
        let counted =
            api.post(&format!("{SNAPSHOTS}/count"), &json!({ "condition": condition })).await;

        assert_eq!(counted.status, 200, "{condition} {counted:?}");
        let is_found = counted.body["count"].as_i64() > Some(0);
        assert_eq!(is_found, !others.contains(&operator.as_str()), "{condition}");
        operators.insert(operator);
    }

    assert_eq!(operators.len(), 43, "{operators:?}");
    api.stop().await;
}

#[fixture::test]
async fn wow_clients_find_its_calls() {
    let outbox = TestOutbox::new().await;
    let api = with_orders(&outbox, &["api.wow_routes=true"]).await;
    let paid = json!({ "field": "state.status", "operator": "EQ", "value": "PAID" });
    let query = json!({ "condition": paid, "projection": {}, "sort": [{ "field": "aggregateId", "direction": "DESC" }] });
    let with = |name: &str, value: Value| {
        let mut query = query.clone();
        query[name] = value;
        query
    };

    let single = api.post("/wow/order/snapshot/single", &query).await;
    assert_eq!((single.status, &single.body["aggregateId"]), (200, &json!("o-2")), "{single:?}");
    let state = api.post("/wow/order/snapshot/single/state", &query).await;
    assert_eq!(state.body["total"], 80, "{state:?}");
    let list = api.post("/wow/order/snapshot/list", &with("limit", json!(1))).await;
    assert_eq!(list.body.as_array().map(Vec::len), Some(1), "{list:?}");
    let all = api.post("/wow/order/snapshot/list/state", &with("limit", json!(0))).await;
    let totals: Vec<_> = all.body.as_array().unwrap().iter().map(|state| &state["total"]).collect();
    assert_eq!(totals, [80, 120]);
    let page = with("pagination", json!({ "index": 2, "size": 1 }));
    let paged = api.post("/wow/order/snapshot/paged", &page).await;
    assert_eq!(paged.body["total"], 2, "{paged:?}");
    assert_eq!(paged.body["list"][0]["aggregateId"], "o-1");
    let states = api.post("/wow/order/snapshot/paged/state", &page).await;
    assert_eq!(states.body["list"][0]["total"], 120);
    assert_eq!(api.post("/wow/order/snapshot/count", &paid).await.body, json!(2));
    assert_eq!(api.post("/wow/order/event/count", &json!({})).await.body, json!(3));
    let events = json!({ "condition": {}, "pagination": {} });
    let events = api.post("/wow/order/event/paged", &events).await;
    assert_eq!(events.body["total"], 3, "{events:?}");
    assert!(events.body["list"][0]["id"].is_string(), "{events:?}");
    let listed = api.post("/wow/order/event/list", &json!({ "condition": {}, "limit": 2 })).await;
    assert_eq!(listed.body.as_array().map(Vec::len), Some(2), "{listed:?}");
    let none = json!({ "condition": { "operator": "ID", "value": "none" } });
    api.post("/wow/order/snapshot/single", &none).await.is(404, "not_found");

    // Server-sent events.
    let request = api.request(reqwest::Method::POST, "/wow/order/snapshot/list").json(&query);
    let stream = Answer::of(request.header("accept", "text/event-stream")).await;
    assert_eq!(stream.header("content-type"), "text/event-stream");
    let events: Vec<&str> = stream.text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 2, "{stream:?}");
    assert!(events.iter().all(|event| event.starts_with("data:{")), "{stream:?}");
    api.stop().await;
}

#[fixture::test]
async fn wow_clients_compare_and_read_decimals() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.wow_routes=true"]).await;
    let snapshots =
        outbox.client.database(&outbox.database).collection::<Document>("order_snapshot");
    let total: Decimal128 = "12.30".parse().unwrap();
    let stored = doc! { "_id": "o-1", "version": 1, "deleted": false, "state": { "total": total } };
    snapshots.insert_one(stored).await.unwrap();
    let condition = |operator: &str, value: Value| json!({ "operator": operator, "field": "state.total", "value": value });

    for (condition, count) in [
        (condition("EQ", json!(12.3)), 1),
        (condition("GTE", json!(12.3)), 1),
        (condition("LT", json!(12.3)), 0),
        (condition("IN", json!([12.3, 5])), 1),
        (condition("BETWEEN", json!([12.3, 12.3])), 1),
    ] {
        let counted = api.post("/wow/order/snapshot/count", &condition).await;
        assert_eq!(counted.body, json!(count), "{condition}");
    }
    let found = api.post("/wow/order/snapshot/list", &json!({ "condition": {} })).await;
    assert!(found.text.contains(r#""total":12.30}"#), "{found:?}");
    api.stop().await;
}

#[fixture::test]
async fn wow_clients_see_their_tenant_only() {
    let outbox = TestOutbox::new().await;
    let api = with_orders(&outbox, &["api.wow_routes=true"]).await;
    let all = json!({ "operator": "DELETED", "value": "ALL" });
    let count = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = api.request(reqwest::Method::POST, path).json(&all);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::of(request).await.body
    };

    assert_eq!(count("/wow/order/snapshot/count", &[]).await, 3);
    assert_eq!(count("/wow/order/snapshot/count", &[("Command-Tenant-Id", "t-2")]).await, 1);
    assert_eq!(count("/wow/order/snapshot/count", &[("Command-Owner-Id", "u-8")]).await, 0);
    assert_eq!(count("/wow/order/snapshot/count", &[("Wow-Space-Id", "s")]).await, 0);
    let of_tenant = "/wow/tenant/t-1/order/snapshot/count";
    assert_eq!(count(of_tenant, &[]).await, 2);
    // The path is nearer than the header.
    assert_eq!(count(of_tenant, &[("Command-Tenant-Id", "t-2")]).await, 2);
    assert_eq!(count("/wow/owner/u-7/order/snapshot/count", &[]).await, 3);
    // Without a header that cannot be read, the client would see all tenants.
    for (name, values) in [("command-tenant-id", vec!["münchen"]), ("wow-space-id", vec!["a", "b"])]
    {
        let mut request =
            api.request(reqwest::Method::POST, "/wow/order/snapshot/count").json(&all);
        for value in values {
            request = request.header(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        assert_eq!(Answer::of(request).await.wrong(), [name]);
    }
    api.stop().await;
}

#[fixture::test]
async fn newer_clients_of_wow_get_an_error_that_names_the_version() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.wow_routes=true"]).await;
    for (path, body, wrong) in [
        ("list", json!({ "filter": { "op": "MATCH_ALL" } }), "filter"),
        ("paged", json!({ "filter": { "op": "MATCH_ALL" } }), "filter"),
        ("count", json!({ "op": "EQ", "field": "version", "value": 1 }), "op"),
        ("single", json!({}), "condition"),
    ] {
        let answer = api.post(&format!("/wow/order/snapshot/{path}"), &body).await;

        assert!(answer.wrong().contains(&wrong), "{answer:?}");
        let says = answer.text.contains("Wow 8.11");
        assert_eq!(says, wrong != "condition", "{answer:?}");
    }
    api.stop().await;
}

#[fixture::test]
async fn calls_of_wow_are_off_by_default() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    let answer = api.post("/wow/order/snapshot/count", &json!({})).await;

    answer.is(404, "not_found");
    assert!(!api.get("/openapi.json").await.text.contains("/wow/"));
    api.stop().await;
}
