//! Prepare keys.

use bson::DateTime;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::Api;
use crate::support::outbox::{TestOutbox, eventually};

const ADA: &str = "/v1/prepare/username/ada";

fn held(value: &Value) -> Value {
    json!({ "key": "ada", "value": value, "ttlAt": null })
}

#[fixture::test]
async fn key_is_prepared_read_changed_and_rolled_back() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let (one, two) = (json!({ "value": 1 }), json!({ "value": { "a": 1, "b": 2 } }));
    api.get(ADA).await.is(404, "not_found");
    api.put(ADA, &one).await.is(404, "not_found");
    api.put(ADA, &json!({ "oldValue": 1, "value": 1 })).await.is(404, "not_found");
    api.call(Method::DELETE, ADA).await.is(404, "not_found");
    api.call(Method::DELETE, &format!("{ADA}?value=1")).await.is(404, "not_found");

    let taken = api.post(ADA, &one).await;
    assert_eq!((taken.status, taken.body), (201, held(&json!(1))));
    api.post(ADA, &two).await.is(409, "already_prepared");
    assert_eq!(api.get(ADA).await.body, held(&json!(1)));

    let mismatch = json!({ "oldValue": 2, "value": 3 });
    api.put(ADA, &mismatch).await.is(409, "value_mismatch");
    let changed = json!({ "oldValue": 1.0, "value": { "a": 1, "b": 2 } });
    let changed = api.put(ADA, &changed).await;
    assert_eq!((changed.status, changed.body), (200, held(&json!({ "a": 1, "b": 2 }))));

    let others = ["1", "{", "null", "%7B%22a%22:1%7D"];
    for other in others {
        let answer = api.call(Method::DELETE, &format!("{ADA}?value={other}")).await;
        answer.is(409, "value_mismatch");
    }
    let same = api.call(Method::DELETE, &format!("{ADA}?value=%7B%22b%22:2,%22a%22:1%7D")).await;
    assert_eq!((same.status, same.text.as_str()), (204, ""));
    api.get(ADA).await.is(404, "not_found");
    api.stop().await;
}

#[fixture::test]
async fn value_may_be_any_json() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (value, as_parameter) in [
        (json!({ "$oid": "65a000000000000000000000" }), None),
        (json!({ "$numberLong": "5" }), Some("%7B%22$numberLong%22:%225%22%7D")),
        (json!([{ "$date": 1 }, null]), None),
        (json!(null), Some("null")),
        (json!(""), Some("")),
        (json!("ada"), Some("ada")),
        (json!("5"), Some("%225%22")),
        (json!(5), Some("5")),
        (json!("$$ROOT"), Some("$$ROOT")),
    ] {
        let taken = api.post(ADA, &json!({ "value": value })).await;
        assert_eq!((taken.status, taken.body), (201, held(&value)));
        let same = json!({ "oldValue": value, "value": value });
        assert_eq!(api.put(ADA, &same).await.body, held(&value));
        assert_eq!(api.get(ADA).await.body, held(&value));
        let query = as_parameter.map(|text| format!("?value={text}")).unwrap_or_default();
        let gone = api.call(Method::DELETE, &format!("{ADA}{query}")).await;
        assert_eq!(gone.status, 204, "{value} {gone:?}");
    }
    api.stop().await;
}

