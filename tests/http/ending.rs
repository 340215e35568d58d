//! Ends and erasures over HTTP, by command, and through a crash.

use bson::{Document, doc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::call_with;
use crate::support::queue::mongo_settings;

/// (Some UUID may contain a shorter one.)
const SECRET: &str = "secret-of-ada";
const STREAM: &str = "/v1/aggregates/order/o-1";
const END: &str = "/v1/aggregates/order/o-1/end";
const ERASE: &str = "/v1/aggregates/order/o-1/erase";
const EVENTS: &str = "/v1/aggregates/order/o-1/events";
const SNAPSHOT: &str = "/v1/aggregates/order/o-1/snapshot";

fn append(request: &str) -> Value {
    json!({ "requestId": request, "events": [{ "name": "E", "body": { "who": SECRET } }] })
}

fn ending(request: &str) -> Value {
    json!({ "requestId": request, "reason": "the customer has left" })
}

async fn appended(api: &Api, request: &str) {
    assert_eq!(api.post(EVENTS, &append(request)).await.status, 201);
}

async fn leaks(outbox: &TestOutbox) -> usize {
    let database = outbox.client.database(&outbox.database);
    let mut found = 0;
    for collection in database.list_collection_names().await.unwrap() {
        let all = database.collection::<Document>(&collection).find(doc! {}).await.unwrap();
        let all: Vec<Document> = futures_util::TryStreamExt::try_collect(all).await.unwrap();
        found += all.iter().filter(|one| one.to_string().contains(SECRET)).count();
    }
    found
}

async fn settle(outbox: &TestOutbox) {
    let done = doc! { "$set": { "status": "done" } };
    outbox.records().update_many(doc! { "type": "E" }, done).await.unwrap();
}

#[fixture::test]
async fn ended_stream_is_gone_for_reads_and_conflicts_with_appends() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    api.post(END, &ending("e")).await.is(404, "not_found");
    appended(&api, "a").await;

    let done = api.post(END, &ending("e")).await;
    let again = api.post(END, &ending("e")).await;

    assert_eq!((done.status, &done.body["version"]), (201, &json!(2)), "{done:?}");
    assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
    assert_eq!(again.body["records"], done.body["records"]);
    for late in [api.post(END, &ending("f")).await, api.post(EVENTS, &append("b")).await] {
        late.is(409, "stream_ended");
        assert_eq!(late.body["actualVersion"], 2);
    }
    assert_eq!(api.post(EVENTS, &append("a")).await.status, 200);
    for path in ["", "?fromVersion=9", "/1", "/2", "/9", "/last", "/last?tenantId=t"] {
        let read = api.get(&format!("{EVENTS}{path}")).await;
        read.is(410, "stream_ended");
        assert_eq!(read.body["actualVersion"], 2, "{path}");
    }
    let request = api.request(Method::GET, EVENTS).header("accept", "application/x-ndjson");
    Answer::of(request).await.is(410, "stream_ended");
    api.get(SNAPSHOT).await.is(410, "stream_ended");
    let state = json!({ "version": 1, "state": {} });
    api.put(SNAPSHOT, &state).await.is(409, "stream_ended");
    // Queries by conditions go by documents.
    let all = json!({ "condition": { "operator": "ALL" } });
    let found = api.post("/v1/aggregates/order/events/count", &all).await;
    assert_eq!((found.status, &found.body["count"]), (200, &json!(2)), "{found:?}");
    assert_eq!(api.get("/v1/aggregates/order").await.body["items"], json!(["o-1"]));
    api.stop().await;
}

#[fixture::test]
async fn snapshot_of_an_ended_stream_is_gone() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    appended(&api, "a").await;
    let state = json!({ "version": 1, "state": { "who": SECRET } });
    assert_eq!(api.put(SNAPSHOT, &state).await.status, 200);
    assert_eq!(api.post(END, &ending("e")).await.status, 201);

    api.get(SNAPSHOT).await.is(410, "stream_ended");
    api.put(SNAPSHOT, &state).await.is(409, "stream_ended");

    let active = json!({ "condition": { "operator": "DELETED", "value": "ACTIVE" } });
    let found = api.post("/v1/aggregates/order/snapshots/count", &active).await;
    assert_eq!(found.body["count"], 0, "{found:?}");
    api.stop().await;
}

