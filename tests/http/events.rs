//! Appends and reads of events.

use bson::doc;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;

const EVENTS: &str = "/v1/aggregates/order/o-1/events";

fn append(request: &str, body: Value) -> Value {
    json!({ "requestId": request, "events": [{ "name": "Changed", "body": body }] })
}

fn expecting(request: &str, expected: Value) -> Value {
    let mut body = append(request, json!({}));
    body["expectedVersion"] = expected;
    body
}

#[fixture::test]
async fn append_is_answered_again_and_has_its_records() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = json!({
        "requestId": "r", "commandId": "c", "tenantId": "t", "ownerId": "o", "header": { "h": 1 },
        "expectedVersion": "none",
        "events": [
            { "name": "A", "revision": "1", "bodyType": "x.A", "body": { "$date": 1, "n": [1.0, 2] } },
            { "name": "B", "body": {} },
        ],
    });

    let request = api.request(Method::POST, EVENTS).json(&body).header("traceparent", parent);
    let first = Answer::of(request).await;
    let again = api.post(EVENTS, &append("r", json!({ "other": true }))).await;

    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(first.body["version"], 1);
    assert_eq!(first.body["size"], 2);
    assert!(first.body["replayed"].is_null());
    let mut expected = first.body.clone();
    expected["replayed"] = json!(true);
    assert_eq!((again.status, again.body), (200, expected));
    let record = bson::Uuid::parse_str(first.body["records"][0].as_str().unwrap()).unwrap();
    let record = outbox.admin.records().find_one(doc! { "_id": record }).await.unwrap().unwrap();
    let record = bson::Document::try_from(record).unwrap();
    assert_eq!(record.get_document("payload").unwrap(), &doc! { "$date": 1, "n": [1.0, 2] });
    assert_eq!(record.get_document("headers").unwrap().get_str("traceparent").unwrap(), parent);
    let last = api.get(&format!("{EVENTS}/last")).await;
    assert_eq!(last.body["body"][0]["body"].to_string(), r#"{"$date":1,"n":[1.0,2]}"#);
    assert_eq!(last.body["header"], json!({ "h": 1 }));
    assert_eq!(last.body, api.get(&format!("{EVENTS}/1")).await.body);
    api.get(&format!("{EVENTS}/2")).await.is(404, "not_found");
    api.get("/v1/aggregates/order/o-2/events/last").await.is(404, "not_found");
    api.stop().await;
}

#[fixture::test]
async fn conflict_has_the_actual_version() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    assert_eq!(api.post(EVENTS, &append("1", json!({}))).await.status, 201);
    assert_eq!(api.post(EVENTS, &expecting("2", json!(1))).await.status, 201);
    assert_eq!(api.post(EVENTS, &expecting("3", json!("exists"))).await.status, 201);
    assert_eq!(api.post(EVENTS, &expecting("4", json!("any"))).await.status, 201);

    for (expected, code) in [
        (json!(1), "version_conflict"),
        (json!("none"), "duplicate_aggregate"),
        (json!(0), "duplicate_aggregate"),
    ] {
        let answer = api.post(EVENTS, &expecting("5", expected)).await;

        answer.is(409, code);
        assert_eq!(answer.body["actualVersion"], 4);
    }
    let absent = "/v1/aggregates/order/o-2/events";
    let answer = api.post(absent, &expecting("1", json!("exists"))).await;
    answer.is(409, "version_conflict");
    assert_eq!(answer.body["actualVersion"], 0);
    api.stop().await;
}

#[fixture::test]
async fn flaws_of_an_append_are_reported_by_field() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (body, wrong) in [
        (json!({}), vec!["requestId", "events"]),
        (json!({ "requestId": "r", "events": [] }), vec!["events"]),
        (
            json!({ "requestId": "", "events": [{ "name": "", "body": {} }] }),
            vec!["requestId", "events[0].name"],
        ),
        (
            json!({ "requestId": 1, "expectedVersion": "2", "header": [], "events": [1, { "name": "E", "body": [], "x": 1 }], "y": 1 }),
            vec![
                "requestId",
                "expectedVersion",
                "header",
                "events[0]",
                "events[1].body",
                "events[1].x",
                "y",
            ],
        ),
        (expecting("r", json!(-1)), vec!["expectedVersion"]),
        (expecting("r", json!(1.5)), vec!["expectedVersion"]),
    ] {
        assert_eq!(api.post(EVENTS, &body).await.wrong(), wrong, "{body}");
    }
    let text = r#"{"requestId":"r","events":[{"name":"E","body":{"n":1e400}}]}"#;
    assert_eq!(api.post_text(EVENTS, text).await.wrong(), ["events[0].body.n"]);
    assert_eq!(api.get(EVENTS).await.body["items"], json!([]));
    api.stop().await;
}

