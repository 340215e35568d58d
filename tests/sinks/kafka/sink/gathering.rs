//! Under load records go through a second producer, which batches them: their order stays.

use postrider::sink::{Message, Sink};

use super::util::{connected, connected_with, publish_all};
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::message::message;

/// Lanes of a relay under load.
const MANY: usize = 1_000;

#[fixture::test]
async fn one_key_keeps_its_order_while_load_comes_and_goes() {
    let topic = Topic::new(3).await;
    let sink = connected(&brokers()).await;
    let id = |n: usize| format!("{n:03}");

    for n in 0..300 {
        // Each change of the load changes the producer, once the second one exists.
        sink.expect(if n / 10 % 2 == 0 { MANY } else { 1 });
        let is_urgent = n % 7 == 0;
        sink.publish(Message { is_urgent, ..message(id(n), &topic.name, "k") }).await.unwrap();
    }

    assert_eq!(topic.read_ids().await, (0..300).map(id).collect::<Vec<_>>());
}

/// The broker refuses the batch as a whole; each of its records is sent again by itself.
#[fixture::test]
async fn a_batch_above_the_topics_limit_arrives_record_by_record() {
    let topic = Topic::with(1, &[("max.message.bytes", "20000")]).await;
    let sink = connected_with(&brokers(), [("compression.type", "none")]).await;
    sink.expect(MANY);
    let large = |n: usize| {
        let payload = Some(vec![b'x'; 6_000]);
        Message { payload, ..message(format!("{n:03}"), &topic.name, &format!("k{n}")) }
    };
    // Until the second producer exists, the first one sends them.
    for round in 0..20 {
        let messages: Vec<Message> = (0..50).map(|n| large(round * 50 + n)).collect();
        let results = publish_all(&sink, messages).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    let mut ids = topic.read_ids().await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 1_000);
}
