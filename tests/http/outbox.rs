//! Records are enqueued, read, requeued and discarded.

use std::time::{Duration, Instant};

use bson::raw::{RawArrayBuf, RawDocumentBuf, cstr};
use bson::{Bson, DateTime, doc, rawdoc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::{mongo_settings, stdout_sink};

const RECORDS: &str = "/v1/outbox/records";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[fixture::test]
async fn record_is_stored_as_written_with_the_servers_seq() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let body = json!({
        "id": "00112233-4455-6677-8899-aabbccddeeff", "key": "order-123", "type": "T",
        "payload": { "$oid": "x", "n": 1, "long": 3_000_000_000_i64, "f": 1.0, "a": [null] },
        "headers": { "h": 1, "tracestate": "own=1" }, "destination": "d", "tenantId": "t",
        "contentType": "c", "dedupKey": "k", "visibleAt": "2020-01-01T00:00:00Z", "createdAt": 5,
    });

    let request = api.request(Method::POST, RECORDS).json(&body);
    let request = request.header("traceparent", PARENT).header("tracestate", "a=1");
    let answer = Answer::of(request).await;

    assert_eq!((answer.status, &answer.body["id"]), (201, &body["id"]), "{answer:?}");
    let uuid = bson::Uuid::parse_str(body["id"].as_str().unwrap()).unwrap();
    let raw = outbox.admin.records().find_one(doc! { "_id": uuid }).await.unwrap().unwrap();
    let mut stored = bson::Document::try_from(raw).unwrap();
    assert!(stored.remove("seq").unwrap().as_timestamp().unwrap().time > 0);
    assert_eq!(
        stored,
        doc! {
            "_id": uuid, "partition": 189, "key": "order-123", "type": "T",
            "payload": { "$oid": "x", "n": 1, "long": 3_000_000_000_i64, "f": 1.0, "a": [Bson::Null] },
            "contentType": "c", "destination": "d", "tenantId": "t", "dedupKey": "k",
            "headers": { "h": 1, "tracestate": "own=1", "traceparent": PARENT },
            "status": "pending", "createdAt": DateTime::from_millis(5),
            "visibleAt": DateTime::from_millis(1_577_836_800_000),
        }
    );
    let shown = api.get(&format!("{RECORDS}/{}", body["id"].as_str().unwrap())).await;
    assert_eq!(shown.body["payload"], body["payload"]);
    assert_eq!(shown.body["createdAt"], "1970-01-01T00:00:00.005Z");
    api.stop().await;
}

#[fixture::test]
async fn ids_are_parsed_as_by_the_command_line() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (text, id) in [
        ("7", Bson::Int64(7)),
        ("str:7", "7".into()),
        (
            "65a000000000000000000000",
            bson::oid::ObjectId::from_bytes([0x65, 0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).into(),
        ),
    ] {
        let body = json!({ "id": text, "type": "T", "payloadBase64": "AP8=" });

        assert_eq!(api.post(RECORDS, &body).await.status, 201);
        let stored = outbox.record(id).await;
        assert_eq!(stored.get_binary_generic("payload").unwrap(), &[0, 255]);
        api.post(RECORDS, &body).await.is(409, "duplicate_record");
    }
    let unique = |id| json!({ "id": id, "type": "T", "payload": null, "dedupKey": "once" });
    assert_eq!(api.post(RECORDS, &unique("a")).await.status, 201);
    let again = api.post(RECORDS, &unique("b")).await;
    again.is(409, "duplicate_record");
    assert!(again.body["detail"].as_str().unwrap().contains("dedupKey"), "{again:?}");
    let later = json!({ "id": "later", "type": "T", "payload": 1, "visibleAt": "2100-01-01T00:00:00+01:00" });
    assert_eq!(api.post(RECORDS, &later).await.status, 201);
    assert_eq!(outbox.record("later").await.get_str("status").unwrap(), "scheduled");
    api.stop().await;
}

#[fixture::test]
async fn enqueue_wakes_the_idle_relay() {
    enqueuing_wakes_the_relay(json!("k")).await;
}

#[fixture::test]
async fn enqueue_without_a_key_wakes_the_idle_relay() {
    enqueuing_wakes_the_relay(json!(null)).await;
}

