//! The brokers of a history, with a proxy for each process, and the destinations of its messages.

use std::net::SocketAddr;
use std::sync::Arc;

use lapin::types::AMQPValue;

use crate::plan::{Kind, Peer, Setup, Sickness};
use crate::support::environment::unique;
use crate::support::fault_proxy::FaultProxy;
use crate::support::history::{Arrival, content};
use crate::support::kafka::node::Node;
use crate::support::kafka::options::{Listener, Options};
use crate::support::kafka::topic::Topic;
use crate::support::rabbitmq::amqp_client::{AmqpClient, id};
use crate::support::rabbitmq::node;
use crate::support::rabbitmq::{address, at};
use crate::traffic::{
    DOOMED, FAR, FLAKY, FORBIDDEN, MARK, PLAIN, POISON, Place, STREAM, VANISHING_EXCHANGES,
    vanishing,
};

/// The most processes that a history has.
const MAX_PROCESSES: usize = 4;

/// Partitions of each topic.
const PARTITIONS: i32 = 3;

/// Brokers with faults; they serve one history after the other.
#[derive(Default)]
pub struct Brokers {
    /// The name of this history's exchange, queues and topics.
    pub name: String,
    kind: Option<Kind>,
    rabbitmq: Option<RabbitMq>,
    kafka: Option<Kafka>,
}

struct RabbitMq {
    lease: Box<node::Lease>,
    proxies: Vec<Arc<FaultProxy>>,
    /// The queue whose process is suspended.
    suspended: Option<String>,
}

struct Kafka {
    node: Box<Node>,
    /// Whether broker 2 of the cluster existed, and is gone for good.
    has_lost_broker: bool,
    proxies: Vec<Arc<FaultProxy>>,
    topics: Vec<(Place, Topic)>,
    dead: Option<Topic>,
}

impl Brokers {
    /// Starts the servers that a history needs and that do not run yet.
    pub async fn start(&mut self, setup: &Setup) {
        let kind = setup.kind;
        let loses_broker = setup.mixed_options.sick.contains(&Sickness::Replicas);
        let rabbitmq = async {
            let wanted = kind != Kind::Kafka && self.rabbitmq.is_none();
            if wanted { Some(RabbitMq::start().await) } else { None }
        };
        let kafka = self.kafka.take();
        let kafka = async {
            let mut kafka = match kafka {
                None if kind != Kind::RabbitMq => Some(Kafka::start().await),
                other => other,
            };
            if let Some(kafka) =
                kafka.as_mut().filter(|kafka| loses_broker && !kafka.has_lost_broker)
            {
                kafka.lose_broker().await;
            }
            kafka
        };
        let (rabbitmq, kafka) = tokio::join!(rabbitmq, kafka);
        self.rabbitmq = self.rabbitmq.take().or(rabbitmq);
        self.kafka = kafka;
        self.kind = Some(kind);
    }

    /// Makes the exchange, queues and topics of a history, except those that are sick.
    pub async fn create_destinations(&mut self, setup: &Setup) {
        self.name = unique("chaos-");
        let (name, sick) = (self.name.clone(), &setup.mixed_options.sick);
        for proxy in self.proxies() {
            proxy.refuse(false);
            proxy.thaw();
            proxy.delay(setup.distance);
            proxy.cut_at(if sick.contains(&Sickness::Poison) { MARK } else { "" });
        }
        let kind = self.kind;
        if let Some(rabbitmq) = self.rabbitmq.as_mut().filter(|_| kind != Some(Kind::Kafka)) {
            let amqp = rabbitmq.amqp_client().await;
            amqp.topic(&name).await;
            amqp.classic(&name).await;
            for kind in [PLAIN, FLAKY, FORBIDDEN, POISON, FAR] {
                amqp.bind(&name, &name, kind).await;
            }
            rabbitmq.add_vanishing(&name).await;
            amqp.classic(&format!("{name}-sick")).await;
            if !sick.contains(&Sickness::Exchange) {
                rabbitmq.add_exchange(&name, "sick").await;
            }
            let silent = format!("{name}-silent");
            amqp.classic(&silent).await;
            rabbitmq.add_exchange(&name, "silent").await;
            if sick.contains(&Sickness::Queue) {
                rabbitmq.lease.node.suspend_queue(&silent).await;
                rabbitmq.suspended = Some(silent);
            }
            amqp.classic(&format!("{name}-dead")).await;
            rabbitmq.add_exchange(&name, "dead").await;
        }
        if let Some(kafka) = self.kafka.as_mut().filter(|_| kind != Some(Kind::RabbitMq)) {
            kafka.topics.clear();
            let main = if kind == Some(Kind::Mixed) { Place::Stream } else { Place::Main };
            kafka.add(main, &name, &[]).await;
            if kind == Some(Kind::Mixed) {
                let lacks_replicas = sick.contains(&Sickness::Replicas);
                kafka.add_sick(&format!("{name}-sick"), lacks_replicas).await;
                if !sick.contains(&Sickness::Topic) {
                    kafka.add(Place::LateTopic, &format!("{name}-late"), &[]).await;
                }
                kafka.dead = Some(kafka.topic(&format!("{name}-dead"), &[]).await);
            }
        }
    }

