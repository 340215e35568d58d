//! A real RabbitMQ: a vhost for one test, or a whole node where a test must break the broker.

pub mod amqp_client;
pub mod node;
pub mod vhost;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use postrider::sink::rabbitmq::{RabbitMq, RabbitMqConfig, RabbitMqSettings};

/// A sink with the defaults of the configuration, not connected yet.
pub fn sink(uri: &str, timeout: Duration) -> RabbitMq {
    sink_with(uri, timeout, true)
}

/// The same with a choice of `mandatory`.
pub fn sink_with(uri: &str, timeout: Duration, mandatory: bool) -> RabbitMq {
    let own = RabbitMqConfig { mandatory, ..RabbitMqConfig::at(uri) };
    let mut settings = RabbitMqSettings::new("test", own);
    settings.delivery.timeout = timeout;
    RabbitMq::new(settings).unwrap()
}

/// The address of the broker behind a URI.
pub fn address(uri: &str) -> SocketAddr {
    let (_, rest) = uri.rsplit_once('@').unwrap();
    let (address, _) = rest.split_once('/').unwrap();
    address.to_socket_addrs().unwrap().next().unwrap()
}

/// The same URI at another address.
pub fn at(uri: &str, address: SocketAddr) -> String {
    let (user, rest) = uri.rsplit_once('@').unwrap();
    let (_, vhost) = rest.split_once('/').unwrap();
    format!("{user}@{address}/{vhost}")
}
