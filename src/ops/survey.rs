//! Counting the outbox now and then, for the gauges.

use std::time::{Duration, Instant};

use metrics::gauge;
use tokio::sync::watch;
use tracing::debug;

use crate::outbox::inspect::Inspector;
use crate::outbox::undecoded::RawId;
use crate::partition::heartbeat::Pulse;
use crate::partition::metrics::UNKNOWN;
use crate::partition::share::Allotted;
use crate::store::StoreError;
use crate::telemetry::chain;
use crate::telemetry::metrics::{OLDEST_PENDING, OUTBOX_RECORDS};

/// The shortest pause between two counts.
const SHORTEST: Duration = Duration::from_secs(15);

/// How long a search for invalid records goes on at a turn: all of a hundred thousand records or more.
const TURN: Duration = Duration::from_secs(1);

/// A count takes at most this share of the time: one part in a hundred.
const COST: u32 = 100;

/// What [`Inspector::backlog`] counts.
const BACKLOG: [&str; 3] = ["pending", "scheduled", "dead"];

/// Keeps the gauges of the outbox, for ever; where this instance owns the lowest partition, so that
/// a fleet counts once.
///
/// While MongoDB is away the gauges are too: what was counted before is not known any more.
pub async fn survey(
    inspector: Inspector,
    mut pulse: watch::Receiver<Pulse>,
    mut allotted: watch::Receiver<Allotted>,
) {
    let now = Instant::now();
    let mut counts = Counts { backlog_due: now, invalid_due: now, search: Search::default() };
    loop {
        let counting = pulse.wait_for(|pulse| *pulse == Pulse::Alive).await.is_ok()
            && allotted.wait_for(counts_here).await.is_ok();
        if !counting {
            // The heartbeat ends with the process, and this with it.
            return std::future::pending().await;
        }
        tokio::select! {
            () = counts.keep(&inspector) => {}
            _ = pulse.wait_for(|pulse| *pulse != Pulse::Alive) => counts.forget(),
            _ = allotted.wait_for(|allotted| !counts_here(allotted)) => counts.forget(),
        }
    }
}

fn counts_here(allotted: &Allotted) -> bool {
    allotted.partitions.first() == Some(&0)
}

/// When each is due.
struct Counts {
    backlog_due: Instant,
    invalid_due: Instant,
    search: Search,
}

/// A search for invalid records, along the ids: it goes on at each turn where the last one ended.
#[derive(Default)]
struct Search {
    after: Option<RawId>,
    /// Found since it began at the first id.
    found: u64,
    /// Found by the last one that came to the end.
    last: u64,
}

impl Counts {
    async fn keep(&mut self, inspector: &Inspector) {
        loop {
            if self.backlog_due <= Instant::now() {
                let started = Instant::now();
                backlog(inspector).await;
                self.backlog_due = Instant::now() + pause(started.elapsed());
            }
            // Apart: it reads delivered records too.
            if self.invalid_due <= Instant::now() {
                let started = Instant::now();
                self.invalid(inspector).await;
                self.invalid_due = Instant::now() + pause(started.elapsed());
            }
            tokio::time::sleep_until(self.backlog_due.min(self.invalid_due).into()).await;
        }
    }

    /// Searches for a second. What was found is the least that there is.
    async fn invalid(&mut self, inspector: &Inspector) {
        let began = Instant::now();
        let search = &mut self.search;
        while began.elapsed() < TURN {
            match inspector.invalid(search.after.as_ref()).await {
                Ok((found, end)) => {
                    search.found += found;
                    search.after = end;
                    if search.after.is_none() {
                        search.last = std::mem::take(&mut search.found);
                        break;
                    }
                }
                Err(error) => {
                    not_counted(&error);
                    forget_invalid();
                    return;
                }
            }
        }
        records("invalid", search.last.max(search.found) as f64);
    }

    /// Nothing is known now, and is to be soon after MongoDB is back, whatever it costs.
    fn forget(&mut self) {
        forget_backlog();
        forget_invalid();
        let soon = Instant::now() + SHORTEST;
        self.backlog_due = self.backlog_due.min(soon);
        self.invalid_due = self.invalid_due.min(soon);
    }
}

async fn backlog(inspector: &Inspector) {
    match inspector.backlog().await {
        Ok(backlog) => {
            let counts = [backlog.pending, backlog.scheduled, backlog.dead];
            for (status, count) in BACKLOG.into_iter().zip(counts) {
                records(status, count as f64);
            }
            let age = backlog.oldest_pending.unwrap_or_default();
            gauge!(OLDEST_PENDING).set(age.as_secs_f64());
        }
        Err(error) => {
            not_counted(&error);
            forget_backlog();
        }
    }
}

fn not_counted(error: &StoreError) {
    debug!(error = chain(error), "records were not counted");
}

fn forget_backlog() {
    BACKLOG.into_iter().for_each(|status| records(status, UNKNOWN));
    gauge!(OLDEST_PENDING).set(UNKNOWN);
}

fn forget_invalid() {
    records("invalid", UNKNOWN);
}

fn records(status: &'static str, count: f64) {
    gauge!(OUTBOX_RECORDS, "status" => status).set(count);
}

fn pause(cost: Duration) -> Duration {
    SHORTEST.max(cost * COST)
}
