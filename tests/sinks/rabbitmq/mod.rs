//! The RabbitMQ sink on a real broker: a vhost for each test, and one node that tests stop and
//! freeze, one after the other.

mod channels;
mod closures;
mod connection;
mod hurt_node;
mod metrics;
mod properties;
mod returns;
mod tls;
mod unconfirmed;
mod util;
