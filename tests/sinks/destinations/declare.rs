//! Declared topology: created where it is absent, and never altered.

use crate::support::environment::unique;
use bson::doc;
use lapin::types::AMQPValue;

use crate::destinations::brokers::{Brokers, record};

#[fixture::test]
async fn declared_topology_exists_before_the_first_record() {
    let mut brokers = Brokers::new().await;
    let topic = unique("test-");
    // It differs from what is declared, and stays so.
    brokers.amqp.queue("old", &[("x-max-length", AMQPValue::LongInt(7))]).await;
    let more = format!(
        r#"
        [relay]
        default_sink = "declaring"
        [[routes]]
        type = "K"
        sink = "stream"
        [sinks.declaring]
        kind = "rabbitmq"
        uri = {:?}
        exchange = "orders"
        [sinks.declaring.declare]
        exchanges = [{{ name = "orders", arguments = {{ alternate-exchange = "rest" }} }},
                     {{ name = "rest", type = "fanout" }}]
        queues = [{{ name = "new" }}, {{ name = "old" }}, {{ name = "rest", type = "classic" }}]
        bindings = [{{ exchange = "orders", queue = "new", routing_key = "Order*.#" }},
                    {{ exchange = "orders", queue = "new", routing_key = "T" }},
                    {{ exchange = "orders", queue = "old", routing_key = "Old" }},
                    {{ exchange = "rest", queue = "rest" }}]
        [sinks.stream]
        kind = "kafka"
        brokers = {:?}
        topic = {topic:?}
        [sinks.stream.declare]
        topics = [{{ name = {topic:?}, partitions = 3, properties = {{ "retention.ms" = "-1" }} }}]
        "#,
        brokers.vhost.uri(),
        crate::support::kafka::brokers(),
    );
    brokers
        .outbox
        .insert([
            record("new", "T", "k", doc! {}),
            record("old", "Old", "k", doc! {}),
            record("rest", "Else", "k", doc! {}),
            record("kafka", "K", "k", doc! {}),
        ])
        .await;

    let mut postrider = brokers.start(&more).await;

    brokers.until_done(4).await;
    assert_eq!(brokers.outbox.count(doc! { "attempt": 1 }).await, 4);
    for queue in ["new", "old", "rest"] {
        assert_eq!(brokers.amqp.take_ids(queue).await, [queue]);
    }
    let kind = brokers.vhost.queue("new").await["arguments"]["x-queue-type"].clone();
    assert_eq!(kind, "quorum");
    let old = brokers.vhost.queue("old").await["arguments"].clone();
    assert_eq!(old, serde_json::json!({ "x-max-length": 7 }));
    let made = crate::support::kafka::topic::Topic::existing(&topic, 3);
    assert_eq!(made.read_ids().await, ["kafka"]);
    postrider.stop().await;
    made.delete().await;
    // Again, with everything there.
    let mut again = brokers.start(&more.replace("partitions = 3", "partitions = 5")).await;
    again.stop().await;
}

#[fixture::test]
async fn undeclarable_topology_pauses_the_sink_and_is_named() {
    let mut brokers = Brokers::new().await;
    let more = format!(
        r#"
        [relay]
        default_sink = "declaring"
        [sinks.declaring]
        kind = "rabbitmq"
        uri = {:?}
        [sinks.declaring.declare]
        exchanges = [{{ name = "orders", type = "no-such-kind" }}]
        "#,
        brokers.vhost.uri(),
    );
    brokers.outbox.insert([record("waits", "T", "k", doc! {})]).await;

    let mut postrider = brokers.start(&more).await;

    postrider
        .until_report("the sink is paused", |report| {
            let part = &report["parts"]["sink declaring"];
            let detail = part["detail"].as_str().unwrap_or_default();
            part["status"] == "degraded" && detail.contains("declared exchange \"orders\"")
        })
        .await;
    assert_eq!(brokers.outbox.record("waits").await.get_str("status").unwrap(), "pending");
    postrider.stop().await;
}
