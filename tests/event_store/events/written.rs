//! The documents and answers of appends.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, doc};
use postrider::context::{ContextSettings, RequestIds};
use postrider::events::stream::record_id;
use postrider::events::{Append, AppendError, NewEvent, Trace};
use uuid::Uuid;

use crate::events::util::{TestStore, another_with, append, event, exactly, id, name};
use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn append_writes_a_stream_and_a_record_per_event() {
    let test = TestStore::new().await;
    let created = NewEvent {
        revision: Some("2".into()),
        body_type: Some("shop.OrderCreated".into()),
        ..NewEvent::new("OrderCreated", doc! { "total": 5, "big": 5_000_000_000_i64, "$x": 1.5 })
    };
    let given = Append {
        command_id: Some("c-1".into()),
        tenant_id: Some("t-1".into()),
        owner_id: Some("o-1".into()),
        header: doc! { "upstream_id": "saga" },
        trace: Trace { parent: Some("00-1-2-01".into()), state: Some("a=b".into()) },
        ..Append::new(name(), id("order-123"), "r-1", vec![created, event("OrderPaid")])
    };

    let before = server_millis(&test).await;
    let appended = test.store.append(given).await.unwrap();
    let after = server_millis(&test).await;

    let stream = Uuid::parse_str(&appended.id).unwrap();
    let records = [record_id(&stream, 0), record_id(&stream, 1)];
    assert_eq!((appended.version, appended.size, appended.replayed), (1, 2, false));
    assert_eq!(appended.records, records);
    // An estimate, accurate to a round trip.
    assert!((before - 50..=after + 50).contains(&appended.create_time), "{appended:?}");
    assert_eq!(
        test.streams("order").await,
        [doc! {
            "_id": stream.to_string(),
            "contextName": "default",
            "aggregateName": "order",
            "aggregateId": "order-123",
            "tenantId": "t-1",
            "ownerId": "o-1",
            "requestId": "r-1",
            "commandId": "c-1",
            "version": 1,
            "createTime": appended.create_time,
            "header": { "upstream_id": "saga" },
            "size": 2,
            "body": [
                {
                    "id": records[0].to_string(),
                    "name": "OrderCreated",
                    "revision": "2",
                    "bodyType": "shop.OrderCreated",
                    "body": { "total": 5, "big": 5_000_000_000_i64, "$x": 1.5 },
                },
                { "id": records[1].to_string(), "name": "OrderPaid", "body": { "is": "OrderPaid" } },
            ],
        }]
    );
    let mut found = test.records("order-123").await;
    for record in &mut found {
        let Some(Bson::Timestamp(seq)) = record.remove("seq") else { panic!("{record}") };
        assert!(seq.time > 0, "the server gave it");
    }
    let wanted = |index: usize, kind: &str, payload: bson::Document| {
        doc! {
            "_id": Binary { subtype: BinarySubtype::Uuid, bytes: records[index].as_bytes().to_vec() },
            "key": "order-123",
            "type": kind,
            "payload": payload,
            "headers": {
                "aggregate-name": "order",
                "aggregate-id": "order-123",
                "aggregate-version": 1,
                "event-index": index as i32,
                "event-count": 2,
                "command-id": "c-1",
                "request-id": "r-1",
                "traceparent": "00-1-2-01",
                "tracestate": "a=b",
            },
            "tenantId": "t-1",
            "status": "pending",
            "partition": 189,
            "createdAt": bson::DateTime::from_millis(appended.create_time),
        }
    };
    let first = doc! { "total": 5, "big": 5_000_000_000_i64, "$x": 1.5 };
    let second = doc! { "is": "OrderPaid" };
    assert_eq!(found, [wanted(0, "OrderCreated", first), wanted(1, "OrderPaid", second)]);
}

async fn server_millis(test: &TestStore) -> i64 {
    let hello = test.outbox.admin.database().run_command(doc! { "hello": 1 }).await.unwrap();
    hello.get_datetime("localTime").unwrap().timestamp_millis()
}

#[fixture::test]
async fn repeated_request_returns_the_first_answer() {
    let test = TestStore::new().await;
    let first = test.store.append(exactly("1", "r", 0)).await.unwrap();
    test.store.append(append("1", "s")).await.unwrap();
    // With any expectation and content.
    let mut other = append("1", "r");
    other.events = vec![event("Other"), event("Another")];

    for again in [exactly("1", "r", 0), exactly("1", "r", 1), exactly("1", "r", 2), other] {
        let again = test.store.append(again).await.unwrap();

        assert!(again.replayed);
        assert_eq!(postrider::events::Appended { replayed: false, ..again }, first);
    }
    assert_eq!(test.streams("order").await.len(), 2);
    assert_eq!(test.records("1").await.len(), 2);
}

#[fixture::test]
async fn request_id_is_unique_within_its_configured_scope() {
    let test = TestStore::new().await;
    test.store.append(append("1", "r")).await.unwrap();

    assert!(!test.store.append(append("2", "r")).await.unwrap().replayed);

    let outbox = TestOutbox::new().await;
    let global = ContextSettings {
        request_ids: RequestIds::Global,
        ..ContextSettings::new(&outbox.database)
    };
    let store = another_with(&outbox, outbox.admin.client().clone(), global);
    store.append(append("1", "r")).await.unwrap();

    let elsewhere = store.append(append("2", "r")).await.unwrap_err();
    let again = store.append(append("1", "r")).await.unwrap();

    assert!(
        matches!(&elsewhere, AppendError::DuplicateRequest { aggregate_id } if aggregate_id == "1")
    );
    assert!(again.replayed);
}

#[fixture::test]
async fn events_up_to_almost_16_mib_are_appended() {
    let test = TestStore::new().await;
    let of = |bytes: usize| {
        let event = NewEvent::new("E", doc! { "a": "x".repeat(bytes) });
        Append::new(name(), id("1"), bytes.to_string(), vec![event])
    };
    let many = (0..20_000).map(|_| event("E")).collect();
    let many = Append::new(name(), id("2"), "r", many);

    let largest = test.store.append(of((16 << 20) - (66 << 10))).await;
    let larger = test.store.append(of(16 << 20)).await.unwrap_err();
    let many = test.store.append(many).await.unwrap();

    assert!(largest.is_ok(), "{largest:?}");
    assert!(matches!(larger, AppendError::Invalid(flaws) if flaws[0].field == "events"));
    assert_eq!(test.outbox.count(doc! { "key": "2" }).await, 20_000);
    assert_eq!(many.records.len(), 20_000);
}
