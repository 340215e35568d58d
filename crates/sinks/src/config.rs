//! The configuration of a sink: the keys of every kind, and the trait of a kind's own keys.
//!
//! A kind of sink is a folder with a type that implements [`SinkConfig`], and one line in
//! [`registry`](crate::registry).

use std::future::Future;
use std::time::Duration;

use postrider_outbox::ids::SinkName;
use postrider_relay::routing::SinkRules;
use postrider_relay::sink::{Address, PublishError, Sink, SinkDown};
use postrider_settings::units::HumanDuration;
use postrider_settings::{Glob, Rules};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The keys that every kind of sink has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryConfig {
    /// How long a publish may take. Must be above 0 and below `relay.lease`, so that no other instance publishes the record at the same time.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "1ms"))]
    pub timeout: Duration,
    /// The most unconfirmed messages per key. Above 1 a key is faster, but a message that the broker refuses (nack, return, unknown topic) is overtaken by the messages behind it.
    #[schemars(range(min = 1, max = 1000))]
    pub key_window: usize,
    /// Globs of the destinations that a record may name itself. A record that names another one is dead, with a reason that begins with `refused:`.
    pub allowed_destinations: Vec<Glob>,
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            key_window: 1,
            allowed_destinations: vec![Glob::new("*")],
        }
    }
}

/// The whole configuration of one sink.
#[derive(Clone, Debug)]
pub struct SinkSettings<C> {
    /// The name of its table.
    pub name: SinkName,
    /// The keys of every kind.
    pub delivery: DeliveryConfig,
    /// The keys of its kind.
    pub own: C,
}

impl<C> SinkSettings<C> {
    /// Creates the configuration of a sink with defaults for the keys of every kind.
    pub fn new(name: &str, own: C) -> Self {
        Self { name: name.into(), delivery: DeliveryConfig::default(), own }
    }
}

impl<C: SinkConfig> SinkSettings<C> {
    /// Returns the same configuration for a sink that creates nothing.
    #[must_use]
    pub fn without_declarations(&self) -> Self {
        Self { own: self.own.clone().without_declarations(), ..self.clone() }
    }
}

/// The limit of a declared name: AMQP's. Kafka's own is lower.
pub const MAX_NAME_BYTES: usize = 255;

/// Requires that a broker may accept a name in a list of declarations.
pub fn require_name(name: &str, list: &str, rules: &mut Rules) {
    let detail = format!("invalid name {name:?}: must have between 1 and {MAX_NAME_BYTES} bytes");
    rules.require((1..=MAX_NAME_BYTES).contains(&name.len()), list, detail);
}

/// The advice of `postrider check` for a sink that cannot be reached and reports no remedy itself.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionHelp {
    /// The keys to look at.
    pub keys: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// The configuration of one kind of sink.
pub trait SinkConfig: Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync {
    /// The sink that is built from it.
    type Sink: Sink;

    /// The broker's word for a destination; `None` if there is nothing to look up.
    const DESTINATION: Option<&'static str>;

    /// The file descriptors that the sink may need at a time.
    const MAX_DESCRIPTORS: u64;

    /// Advice for a sink that cannot be reached.
    const CONNECTION_HELP: ConnectionHelp;

    /// Checks the rules of its keys, which `rules` takes to be below the sink's table. Connects to nothing.
    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules);

    /// Returns warnings about what is legal and probably not meant, each with its key.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns where records go that name no destination. `allowed_destinations`: the destinations that they may name.
    fn routing_rules(&self, allowed_destinations: Vec<Glob>) -> SinkRules;

    /// Returns whether the sink creates what [`look_up`](Self::look_up) looks up, when it connects.
    fn declares(&self, _address: &Address) -> bool {
        false
    }

    /// Returns the same configuration for a sink that creates nothing.
    fn without_declarations(self) -> Self {
        self
    }

    /// Builds the sink, which connects at its first probe.
    ///
    /// # Errors
    ///
    /// What is wrong, without secrets.
    fn build(settings: SinkSettings<Self>) -> Result<Self::Sink, String>;

    /// Checks that the sink can be used, creates nothing, and returns what was found.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    fn check(sink: &Self::Sink) -> impl Future<Output = Result<&'static str, SinkDown>> + Send {
        async { sink.probe().await.map(|()| "reached") }
    }

    /// Looks a destination up without creating it. The key matters only where it names the destination.
    ///
    /// # Errors
    ///
    /// `Retryable` if it is missing or hidden from this user; another failure if the look-up fails.
    fn look_up(
        _sink: &Self::Sink,
        _address: &Address,
    ) -> impl Future<Output = Result<(), PublishError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// An error in a sink's table, with the path of the wrong key below the table.
pub type ReadError = serde_path_to_error::Error<toml::de::Error>;
