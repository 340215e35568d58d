//! Users without the right to write, to one topic or to any.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use postrider::sink::kafka::Kafka;
use postrider::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};

use super::poison::{relay, to, until_done, went_well};
use super::util::{AMPLE_TIMEOUT, AT_ONCE_LIMIT, failure, publish_all, sink_of, until_taken};
use crate::support::kafka::acl::{Operation, Resource};
use crate::support::kafka::secure::{PASSWORD, Secure};
use crate::support::message::message;
use crate::support::outbox::{TestOutbox, eventually};

#[fixture::test]
async fn a_forbidden_topic_is_counted_alone_until_it_is_permitted() {
    let secure = Secure::shared().await;
    let (topic, other) = (secure.topic(1).await, secure.topic(1).await);
    // The metadata request is refused, or only the write.
    for operation in [Operation::Write, Operation::Describe] {
        let acl = secure.deny("alice", operation, Resource::Topic(&topic.name)).await;
        let sink = Arc::new(sink_of(&secure, "alice"));
        sink.probe().await.unwrap();

        for _ in 0..2 {
            let begin = Instant::now();
            let destination = |number: usize| [&topic, &other][number % 2].name.as_str();
            let messages =
                (0..40).map(|number| message(number.to_string(), destination(number), "k"));
            let outcomes = publish_all(&sink, messages).await;
            for (number, outcome) in outcomes.iter().enumerate() {
                let expected = (number % 2 == 0).then_some(PublishFailure::Retryable);
                assert_eq!(failure(outcome), expected, "{operation:?} {number}: {outcome:?}");
            }
            let words = outcomes[0].as_ref().unwrap_err().to_string();
            assert!(words.contains(&topic.name) && words.contains("uthoriz"), "{words}");
            assert!(begin.elapsed() < AT_ONCE_LIMIT, "{:?}", begin.elapsed());
        }

        acl.delete(&secure.node.brokers()).await;
        until_taken(&sink, message("allowed", &topic.name, "k")).await;
    }
    assert_eq!(topic.read_ids().await, ["allowed", "allowed"]);
    assert_eq!(other.read_ids().await.len(), 80);
}

#[fixture::test]
async fn a_user_without_write_rights_has_a_sink_that_is_down() {
    let secure = Secure::shared().await;
    let topic = secure.topic(1).await;
    let on_cluster = secure.deny("erin", Operation::IdempotentWrite, Resource::Cluster).await;
    let on_topics = secure.deny("erin", Operation::Write, Resource::Topic("*")).await;
    let sink = Arc::new(sink_of(&secure, "erin"));

    // A probe may end before the broker has answered.
    let begin = Instant::now();
    for number in 0..3 {
        let probed = sink.probe().await;
        let words = match probed {
            Err(down) => down.detail,
            Ok(()) => {
                let message = |more: usize| message(format!("{number} {more}"), &topic.name, "k");
                let outcomes = publish_all(&sink, (0..20).map(message)).await;
                for outcome in &outcomes {
                    assert_eq!(failure(outcome), Some(PublishFailure::SinkDown), "{outcome:?}");
                }
                tokio::time::timeout(AT_ONCE_LIMIT, sink.lost()).await.unwrap().detail
            }
        };
        assert!(words.contains("uthoriz"), "{words}");
        assert!(!words.contains(PASSWORD), "{words}");
    }
    assert!(begin.elapsed() < AMPLE_TIMEOUT / 2, "{:?}", begin.elapsed());

    on_cluster.delete(&secure.node.brokers()).await;
    on_topics.delete(&secure.node.brokers()).await;
    sink.probe().await.unwrap();
    sink.publish(message("allowed", &topic.name, "k")).await.unwrap();
    assert_eq!(topic.read_ids().await, ["allowed"]);
}

/// Counts its probes.
struct Counting {
    sink: Kafka,
    probes: Arc<AtomicUsize>,
}

impl Sink for Counting {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.sink.publish(message).await
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        self.probes.fetch_add(1, Ordering::SeqCst);
        self.sink.probe().await
    }

    async fn lost(&self) -> SinkDown {
        self.sink.lost().await
    }

    async fn close(&self) {
        self.sink.close().await;
    }

    fn isolated(&self) -> Self {
        Self { sink: self.sink.isolated(), probes: self.probes.clone() }
    }
}

#[fixture::test]
async fn records_wait_without_attempts_until_the_user_may_write() {
    let secure = Secure::shared().await;
    let (topic, outbox) = (secure.topic(1).await, TestOutbox::new().await);
    let on_cluster = secure.deny("frank", Operation::IdempotentWrite, Resource::Cluster).await;
    let on_topics = secure.deny("frank", Operation::Write, Resource::Topic("*")).await;
    outbox.insert(["a", "b", "c"].map(|id| to(&topic, id, id))).await;
    let probes = Arc::new(AtomicUsize::new(0));

    let sink = Counting { sink: sink_of(&secure, "frank"), probes: probes.clone() };
    let running = relay(&outbox, sink);
    // Two losses in a row would send them alone, and the third would be counted.
    eventually("many a try", || async { probes.load(Ordering::SeqCst) > 6 }).await;
    // This deletion gives both rights: with the other first, attempts would be counted meanwhile.
    on_topics.delete(&secure.node.brokers()).await;
    on_cluster.delete(&secure.node.brokers()).await;

    until_done(&outbox, ["a", "b", "c"]).await;
    for id in ["a", "b", "c"] {
        went_well(&outbox, id).await;
    }
    eventually("all to be there", || async { topic.read_ids().await.len() == 3 }).await;
    running.stop().await;
}
