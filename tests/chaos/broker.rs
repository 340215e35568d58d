//! The history's own broker, with a wire for each process.

use std::net::SocketAddr;

use lapin::types::AMQPValue;

use crate::plan::Kind;
use crate::support::history::Arrival;
use crate::support::kafka::node::Node;
use crate::support::kafka::options::{Listener, Options};
use crate::support::kafka::topic::Topic;
use crate::support::rabbitmq::hand::{Hand, id};
use crate::support::rabbitmq::node;
use crate::support::rabbitmq::{address, at};
use crate::support::wire::Wire;
use crate::traffic::{DOOMED, FLAKY, PLAIN};

/// A broker that may be hurt.
pub enum Broker {
    RabbitMq { lease: Box<node::Lease>, name: String },
    Kafka { node: Box<Node>, topic: Topic },
}

impl Broker {
    /// One with a place for the messages of this history; and a wire to it for each process.
    pub async fn start(kind: Kind, wires: usize) -> (Self, Vec<Wire>) {
        match kind {
            Kind::RabbitMq => rabbitmq(wires).await,
            Kind::Kafka => kafka(wires).await,
        }
    }

    /// The settings of a sink that comes by a wire.
    pub fn settings(&self, by: SocketAddr) -> Vec<String> {
        match self {
            Self::RabbitMq { lease, name } => vec![
                "sinks.out.kind=rabbitmq".to_owned(),
                format!("sinks.out.uri={}", at(&lease.node.uri(), by)),
                format!("sinks.out.exchange={name}"),
                "sinks.out.routing_key={type}".to_owned(),
            ],
            Self::Kafka { topic, .. } => vec![
                "sinks.out.kind=kafka".to_owned(),
                format!("sinks.out.brokers={by}"),
                format!("sinks.out.topic={}", topic.name),
            ],
        }
    }

    /// Stops it in good order, or kills it.
    pub async fn stop(&mut self, killed: bool) {
        match (self, killed) {
            (Self::RabbitMq { lease, .. }, true) => lease.node.kill().await,
            (Self::RabbitMq { lease, .. }, false) => lease.node.stop().await,
            (Self::Kafka { node, .. }, true) => node.kill(),
            (Self::Kafka { node, .. }, false) => node.stop().await,
        }
    }

    /// Starts it again, with all that it has stored.
    pub async fn start_again(&mut self) {
        match self {
            Self::RabbitMq { lease, .. } => lease.node.start().await,
            Self::Kafka { node, .. } => node.start_again().await,
        }
    }

    /// Whether messages of this type are taken or returned. (Kafka has no such thing.)
    pub async fn bind(&self, kind: &str, is_bound: bool) {
        let Self::RabbitMq { lease, name } = self else { return };
        let hand = Hand::on(&lease.node.uri()).await;
        match is_bound {
            true => hand.bind(name, name, kind).await,
            false => hand.unbind(name, name, kind).await,
        }
    }

    /// A message that no relay has published.
    pub async fn publish_stray(&self, id: &str, key: &str) {
        let Self::RabbitMq { lease, name } = self else { panic!("for RabbitMQ only") };
        Hand::on(&lease.node.uri()).await.publish(name, PLAIN, id, Some(key)).await;
    }

    /// Takes messages away that have arrived; the rest comes again in its order. How many it found.
    pub async fn steal(&self, ids: &[&str]) -> usize {
        let Self::RabbitMq { lease, name } = self else { panic!("for RabbitMQ only") };
        let hand = Hand::on(&lease.node.uri()).await;
        let mut found = 0;
        for message in hand.take_all(name).await {
            let (id, key) = (id(&message), key(&message));
            match ids.contains(&id.as_str()) {
                true => found += 1,
                false => hand.publish(name, PLAIN, &id, key.as_deref()).await,
            }
        }
        found
    }

    /// Everything that has arrived, in order for each key.
    pub async fn arrivals(&self) -> Vec<Arrival> {
        match self {
            Self::RabbitMq { lease, name } => {
                let hand = Hand::on(&lease.node.uri()).await;
                let messages = hand.take_all(name).await;
                let arrival = |message: &_| Arrival { id: id(message), key: key(message) };
                messages.iter().map(arrival).collect()
            }
            Self::Kafka { topic, .. } => {
                let messages = topic.read().await;
                let arrival = |message: &crate::support::kafka::record::Record| {
                    let id = message.id().to_owned();
                    let key = String::from_utf8(message.key.clone().unwrap()).unwrap();
                    // Records without a key go by their id.
                    Arrival { key: Some(key).filter(|key| *key != id), id }
                };
                messages.iter().map(arrival).collect()
            }
        }
    }
}

fn key(message: &lapin::message::BasicGetMessage) -> Option<String> {
    let headers = message.delivery.properties.headers().as_ref().unwrap().inner();
    headers.get("message-key").map(|key| match key {
        AMQPValue::LongString(key) => String::from_utf8_lossy(key.as_bytes()).into(),
        other => panic!("a key that is no text: {other:?}"),
    })
}

async fn rabbitmq(count: usize) -> (Broker, Vec<Wire>) {
    let lease = Box::new(node::turn().await);
    let name = format!("chaos-{}", uuid::Uuid::new_v4().simple());
    let hand = Hand::on(&lease.node.uri()).await;
    hand.topic(&name).await;
    hand.classic(&name).await;
    for kind in [PLAIN, FLAKY] {
        hand.bind(&name, &name, kind).await;
    }
    let mut wires = Vec::new();
    for _ in 0..count {
        wires.push(Wire::to(address(&lease.node.uri())).await);
    }
    (Broker::RabbitMq { lease, name }, wires)
}

async fn kafka(count: usize) -> (Broker, Vec<Wire>) {
    let mut options = Options::default();
    let mut wires = Vec::new();
    for number in 0..count {
        let listener = Listener::new(&format!("L{number}"), "PLAINTEXT");
        let wire = Wire::to(listener.address()).await;
        options = options.listener(listener.advertised_at(wire.address()));
        wires.push(wire);
    }
    let node = Box::new(Node::with(options).await);
    let topic = Topic::on(&node.brokers(), 3, &[]).await;
    (Broker::Kafka { node, topic }, wires)
}

/// Every type that can be bound.
pub const BOUND: [&str; 3] = [PLAIN, FLAKY, DOOMED];
