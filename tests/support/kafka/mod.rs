//! A real Kafka: a topic of the test's own, or a whole broker where that must be hurt.
//!
//! | a test needs | it takes |
//! |---|---|
//! | somewhere to publish to | [`topic::Topic`] on the shared broker |
//! | a connection that it can cut, hold or delay | [`wired::Wired`], on the binary's own broker |
//! | a broker that stops, hangs or is configured otherwise | [`node::Node`] |

pub mod node;
pub mod options;
pub mod ports;
pub mod record;
pub mod topic;
pub mod wired;

/// The variable with the shared broker.
const BROKERS: &str = "POSTRIDER_TEST_KAFKA_BROKERS";

/// The Kafka of this test run, as `bootstrap.servers`.
pub fn brokers() -> String {
    std::env::var(BROKERS)
        .unwrap_or_else(|_| panic!("{BROKERS} is not set: run the tests by `make test`"))
}