/// Without a change stream an idle relay doubles its pauses, from 5 ms: it scans 2.5, 5.1, 10.2 and 20.5 s
/// after it became idle. A record that is done between the last two was found by the wakeup.
async fn enqueuing_wakes_the_relay(key: Value) {
    const IDLE: Duration = Duration::from_secs(12);
    let outbox = TestOutbox::new().await;
    let more = ["api.enabled=true", "relay.change_stream=false", "relay.poll_interval=1h"]
        .map(str::to_owned)
        .to_vec();
    let settings = [mongo_settings(&outbox.database), stdout_sink(), more].concat();
    let api = Api::of(Postrider::start(&settings)).await;
    api.until_open().await;
    let owns = |owned| owned == 256.0;
    api.postrider.until_metric("postrider_partitions_owned", owns).await;
    let owned = Instant::now();
    tokio::time::sleep(IDLE).await;

    let answer = api.post(RECORDS, &json!({ "type": "T", "payload": 1, "key": key })).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;

    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(owned.elapsed() < IDLE + Duration::from_secs(6), "{:?}", owned.elapsed());
    api.stop().await;
}

/// Without the wakeup the relay would read the blocker after an hour.
#[fixture::test]
async fn key_continues_at_once_when_its_blocker_is_discarded() {
    for follow in ["relay.change_stream=true", "relay.change_stream=false"] {
        let outbox = TestOutbox::new().await;
        let mut head = record("a", "k");
        let later = DateTime::now().timestamp_millis() + 3_600_000;
        head.insert("visibleAt", DateTime::from_millis(later));
        outbox.insert([head, record("b", "k")]).await;
        let more =
            ["api.enabled=true", "relay.poll_interval=1h", "relay.audit_interval=1h", follow]
                .map(str::to_owned)
                .to_vec();
        let settings = [mongo_settings(&outbox.database), stdout_sink(), more].concat();
        let api = Api::of(Postrider::start(&settings)).await;
        api.until_open().await;
        eventually("the key is blocked", || async {
            let (_, page) = api.postrider.get("/blocked-keys").await;
            let page: Value = serde_json::from_str(&page).unwrap_or_default();
            page["keys"][0]["blocker"] == "a"
        })
        .await;

        let discarded = api.call(Method::DELETE, &format!("{RECORDS}/a?confirm=true")).await;
        let begin = Instant::now();

        assert_eq!(discarded.status, 204, "{discarded:?}");
        outbox.until_count(doc! { "_id": "b", "status": "done" }, 1).await;
        assert!(begin.elapsed() < Duration::from_secs(10), "{follow}: {:?}", begin.elapsed());
        api.stop().await;
    }
}

#[fixture::test]
async fn list_continues_at_next_for_ids_of_any_kind() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let ids = [
        Bson::Double(1.5),
        Bson::Int32(2),
        "2".into(),
        "x".into(),
        bson::oid::ObjectId::from_bytes([1; 12]).into(),
        Bson::Boolean(true),
    ];
    for id in &ids {
        let mut record = record("", "k");
        record.insert("_id", id.clone());
        outbox.insert([record]).await;
    }

    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let part = api.get(&format!("{RECORDS}?limit=1&status=pending&key=k&type=T{after}")).await;
        assert_eq!(part.status, 200, "{part:?}");
        let items = part.body["items"].as_array().unwrap().clone();
        assert!(items.len() <= 1 && found.len() <= ids.len());
        found.extend(items);
        match part.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }

    assert_eq!(found.len(), ids.len(), "{found:#?}");
    assert!(found[0]["payload"].is_null());
    let stats = api.get("/v1/outbox/stats").await;
    assert_eq!(stats.body["pending"], 6);
    api.stop().await;
}

