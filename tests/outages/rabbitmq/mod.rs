//! Outages of RabbitMQ, and records that it refuses.

mod closed;
mod down;
mod forbidden;
mod lease;
mod lost;
mod majority;
mod poison;
mod refused;
mod secrets;
mod silent;
mod silent_address;
