//! Tokens with one limit: each limit holds without the others.

use reqwest::Method;
use serde_json::{Value, json};

use crate::api::Api;
use crate::limited::{Row, others, populate, send, streams};
use crate::support::outbox::TestOutbox;

const TOKENS: &str = "api.tokens=[\"all-of-it\", \
    {name=\"aggregates\", token=\"aggregates\", aggregates=[\"order\"]}, \
    {name=\"tenants\", token=\"tenants\", tenants=[\"a\"]}, \
    {name=\"records\", token=\"records\", types=[\"Order*\"], destinations=[\"orders.*\"]}, \
    {name=\"subscriptions\", token=\"subscriptions\", subscriptions=[\"b*\"]}]";

/// The part of the API that a call reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Streams,
    Records,
    Subscriptions,
    /// What cannot be limited.
    Whole,
}

fn part(row: &Row) -> Part {
    let is_of = |start: &str| row.path.starts_with(start);
    if is_of("/v1/aggregates/") || is_of("/wow/") || is_of("/v1/feed") {
        Part::Streams
    } else if is_of("/v1/outbox/records") {
        Part::Records
    } else if is_of("/v1/subscriptions/") {
        Part::Subscriptions
    } else {
        Part::Whole
    }
}

/// The status by which a token with this limit alone is refused.
fn refusal(token: &str, row: &Row) -> Option<u16> {
    let has = |text: &str| row.path.contains(text);
    let member = |name: &str| row.body.as_ref().and_then(|body| body[name].as_str());
    let is_foreign = |ids: &[&str]| ids.iter().any(|id| has(id)).then_some(404);
    let (covered, refused) = match token {
        "aggregates" => (vec![Part::Streams], has("person").then_some(403)),
        "tenants" => {
            let names_b = has("tenantId=b") || has("tenant/b") || member("tenantId") == Some("b");
            let of_b = is_foreign(&["/b-1/", "/b-2/", "records/tenant"]);
            let refused = names_b.then_some(403).or(of_b.filter(|_| row.status == 404));
            (vec![Part::Streams, Part::Records], refused)
        }
        "records" => {
            let beyond = member("type") == Some("Invoice")
                || member("destination").is_some_and(|it| it.starts_with("secret"));
            let of_others = is_foreign(&["records/type", "records/destination"]);
            (vec![Part::Records], beyond.then_some(403).or(of_others))
        }
        _ => (vec![Part::Subscriptions], has("/subscriptions/other").then_some(403)),
    };
    if covered.contains(&part(row)) { refused } else { Some(403) }
}

#[fixture::test]
async fn each_limit_holds_without_the_others() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[TOKENS, "feed.enabled=true", "api.wow_routes=true"]).await;
    populate(&outbox, &api).await;
    let rows: Vec<Row> = streams().into_iter().chain(others()).collect();

    for token in ["aggregates", "tenants", "records", "subscriptions"] {
        let (mut refused, mut foreign) = (0, 0);
        for row in &rows {
            let Some(status) = refusal(token, row) else { continue };
            let Row { call, method, path, body, .. } = row;
            let answer = send(&api, token, method.clone(), path, body.as_ref()).await;

            assert_eq!(answer.status, status, "{token}: {call} {path} {body:?}: {answer:?}");
            refused += usize::from(status == 403);
            foreign += usize::from(status == 404);
        }
        assert!(refused > 20, "{token}: {refused}");
        assert_eq!(foreign > 0, matches!(token, "tenants" | "records"), "{token}");
    }
    api.stop().await;
}

/// The request id of an append to another tenant's stream, where ids are unique in the whole context.
#[fixture::test]
async fn used_request_id_names_no_stream_of_another_tenant() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[TOKENS, "events.request_id_unique=global"]).await;
    let append = |tenant: &str, request: &str| {
        let event = json!({ "name": "OrderPlaced", "body": {} });
        json!({ "requestId": request, "tenantId": tenant, "events": [event] })
    };
    for (id, tenant, request) in [("a-7", "a", "of-a"), ("b-7", "b", "of-b")] {
        let path = format!("/v1/aggregates/order/{id}/events");
        let body = append(tenant, request);
        let answer = send(&api, "all-of-it", Method::POST, &path, Some(&body)).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let over = json!({ "requestId": "of-b", "reason": "over" });
    let calls: [(&str, Value); 3] =
        [("events", append("a", "of-b")), ("end", over.clone()), ("erase", over)];

    for (call, body) in calls {
        let path = format!("/v1/aggregates/order/a-7/{call}");
        let answer = send(&api, "tenants", Method::POST, &path, Some(&body)).await;
        answer.is(409, "duplicate_request");
        assert!(!answer.text.contains("b-7"), "{answer:?}");
        let answer = send(&api, "all-of-it", Method::POST, &path, Some(&body)).await;
        answer.is(409, "duplicate_request");
        assert!(answer.text.contains("b-7"), "{answer:?}");
    }
    api.stop().await;
}