#[fixture::test]
async fn requeue_and_discard_require_a_permitted_status() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let in_state = |id: &str, fields: bson::Document| {
        let mut record = record(id, "k");
        record.extend(fields);
        record
    };
    let later = DateTime::from_millis(4_000_000_000_000);
    outbox
        .insert([
            in_state("dead", doc! { "status": "dead", "deadReason": "refused: x", "deadAt": DateTime::from_millis(1) }),
            in_state("done", doc! { "status": "done", "doneAt": later }),
            in_state("leased", doc! { "leaseUntil": later, "leaseId": bson::Uuid::new() }),
            in_state("free", doc! {}),
        ])
        .await;
    let requeue = |id| format!("{RECORDS}/{id}/requeue");
    let post = |path: String| {
        let api = &api;
        async move { api.call(Method::POST, &path).await }
    };

    let dry = post(format!("{}?dryRun=true", requeue("dead"))).await;
    assert_eq!(dry.body, json!({ "matched": 1, "requeued": 0 }));
    let many =
        api.post("/v1/outbox/requeue", &json!({ "reason": "refused", "dryRun": true })).await;
    assert_eq!(many.body, json!({ "matched": 1, "requeued": 0 }));
    assert_eq!(outbox.record("dead").await.get_str("status").unwrap(), "dead");
    let other = api.post("/v1/outbox/requeue", &json!({ "type": "U" })).await;
    assert_eq!(other.body, json!({ "matched": 0, "requeued": 0 }));
    let many = api.post("/v1/outbox/requeue", &json!({ "key": "k" })).await;
    assert_eq!(many.body, json!({ "matched": 1, "requeued": 1 }));
    assert_eq!(outbox.record("dead").await.get_str("status").unwrap(), "pending");

    post(requeue("none")).await.is(404, "not_found");
    post(requeue("free")).await.is(409, "wrong_status");
    post(requeue("done")).await.is(409, "wrong_status");
    let erased = |value: bool| doc! { "$set": { "erased": value } };
    outbox.records().update_one(doc! { "_id": "done" }, erased(true)).await.unwrap();
    post(format!("{}?redeliver=true", requeue("done"))).await.is(409, "record_erased");
    outbox.records().update_one(doc! { "_id": "done" }, erased(false)).await.unwrap();
    assert_eq!(post(format!("{}?redeliver=true", requeue("done"))).await.status, 200);
    assert_eq!(outbox.record("done").await.get_str("status").unwrap(), "pending");
    let delete = |id| {
        let (api, path) = (&api, format!("{RECORDS}/{id}"));
        async move { api.call(Method::DELETE, &path).await }
    };
    delete("free").await.is(409, "wrong_status");
    assert_eq!(delete("free?confirm=true&dryRun=true").await.status, 204);
    delete("leased?confirm=true").await.is(409, "record_leased");
    assert_eq!(delete("free?confirm=true").await.status, 204);
    delete("free?confirm=true").await.is(404, "not_found");
    assert_eq!(outbox.count(doc! {}).await, 3);
    api.stop().await;
}

/// `dryRun` belongs to the query: with it in the body the request must have no effect.
#[fixture::test]
async fn unexpected_body_is_refused_without_effect() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let mut dead = record("dead", "k");
    dead.extend(
        doc! { "status": "dead", "deadReason": "refused: x", "deadAt": DateTime::from_millis(1) },
    );
    outbox.insert([dead]).await;
    let one = format!("{RECORDS}/dead");
    let requeue = format!("{one}/requeue");

    let calls = [
        (Method::POST, requeue.as_str()),
        (Method::DELETE, one.as_str()),
        (Method::POST, "/v1/relay/pause"),
        (Method::POST, "/v1/relay/resume"),
        (Method::DELETE, "/v1/prepare/name/key"),
    ];
    for (method, path) in calls {
        for body in [r#"{ "dryRun": true }"#, "[]", "dryRun=true"] {
            let answer = Answer::of(api.request(method.clone(), path).body(body)).await;
            answer.is(422, "invalid");
        }
    }
    assert_eq!(outbox.record("dead").await.get_str("status").unwrap(), "dead");

    assert_eq!(Answer::of(api.request(Method::POST, &requeue).body("{ }")).await.status, 200);
    api.stop().await;
}

