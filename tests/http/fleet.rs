//! Instances, partitions, and the switch.

use reqwest::Method;
use serde_json::json;

use crate::api::{Api, with};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::{mongo_settings, stdout_sink};

#[fixture::test]
async fn pause_stops_the_relay_until_it_is_resumed() {
    let outbox = TestOutbox::new().await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let api = Api::of(Postrider::start(&with(settings, &["api.enabled=true"]))).await;
    api.until_open().await;
    let owned =
        || async { api.get("/v1/instances").await.body["items"][0]["partitionsOwned"] == 256 };
    eventually("the partitions", owned).await;

    let paused = api.call(Method::POST, "/v1/relay/pause").await;
    assert_eq!((paused.status, paused.body), (200, json!({ "paused": true })));
    api.postrider.until_metric("postrider_relay_paused", |paused| paused == 1.0).await;
    outbox.insert([record("a", "k")]).await;
    let resumed = api.call(Method::POST, "/v1/relay/resume").await;

    assert_eq!((resumed.status, resumed.body), (200, json!({ "paused": false })));
    outbox.until_count(bson::doc! { "status": "done" }, 1).await;
    let partitions = api.get("/v1/partitions").await;
    let items = partitions.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 256);
    assert_eq!(partitions.body["next"], json!(null));
    let instances = api.get("/v1/instances").await;
    assert_eq!(items[0]["instanceId"], instances.body["items"][0]["id"]);
    api.stop().await;
}
