//! Versions as entity tags, and the conditions of appends.

use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::limits::behind_a_proxy;
use crate::support::fault_proxy::ProxyFault;
use crate::support::outbox::{TestOutbox, eventually};

const EVENTS: &str = "/v1/aggregates/order/o-1/events";
const SNAPSHOT: &str = "/v1/aggregates/order/o-1/snapshot";

type Headers<'a> = &'a [(&'a str, &'a str)];

async fn call(api: &Api, method: Method, path: &str, headers: Headers<'_>, body: Value) -> Answer {
    let request = api.request(method, path);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    Answer::of(if body.is_null() { request } else { request.json(&body) }).await
}

async fn append(api: &Api, request: &str, headers: Headers<'_>, expected: Value) -> Answer {
    let mut body = json!({ "requestId": request, "events": [{ "name": "E", "body": {} }] });
    if !expected.is_null() {
        body["expectedVersion"] = expected;
    }
    call(api, Method::POST, EVENTS, headers, body).await
}

async fn read(api: &Api, path: &str, known: &str) -> Answer {
    call(api, Method::GET, path, &[("if-none-match", known)], Value::Null).await
}

#[fixture::test]
async fn append_is_conditional_by_the_tag_of_a_read() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    for version in 1..=3 {
        let tag = api.get(EVENTS).await.header("etag").to_owned();
        assert_eq!(tag, format!("\"{}\"", version - 1));
        let done = append(&api, &version.to_string(), &[("if-match", &tag)], json!(null)).await;

        assert_eq!((done.status, done.header("etag")), (201, &*format!("\"{version}\"")));
    }
    let again = append(&api, "2", &[("if-match", "\"1\"")], json!(null)).await;
    assert_eq!((again.status, again.header("etag")), (200, "\"2\""), "a repeated request");
    assert_eq!(append(&api, "4", &[("if-match", "*")], json!(null)).await.status, 201);
    assert_eq!(api.get(&format!("{EVENTS}/last")).await.header("etag"), "\"4\"");
    api.stop().await;
}

#[fixture::test]
async fn unmet_condition_is_412_by_header_and_409_by_field() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    let absent = append(&api, "0", &[("if-match", "*")], json!(null)).await;
    absent.is(412, "version_conflict");
    assert_eq!(absent.body["actualVersion"], 0);
    let first = append(&api, "1", &[("if-none-match", "*")], json!(null)).await;
    assert_eq!(first.status, 201, "{first:?}");
    for (headers, field, status, code) in [
        (&[("if-match", "\"2\"")][..], json!(null), 412, "version_conflict"),
        (&[("if-match", "\"0\"")], json!(null), 412, "duplicate_aggregate"),
        (&[("if-none-match", "*")], json!(null), 412, "duplicate_aggregate"),
        (&[], json!(2), 409, "version_conflict"),
        (&[("if-match", "\"2\"")], json!(2), 409, "version_conflict"),
        (&[("if-none-match", "*")], json!("none"), 409, "duplicate_aggregate"),
    ] {
        let answer = append(&api, "2", headers, field.clone()).await;

        answer.is(status, code);
        assert_eq!(answer.body["actualVersion"], 1, "{headers:?} {field}");
    }
    let both = append(&api, "2", &[("if-match", "\"1\"")], json!(1)).await;
    assert_eq!(both.status, 201, "{both:?}");
    let end = json!({ "requestId": "e", "reason": "over" });
    assert_eq!(api.post("/v1/aggregates/order/o-1/end", &end).await.status, 201);
    let ended = append(&api, "3", &[("if-match", "\"2\"")], json!(null)).await;
    ended.is(409, "stream_ended");
    api.stop().await;
}

#[fixture::test]
async fn invalid_condition_is_refused_with_what_is_accepted() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;

    for (headers, field, wrong, words) in [
        (
            &[("if-match", "W/\"1\"")][..],
            json!(null),
            "If-Match",
            "must be one version in double quotes",
        ),
        (&[("if-match", "\"1\", \"2\"")], json!(null), "If-Match", "several tags"),
        (&[("if-match", "1")], json!(null), "If-Match", "such as \"7\""),
        (&[("if-match", "\"x\"")], json!(1), "If-Match", "such as \"7\""),
        (&[("if-match", "\"007\"")], json!(null), "If-Match", "such as \"7\""),
        (&[("if-none-match", "\"1\"")], json!(null), "If-None-Match", "must be *"),
        (
            &[("if-match", "\"1\""), ("if-none-match", "*")],
            json!(null),
            "If-None-Match",
            "If-Match",
        ),
        (&[("if-match", "\"1\"")], json!(2), "expectedVersion", "header If-Match"),
        (&[("if-match", "*")], json!("any"), "expectedVersion", "header If-Match"),
        (&[("if-none-match", "*")], json!(1), "expectedVersion", "header If-None-Match"),
    ] {
        let answer = append(&api, "r", headers, field.clone()).await;

        assert_eq!(answer.wrong(), [wrong], "{headers:?} {field}");
        assert!(answer.body["detail"].as_str().unwrap().contains(words), "{answer:?}");
    }
    let all = call(&api, Method::POST, EVENTS, &[("if-match", "1")], json!({ "events": [] })).await;
    assert_eq!(all.wrong(), ["requestId", "If-Match", "events"], "all flaws at once");
    assert_eq!(api.get(EVENTS).await.body["items"], json!([]));
    api.stop().await;
}

