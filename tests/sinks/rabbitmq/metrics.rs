//! The metrics of the sink, from a recorder of this test.

use std::sync::Arc;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use postrider::sink::Sink;
use postrider::sink::rabbitmq::RabbitMq;

use crate::rabbitmq::util::{AMPLE_TIMEOUT, start, until_up};
use crate::support::environment::unique;
use crate::support::message::message;
use crate::support::outbox::eventually;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::node::turn;
use crate::support::rabbitmq::sink;
use crate::support::rabbitmq::vhost::Vhost;

/// A sink, and its metrics.
struct Measured {
    sink: Arc<RabbitMq>,
    metrics: PrometheusHandle,
}

impl Measured {
    async fn new(uri: &str) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics = recorder.handle();
        // The sink keeps a handle of each series.
        let sink = metrics::with_local_recorder(&recorder, || sink(uri, AMPLE_TIMEOUT));
        let measured = Self { sink: Arc::new(sink), metrics };
        for name in ["unconfirmed_messages", "blocked", "connections_total", "returned_total"] {
            assert_eq!(measured.value(name), Some(0.0), "{name}");
        }
        measured.sink.probe().await.unwrap();
        assert_eq!(measured.value("connections_total"), Some(1.0));
        measured
    }

    fn value(&self, name: &str) -> Option<f64> {
        let page = self.metrics.render();
        let series = format!("postrider_rabbitmq_{name}{{sink=\"test\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&series))?.parse().ok()
    }

    async fn until(&self, name: &str, value: f64) {
        let found = || async { self.value(name) == Some(value) };
        eventually(&format!("{name} = {value}"), found).await;
    }
}

#[fixture::test]
async fn unconfirmed_and_returned_messages_are_counted() {
    let (vhost, _amqp) = Vhost::with_queue("sick").await;
    let measured = Measured::new(&vhost.uri()).await;
    vhost.suspend_queue("sick").await;

    let publish = |n: u8| start(&measured.sink, message(n.to_string(), "", "sick"));
    let waiting: Vec<_> = (0..3).map(publish).collect();

    measured.until("unconfirmed_messages", 3.0).await;
    vhost.resume_queue("sick").await;
    for publishing in waiting {
        publishing.await.unwrap().unwrap();
    }
    measured.until("unconfirmed_messages", 0.0).await;
    measured.sink.publish(message("lost", "", "nowhere")).await.unwrap_err();
    assert_eq!(measured.value("returned_total"), Some(1.0));
    assert_eq!(measured.value("connections_total"), Some(1.0));
}

#[fixture::test(long)]
async fn blocked_connection_is_reported_until_it_ends_and_a_reconnect_is_counted() {
    let turn = turn().await;
    let queue = unique("q-");
    AmqpClient::on(&turn.node.uri()).await.classic(&queue).await;
    let measured = Measured::new(&turn.node.uri()).await;
    let sink = &measured.sink;

    turn.node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;
    // The broker blocks a connection that publishes; it may confirm one message before.
    let publishing = start(sink, message("1", "", &queue));
    measured.until("blocked", 1.0).await;
    turn.node.ctl(&["set_vm_memory_high_watermark", "absolute", "2GB"]).await;
    measured.until("blocked", 0.0).await;
    let _ = publishing.await.unwrap();
    until_up(sink).await;
    assert_eq!(measured.value("connections_total"), Some(1.0));

    turn.node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;
    // The broker blocks a connection that publishes; it may confirm one message before.
    let publishing = start(sink, message("2", "", &queue));
    measured.until("blocked", 1.0).await;
    turn.node.kill().await;
    measured.until("blocked", 0.0).await;
    let _ = publishing.await.unwrap();
    measured.until("unconfirmed_messages", 0.0).await;
    turn.node.start().await;
    until_up(sink).await;
    assert_eq!(measured.value("connections_total"), Some(2.0));
}
