//! The append path, compared with one transaction for each append by the same driver.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod alone;
mod load;
mod rate;
mod relay;
#[path = "../support/mod.rs"]
mod support;

use bson::{Document, doc};

/// `cargo bench --bench append -- rate load` measures those parts alone.
fn main() {
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let parts = ["rate", "load", "relay"];
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        for part in parts.into_iter().filter(|part| support::is_chosen(&parts, part)) {
            match part {
                "rate" => rate::measure().await,
                "load" => load::measure().await,
                _ => relay::measure().await,
            }
        }
    });
}

/// The payload of each event: about 400 bytes.
fn body() -> Document {
    doc! { "order": 7, "total": "120.00", "lines": "x".repeat(350) }
}

/// The value below which this share of a sorted list lies.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted[at.min(sorted.len() - 1)]
}
