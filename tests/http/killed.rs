//! A process dies in the middle of an append, and clients retry.

use bson::doc;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;
use crate::support::queue::mongo_settings;
use crate::support::replica_set::ReplicaSet;

const EVENTS: &str = "/v1/aggregates/order/1/events";

fn append(request: &str) -> Value {
    json!({ "requestId": request, "events": [{ "name": "E", "body": { "is": request } }] })
}

async fn start(uri: &str, outbox: &TestOutbox, fail_points: &str) -> Api {
    let mut settings = mongo_settings(&outbox.database);
    settings.push(format!("mongo.uri={uri}"));
    let api = Api::begin(&settings, fail_points).await;
    api.until_open().await;
    api
}

#[fixture::test]
async fn append_is_written_once_when_the_process_is_killed() {
    // The server ends transactions of dead clients soon: by default after a minute.
    let set = ReplicaSet::of(1).await;
    let soon = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 2 };
    set.direct(0).database("admin").run_command(soon).await.unwrap();
    for (place, is_there) in [("events::before_commit", false), ("events::after_commit", true)] {
        let outbox = TestOutbox::at(&set.uri()).await;
        // At the second request.
        let mut killed = start(&set.uri(), &outbox, &format!("{place}=1*off->return")).await;
        assert_eq!(killed.post(EVENTS, &append("a")).await.status, 201);

        let lost = killed.request(Method::POST, EVENTS).json(&append("b")).send().await;
        assert!(lost.is_err(), "{lost:?}");
        killed.postrider.until_ended(std::time::Duration::from_secs(10)).await;
        let api = start(&set.uri(), &outbox, "").await;
        let again = async || api.post(EVENTS, &append("b")).await;
        let mut answer: Answer = again().await;
        while answer.status == 503 {
            assert_eq!(answer.header("retry-after"), "1");
            answer = again().await;
        }

        assert_eq!(answer.status, if is_there { 200 } else { 201 }, "{place}: {answer:?}");
        assert_eq!(answer.body["version"], 2);
        let events = api.get(EVENTS).await.body;
        assert_eq!(events["items"].as_array().unwrap().len(), 2, "{place}");
        assert_eq!(outbox.count(doc! { "key": "1" }).await, 2, "{place}");
        api.stop().await;
    }
}

#[fixture::test]
async fn panicked_lane_ends_the_process_with_exit_code_1() {
    let outbox = TestOutbox::new().await;
    let settings = mongo_settings(&outbox.database);
    let mut api = Api::begin(&settings, "events::group=panic").await;
    api.until_open().await;

    let answer = api.request(Method::POST, EVENTS).json(&append("a")).send().await;

    // Cut or refused.
    assert!(answer.is_err() || answer.unwrap().status().as_u16() == 503);
    let limit = std::time::Duration::from_secs(30);
    let ended = api.postrider.until_ended(limit).await.with_code(1);
    assert!(ended.stderr.contains("a lane of the event store ended unexpectedly"), "{ended}");
}