#[fixture::test]
async fn events_are_read_by_range_tenant_and_limit() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for request in 1..=3 {
        let mut body = append(&request.to_string(), json!({}));
        body["tenantId"] = json!("t");
        assert_eq!(api.post(EVENTS, &body).await.status, 201);
    }
    let versions = |answer: &Answer| -> Vec<i64> {
        let items = answer.body["items"].as_array().unwrap();
        items.iter().map(|item| item["version"].as_i64().unwrap()).collect()
    };
    for (query, expected, next) in [
        ("", vec![1, 2, 3], None),
        ("?fromVersion=2", vec![2, 3], None),
        ("?fromVersion=2&toVersion=2", vec![2], None),
        ("?limit=2", vec![1, 2], Some("3")),
        ("?limit=2&fromVersion=3", vec![3], None),
        ("?limit=3", vec![1, 2, 3], None),
        ("?tenantId=other", vec![], None),
        ("?tenantId=t&toVersion=1", vec![1], None),
        ("?toTime=2020-01-01T00:00:00Z", vec![], None),
        ("?fromTime=1577836800000", vec![1, 2, 3], None),
    ] {
        let answer = api.get(&format!("{EVENTS}{query}")).await;

        assert_eq!(versions(&answer), expected, "{query}");
        assert_eq!(answer.body["next"].as_str(), next, "{query}");
    }
    for (query, wrong) in [
        ("?fromVersion=2&toVersion=1", vec!["toVersion"]),
        ("?fromVersion=-1", vec!["fromVersion"]),
        ("?fromTime=2&toTime=1&fromVersion=2&toVersion=1", vec!["toVersion", "toTime"]),
        ("?fromTime=soon", vec!["fromTime"]),
    ] {
        assert_eq!(api.get(&format!("{EVENTS}{query}")).await.wrong(), wrong, "{query}");
    }
    assert_eq!(api.get(&format!("{EVENTS}/-1")).await.wrong(), ["version"]);
    assert_eq!(
        api.post("/v1/aggregates/order/b/events", &append("1", json!({}))).await.status,
        201
    );
    let ids = api.get("/v1/aggregates/order?limit=1").await;
    assert_eq!(ids.body, json!({ "items": ["b"], "next": "b" }));
    let ids = api.get("/v1/aggregates/order?limit=1&after=b").await;
    assert_eq!(ids.body, json!({ "items": ["o-1"], "next": null }));
    api.stop().await;
}

#[fixture::test]
async fn long_stream_is_sent_as_lines_or_as_one_list() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    assert_eq!(api.post(EVENTS, &append("1", json!({}))).await.status, 201);
    let streams = outbox.client.database(&outbox.database).collection("order_event_stream");
    let first: bson::Document = streams.find_one(doc! {}).await.unwrap().unwrap();
    let more = (2..=1_500).map(|version| {
        let mut stream = first.clone();
        stream.extend(doc! { "_id": format!("s{version}"), "version": version, "requestId": version.to_string() });
        stream
    });
    streams.insert_many(more).await.unwrap();

    let list = api.get(EVENTS).await;
    let request = api.request(Method::GET, EVENTS).header("accept", "application/x-ndjson");
    let lines = Answer::of(request).await;

    assert_eq!(list.body["items"].as_array().unwrap().len(), 1_500);
    assert_eq!(list.body["next"], Value::Null);
    assert_eq!(lines.header("content-type"), "application/x-ndjson");
    let lines: Vec<Value> =
        lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1_500);
    assert_eq!(lines.last(), list.body["items"].as_array().unwrap().last());
    assert_eq!(list.header("transfer-encoding"), "chunked");
    api.stop().await;
}

#[fixture::test]
async fn events_are_not_found_when_disabled() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["events.enabled=false"]).await;

    api.post(EVENTS, &append("1", json!({}))).await.is(404, "not_found");
    api.get(EVENTS).await.is(404, "not_found");

    api.stop().await;
}
