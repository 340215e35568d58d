//! Reads of the feed.

use std::time::Duration;

use bson::{Document, doc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::limits::behind_a_proxy;
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Signal;

const FEED: &str = "/v1/feed";

async fn start(outbox: &TestOutbox, more: &[&str]) -> Api {
    Api::start(outbox, &[&["feed.enabled=true"], more].concat()).await
}

async fn append(api: &Api, name: &str, id: &str, events: &[&str]) {
    let events: Vec<Value> =
        events.iter().map(|event| json!({ "name": event, "body": { "is": event } })).collect();
    let request = uuid::Uuid::new_v4().to_string();
    let body = json!({ "requestId": request, "tenantId": "t", "events": events });
    let path = format!("/v1/aggregates/{name}/{id}/events");
    // On a busy machine it takes longer than a short `api.timeout`; a repetition has no effect.
    eventually("an append", async || {
        let answer = api.post(&path, &body).await;
        assert!(matches!(answer.status, 200 | 201 | 503), "{answer:?}");
        answer.status < 300
    })
    .await;
}

async fn until_head(api: &Api, head: i64) {
    eventually("the head", async || api.get(FEED).await.body["head"] == head).await;
}

fn positions(items: &Value) -> Vec<i64> {
    let items = items.as_array().unwrap();
    items.iter().map(|item| item["position"].as_i64().unwrap()).collect()
}

#[fixture::test]
async fn page_has_events_of_all_names_in_their_order() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox, &[]).await;
    append(&api, "order", "1", &["Placed", "Paid"]).await;
    append(&api, "customer", "7", &["Moved"]).await;
    until_head(&api, 3).await;

    let all = api.get(FEED).await;
    let first = api.get("/v1/feed?limit=1").await.body;
    let path = format!("/v1/feed?after=1&feed={}", first["feed"].as_str().unwrap());
    let rest = api.get(&path).await.body;
    let some = api.get("/v1/feed?aggregates=order,invoice&events=Paid&tenantId=t").await.body;
    let nothing = api.get("/v1/feed?tenantId=other").await.body;

    assert_eq!(all.status, 200, "{all:?}");
    assert_eq!((&all.body["next"], &all.body["head"]), (&json!(3), &json!(3)));
    let item = &all.body["items"][1];
    assert_eq!(item["name"], "Paid");
    assert_eq!((&item["aggregateName"], &item["aggregateId"]), (&json!("order"), &json!("1")));
    assert_eq!((&item["version"], &item["index"]), (&json!(1), &json!(1)));
    assert_eq!(item["body"], json!({ "is": "Paid" }));
    assert_eq!(positions(&first["items"]), [1]);
    assert_eq!(positions(&rest["items"]), [2, 3]);
    assert_eq!((positions(&some["items"]), &some["next"]), (vec![2], &json!(3)));
    assert_eq!((positions(&nothing["items"]), &nothing["next"]), (vec![], &json!(3)));
    api.stop().await;
}

#[fixture::test]
async fn page_waits_for_an_event_beyond_the_limit_of_requests() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox, &["api.timeout=1s", "feed.max_readers=2"]).await;
    append(&api, "order", "1", &["Placed"]).await;
    until_head(&api, 1).await;

    let waiting = api.get("/v1/feed?after=1&events=Paid&wait=30s");
    let appending = async {
        // It matches nothing, and does not end the wait.
        append(&api, "order", "1", &["Changed"]).await;
        until_head(&api, 2).await;
        append(&api, "order", "1", &["Paid"]).await;
    };
    let (answer, ()) = tokio::join!(waiting, appending);
    let ended = api.get("/v1/feed?after=3&wait=100ms").await;

    assert_eq!(positions(&answer.body["items"]), [3], "{answer:?}");
    assert_eq!((positions(&ended.body["items"]), &ended.body["next"]), (vec![], &json!(3)));
    api.stop().await;
}