#[fixture::test]
async fn call_without_conditions_refuses_one() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["feed.enabled=true"]).await;
    let end = json!({ "requestId": "e", "reason": "over" });

    for (method, path, body) in [
        (Method::POST, "/v1/outbox/records", json!({ "type": "T", "payload": 1 })),
        (Method::POST, "/v1/aggregates/order/o-1/end", end.clone()),
        (Method::POST, "/v1/aggregates/order/o-1/erase", end),
        (Method::PUT, SNAPSHOT, json!({ "version": 1, "state": {} })),
        (Method::PUT, "/v1/prepare/username/ada", json!({ "value": 1 })),
        (Method::DELETE, "/v1/prepare/username/ada", Value::Null),
        (Method::POST, "/v1/relay/pause", Value::Null),
    ] {
        let headers = [("if-match", "\"1\""), ("if-none-match", "*")];
        let answer = call(&api, method, path, &headers, body).await;

        assert_eq!(answer.wrong(), ["If-Match", "If-None-Match"], "{path}");
    }
    api.stop().await;
}

#[fixture::test]
async fn read_is_304_while_the_version_is_the_same() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for request in ["1", "2"] {
        assert_eq!(append(&api, request, &[], json!(null)).await.status, 201);
    }
    let (last, second) = (format!("{EVENTS}/last"), format!("{EVENTS}/2"));

    for path in [EVENTS, &last, &second] {
        for known in ["\"2\"", "W/\"2\"", "\"1\", \"2\"", "*"] {
            let same = read(&api, path, known).await;
            assert_eq!(
                (same.status, &*same.text, same.header("etag")),
                (304, "", "\"2\""),
                "{path} {known}"
            );
            assert_eq!(same.header("vary"), if path == EVENTS { "Accept" } else { "" });
        }
        for known in ["\"1\"", "2", "\"20\""] {
            let other = read(&api, path, known).await;
            assert_eq!((other.status, other.header("etag")), (200, "\"2\""), "{path} {known}");
            assert_eq!(other.header("vary"), if path == EVENTS { "Accept" } else { "" });
        }
    }
    assert_eq!(append(&api, "3", &[], json!(null)).await.status, 201);
    assert_eq!(read(&api, EVENTS, "\"2\"").await.body["items"].as_array().unwrap().len(), 3);
    assert_eq!(read(&api, &last, "\"2\"").await.header("etag"), "\"3\"");
    assert_eq!(read(&api, &second, "\"2\"").await.status, 304, "an append does not change");
    let part = api.get(&format!("{EVENTS}?limit=1&toVersion=2&tenantId=t")).await;
    assert_eq!(part.header("etag"), "\"3\"", "the version of the aggregate, not of the part");
    read(&api, "/v1/aggregates/order/none/events/last", "*").await.is(404, "not_found");
    api.stop().await;
}

#[fixture::test]
async fn list_of_events_ends_at_its_version() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_proxy(&outbox, &[]).await;
    let other = Api::start(&outbox, &[]).await;
    assert_eq!(append(&other, "1", &[], json!(null)).await.status, 201);
    // The second read, of the events; the first one is of a single document.
    proxy.on_request("batchSize", ProxyFault::Freeze);
    let reading = tokio::spawn(Answer::of(api.request(Method::GET, EVENTS)));
    eventually("the read to be held", || async { proxy.has_caught() }).await;

    assert_eq!(append(&other, "2", &[], json!(null)).await.status, 201);
    proxy.open();

    let list = reading.await.unwrap();
    assert_eq!((list.status, list.header("etag")), (200, "\"1\""));
    assert_eq!(list.body["items"].as_array().unwrap().len(), 1, "{list:?}");
    other.stop().await;
    api.stop().await;
}

#[fixture::test]
async fn snapshot_has_its_version_as_tag_and_is_always_sent() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let snapshot = |version, total| json!({ "version": version, "state": { "total": total } });

    for (version, total, stored) in [(2, 1, "\"2\""), (2, 5, "\"2\""), (1, 9, "\"2\"")] {
        let saved = api.put(SNAPSHOT, &snapshot(version, total)).await;
        assert_eq!((saved.status, saved.header("etag")), (200, stored), "{saved:?}");
    }
    let loaded = read(&api, SNAPSHOT, "\"2\"").await;

    assert_eq!((loaded.status, loaded.header("etag")), (200, "\"2\""));
    assert_eq!(loaded.body["state"]["total"], 5, "the state was replaced under the same version");
    api.stop().await;
}
