//! The options of a broker for one test.

use std::net::{Ipv4Addr, SocketAddr};

use crate::support::ports::free_port;

/// The listener without a login and without a proxy, for the test itself.
pub const DIRECT: &str = "DIRECT";

/// A further listener.
#[derive(Clone, Debug)]
pub struct Listener {
    pub(super) name: String,
    pub(super) protocol: &'static str,
    pub(super) port: u16,
    advertised: Option<SocketAddr>,
}

impl Listener {
    /// A listener on a free port, for `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.
    pub fn new(name: &str, protocol: &'static str) -> Self {
        Self { name: name.to_owned(), protocol, port: free_port(), advertised: None }
    }

    /// Sends its clients to another address, such as a proxy in front of it.
    pub fn advertised_at(self, address: SocketAddr) -> Self {
        Self { advertised: Some(address), ..self }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The address that its clients use.
    pub fn advertised(&self) -> SocketAddr {
        self.advertised.unwrap_or_else(|| self.address())
    }
}

/// The options of [`Node::with`](super::node::Node::with).
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(super) listeners: Vec<Listener>,
    properties: Vec<(String, String)>,
    pub(super) scram: Vec<(String, String)>,
}

impl Options {
    pub fn listener(mut self, listener: Listener) -> Self {
        self.listeners.push(listener);
        self
    }

    /// A line of `server.properties`, which overrides the one here.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A user of SCRAM-SHA-256, which exists from the first start.
    pub fn scram_user(mut self, name: &str, password: &str) -> Self {
        self.scram.push((name.to_owned(), password.to_owned()));
        self
    }

    /// The text of `server.properties`, of the node that controls the cluster, or of another one.
    pub(super) fn server_properties(
        &self,
        data: &str,
        direct: &Listener,
        controller: &Listener,
        controls: bool,
    ) -> String {
        let clients = || self.listeners.iter().chain([direct]);
        let all: Vec<&Listener> = clients().chain(controls.then_some(controller)).collect();
        let (id, roles) = if controls { ("1", "broker,controller") } else { ("2", "broker") };
        let list = |one: &dyn Fn(&Listener) -> String, of: &[&Listener]| {
            of.iter().map(|listener| one(listener)).collect::<Vec<_>>().join(",")
        };
        let bound = |of: &Listener| format!("{}://{}", of.name, of.address());
        let advertised = |of: &Listener| format!("{}://{}", of.name, of.advertised());
        let protocol = |of: &Listener| format!("{}:{}", of.name, of.protocol);
        let mut lines = vec![
            ("listeners".to_owned(), list(&bound, &all)),
            ("advertised.listeners".to_owned(), list(&advertised, &clients().collect::<Vec<_>>())),
            (
                "listener.security.protocol.map".to_owned(),
                list(&protocol, &clients().chain([controller]).collect::<Vec<_>>()),
            ),
            ("node.id".to_owned(), id.to_owned()),
            ("process.roles".to_owned(), roles.to_owned()),
            ("controller.quorum.voters".to_owned(), format!("1@{}", controller.address())),
            ("log.dirs".to_owned(), data.to_owned()),
        ];
        let ours =
            SERVER_PROPERTIES.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        lines.extend(ours);
        lines.extend(self.properties.iter().cloned());
        lines.into_iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }
}

/// A small broker that starts quickly.
const SERVER_PROPERTIES: [(&str, &str); 20] = [
    ("controller.listener.names", "CONTROLLER"),
    ("inter.broker.listener.name", DIRECT),
    ("auto.create.topics.enable", "false"),
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.num.partitions", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("share.coordinator.state.topic.num.partitions", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
    // A killed broker may return only when its old session has ended at the controller.
    ("broker.session.timeout.ms", "3000"),
    ("broker.heartbeat.interval.ms", "500"),
    // For each listener.
    ("num.network.threads", "1"),
    ("num.io.threads", "2"),
    ("background.threads", "2"),
    ("num.recovery.threads.per.data.dir", "1"),
    // The cleaner's buffer would be half of the heap.
    ("log.cleaner.dedupe.buffer.size", "4194304"),
    ("log.index.size.max.bytes", "1048576"),
];
