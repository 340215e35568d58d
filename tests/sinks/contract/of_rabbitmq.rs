//! RabbitMQ: a vhost for one test, behind a proxy.

use std::sync::Mutex;
use std::time::Duration;

use postrider::sink::rabbitmq::RabbitMq;
use postrider::sink::{HeaderValue, Message};

use crate::contract::harness::{Arrived, Harness};
use crate::support::fault_proxy::FaultProxy;
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::{AmqpClient, id};
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::rabbitmq::{self, address, at};

const QUEUE: &str = "taken";

/// The shared broker, behind a proxy.
pub struct Broker {
    vhost: Vhost,
    amqp: AmqpClient,
    proxy: FaultProxy,
    found: Mutex<Vec<Arrived>>,
}

impl Harness for Broker {
    type Sink = RabbitMq;

    const CONNECTS: bool = true;

    async fn new() -> Self {
        let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
        let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
        Self { vhost, amqp, proxy, found: Mutex::default() }
    }

    fn sink(&self, timeout: Duration) -> RabbitMq {
        rabbitmq::sink(&at(&self.vhost.uri(), self.proxy.address()), timeout)
    }

    fn message(&self, id: &str) -> Message {
        message(id, "", QUEUE)
    }

    fn undeliverable(&self, id: &str) -> Option<Message> {
        Some(message(id, "", "no such queue"))
    }

    fn impossible(&self) -> Vec<Message> {
        let long = "x".repeat(256);
        let good = self.message("impossible");
        let wide = HeaderValue::String("x".repeat(1 << 20));
        vec![
            Message { id: long.clone(), ..good.clone() },
            Message { kind: long.clone(), ..good.clone() },
            Message { content_type: long.clone(), ..good.clone() },
            message("impossible", "", &long),
            message("impossible", &long, QUEUE),
            Message { headers: vec![(long, HeaderValue::Null)], ..good.clone() },
            Message { headers: vec![("wide".into(), wide)], ..good },
        ]
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let taken = self.amqp.take_all(QUEUE).await;
        let mut found = self.found.lock().unwrap();
        found.extend(
            taken
                .into_iter()
                .map(|message| Arrived { id: id(&message), payload: message.delivery.data }),
        );
        found.clone()
    }

    async fn freeze(&self) {
        self.proxy.freeze();
    }

    async fn thaw(&self) {
        self.proxy.thaw();
    }

    async fn take_down(&self) {
        self.proxy.refuse(true);
        self.proxy.cut();
    }

    async fn bring_back(&self) {
        self.proxy.refuse(false);
    }

    async fn slow_down(&self, by: Duration) -> bool {
        self.proxy.delay(by);
        true
    }
}
