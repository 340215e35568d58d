//! Routes, templates, and the destination that a record names itself.

use bson::doc;

use crate::destinations::brokers::{Brokers, record};
use crate::support::kafka::topic::Topic;
use crate::support::rabbitmq::amqp_client::id;

#[fixture::test]
async fn the_first_matching_route_decides_the_broker() {
    let mut brokers = Brokers::new().await;
    let (orders, named) = (Topic::new(1).await, Topic::new(1).await);
    for queue in ["Invoice", "by-key.k", "Order"] {
        brokers.amqp.classic(queue).await;
    }
    let routes = format!(
        r#"
        [[routes]]
        type = "Order?*"
        sink = "kafka"
        destination = "{}"
        key = "{{tenantId}}-{{key}}"
        headers = {{ via = "{{type}} of {{aggregate}}", color = "route" }}
        [[routes]]
        type = "*Paid"
        sink = "rabbit"
        key = "by-key.{{key}}"
        [relay]
        default_sink = "rabbit"
        "#,
        orders.name
    );
    let own = doc! { "aggregate-name": "cart", "color": "record" };
    let records = [
        record("1", "OrderCreated", "k", doc! { "tenantId": "t", "headers": own }),
        record("2", "InvoicePaid", "k", doc! {}),
        record("3", "Invoice", "other", doc! {}),
        record("4", "Order", "other", doc! {}),
        record(
            "5",
            "OrderPaid",
            "k",
            doc! { "tenantId": "t", "destination": &named.name,
            "headers": { "aggregate-name": "cart" } },
        ),
    ];
    brokers.outbox.insert(records).await;

    let mut postrider = brokers.start(&routes).await;

    brokers.until_done(5).await;
    let arrived = orders.read().await;
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].id(), "1");
    assert_eq!(arrived[0].key.as_deref(), Some(&b"t-k"[..]));
    assert_eq!(arrived[0].header("via"), Some("OrderCreated of cart"));
    assert_eq!(arrived[0].header("color"), Some("record"));
    assert_eq!(named.read_ids().await, ["5"]);
    assert_eq!(brokers.amqp.take_ids("by-key.k").await, ["2"]);
    assert_eq!(brokers.amqp.take_ids("Invoice").await, ["3"]);
    assert_eq!(brokers.amqp.take_ids("Order").await, ["4"]);
    postrider.stop().await;
}

#[fixture::test]
async fn a_record_without_a_route_dies_and_its_key_continues() {
    let mut brokers = Brokers::new().await;
    brokers.amqp.classic("T").await;
    let routes = r#"
        [[routes]]
        type = "T"
        sink = "rabbit"
        [[routes]]
        type = "Templated"
        sink = "rabbit"
        key = "{header.region}"
        [[routes]]
        type = "Tenants"
        sink = "kafka"
        destination = "orders.{tenantId}"
    "#;
    brokers
        .outbox
        .insert([
            record("before", "T", "k", doc! {}),
            record("unroutable", "Other", "k", doc! {}),
            record("no header", "Templated", "k", doc! { "headers": { "color": "red" } }),
            record("no tenant", "Tenants", "k", doc! {}),
            record("behind", "T", "k", doc! {}),
        ])
        .await;

    let mut postrider = brokers.start(routes).await;

    brokers.until_done(2).await;
    assert_eq!(brokers.amqp.take_ids("T").await, ["before", "behind"]);
    for (id, reason) in [
        ("unroutable", "unroutable: no route matches its type, and relay.default_sink is not set"),
        ("no header", "template: the record has no header \"region\""),
        ("no tenant", "template: the record has no tenantId"),
    ] {
        let dead = brokers.outbox.record(id).await;
        assert_eq!(dead.get_str("status").unwrap(), "dead");
        let words = dead.get_str("deadReason").unwrap();
        assert!(words.starts_with(reason.split_once(':').unwrap().0), "{words}");
        assert_eq!(words, reason);
    }
    postrider.stop().await;
}

#[fixture::test]
async fn a_record_may_name_only_what_its_sink_allows() {
    let mut brokers = Brokers::new().await;
    brokers.amqp.topic("orders.eu").await;
    brokers.amqp.topic("secret").await;
    brokers.amqp.classic("all").await;
    brokers.amqp.bind("all", "orders.eu", "#").await;
    brokers.amqp.bind("all", "secret", "#").await;
    let allowed = r#"
        [relay]
        default_sink = "limited"
        [sinks.limited]
        kind = "rabbitmq"
        allowed_destinations = ["orders.*"]
    "#;
    let uri = format!("uri = {:?}\n", brokers.vhost.uri());
    brokers
        .outbox
        .insert([
            record("allowed", "T", "k", doc! { "destination": "orders.eu" }),
            record("refused", "T", "k", doc! { "destination": "secret" }),
            record("behind", "T", "k", doc! { "destination": "orders.eu" }),
        ])
        .await;

    let mut postrider = brokers.start(&format!("{allowed}{uri}")).await;

    brokers.until_done(2).await;
    let arrived = brokers.amqp.take_all("all").await;
    assert_eq!(arrived.iter().map(id).collect::<Vec<_>>(), ["allowed", "behind"]);
    assert_eq!(arrived[0].delivery.exchange.as_str(), "orders.eu");
    let dead = brokers.outbox.record("refused").await;
    let reason = "refused: its destination is not among sinks.limited.allowed_destinations";
    assert_eq!(dead.get_str("deadReason").unwrap(), reason);
    postrider.stop().await;
}
