//! The calls of the API.

use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::{TestOutbox, eventually};

const ALL: &str = "/v1/subscriptions";

async fn start(outbox: &TestOutbox) -> Api {
    let api = Api::start(outbox, &["events.enabled=true", "feed.enabled=true"]).await;
    eventually("the feed", || async { api.get(ALL).await.status == 200 }).await;
    // (The sequencer creates the feed in its own time.)
    let probe = json!({ "name": "probe", "kind": "pull" });
    eventually("the feed", || async { api.post(ALL, &probe).await.status != 503 }).await;
    api.call(Method::DELETE, &format!("{ALL}/probe")).await;
    api
}

async fn append(api: &Api, id: &str, request: &str) {
    let body =
        json!({ "requestId": request, "events": [{ "name": "Placed", "body": { "n": 1 } }] });
    let answer = api.post(&format!("/v1/aggregates/order/{id}/events"), &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[fixture::test]
async fn subscription_is_created_read_acknowledged_and_deleted() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox).await;
    append(&api, "1", "a").await;
    append(&api, "2", "a").await;
    let created = api
        .post(
            ALL,
            &json!({ "name": "billing", "kind": "pull", "aggregates": ["order"], "lease": "20s" }),
        )
        .await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(created.body["state"], "running");
    assert_eq!(created.body["leaseMillis"], 20_000);
    api.post(ALL, &json!({ "name": "billing", "kind": "pull" }))
        .await
        .is(409, "subscription_exists");

    let pull = format!("{ALL}/billing/pull");
    let of_a = json!({ "member": "a", "wait": "10s" });
    let read = api.post(&pull, &of_a).await;
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!(read.body["items"][0]["position"], 1);
    assert_eq!(read.body["items"][0]["body"], json!({ "n": 1 }));
    let other = api.post(&pull, &json!({ "member": "b" })).await;
    other.is(409, "member_active");
    let seconds: u64 = other.header("retry-after").parse().unwrap();
    assert!((1..=20).contains(&seconds), "{seconds}");
    assert!(other.body["detail"].as_str().unwrap().contains("\"a\""), "{other:?}");

    let (ack, park) = (format!("{ALL}/billing/ack"), format!("{ALL}/billing/park"));
    let lease = &read.body["lease"];
    let parked = json!({ "lease": lease, "position": 1, "reason": "why" });
    assert_eq!(api.post(&park, &parked).await.body, json!({ "position": 1 }));
    let next = api.post(&pull, &of_a).await.body["next"].clone();
    let done = json!({ "lease": lease, "position": next });
    for _ in 0..2 {
        assert_eq!(api.post(&ack, &done).await.body, json!({ "position": next }));
    }
    let ahead = json!({ "lease": lease, "position": 99 });
    api.post(&ack, &ahead).await.is(409, "position_ahead");
    let behind = json!({ "lease": lease, "position": 1 });
    api.post(&ack, &behind).await.is(409, "position_behind");
    let listed = api.get(&format!("{ALL}/billing/parked")).await;
    assert_eq!(listed.body["items"][0]["reason"], "why");
    assert_eq!(api.get(ALL).await.body["items"][0]["lagEvents"], 0);

    let replayed = api.call(Method::POST, &format!("{ALL}/billing/replay?position=1")).await;
    assert_eq!((replayed.status, &replayed.body["position"]), (200, &json!(1)));
    api.post(&ack, &done).await.is(409, "lease_lost");
    api.call(Method::POST, &format!("{ALL}/billing/replay?position=99"))
        .await
        .is(409, "position_ahead");
    let paused = api.call(Method::POST, &format!("{ALL}/billing/pause")).await;
    assert_eq!(paused.body["state"], "paused");
    api.post(&pull, &of_a).await.is(409, "subscription_paused");
    let resumed = api.call(Method::POST, &format!("{ALL}/billing/resume")).await;
    assert_eq!(resumed.body["state"], "running");
    let discarded = api.call(Method::DELETE, &format!("{ALL}/billing/parked")).await;
    assert_eq!((discarded.status, discarded.body), (200, json!({ "discarded": 1 })));
    assert_eq!(api.call(Method::DELETE, &format!("{ALL}/billing")).await.status, 204);
    api.get(&format!("{ALL}/billing")).await.is(404, "not_found");
    api.post(&pull, &of_a).await.is(404, "not_found");
    api.stop().await;
}