/// A process that reads MongoDB slowly, and a feed that a reader of rare events reads in 100 parts.
async fn slow_with_a_long_feed(outbox: &TestOutbox, more: &[&str]) -> (Api, FaultProxy) {
    let api = start(outbox, &[]).await;
    append(&api, "order", "0", &["Placed"]).await;
    until_head(&api, 1).await;
    api.stop().await;
    let database = outbox.client.database(&outbox.database);
    let streams = database.collection::<Document>("order_event_stream");
    let first = streams.find_one(doc! {}).await.unwrap().unwrap();
    // A filtered read covers 10,000 positions.
    let others = (1..=100_i64).map(|part| {
        let (id, mut other) = (part.to_string(), first.clone());
        other.extend(
            doc! { "_id": &id, "aggregateId": &id, "requestId": &id, "position": part * 10_000 },
        );
        other
    });
    streams.insert_many(others).await.unwrap();
    let state = database.collection::<Document>("postrider_feed");
    state.update_one(doc! {}, doc! { "$set": { "head": 1_000_000_i64 } }).await.unwrap();
    let (api, proxy) = behind_a_proxy(outbox, &[&["feed.enabled=true"], more].concat()).await;
    proxy.delay(Duration::from_millis(20));
    (api, proxy)
}

#[fixture::test]
async fn wait_for_a_rare_event_ends_in_time_and_at_shutdown() {
    let outbox = TestOutbox::new().await;
    let (mut api, _proxy) = slow_with_a_long_feed(&outbox, &[]).await;

    let in_time = api.get("/v1/feed?events=Paid&wait=300ms").await.body;
    let waiting = api.request(Method::GET, "/v1/feed?events=Paid&wait=60s").send().await.unwrap();
    api.postrider.signal(Signal::TERM);
    let at_shutdown: Value = waiting.json().await.unwrap();

    for page in [in_time, at_shutdown] {
        assert_eq!((&page["items"], &page["head"]), (&json!([]), &json!(1_000_000)));
        assert!((10_000..1_000_000).contains(&page["next"].as_i64().unwrap()), "{page}");
    }
    api.postrider.until_ended(Duration::from_secs(20)).await.with_code(0);
}

#[fixture::test]
async fn lines_keep_out_no_request() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = slow_with_a_long_feed(&outbox, &["api.max_concurrent=1"]).await;
    let lines = api.request(Method::GET, "/v1/feed?events=Paid");
    let lines = lines.header("accept", "application/x-ndjson").send().await.unwrap();

    proxy.freeze();
    let other = api.get("/openapi.json").await;
    proxy.delay(Duration::ZERO);
    proxy.open();

    let lines: Value = lines.json().await.unwrap();
    assert_eq!(lines["next"], 1_000_000);
    assert_eq!(other.status, 200);
    api.stop().await;
}

#[fixture::test]
async fn lines_end_with_how_far_they_have_read() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox, &[]).await;
    for _ in 0..3 {
        append(&api, "order", "1", &["Placed", "Paid"]).await;
    }
    until_head(&api, 6).await;
    let lines = async |path: &str| {
        let request = api.request(Method::GET, path).header("accept", "application/x-ndjson");
        let text = Answer::of(request).await.text;
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };

    let all = lines(FEED).await;
    let some = lines("/v1/feed?after=1&limit=2").await;

    assert_eq!(all.len(), 7);
    assert_eq!((&all[5]["position"], &all[6]["next"]), (&json!(6), &json!(6)));
    assert_eq!((&some[1]["position"], &some[2]["next"]), (&json!(3), &json!(3)));
    assert_eq!(some[2]["head"], 6);
    api.stop().await;
}

/// Reads server-sent events until `count` ids have arrived.
async fn ids(request: reqwest::RequestBuilder, count: usize) -> Vec<String> {
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut text, mut ids) = (String::new(), Vec::new());
    while ids.len() < count {
        text.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
        ids = text.lines().filter_map(|line| line.strip_prefix("id:")).map(str::to_owned).collect();
    }
    ids
}

