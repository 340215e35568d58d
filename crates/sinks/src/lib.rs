//! The brokers that records can be sent to, each a folder or file that implements
//! [`Sink`](postrider_relay::sink::Sink).
//!
//! | module | what it holds |
//! |---|---|
//! | [`rabbitmq`] | RabbitMQ by `lapin`: confirms, returns, supervised reconnect |
//! | [`kafka`] | Kafka by librdkafka: an idempotent producer, its delivery reports |
//! | [`stdout`] | one JSON object per line |
//! | [`cloud_events`] | CloudEvents attributes, for either broker |
//! | [`any`] | the sink that the configuration chose |

pub mod any;
#[cfg(test)]
mod arbitrary;
pub mod cloud_events;
pub mod declare;
pub mod kafka;
mod pulse;
pub mod rabbitmq;
mod slot;
pub mod stdout;