/// An image, a link or a form of a web page sends none of what a pull requires.
#[fixture::test]
async fn lease_is_taken_by_post_of_json_only() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox).await;
    append(&api, "1", "a").await;
    api.post(ALL, &json!({ "name": "billing", "kind": "pull" })).await;
    let pull = format!("{ALL}/billing/pull");

    for method in [Method::GET, Method::POST] {
        let former = api.call(method, &format!("{ALL}/billing/events?member=intruder")).await;
        former.is(405, "method_not_allowed");
        assert_eq!(former.headers.get("allow").unwrap(), "");
        assert!(former.text.contains("POST /v1/subscriptions/{name}/pull"), "{former:?}");
    }
    let by_get = api.get(&pull).await;
    by_get.is(405, "method_not_allowed");
    assert_eq!(by_get.header("allow"), "POST");
    let form = api.request(Method::POST, &pull).body("{\"member\":\"intruder\"}");
    Answer::of(form.header("content-type", "text/plain")).await.is(415, "unsupported_media_type");
    assert_eq!(api.get(&format!("{ALL}/billing")).await.body.get("owner"), None);

    // A member whose answer was lost gets the same one again.
    let of_worker = json!({ "member": "worker", "wait": "10s" });
    let first = api.post(&pull, &of_worker).await;
    let again = api.post(&pull, &of_worker).await;
    assert_eq!((first.status, &first.body), (200, &again.body));
    assert_eq!(first.body["items"][0]["position"], 1);
    let park = json!({ "lease": first.body["lease"], "position": 1, "reason": "odd" });
    assert_eq!(api.post(&format!("{ALL}/billing/park"), &park).await.status, 200);
    // Who took the lease and what was parked is in the log, once each.
    api.postrider.until_logged("parked an event").await;
    let lines = api.postrider.lines();
    let found = |message| lines.iter().filter(|line| line["message"] == message).count();
    assert_eq!((found("a member took the lease"), found("parked an event")), (1, 1));
    let taken = lines.iter().find(|line| line["message"] == "a member took the lease").unwrap();
    assert_eq!((&taken["level"], &taken["member"]), (&json!("INFO"), &json!("worker")));
    api.stop().await;
}

#[fixture::test]
async fn wrong_input_is_reported_by_field() {
    let outbox = TestOutbox::new().await;
    let api = start(&outbox).await;
    let wrong = |body: Value| {
        let api = &api;
        async move {
            let answer = api.post(ALL, &body).await;
            answer.wrong().into_iter().map(str::to_owned).collect::<Vec<_>>()
        }
    };

    let all = wrong(json!({
        "name": "1x", "kind": "push", "after": -1, "aggregates": ["1"], "events": [""],
        "maxPending": 0, "lease": "x", "other": 1,
    }));
    let mut all = all.await;
    all.sort();
    assert_eq!(
        all,
        ["after", "aggregates", "destination", "events", "lease", "maxPending", "name", "other"]
    );
    let of_pull = wrong(
        json!({ "name": "a", "kind": "pull", "destination": "d", "maxPending": 1, "lease": "2h" }),
    );
    assert_eq!(of_pull.await, ["destination", "maxPending", "lease"]);
    let mut of_neither = wrong(json!({})).await;
    of_neither.sort();
    assert_eq!(of_neither, ["kind", "name"]);
    let ahead = json!({ "name": "a", "kind": "pull", "after": 1 });
    api.post(ALL, &ahead).await.is(409, "position_ahead");

    api.post(ALL, &json!({ "name": "billing", "kind": "pull" })).await;
    let pull = json!({ "limit": 0, "wait": "x" });
    let answer = api.post(&format!("{ALL}/billing/pull"), &pull).await;
    let mut fields = answer.wrong();
    fields.sort_unstable();
    assert_eq!(fields, ["limit", "member", "wait"]);
    let park = json!({ "lease": "x", "position": 0, "reason": "" });
    let answer = api.post(&format!("{ALL}/billing/park"), &park).await;
    let mut fields = answer.wrong();
    fields.sort_unstable();
    assert_eq!(fields, ["lease", "position", "reason"]);
    let answer = api.post(&format!("{ALL}/billing/ack"), &json!({ "lease": "x" })).await;
    let mut fields = answer.wrong();
    fields.sort_unstable();
    assert_eq!(fields, ["lease", "position"]);
    api.stop().await;
}

#[fixture::test]
async fn instance_without_a_feed_has_no_subscriptions() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["events.enabled=true"]).await;

    api.get(ALL).await.is(404, "not_found");
    let pull = api.post(&format!("{ALL}/billing/pull"), &json!({ "member": "a" })).await;
    pull.is(404, "not_found");
    api.stop().await;
}
