//! Collections that cannot be used are reported with remedies.

use mongodb::IndexModel;
use mongodb::bson::doc;
use postrider::context::{CollectionKind, Context, ContextSettings};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;

/// One write of each kind, with the options of the command for its collection.
fn writes() -> [(&'static str, &'static str, Value, &'static str); 3] {
    let event = json!({ "requestId": "r", "events": [{ "name": "E", "body": {} }] });
    [
        ("POST", "/v1/aggregates/order/1/events", event, "--aggregate order"),
        (
            "PUT",
            "/v1/aggregates/order/1/snapshot",
            json!({ "version": 1, "state": {} }),
            "--aggregate order",
        ),
        ("POST", "/v1/prepare/username/ada", json!({ "value": 1 }), "--prepare username"),
    ]
}

async fn write(api: &Api, method: &str, path: &str, body: &Value) -> Answer {
    Answer::of(api.request(Method::from_bytes(method.as_bytes()).unwrap(), path).json(body)).await
}

#[track_caller]
fn is_reported(answer: &Answer, words: &str) {
    answer.is(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert!(answer.body["detail"].as_str().unwrap().contains(words), "{answer:?}");
}

#[fixture::test]
async fn missing_schema_is_reported_with_its_command() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["outbox.auto_init_schema=false"]).await;
    for (method, path, body, target) in writes() {
        let answer = write(&api, method, path, &body).await;

        is_reported(&answer, &format!("run `postrider schema apply {target}`"));
    }

    let context = Context::new(outbox.client.clone(), ContextSettings::new(&outbox.database));
    for (kind, name) in [
        (CollectionKind::Events, "order"),
        (CollectionKind::Snapshots, "order"),
        (CollectionKind::Prepare, "username"),
    ] {
        context.apply(kind, name).await.unwrap();
    }

    for (method, path, body, _) in writes() {
        let answer = write(&api, method, path, &body).await;
        assert!(answer.status < 300, "{answer:?}");
    }
    api.stop().await;
}

#[fixture::test]
async fn conflicting_index_is_named() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let keys = outbox.client.database(&outbox.database).collection::<Value>("prepare_username");
    // The same index without an expiry.
    keys.create_index(IndexModel::builder().keys(doc! { "ttlAt": 1 }).build()).await.unwrap();

    let answer = api.post("/v1/prepare/username/ada", &json!({ "value": 1 })).await;

    is_reported(&answer, "cannot create index ttlAt_1 of collection prepare_username");
    api.stop().await;
}

#[fixture::test]
async fn database_of_another_context_is_named() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let settings =
        ContextSettings { name: "other".into(), ..ContextSettings::new(&outbox.database) };
    Context::new(outbox.client.clone(), settings)
        .apply(CollectionKind::Prepare, "email")
        .await
        .unwrap();

    for (method, path, body, _) in writes() {
        is_reported(&write(&api, method, path, &body).await, "belongs to the context \"other\"");
    }
    api.stop().await;
}
