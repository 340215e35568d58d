//! Outages of RabbitMQ, and records that it refuses.

mod charged;
mod closed;
mod down;
mod forbidden;
mod lease;
mod lost;
mod majority;
mod poison;
mod secrets;
mod silent;
