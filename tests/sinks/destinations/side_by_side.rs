//! Several sinks in one relay: one that is down holds back its own keys only.

use bson::doc;

use crate::destinations::brokers::{Brokers, record};
use crate::support::kafka::topic::Topic;

#[fixture::test]
async fn a_sink_that_is_down_delays_only_its_own_keys() {
    let mut brokers = Brokers::new().await;
    let topic = Topic::new(2).await;
    let more = format!(
        r#"
        [relay]
        default_sink = "down"
        [[routes]]
        type = "K"
        sink = "kafka"
        destination = {:?}
        [sinks.down]
        kind = "rabbitmq"
        uri = "amqp://guest:guest@127.0.0.1:1/"
        "#,
        topic.name
    );
    // More keys than one read skips, in all partitions.
    let waiting = (0..3_000).map(|n| record(&format!("w-{n}"), "T", &format!("w-{n}"), doc! {}));
    brokers.outbox.insert(waiting).await;
    brokers
        .outbox
        .insert([
            record("head", "K", "mixed", doc! {}),
            record("waits", "T", "mixed", doc! {}),
            record("behind", "K", "mixed", doc! {}),
        ])
        .await;
    brokers
        .outbox
        .insert((0..500).map(|n| record(&format!("k-{n}"), "K", &format!("k-{n}"), doc! {})))
        .await;

    let mut postrider = brokers.start(&more).await;

    brokers.until_done(501).await;
    let arrived = topic.read_ids().await;
    assert!(arrived.contains(&"head".to_owned()));
    assert!(!arrived.contains(&"behind".to_owned()), "its key waits for the other sink");
    let held = r#"postrider_blocked_keys{reason="sink_down"}"#;
    let counted = doc! { "$or": [{ "attempt": { "$gt": 1 } }, { "lastError": { "$ne": null } }] };
    assert_eq!(brokers.outbox.count(counted).await, 0);
    postrider.until_metric(held, |count| count > 0.0).await;
    let (_, report) = postrider.readyz().await;
    assert_eq!(report["parts"]["sink down"]["status"], "degraded");
    assert_eq!(report["parts"]["sink kafka"]["status"], "ok");
    postrider.stop().await;
}
