//! Snapshots.

use serde_json::{Value, json};

use crate::api::Api;
use crate::support::outbox::TestOutbox;

const SNAPSHOT: &str = "/v1/aggregates/order/o-1/snapshot";

fn full() -> Value {
    json!({
        "version": 3, "tenantId": "t", "ownerId": "o", "eventId": "e", "firstOperator": "ada",
        "operator": "bob", "firstEventTime": "2026-01-01T00:00:00Z", "eventTime": 1_800_000_000_000_i64,
        "deleted": true,
        "state": { "$oid": "65a000000000000000000000", "n": { "$numberLong": "5" }, "l": [1, 2.0] },
    })
}

#[fixture::test]
async fn snapshot_is_read_as_saved() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    api.get(SNAPSHOT).await.is(404, "not_found");

    let saved = api.put(SNAPSHOT, &full()).await;
    let mut found = api.get(SNAPSHOT).await;

    assert_eq!(saved.status, 200, "{saved:?}");
    assert_eq!(saved.body, json!({ "aggregateId": "o-1", "version": 3, "written": true }));
    assert!(found.body["snapshotTime"].take().as_i64() > Some(1_700_000_000_000));
    let mut expected = full();
    for (name, value) in [
        ("firstEventTime", json!(1_767_225_600_000_i64)),
        ("contextName", json!("default")),
        ("aggregateName", json!("order")),
        ("aggregateId", json!("o-1")),
        ("snapshotTime", json!(null)),
    ] {
        expected[name] = value;
    }
    assert_eq!(found.body, expected);
    assert!(
        found.text.contains(r#""state":{"$oid":"65a000000000000000000000","n":{"#),
        "{found:?}"
    );
    assert_eq!(api.get(&format!("{SNAPSHOT}?tenantId=t")).await.status, 200);
    api.get(&format!("{SNAPSHOT}?tenantId=other")).await.is(404, "not_found");
    api.get("/v1/aggregates/order/o-2/snapshot").await.is(404, "not_found");
    api.stop().await;
}

#[fixture::test]
async fn older_snapshot_never_overwrites_a_newer_one() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (version, state, (there, written), left) in [
        (2, "a", (2, true), "a"),
        (1, "b", (2, false), "a"),
        (2, "c", (2, true), "c"),
        (3, "d", (3, true), "d"),
    ] {
        let body = json!({ "version": version, "state": { "s": state } });

        let saved = api.put(SNAPSHOT, &body).await;

        let expected = json!({ "aggregateId": "o-1", "version": there, "written": written });
        assert_eq!((saved.status, saved.body), (200, expected), "{body}");
        let found = api.get(SNAPSHOT).await;
        assert_eq!(found.body["state"], json!({ "s": left }));
        // Fields without a value are absent.
        assert!(found.body.get("tenantId").is_none() && found.body.get("eventTime").is_none());
    }
    api.stop().await;
}

#[fixture::test]
async fn flaws_of_a_snapshot_are_reported_by_field() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (body, wrong) in [
        (json!({}), vec!["version", "state"]),
        (json!({ "version": 0, "state": {} }), vec!["version"]),
        (json!({ "version": null, "state": null }), vec!["version", "state"]),
        (
            json!({ "version": 1.5, "state": [], "tenantId": "", "operator": 1, "eventTime": "soon",
                "deleted": "no", "aggregateId": "o-1" }),
            vec!["version", "state", "tenantId", "operator", "eventTime", "deleted", "aggregateId"],
        ),
    ] {
        assert_eq!(api.put(SNAPSHOT, &body).await.wrong(), wrong, "{body}");
    }
    assert_eq!(api.get(&format!("{SNAPSHOT}?tenant=t")).await.wrong(), ["tenant"]);
    assert_eq!(api.put("/v1/aggregates/1/1/snapshot", &full()).await.wrong(), ["name"]);
    api.get(SNAPSHOT).await.is(404, "not_found");
    api.stop().await;
}