    /// Heals what was sick. It may be healthy already.
    pub async fn heal(&mut self, sick: Sickness) {
        let name = self.name.clone();
        match sick {
            Sickness::Exchange => self.rabbitmq().add_exchange(&name, "sick").await,
            Sickness::Replicas => {
                let topic = self.kafka().find(Place::SickTopic).expect("made in the beginning");
                topic.alter("min.insync.replicas", "1").await;
            }
            Sickness::Topic => {
                let kafka = self.kafka.as_mut().expect("mixed");
                if kafka.find(Place::LateTopic).is_none() {
                    kafka.add(Place::LateTopic, &format!("{name}-late"), &[]).await;
                }
            }
            Sickness::Poison => self.proxies().for_each(|proxy| proxy.cut_at("")),
            Sickness::Queue => {
                let rabbitmq = self.rabbitmq.as_mut().expect("mixed");
                if let Some(queue) = rabbitmq.suspended.take() {
                    rabbitmq.lease.node.resume_queue(&queue).await;
                }
            }
        }
    }

    fn rabbitmq(&self) -> &RabbitMq {
        self.rabbitmq.as_ref().expect("for RabbitMQ only")
    }

    fn kafka(&self) -> &Kafka {
        self.kafka.as_ref().expect("for Kafka only")
    }

    fn proxies(&self) -> impl Iterator<Item = &Arc<FaultProxy>> {
        let rabbitmq = self.rabbitmq.iter().flat_map(|broker| &broker.proxies);
        rabbitmq.chain(self.kafka.iter().flat_map(|broker| &broker.proxies))
    }

    /// The proxies of a process: to the broker, and to the second one.
    pub fn proxies_of(&self, process: usize) -> Vec<Arc<FaultProxy>> {
        let rabbitmq = self.rabbitmq.as_ref().map(|broker| broker.proxies[process].clone());
        let kafka = self.kafka.as_ref().map(|broker| broker.proxies[process].clone());
        match self.kind {
            Some(Kind::RabbitMq) => Vec::from_iter(rabbitmq),
            Some(Kind::Kafka) => Vec::from_iter(kafka),
            _ => rabbitmq.into_iter().chain(kafka).collect(),
        }
    }

