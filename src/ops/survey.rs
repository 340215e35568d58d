//! Counting the outbox now and then, for the gauges.

use std::time::{Duration, Instant};

use metrics::gauge;
use tracing::debug;

use crate::outbox::inspect::Inspector;
use crate::telemetry::chain;
use crate::telemetry::metrics::{OLDEST_PENDING, OUTBOX_RECORDS};

/// The shortest pause between two counts.
const SHORTEST: Duration = Duration::from_secs(15);

/// A count takes at most this share of the time: one part in a hundred.
const COST: u32 = 100;

/// Keeps the gauges of the outbox, for ever. Only the owner of the lowest partition calls it,
/// so that a fleet counts once.
pub async fn survey(inspector: Inspector) {
    let mut backlog_due = Instant::now();
    let mut invalid_due = Instant::now();
    loop {
        if backlog_due <= Instant::now() {
            let started = Instant::now();
            backlog(&inspector).await;
            backlog_due = Instant::now() + pause(started.elapsed());
        }
        // Apart: it reads delivered records too, and so costs more each day.
        if invalid_due <= Instant::now() {
            let started = Instant::now();
            match inspector.invalid().await {
                Ok(count) => gauge!(OUTBOX_RECORDS, "status" => "invalid").set(count as f64),
                Err(error) => debug!(error = chain(&error), "invalid records were not counted"),
            }
            invalid_due = Instant::now() + pause(started.elapsed());
        }
        tokio::time::sleep_until(backlog_due.min(invalid_due).into()).await;
    }
}

async fn backlog(inspector: &Inspector) {
    match inspector.backlog().await {
        Ok(backlog) => {
            let counts = [
                ("pending", backlog.pending),
                ("scheduled", backlog.scheduled),
                ("dead", backlog.dead),
            ];
            for (status, count) in counts {
                gauge!(OUTBOX_RECORDS, "status" => status).set(count as f64);
            }
            let age = backlog.oldest_pending.unwrap_or_default();
            gauge!(OLDEST_PENDING).set(age.as_secs_f64());
        }
        Err(error) => debug!(error = chain(&error), "records were not counted"),
    }
}

fn pause(cost: Duration) -> Duration {
    SHORTEST.max(cost * COST)
}
