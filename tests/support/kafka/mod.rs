//! A real Kafka: a topic for one test, or a whole broker where a test must break it.
//!
//! | a test needs | it uses |
//! |---|---|
//! | a topic to publish to | [`topic::Topic`] on the shared broker |
//! | a connection that it can cut, hold or delay | [`proxied::ProxiedBroker`], on the binary's own broker |
//! | a broker that stops, hangs or is configured otherwise | [`node::Node`] |
//! | TLS, logins, users without rights | [`secure::Secure`] |

pub mod acl;
pub mod node;
pub mod options;
pub mod proxied;
pub mod record;
pub mod secure;
pub mod topic;

/// The variable with the shared broker.
const BROKERS: &str = "POSTRIDER_TEST_KAFKA_BROKERS";

/// The Kafka of this test run, as `bootstrap.servers`.
pub fn brokers() -> String {
    super::environment::variable(BROKERS)
}