    /// The settings of a process's sinks and routes.
    pub fn settings(&self, setup: &Setup, process: usize) -> Vec<String> {
        let name = &self.name;
        let mut settings = Vec::new();
        let mut sink = |sink: &str, own: &[String]| {
            let timeout = (setup.lease / 3).as_millis();
            settings.extend(own.iter().map(|own| format!("sinks.{sink}.{own}")));
            settings.push(format!("sinks.{sink}.timeout={timeout}ms"));
            settings.push(format!("sinks.{sink}.key_window={}", setup.mixed_options.key_window));
            settings.push(format!("sinks.{sink}.allowed_destinations=[\"{name}-*\"]"));
        };
        let proxies: Vec<SocketAddr> =
            self.proxies_of(process).iter().map(|proxy| proxy.address()).collect();
        if self.kind != Some(Kind::Kafka) {
            // Few channels, so that each number would be used again soon.
            let uri =
                format!("{}?channel_max=16", at(&self.rabbitmq().lease.node.uri(), proxies[0]));
            let own =
                ["kind=rabbitmq".to_owned(), format!("uri={uri}"), format!("exchange={name}")];
            sink("rabbit", &own);
        }
        if self.kind != Some(Kind::RabbitMq) {
            let brokers = format!("brokers={}", proxies[proxies.len() - 1]);
            sink("stream", &["kind=kafka".to_owned(), brokers, format!("topic={name}")]);
        }
        if self.kind == Some(Kind::Mixed) {
            let nowhere = "brokers=127.0.0.1:1".to_owned();
            sink("ghost", &["kind=kafka".to_owned(), nowhere, format!("topic={name}")]);
            settings.push("relay.default_sink=rabbit".to_owned());
            settings.push(format!(
                "routes=[{{type = \"{STREAM}*\", sink = \"stream\"}}, \
                 {{type = \"Ghost\", sink = \"ghost\"}}]"
            ));
        }
        let dead = match setup.mixed_options.dead_letters {
            Some(Peer::Stream) => "stream",
            Some(_) => "rabbit",
            None => return settings,
        };
        settings.push(format!(
            "relay.dead_letter={{sink = \"{dead}\", destination = \"{name}-dead\"}}"
        ));
        settings
    }

    /// Stops a broker cleanly, or kills it.
    pub async fn stop(&mut self, which: Peer, killed: bool) {
        match (self.is_kafka(which), killed) {
            (false, true) => self.rabbitmq().lease.node.kill().await,
            (false, false) => self.rabbitmq().lease.node.stop().await,
            (true, true) => self.kafka.as_mut().expect("there").node.kill(),
            (true, false) => self.kafka.as_mut().expect("there").node.stop().await,
        }
    }

    /// Starts it again, with all that it has stored. A queue that was suspended is suspended again
    /// before a process can connect.
    pub async fn start_again(&mut self, which: Peer) {
        if self.is_kafka(which) {
            self.kafka.as_mut().expect("there").node.start_again().await
        } else {
            let RabbitMq { lease, proxies, suspended } = self.rabbitmq();
            proxies.iter().for_each(|proxy| proxy.set_ready(false));
            lease.node.start().await;
            if let Some(queue) = suspended {
                lease.node.suspend_queue(queue).await;
            }
            proxies.iter().for_each(|proxy| proxy.set_ready(true));
        }
    }

    fn is_kafka(&self, which: Peer) -> bool {
        which == Peer::Stream || self.kind == Some(Kind::Kafka)
    }

    /// Sets whether messages of this type are accepted or returned. (Kafka has no such thing.)
    pub async fn bind(&self, kind: &str, is_bound: bool) {
        let Some(rabbitmq) = self.rabbitmq.as_ref().filter(|_| self.kind != Some(Kind::Kafka))
        else {
            return;
        };
        let (amqp, name) = (rabbitmq.amqp_client().await, &self.name);
        if is_bound {
            amqp.bind(name, name, kind).await
        } else {
            amqp.unbind(name, name, kind).await
        }
    }

    /// Deletes the exchanges that vanish, or makes them again.
    pub async fn set_vanished(&self, is_vanished: bool) {
        let (rabbitmq, name) = (self.rabbitmq(), &self.name);
        if is_vanished {
            let amqp = rabbitmq.amqp_client().await;
            for number in 0..VANISHING_EXCHANGES {
                amqp.delete_exchange(&vanishing(name, number)).await;
            }
        } else {
            rabbitmq.add_vanishing(name).await;
        }
    }

    /// Sets whether the relays' user may publish everything, or not [`FORBIDDEN`].
    pub async fn forbid(&self, is_forbidden: bool) {
        let node = &self.rabbitmq().lease.node;
        let all_but = format!("^(?!{FORBIDDEN})");
        if is_forbidden {
            let of = ["set_topic_permissions", "-p", "/", "guest", &self.name];
            node.ctl(&[of.as_slice(), &[&all_but, ".*"]].concat()).await;
        } else {
            node.ctl(&["clear_topic_permissions", "-p", "/", "guest", &self.name]).await;
        }
    }

