//! From an append over HTTP's library side to the arrival at RabbitMQ: store and relay in one process.

pub async fn measure() {}
