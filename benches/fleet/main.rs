//! Several daemons, and idle ones: the latency of a record, the throughput of several instances,
//! and the cost of instances that start, leave, die and idle, also next to many blocked keys.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod blocked;
mod gap;
mod idle;
mod kill;
mod latency;
mod restart;
mod scale;
#[path = "../support/mod.rs"]
mod support;

/// `cargo bench --bench fleet -- latency idle` measures those parts alone.
fn main() {
    // The relay's warnings: none are expected.
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let parts = ["latency", "scale", "gap", "kill", "restart", "blocked", "idle"];
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        for part in parts.into_iter().filter(|part| support::is_chosen(&parts, part)) {
            match part {
                "latency" => latency::measure().await,
                "scale" => scale::measure().await,
                "gap" => gap::measure().await,
                "kill" => kill::measure().await,
                "restart" => restart::measure().await,
                "blocked" => blocked::measure().await,
                _ => idle::measure().await,
            }
        }
    });
}