#[fixture::test]
async fn server_sent_events_continue_behind_the_last_event_id() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox, &["api.timeout=1s"]).await;
    append(&api, "order", "1", &["Placed", "Paid"]).await;
    until_head(&api, 2).await;

    let reading = ids(api.request(Method::GET, FEED), 4);
    let appending = async {
        append(&api, "order", "1", &["Changed"]).await;
        until_head(&api, 3).await;
        append(&api, "customer", "1", &["Moved"]).await;
    };
    let (first, ()) = tokio::join!(reading, appending);
    let again = api.request(Method::GET, FEED).header("last-event-id", &first[1]);
    let again = ids(again, 2).await;
    let filtered = ids(api.request(Method::GET, "/v1/feed?events=Placed"), 2).await;

    assert_eq!(again, first[2..]);
    assert!(first[3].ends_with(":4"), "{first:?}");
    assert!(filtered[1].ends_with(":4"), "the id advances: {filtered:?}");
    api.stop().await;
}

#[fixture::test]
async fn wrong_input_is_refused_with_all_its_fields() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox, &["feed.max_readers=1"]).await;
    append(&api, "order", "1", &["Placed"]).await;
    until_head(&api, 1).await;

    let wrong = api.get("/v1/feed?aggregates=1x,&events=&wait=2m").await;
    let numbers = api.get("/v1/feed?after=-1&limit=0&unknown=1&wait=99d").await;
    let stream = api.request(Method::GET, "/v1/feed?limit=1&wait=1s");
    let stream = stream.header("accept", "text/event-stream").header("last-event-id", "x");
    let stream = Answer::of(stream).await;

    assert_eq!(wrong.wrong(), ["aggregates", "events", "wait"]);
    assert_eq!(numbers.wrong(), ["after", "limit", "unknown", "wait"]);
    assert_eq!(stream.wrong(), ["Last-Event-ID", "wait", "limit"]);
    let id = format!("{}:0", api.get(FEED).await.body["feed"].as_str().unwrap());
    let twice = api.request(Method::GET, FEED).header("accept", "text/event-stream");
    let twice = twice.header("last-event-id", &id).header("last-event-id", &id).send().await;
    assert_eq!(twice.unwrap().status(), 422);
    api.get("/v1/feed?after=2").await.is(409, "position_ahead");
    api.get("/v1/feed?after=1&feed=other").await.is(409, "wrong_feed");
    let first = api.request(Method::GET, FEED).header("accept", "text/event-stream");
    let first = first.send().await.unwrap();
    let second = api.request(Method::GET, FEED).header("accept", "text/event-stream");
    Answer::of(second).await.is(503, "overloaded");
    drop(first);
    api.stop().await;
}

#[fixture::test]
async fn next_of_parked_events_is_null_at_the_end() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox, &[]).await;
    append(&api, "order", "1", &["Placed", "Paid"]).await;
    until_head(&api, 2).await;
    let created = api.post("/v1/subscriptions", &json!({ "name": "all", "kind": "pull" })).await;
    assert_eq!(created.status, 201, "{created:?}");
    let pull = api.post("/v1/subscriptions/all/pull", &json!({ "member": "m" })).await;
    let lease = &pull.body["lease"];
    for position in [1, 2] {
        let event = json!({ "lease": lease, "position": position, "reason": "odd" });
        assert_eq!(api.post("/v1/subscriptions/all/park", &event).await.status, 200);
    }

    let page = async |query: &str| {
        let page = api.get(&format!("/v1/subscriptions/all/parked?{query}")).await.body;
        (positions(&page["items"]), page["next"].clone())
    };

    assert_eq!(page("limit=1").await, (vec![1], json!("1")));
    assert_eq!(page("limit=1&after=1").await, (vec![2], Value::Null));
    assert_eq!(page("limit=2").await, (vec![1, 2], Value::Null));
    api.stop().await;
}

#[fixture::test]
async fn feed_that_is_not_enabled_is_not_found() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    api.get(FEED).await.is(404, "not_found");

    api.stop().await;
}