#[fixture::test]
async fn key_has_the_requested_end() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let end = |body: &Value| DateTime::parse_rfc3339_str(body["ttlAt"].as_str().unwrap()).unwrap();
    let from_now = |end: DateTime| end.timestamp_millis() - DateTime::now().timestamp_millis();

    let taken = api.post(ADA, &json!({ "value": 1, "ttl": "1h30m" })).await;
    assert_eq!(taken.status, 201, "{taken:?}");
    assert!((5_300_000..5_500_000).contains(&from_now(end(&taken.body))), "{taken:?}");
    assert_eq!(api.get(ADA).await.body, taken.body);

    let at = json!({ "value": 1, "ttlAt": "2100-01-01T00:00:00Z" });
    let expected = json!({ "key": "ada", "value": 1, "ttlAt": "2100-01-01T00:00:00Z" });
    assert_eq!(api.put(ADA, &at).await.body, expected);
    let millis = json!({ "value": 1, "ttlAt": 4_102_444_800_000_i64 });
    assert_eq!(api.put(ADA, &millis).await.body, expected);
    assert_eq!(api.get(ADA).await.body, expected);
    // For ever without an end, and with one in some thousand years.
    assert_eq!(api.put(ADA, &json!({ "value": 1 })).await.body, held(&json!(1)));
    assert_eq!(api.put(ADA, &json!({ "value": 1, "ttlAt": i64::MAX })).await.body, held(&json!(1)));
    assert_eq!(api.get(ADA).await.body, held(&json!(1)));

    let brief = api.put(ADA, &json!({ "value": 1, "ttl": "1ms" })).await;
    assert_eq!(brief.status, 200, "{brief:?}");
    let expired = || async { api.get(ADA).await.status == 404 };
    eventually("the key to expire", expired).await;
    api.put(ADA, &json!({ "value": 2 })).await.is(404, "not_found");
    api.call(Method::DELETE, ADA).await.is(404, "not_found");
    // A past end is now.
    let past = api.post(ADA, &json!({ "value": 2, "ttlAt": i64::MIN })).await;
    assert_eq!(past.status, 201, "{past:?}");
    assert!(from_now(end(&past.body)).abs() < 60_000, "{past:?}");
    eventually("the key to expire", expired).await;
    assert_eq!(api.post(ADA, &json!({ "value": 3 })).await.status, 201);
    api.stop().await;
}

#[fixture::test]
async fn flaws_of_a_key_are_reported_by_field() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (body, wrong) in [
        (json!({}), vec!["value"]),
        (json!({ "value": 1, "ttl": "1s", "ttlAt": 1 }), vec!["ttl"]),
        (json!({ "value": 1, "ttl": 30 }), vec!["ttl"]),
        (json!({ "value": 1, "ttl": "30" }), vec!["ttl"]),
        (json!({ "value": 1, "ttl": "101years" }), vec!["ttl"]),
        (json!({ "value": 1, "ttlAt": "30s" }), vec!["ttlAt"]),
        (json!({ "value": { "a\u{0}": 1 }, "x": 1 }), vec!["value.a\u{0}", "x"]),
    ] {
        assert_eq!(api.post(ADA, &body).await.wrong(), wrong, "{body}");
        assert_eq!(api.put(ADA, &body).await.wrong(), wrong, "{body}");
    }
    assert_eq!(api.post(ADA, &json!({ "value": 1, "oldValue": 1 })).await.wrong(), ["oldValue"]);
    let twice = "?value=%7B%22a%22:1,%22a%22:2%7D";
    assert_eq!(api.call(Method::DELETE, &format!("{ADA}{twice}")).await.wrong(), ["value"]);
    assert_eq!(api.call(Method::DELETE, &format!("{ADA}?old=1")).await.wrong(), ["old"]);
    assert_eq!(api.get("/v1/prepare/1/ada").await.wrong(), ["name"]);
    assert_eq!(api.get(&format!("/v1/prepare/u/{}", "x".repeat(256))).await.wrong(), ["key"]);
    api.get(ADA).await.is(404, "not_found");
    api.stop().await;
}

#[fixture::test]
async fn one_of_several_clients_prepares_a_key() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let bodies: Vec<Value> = (0..20).map(|who| json!({ "value": who })).collect();

    let answers = futures_util::future::join_all(bodies.iter().map(|body| api.post(ADA, body)));
    let answers = answers.await;

    let winners: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(winners.len(), 1);
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        answer.is(409, "already_prepared");
    }
    assert_eq!(api.get(ADA).await.body, winners[0].body);
    api.stop().await;
}
