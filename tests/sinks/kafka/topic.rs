//! A test reads back what was sent, complete and in order.

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;

use crate::kafka::producer::{outcomes, producer, record, send, send_all};
use crate::support::kafka::brokers;
use crate::support::kafka::record::Record;
use crate::support::kafka::topic::Topic;

#[fixture::test]
async fn all_records_are_read_in_order_per_partition() {
    let topic = Topic::new(3).await;
    assert_eq!(topic.read().await, []);
    let producer = producer(&brokers(), &[]);

    let ids: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    let records = ids.iter().enumerate().map(|(number, id)| {
        record(&topic.name, id, b"x").partition(i32::try_from(number % 3).unwrap())
    });
    let sent = send_all(&producer, records).await;
    assert!(sent.iter().all(|sent| sent.outcome.is_ok()), "{:?}", outcomes(&sent));

    let read = topic.read().await;
    assert_eq!(read.len(), 300);
    for (index, record) in read.iter().enumerate() {
        let (partition, offset) = (index / 100, index % 100);
        assert_eq!(record.id(), format!("{:03}", offset * 3 + partition));
        assert_eq!(record.offset, i64::try_from(offset).unwrap());
    }
}

#[fixture::test]
async fn a_record_is_read_with_all_its_fields() {
    let topic = Topic::new(1).await;
    let producer = producer(&brokers(), &[]);
    let headers = OwnedHeaders::new()
        .insert(Header { key: "h", value: Some("one") })
        .insert(Header { key: "h", value: Some("") })
        .insert(Header::<&str> { key: "none", value: None });
    let full = FutureRecord::to(&topic.name).key("k").payload(&b""[..]);
    let bare = FutureRecord::to(&topic.name).timestamp(1_000);

    send(&producer, full.headers(headers).timestamp(1_700_000_000_123)).await.outcome.unwrap();
    send(&producer, bare).await.outcome.unwrap();

    let text = |text: &str| Some(text.as_bytes().to_vec());
    let full = Record {
        partition: 0,
        offset: 0,
        key: text("k"),
        payload: text(""),
        headers: vec![("h".into(), text("one")), ("h".into(), text("")), ("none".into(), None)],
        timestamp: 1_700_000_000_123,
    };
    assert_eq!(full.header("h"), Some("one"));
    let bare = Record {
        offset: 1,
        key: None,
        payload: None,
        headers: Vec::new(),
        timestamp: 1_000,
        ..full.clone()
    };
    assert_eq!(topic.read().await, [full, bare]);
}
