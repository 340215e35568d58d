//! The kinds of sinks that this build has. A new kind adds one line to `sinks!`.

use std::time::Instant;

use postrider_outbox::ids::SinkName;
use postrider_relay::routing::SinkRules;
use postrider_relay::sink::{Address, Message, PublishError, Sink, SinkDown};
use postrider_settings::{Glob, Rules};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::Error as _;
use toml::{Table, Value};

use crate::config::{ConnectionHelp, DeliveryConfig, ReadError, SinkConfig, SinkSettings};

/// Generates the two enums of all kinds, which forward each call to the kind's own type.
macro_rules! sinks {
    ($($(#[$gate:meta])? $kind:literal => $Name:ident($Config:ty),)+) => {
        /// The configuration of a sink of any kind.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "kind")]
        #[expect(missing_docs, reason = "the variants are the kinds")]
        pub enum KindConfig {
            $($(#[$gate])? #[serde(rename = $kind)] $Name($Config),)+
        }

        /// A sink of any kind.
        #[derive(Debug)]
        #[expect(missing_docs, reason = "the variants are the kinds")]
        pub enum AnySink {
            $($(#[$gate])? $Name(<$Config as SinkConfig>::Sink),)+
        }

        impl KindConfig {
            /// The values of `kind`.
            pub const KINDS: &[&str] = &[$($(#[$gate])? $kind,)+];

            /// Reads the keys of one kind.
            pub(crate) fn read(kind: &str, table: Table) -> Result<Self, ReadError> {
                match kind {
                    $($(#[$gate])? $kind => {
                        serde_path_to_error::deserialize(Value::Table(table)).map(Self::$Name)
                    })+
                    _ => {
                        let path = serde_path_to_error::Track::new().path();
                        let error = toml::de::Error::custom(format!("unknown kind {kind:?}"));
                        Err(ReadError::new(path, error))
                    }
                }
            }

            /// Returns the schema of each kind's own keys.
            pub(crate) fn schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
                vec![$($(#[$gate])? ($kind, <$Config>::json_schema(generator)),)+]
            }

            pub(crate) fn validate(&self, name: &str, delivery: &DeliveryConfig, rules: &mut Rules) {
                let (name, delivery) = (SinkName::from(name), delivery.clone());
                match self {
                    $($(#[$gate])? Self::$Name(own) => {
                        let own = own.clone();
                        <$Config>::validate(&SinkSettings { name, delivery, own }, rules);
                    })+
                }
            }

            pub(crate) fn without_declarations(self) -> Self {
                match self {
                    $($(#[$gate])? Self::$Name(own) => Self::$Name(own.without_declarations()),)+
                }
            }

            pub(crate) fn build(
                self,
                name: SinkName,
                delivery: DeliveryConfig,
            ) -> Result<AnySink, String> {
                match self {
                    $($(#[$gate])? Self::$Name(own) => {
                        <$Config>::build(SinkSettings { name, delivery, own }).map(AnySink::$Name)
                    })+
                }
            }

            /// Returns the value of `kind`.
            pub fn kind(&self) -> &'static str {
                match self { $($(#[$gate])? Self::$Name(_) => $kind,)+ }
            }

            /// Returns warnings about what is legal and probably not meant, each with its key.
            pub fn warnings(&self) -> Vec<String> {
                match self { $($(#[$gate])? Self::$Name(own) => own.warnings(),)+ }
            }

            pub(crate) fn routing_rules(&self, allowed_destinations: Vec<Glob>) -> SinkRules {
                match self { $($(#[$gate])? Self::$Name(own) => own.routing_rules(allowed_destinations),)+ }
            }

            /// Returns whether the sink creates this destination when it connects.
            pub fn declares(&self, address: &Address) -> bool {
                match self { $($(#[$gate])? Self::$Name(own) => own.declares(address),)+ }
            }

            /// Returns the broker's word for a destination; `None` if there is nothing to look up.
            pub fn destination(&self) -> Option<&'static str> {
                match self { $($(#[$gate])? Self::$Name(_) => <$Config>::DESTINATION,)+ }
            }

            /// Returns how many file descriptors the sink may need at a time.
            pub fn max_descriptors(&self) -> u64 {
                match self { $($(#[$gate])? Self::$Name(_) => <$Config>::MAX_DESCRIPTORS,)+ }
            }

            /// Returns advice for a sink that cannot be reached.
            pub fn connection_help(&self) -> ConnectionHelp {
                match self { $($(#[$gate])? Self::$Name(_) => <$Config>::CONNECTION_HELP,)+ }
            }
        }

        impl AnySink {
            /// Checks that the sink can be used, creates nothing, and returns what was found.
            ///
            /// # Errors
            ///
            /// Why it cannot be used.
            pub async fn check(&self) -> Result<&'static str, SinkDown> {
                match self { $($(#[$gate])? Self::$Name(sink) => <$Config>::check(sink).await,)+ }
            }

            /// Looks a destination up without creating it: at RabbitMQ an exchange, or the queue that the key
            /// names if the exchange is the default one. The sink must be connected.
            ///
            /// # Errors
            ///
            /// `Retryable` if it is missing or hidden from this user; another failure if the look-up
            /// fails.
            pub async fn look_up(&self, address: &Address) -> Result<(), PublishError> {
                match self {
                    $($(#[$gate])? Self::$Name(sink) => <$Config>::look_up(sink, address).await,)+
                }
            }
        }

        impl Sink for AnySink {
            async fn publish(&self, message: Message) -> Result<(), PublishError> {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.publish(message).await,)+ }
            }

            async fn probe(&self) -> Result<(), SinkDown> {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.probe().await,)+ }
            }

            async fn lost(&self) -> SinkDown {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.lost().await,)+ }
            }

            async fn close(&self) {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.close().await,)+ }
            }

            fn destination(&self, message: &Message) -> Address {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.destination(message),)+ }
            }

            fn is_ready(&self, message: &Message) -> bool {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.is_ready(message),)+ }
            }

            fn expect(&self, lanes: usize) {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.expect(lanes),)+ }
            }

            fn replaced_at(&self) -> Option<Instant> {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.replaced_at(),)+ }
            }

            async fn renew(&self) {
                match self { $($(#[$gate])? Self::$Name(sink) => sink.renew().await,)+ }
            }

            fn isolated(&self) -> Self {
                match self { $($(#[$gate])? Self::$Name(sink) => Self::$Name(sink.isolated()),)+ }
            }
        }
    };
}

sinks! {
    #[cfg(feature = "rabbitmq")]
    "rabbitmq" => RabbitMq(crate::rabbitmq::RabbitMqConfig),
    #[cfg(feature = "kafka")]
    "kafka" => Kafka(crate::kafka::KafkaConfig),
    "file" => File(crate::file::FileConfig),
    "stdout" => Stdout(crate::stdout::StdoutConfig),
}
