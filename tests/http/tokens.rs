//! Tokens and scopes.

use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;

const TOKENS: &str = "api.tokens=[\"all-of-it\", {name=\"writer\", token=\"w-s3cret\", \
    scopes=[\"append\"]}, {name=\"reader\", token=\"r-s3cret\", scopes=[\"read\"]}, \
    {name=\"admin\", token=\"a-s3cret\", scopes=[\"admin\"]}]";

async fn as_holder(
    api: &Api,
    token: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let request = api.request(Method::from_bytes(method.as_bytes()).unwrap(), path);
    let request = request.bearer_auth(token);
    Answer::of(match body {
        Some(body) => request.json(body),
        None => request,
    })
    .await
}

#[fixture::test]
async fn scope_permits_its_own_calls_only() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[TOKENS]).await;
    let record = json!({ "type": "T", "payload": 1 });
    let event = json!({ "requestId": "r", "events": [{ "name": "E", "body": {} }] });
    let (snapshot, value) = (json!({ "version": 1, "state": {} }), json!({ "value": 1 }));
    let end = json!({ "requestId": "e", "reason": "over" });
    let erase = json!({ "requestId": "x", "reason": "asked" });
    // These two do not succeed twice.
    let key = "/v1/prepare/username/ada";
    let taken = as_holder(&api, "w-s3cret", "POST", key, Some(&value)).await;
    assert_eq!(taken.status, 201, "{taken:?}");
    for (method, body) in [("POST", Some(&value)), ("DELETE", None)] {
        for token in ["r-s3cret", "a-s3cret"] {
            as_holder(&api, token, method, key, body).await.is(403, "forbidden");
        }
    }
    for (scope, method, path, body) in [
        ("append", "POST", "/v1/outbox/records", Some(&record)),
        ("append", "POST", "/v1/aggregates/order/1/events", Some(&event)),
        ("read", "GET", "/v1/outbox/records", None),
        ("read", "GET", "/v1/outbox/stats", None),
        ("read", "GET", "/v1/outbox/groups?by=type", None),
        ("read", "GET", "/v1/aggregates/order/1/events", None),
        ("append", "PUT", "/v1/aggregates/order/1/snapshot", Some(&snapshot)),
        ("read", "GET", "/v1/aggregates/order/1/snapshot", None),
        ("append", "PUT", "/v1/prepare/username/ada", Some(&value)),
        ("read", "GET", "/v1/prepare/username/ada", None),
        ("read", "GET", "/v1/instances", None),
        ("admin", "POST", "/v1/relay/pause", None),
        ("admin", "POST", "/v1/relay/resume", None),
        ("admin", "POST", "/v1/outbox/requeue", Some(&json!({}))),
        ("admin", "POST", "/v1/aggregates/order/1/end", Some(&end)),
        ("admin", "POST", "/v1/aggregates/order/1/erase", Some(&erase)),
    ] {
        for (holds, token) in [("append", "w-s3cret"), ("read", "r-s3cret"), ("admin", "a-s3cret")]
        {
            let answer = as_holder(&api, token, method, path, body).await;
            if holds == scope {
                assert!(answer.status < 300, "{method} {path} {holds}: {answer:?}")
            } else {
                answer.is(403, "forbidden")
            }
        }
        let answer = as_holder(&api, "all-of-it", method, path, body).await;
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
        for wrong in ["w-s3cre", "w-s3cret2", "W-s3cret", "x"] {
            let answer = as_holder(&api, wrong, method, path, body).await;
            answer.is(401, "unauthorized");
            assert!(answer.header("www-authenticate").starts_with("Bearer"));
        }
    }
    api.stop().await;
}