#[fixture::test]
async fn erasure_is_answered_with_its_state() {
    let outbox = TestOutbox::new().await;
    let tokens = "api.tokens=[{name=\"ops\", token=\"s3cret\", scopes=[\"admin\", \"append\"]}]";
    let api = Api::start(&outbox, &[tokens]).await;
    let post = async |path: &str, body: &Value| {
        Answer::of(api.request(Method::POST, path).bearer_auth("s3cret").json(body)).await
    };
    post(ERASE, &ending("x")).await.is(404, "not_found");
    post(EVENTS, &append("a")).await;
    post(EVENTS, &append("b")).await;

    let waiting = post(ERASE, &ending("x")).await;
    eventually("the open erasure is counted", || async {
        api.postrider.metric("postrider_erasures_open").await == Some(1.0)
    })
    .await;
    settle(&outbox).await;
    let again = post(ERASE, &ending("x")).await;

    assert_eq!(waiting.status, 202, "{waiting:?}");
    assert_eq!((&waiting.body["state"], &waiting.body["pending"]), (&json!("waiting"), &json!(2)));
    assert_eq!(again.status, 200, "{again:?}");
    let erased = json!({
        "versions": 2, "events": 2, "snapshot": false, "records": 2, "discarded": 0,
    });
    assert_eq!((&again.body["state"], &again.body["erased"]), (&json!("complete"), &erased));
    assert_eq!((&again.body["version"], &again.body["replayed"]), (&json!(3), &json!(true)));
    let unreachable = again.body["unreachable"].as_array().unwrap();
    assert!(unreachable.iter().any(|one| one["place"] == "backups"));
    post(ERASE, &ending("y")).await.is(409, "stream_ended");
    assert_eq!(leaks(&outbox).await, 0);
    let event = outbox.client.database(&outbox.database);
    let event = event.collection::<Document>("order_event_stream");
    let event = event.find_one(doc! { "version": 3 }).await.unwrap().unwrap();
    let event = event.get_array("body").unwrap()[0].as_document().unwrap().clone();
    assert_eq!(event.get_document("body").unwrap().get_str("actor").unwrap(), "ops");
    api.postrider.until_logged("completed the erasure of a stream").await;
    let lines = api.postrider.lines();
    let begun =
        lines.iter().find(|line| line["message"] == "started the erasure of a stream").unwrap();
    assert_eq!((&begun["actor"], &begun["level"]), (&json!("ops"), &json!("INFO")));
    assert_eq!(begun["reason"], "the customer has left");
    assert!(!api.postrider.stderr().contains(SECRET));
    eventually("no erasure is open", || async {
        api.postrider.metric("postrider_erasures_open").await == Some(0.0)
    })
    .await;
    assert_eq!(api.postrider.metric("postrider_erasures_completed_total").await, Some(1.0));
    api.stop().await;
}

#[fixture::test]
async fn pending_records_are_discarded_on_request() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    appended(&api, "a").await;
    let mut body = ending("x");
    body["discardPending"] = json!(true);

    let erased = api.post(ERASE, &body).await;

    assert_eq!((erased.status, &erased.body["erased"]["discarded"]), (200, &json!(1)));
    assert_eq!(leaks(&outbox).await, 0);
    assert_eq!(outbox.count(doc! { "type": "postrider.StreamErased" }).await, 1);
    api.stop().await;
}

#[fixture::test]
async fn flaws_of_an_end_are_reported_by_field() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    appended(&api, "a").await;
    let long = "x".repeat(1_001);
    for (body, wrong) in [
        (json!({}), vec!["requestId", "reason"]),
        (json!({ "requestId": "", "reason": "" }), vec!["requestId", "reason"]),
        (json!({ "requestId": 1, "reason": long, "why": 1 }), vec!["requestId", "reason", "why"]),
    ] {
        assert_eq!(api.post(END, &body).await.wrong(), wrong, "{body}");
        assert_eq!(api.post(ERASE, &body).await.wrong(), wrong, "{body}");
    }
    let body = json!({ "requestId": "", "reason": 5, "discardPending": "yes" });
    assert_eq!(api.post(ERASE, &body).await.wrong(), ["requestId", "reason", "discardPending"]);
    assert_eq!(api.post(END, &body).await.wrong(), ["requestId", "reason", "discardPending"]);
    let reserved = json!({
        "requestId": "r", "events": [{ "name": "postrider.StreamEnded", "body": {} }, { "name": "" }],
    });
    let wrong = api.post(EVENTS, &reserved).await;
    assert_eq!(wrong.wrong(), ["events[0].name", "events[1].name", "events[1].body"]);
    let name = api.post("/v1/aggregates/1x/o-1/end", &ending("e")).await;
    assert_eq!(name.wrong(), ["name"]);
    assert_eq!(api.get(&format!("{EVENTS}/last")).await.body["version"], 1);
    api.stop().await;
}