    /// A message that no relay has published.
    pub async fn publish_stray(&self, id: &str, key: &str) {
        // The content of a record that `support::outbox::record` makes.
        let body = format!(r#"{{"id":"{id}"}}"#);
        let amqp = self.rabbitmq().amqp_client().await;
        amqp.publish(&self.name, PLAIN, (id, Some(key)), body.as_bytes()).await;
    }

    /// Removes messages that have arrived; the rest arrives again in its order. Returns how many it
    /// found.
    pub async fn steal(&self, ids: &[&str]) -> usize {
        let (amqp, name) = (self.rabbitmq().amqp_client().await, &self.name);
        let mut found = 0;
        for message in amqp.take_all(name).await {
            let (id, key) = (id(&message), key(&message));
            if ids.contains(&id.as_str()) {
                found += 1
            } else {
                amqp.publish(name, PLAIN, (&id, key.as_deref()), &message.delivery.data).await
            }
        }
        found
    }

    /// Everything that has arrived at each destination, in order for each key.
    pub async fn arrivals(&self) -> Vec<(Place, Vec<Arrival>)> {
        let mut all = Vec::new();
        if self.kind != Some(Kind::Kafka) {
            let (amqp, name) = (self.rabbitmq().amqp_client().await, &self.name);
            all.push((Place::Main, at_queue(&amqp, name).await));
            all.push((Place::SickExchange, at_queue(&amqp, &format!("{name}-sick")).await));
            all.push((Place::SilentQueue, at_queue(&amqp, &format!("{name}-silent")).await));
        }
        if self.kind != Some(Kind::RabbitMq) {
            for (place, topic) in &self.kafka().topics {
                all.push((*place, at_topic(topic).await));
            }
        }
        all
    }

    /// The ids of the dead letters that have arrived.
    pub async fn dead_letters(&self, at: Peer) -> Vec<String> {
        let arrived = match at {
            Peer::Stream => at_topic(self.kafka().dead.as_ref().expect("mixed")).await,
            _ => {
                let amqp = self.rabbitmq().amqp_client().await;
                at_queue(&amqp, &format!("{}-dead", self.name)).await
            }
        };
        arrived.into_iter().map(|arrival| arrival.id).collect()
    }

    /// Removes what this history has made.
    pub async fn clear(&mut self) {
        if let Some(rabbitmq) = self.rabbitmq.as_ref().filter(|_| self.kind != Some(Kind::Kafka)) {
            let amqp = rabbitmq.amqp_client().await;
            for suffix in ["", "-sick", "-silent", "-dead"] {
                amqp.delete_queue(&format!("{}{suffix}", self.name)).await;
                amqp.delete_exchange(&format!("{}{suffix}", self.name)).await;
            }
            for number in 0..VANISHING_EXCHANGES {
                amqp.delete_exchange(&vanishing(&self.name, number)).await;
            }
        }
        if let Some(kafka) = &mut self.kafka {
            for (_, topic) in kafka.topics.drain(..) {
                topic.delete().await;
            }
            if let Some(dead) = kafka.dead.take() {
                dead.delete().await;
            }
        }
    }
}

impl RabbitMq {
    async fn start() -> Self {
        let lease = Box::new(node::turn().await);
        let mut proxies = Vec::new();
        for _ in 0..MAX_PROCESSES {
            proxies.push(Arc::new(FaultProxy::to_address(address(&lease.node.uri())).await));
        }
        Self { lease, proxies, suspended: None }
    }

    async fn amqp_client(&self) -> AmqpClient {
        AmqpClient::on(&self.lease.node.uri()).await
    }

    /// The exchanges that vanish. They lead to the main queue.
    async fn add_vanishing(&self, name: &str) {
        let amqp = self.amqp_client().await;
        for number in 0..VANISHING_EXCHANGES {
            let exchange = vanishing(name, number);
            amqp.topic(&exchange).await;
            amqp.bind(name, &exchange, "#").await;
        }
    }