#[fixture::test]
async fn list_is_sorted_by_age_and_continues_at_next() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    for (n, id) in ["c", "a", "d", "b"].into_iter().enumerate() {
        let mut dead = record(id, "k");
        let died = DateTime::from_millis(i64::try_from(n / 2).unwrap());
        dead.extend(doc! { "status": "dead", "deadAt": died, "deadReason": "refused: no" });
        outbox.insert([dead]).await;
    }

    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let query = format!("{RECORDS}?status=dead&reason=refused&olderThan=1h&limit=1{after}");
        let part = api.get(&query).await;
        assert_eq!(part.status, 200, "{part:?}");
        found.push(part.body["items"][0]["id"].as_str().unwrap().to_owned());
        let Some(next) = part.body["next"].as_str() else { break };
        after = format!("&after={next}");
    }

    assert_eq!(found, ["a", "c", "b", "d"]);
    let by_id = api.get(&format!("{RECORDS}?status=dead&sort=id&limit=1")).await;
    assert_eq!(by_id.body["items"][0]["id"], "a");
    let groups = api.get("/v1/outbox/groups?by=reason").await;
    assert_eq!(
        groups.body,
        json!({ "groups": [{ "status": "dead", "value": "refused", "count": 4 }], "partial": [] })
    );
    for (query, field) in [
        ("status=nope", "status"),
        ("sort=age", "sort"),
        ("sort=seq&status=dead", "sort"),
        ("olderThan=1h", "olderThan"),
        ("olderThan=x&status=dead", "olderThan"),
        ("reason=x&status=done", "reason"),
        ("after=at:x&status=dead", "after"),
    ] {
        assert_eq!(api.get(&format!("{RECORDS}?{query}")).await.wrong(), [field], "{query}");
    }
    assert_eq!(api.get("/v1/outbox/groups").await.wrong(), ["by"]);
    api.stop().await;
}

/// The server stores field names and ids that are not UTF-8.
#[fixture::test]
async fn undecodable_record_is_listed_and_discarded() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let mut documents = RawArrayBuf::new();
    for odd in [doc! { "_id": "MARK" }, doc! { "_id": "b", "MARK": 1 }] {
        let mut odd_record = record("", &"x".repeat(70_000));
        odd_record.extend(odd);
        odd_record.insert("status", "failed");
        let mut bytes = RawDocumentBuf::try_from(&odd_record).unwrap().into_bytes();
        let at = bytes.windows(4).position(|window| window == b"MARK").unwrap();
        bytes[at..at + 4].copy_from_slice(b"\xff\xfe\xfd\xfc");
        documents.push(RawDocumentBuf::from_bytes(bytes).unwrap());
    }
    let mut command = rawdoc! { "insert": "outbox_records" };
    command.append(cstr!("documents"), documents);
    outbox.client.database(&outbox.database).run_raw_command(command).await.unwrap();
    outbox.insert([record("a", "k"), record("c", "k")]).await;

    let all = api.get(RECORDS).await;
    let invalid = api.get(&format!("{RECORDS}?status=invalid&limit=1")).await;
    let next = invalid.body["next"].as_str().expect("there is another one");
    let rest = api.get(&format!("{RECORDS}?status=invalid&after={next}")).await;

    assert_eq!(all.body["items"].as_array().unwrap().len(), 4, "{all:?}");
    let ids = [&invalid, &rest].map(|page| page.body["items"][0]["id"].as_str().unwrap());
    assert!(ids[0] == "b" && ids[1].starts_with("raw:"), "{ids:?}");
    assert_eq!(api.get("/v1/outbox/stats").await.body["invalid"], 2);
    for id in ids {
        let path = format!("{RECORDS}/{id}");
        let shown = api.get(&path).await;
        assert!(shown.body["invalid"][0].is_string(), "{shown:?}");
        let confirmed = format!("{path}?confirm=true");
        assert_eq!(api.call(Method::DELETE, &confirmed).await.status, 204);
        api.get(&path).await.is(404, "not_found");
    }
    api.stop().await;
}

#[fixture::test]
async fn record_with_a_null_id_is_shown_requeued_and_discarded() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let mut dead = record("", "k");
    dead.extend(doc! { "_id": Bson::Null, "status": "dead", "deadReason": "malformed: _id" });
    outbox.insert([dead]).await;
    let listed = api.get(&format!("{RECORDS}?status=dead")).await;
    let id = listed.body["items"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("{RECORDS}/{id}");

    assert_eq!(api.get(&path).await.body["status"], "dead");
    let requeued = api.call(Method::POST, &format!("{path}/requeue")).await;
    assert_eq!(requeued.body, json!({ "matched": 1, "requeued": 1 }));
    let confirmed = format!("{path}?confirm=true");
    assert_eq!(api.call(Method::DELETE, &confirmed).await.status, 204);

    assert_eq!(outbox.count(doc! {}).await, 0);
    api.stop().await;
}