#[fixture::test]
async fn erasure_is_completed_by_another_process_after_a_crash() {
    for place in ["events::erased_page", "events::erased_records", "events::after_commit"] {
        let outbox = TestOutbox::new().await;
        let settings = mongo_settings(&outbox.database);
        let setup = Api::begin(&settings, "").await;
        setup.until_open().await;
        for number in 0..3 {
            appended(&setup, &number.to_string()).await;
        }
        setup.stop().await;
        // Many versions: several pages.
        let streams = outbox.client.database(&outbox.database);
        let streams = streams.collection::<Document>("order_event_stream");
        let first: Document = streams.find_one(doc! { "version": 3 }).await.unwrap().unwrap();
        let more = (4..=350).map(|version| {
            let mut stream = first.clone();
            stream.extend(doc! {
                "_id": uuid::Uuid::new_v4().to_string(), "version": version,
                "requestId": format!("m{version}"),
            });
            stream
        });
        streams.insert_many(more).await.unwrap();
        settle(&outbox).await;
        // At the second passage, or at the commit of the erasure.
        let passages = if place == "events::after_commit" { "return" } else { "1*off->return" };
        let mut killed = Api::begin(&settings, &format!("{place}={passages}")).await;
        killed.until_open().await;

        let lost = killed.request(Method::POST, ERASE).json(&ending("x")).send().await;
        assert!(lost.is_err(), "{place}: {lost:?}");
        killed.postrider.until_ended(std::time::Duration::from_secs(10)).await;
        let works = outbox.client.database(&outbox.database);
        let works = works.collection::<Document>("postrider_erasures");
        assert_eq!(works.count_documents(doc! {}).await.unwrap(), 1, "{place}");
        let api = Api::begin(&settings, "").await;
        api.until_open().await;

        // By itself.
        eventually("the erasure is complete", || async {
            works.count_documents(doc! {}).await.unwrap() == 0
        })
        .await;
        assert_eq!(leaks(&outbox).await, 0, "{place}");
        let erased = api.post(ERASE, &ending("x")).await;
        assert_eq!((erased.status, &erased.body["version"]), (200, &json!(351)), "{erased:?}");
        assert_eq!(erased.body["erased"]["versions"], 350, "{place}");
        assert_eq!(erased.body["erased"]["records"], 3, "{place}");
        api.get(EVENTS).await.is(410, "stream_ended");
        api.stop().await;
    }
}

#[fixture::test]
async fn commands_end_and_erase_a_stream() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    appended(&api, "a").await;
    let settings = mongo_settings(&outbox.database);
    let call = async |arguments: &[&str]| call_with(&settings, arguments).await;
    let request = ["--request-id", "e", "--reason", "it is over"];
    let end = [&["events", "end", "order", "o-1"], request.as_slice()].concat();

    let done = call(&end).await.with_code(0).json();
    let again = call(&end).await.with_code(0).json();
    let late = ["--request-id", "f", "--reason", "again"];
    let late = call(&[&["events", "end", "order", "o-1"], late.as_slice()].concat()).await;
    let unknown = call(&[&["events", "end", "order", "o-2"], request.as_slice()].concat()).await;
    let erase = ["--request-id", "x", "--reason", "asked", "--actor", "ops"];
    let erase = [&["events", "erase", "order", "o-1"], erase.as_slice()].concat();
    let waiting = call(&erase).await.with_code(0).json();
    let wrong = ["--request-id", "", "--reason", ""];
    let wrong = call(&[&["events", "end", "order", "o-1"], wrong.as_slice()].concat()).await;
    call(&["events", "erase", "order", "o-1", "--request-id", "x"]).await.with_code(2);

    assert_eq!((&done["version"], &again["replayed"]), (&json!(2), &json!(true)));
    let late = late.with_code(1);
    assert!(late.stderr.contains("the stream has ended, at version 2"), "{late}");
    let unknown = unknown.with_code(1);
    assert!(unknown.stderr.contains("unknown aggregate: order \"o-2\""), "{unknown}");
    assert_eq!((&waiting["state"], &waiting["version"]), (&json!("waiting"), &json!(3)));
    let wrong = wrong.with_code(2);
    for field in ["requestId: ", "reason: "] {
        assert!(wrong.stderr.contains(field), "{wrong}");
    }
    // The running process completes it, within a minute at most.
    outbox.records().update_many(doc! {}, doc! { "$set": { "status": "done" } }).await.unwrap();
    let complete = call(&erase).await.with_code(0).json();
    assert_eq!(complete["state"], "complete");
    api.get(&format!("{STREAM}/events")).await.is(410, "stream_ended");
    api.stop().await;
}