    /// An exchange in addition to the main one, with its queue.
    async fn add_exchange(&self, name: &str, suffix: &str) {
        let (amqp, name) = (self.amqp_client().await, format!("{name}-{suffix}"));
        amqp.topic(&name).await;
        amqp.bind(&name, &name, "#").await;
    }
}

impl Kafka {
    async fn start() -> Self {
        let mut options = Options::default();
        let mut proxies = Vec::new();
        for number in 0..MAX_PROCESSES {
            let listener = Listener::new(&format!("L{number}"), "PLAINTEXT");
            let proxy = FaultProxy::to_address(listener.address()).await;
            options = options.listener(listener.advertised_at(proxy.address()));
            proxies.push(Arc::new(proxy));
        }
        let node = Box::new(Node::with(options).await);
        Self { node, has_lost_broker: false, proxies, topics: Vec::new(), dead: None }
    }

    /// Adds a second broker to the cluster, and removes its process and its data. The controller
    /// still knows it, as a broker that does not run. So a topic can have replicas there that are
    /// never in sync, and one process is enough for all histories of these servers.
    async fn lose_broker(&mut self) {
        let mut second = Node::joining(&self.node).await;
        // The controller counts a cleanly stopped broker as gone at once.
        second.stop().await;
        self.has_lost_broker = true;
    }

    /// The topic that may be sick. It demands two replicas in sync. It lacks one where its second
    /// replica is on the broker that is gone.
    ///
    /// A topic that demands more replicas than it has is different: Kafka then demands as many as
    /// it has (`Partition.effectiveMinIsr`).
    async fn add_sick(&mut self, name: &str, lacks_replicas: bool) {
        let topic = if lacks_replicas {
            let replicas = [&[1, 2] as &[i32]; PARTITIONS as usize];
            let demanded = [("min.insync.replicas", "2")];
            Topic::assigned(&self.node.brokers(), name, &replicas, &demanded).await
        } else {
            self.topic(name, &[]).await
        };
        self.topics.push((Place::SickTopic, topic));
    }

    async fn topic(&self, name: &str, properties: &[(&str, &str)]) -> Topic {
        Topic::named(&self.node.brokers(), name, PARTITIONS, properties).await
    }

    async fn add(&mut self, place: Place, name: &str, properties: &[(&str, &str)]) {
        let topic = self.topic(name, properties).await;
        self.topics.push((place, topic));
    }

    fn find(&self, place: Place) -> Option<&Topic> {
        self.topics.iter().find(|(other, _)| *other == place).map(|(_, topic)| topic)
    }
}

async fn at_queue(amqp: &AmqpClient, name: &str) -> Vec<Arrival> {
    let messages = amqp.take_all(name).await;
    let arrival = |message: &lapin::message::BasicGetMessage| Arrival {
        id: id(message),
        key: key(message),
        content: content(&message.delivery.data),
    };
    messages.iter().map(arrival).collect()
}

async fn at_topic(topic: &Topic) -> Vec<Arrival> {
    let messages = topic.read().await;
    let arrival = |message: &crate::support::kafka::record::Record| {
        let id = message.id().to_owned();
        let key = String::from_utf8(message.key.clone().unwrap()).unwrap();
        // Records without a key have their id as the key.
        let content = content(message.payload.as_deref().unwrap_or_default());
        Arrival { key: Some(key).filter(|key| *key != id), id, content }
    };
    messages.iter().map(arrival).collect()
}

fn key(message: &lapin::message::BasicGetMessage) -> Option<String> {
    let headers = message.delivery.properties.headers().as_ref().unwrap().inner();
    headers.get("message-key").map(|key| match key {
        AMQPValue::LongString(key) => String::from_utf8_lossy(key.as_bytes()).into(),
        other => panic!("a key that is no text: {other:?}"),
    })
}

/// Every type that can be bound.
pub const BOUND: [&str; 3] = [PLAIN, FLAKY, DOOMED];
