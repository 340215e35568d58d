//! The metrics of a sink, over all of its connections.

use std::sync::Arc;

use metrics::{Counter, Gauge, counter, gauge};
use parking_lot::Mutex;
use postrider_store::metric::Description;

/// Messages that wait for the broker's confirm.
pub const RABBITMQ_UNCONFIRMED: &str = "postrider_rabbitmq_unconfirmed_messages";
/// Whether the broker blocks a connection.
pub const RABBITMQ_BLOCKED: &str = "postrider_rabbitmq_blocked";
/// Connections for messages that were opened.
pub const RABBITMQ_CONNECTIONS: &str = "postrider_rabbitmq_connections_total";
/// Messages that no queue accepted.
pub const RABBITMQ_RETURNED: &str = "postrider_rabbitmq_returned_total";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 4] = [
    Description::gauge(
        RABBITMQ_UNCONFIRMED,
        "Messages sent to RabbitMQ that it has not confirmed yet.",
    ),
    Description::gauge(
        RABBITMQ_BLOCKED,
        "1 while RabbitMQ blocks a connection of the sink (connection.blocked), else 0.",
    ),
    Description::counter(
        RABBITMQ_CONNECTIONS,
        "Connections to RabbitMQ for messages that were opened.",
    ),
    Description::counter(RABBITMQ_RETURNED, "Messages that RabbitMQ returned as unroutable."),
];

/// The metrics of one sink, which its connections share.
#[derive(Debug)]
pub(super) struct RabbitMqMetrics {
    unconfirmed: Gauge,
    blocked: Gauge,
    blocked_connections: Mutex<usize>,
    connections: Counter,
    returned: Counter,
}

impl RabbitMqMetrics {
    /// Creates the series of a sink of this name.
    pub(super) fn new(sink: &str) -> Arc<Self> {
        let counter = |name: &'static str| {
            let series = counter!(name, "sink" => sink.to_owned());
            series.increment(0);
            series
        };
        let gauge = |name: &'static str| {
            let series = gauge!(name, "sink" => sink.to_owned());
            series.set(0.0);
            series
        };
        Arc::new(Self {
            unconfirmed: gauge(RABBITMQ_UNCONFIRMED),
            blocked: gauge(RABBITMQ_BLOCKED),
            blocked_connections: Mutex::new(0),
            connections: counter(RABBITMQ_CONNECTIONS),
            returned: counter(RABBITMQ_RETURNED),
        })
    }

    /// Counts a connection that was opened.
    pub(super) fn opened(&self) {
        self.connections.increment(1);
    }

    /// Counts a message that was returned.
    pub(super) fn returned(&self) {
        self.returned.increment(1);
    }

    /// Counts a message without a confirm until the returned value is dropped.
    pub(super) fn count_unconfirmed(&self) -> UnconfirmedMessage {
        self.unconfirmed.increment(1.0);
        UnconfirmedMessage(self.unconfirmed.clone())
    }

    /// Counts a connection as blocked until the returned value is dropped.
    pub(super) fn count_blocked(self: &Arc<Self>) -> BlockedConnection {
        self.add_blocked(|connections| connections + 1);
        BlockedConnection(self.clone())
    }

    fn add_blocked(&self, change: impl FnOnce(usize) -> usize) {
        let mut connections = self.blocked_connections.lock();
        *connections = change(*connections);
        self.blocked.set(if *connections > 0 { 1.0 } else { 0.0 });
    }
}

/// A message that counts as unconfirmed.
pub(super) struct UnconfirmedMessage(Gauge);

impl Drop for UnconfirmedMessage {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A connection that counts as blocked.
pub(super) struct BlockedConnection(Arc<RabbitMqMetrics>);

impl Drop for BlockedConnection {
    fn drop(&mut self) {
        self.0.add_blocked(|connections| connections.saturating_sub(1));
    }
}
