//! The brokers that records can be sent to, each a folder or file that implements
//! [`Sink`](postrider_relay::sink::Sink).
//!
//! | module | contents |
//! |---|---|
//! | [`rabbitmq`] | RabbitMQ by `lapin`: confirms, returns, supervised reconnect |
//! | [`kafka`] | Kafka by librdkafka: an idempotent producer and its delivery reports |
//! | [`mod@file`] | a file: one JSON object per line, synced and rotated |
//! | [`stdout`] | standard output: one JSON object per line |
//! | [`config`] | the traits and keys that every kind of sink has |
//! | [`configured`] | a table of the configuration: one sink of any kind |
//! | [`registry`] | the kinds of sinks that this build has |
//! | [`cloud_events`] | CloudEvents attributes, for either broker |

mod active_link;
#[cfg(test)]
mod arbitrary;
mod availability;
pub mod cloud_events;
pub mod config;
pub mod configured;
pub mod file;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
mod growing_pause;
mod json_line;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
#[cfg_attr(
    not(feature = "rabbitmq"),
    allow(dead_code, reason = "the RabbitMQ sink uses all of it")
)]
mod liveness;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod registry;
pub mod stdout;