#[fixture::test]
async fn members_need_the_scope_consume() {
    let outbox = TestOutbox::new().await;
    let member = "{name=\"member\", token=\"m-s3cret\", scopes=[\"consume\"]}]";
    let tokens = TOKENS.replace("]}]", &format!("]}}, {member}"));
    let api = Api::start(&outbox, &[&tokens]).await;
    for (call, body) in [
        ("pull", json!({ "member": "m" })),
        ("ack", json!({ "lease": "u.1.m", "position": 1 })),
        ("park", json!({ "lease": "u.1.m", "position": 1, "reason": "odd" })),
    ] {
        let path = format!("/v1/subscriptions/billing/{call}");
        for token in ["w-s3cret", "r-s3cret", "a-s3cret"] {
            let refused = as_holder(&api, token, "POST", &path, Some(&body)).await;
            refused.is(403, "forbidden");
            assert!(refused.text.contains("lacks the scope consume"), "{refused:?}");
        }
        // (There is no feed, and so no subscription.)
        for token in ["m-s3cret", "all-of-it"] {
            as_holder(&api, token, "POST", &path, Some(&body)).await.is(404, "not_found");
        }
    }
    let list = "/v1/subscriptions";
    as_holder(&api, "m-s3cret", "GET", list, None).await.is(403, "forbidden");
    api.stop().await;
}

/// All described calls: a new one without a scope is found here.
#[fixture::test]
async fn all_calls_but_the_description_require_a_token() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[TOKENS]).await;

    let description = api.get("/openapi.json").await;

    assert_eq!(description.status, 200);
    let mut calls = 0;
    for (path, methods) in description.body["paths"].as_object().unwrap() {
        let path = path.replace("{version}", "1").replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            api.call(method, &path).await.is(401, "unauthorized");
            calls += 1;
        }
    }
    assert!(calls >= 24, "{calls}");
    api.stop().await;
}

#[fixture::test]
async fn refused_logins_are_logged_in_one_line_with_the_peer() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[TOKENS]).await;
    // (The first request, before the API was open, had no token.)
    for guess in ["guess-1", "guess-2"] {
        let path = "/v1/outbox/records";
        as_holder(&api, guess, "GET", path, None).await.is(401, "unauthorized");
    }

    // The line of this write follows those of the guesses.
    as_holder(&api, "a-s3cret", "POST", "/v1/relay/pause", None).await;
    api.postrider.until_logged("changed the pause of the relay").await;

    let lines = api.postrider.lines();
    let about = |line: &&Value| line["message"] == "refused requests without a known token";
    let refused: Vec<&Value> = lines.iter().filter(about).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!((&refused[0]["level"], &refused[0]["refused"]), (&json!("WARN"), &json!(1)));
    assert!(refused[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{refused:?}");
    assert!(!api.postrider.stderr().contains("guess"));
    api.stop().await;
}

#[fixture::test]
async fn writes_are_logged_with_the_name_of_the_token() {
    let outbox = TestOutbox::new().await;
    let settings = [TOKENS, "log.level=trace"];
    let api = Api::start(&outbox, &settings).await;

    let request = api.request(Method::POST, "/v1/relay/pause").bearer_auth("a-s3cret");
    let answer = Answer::of(request.header("x-request-id", "my-own-id")).await;
    as_holder(
        &api,
        "w-s3cret",
        "POST",
        "/v1/outbox/records",
        Some(&json!({ "type": "T", "payload": 1 })),
    )
    .await;

    assert_eq!((answer.status, answer.header("x-request-id")), (200, "my-own-id"));
    // The log arrives after the answer.
    api.postrider.until_logged("\"actor\":\"writer\"").await;
    let lines = api.postrider.lines();
    let act = lines.iter().find(|line| line["actor"] == "admin").unwrap();
    assert_eq!(act["level"], "INFO");
    assert_eq!(act["span"]["request_id"], "my-own-id");
    assert!(lines.iter().any(|line| line["actor"] == "writer" && line["level"] == "DEBUG"));
    let stderr = api.postrider.stderr();
    assert!(!stderr.contains("s3cret"), "{stderr}");
    api.stop().await;
}
