//! Counts the outbox periodically, for the gauges.

use std::time::{Duration, Instant};

use metrics::gauge;
use tokio::sync::watch;
use tracing::debug;

use crate::outbox::inspect::Inspector;
use crate::outbox::undecoded::RawId;
use crate::partition::heartbeat::Pulse;
use crate::partition::metrics::UNKNOWN;
use crate::partition::owned::AssignedPartitions;
use crate::store::StoreError;
use crate::telemetry::chain;
use crate::telemetry::metrics::{OLDEST_PENDING, OUTBOX_RECORDS};

/// The shortest pause between two counts.
const MIN_PAUSE: Duration = Duration::from_secs(15);

/// How long one search for invalid records takes: a hundred thousand records or more.
const SEARCH_TIME: Duration = Duration::from_secs(1);

/// The pause after a count, as a multiple of its duration: counts take 1 % of the time.
const PAUSE_FACTOR: u32 = 100;

/// The longest pause: the alerts on late and dead records read the counts.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// The shortest pause after a failed count.
const MIN_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The statuses that [`Inspector::backlog`] counts.
const BACKLOG_STATUSES: [&str; 3] = ["pending", "scheduled", "dead"];

/// Updates the gauges of the outbox, for ever, while this instance owns partition 0: so one instance
/// counts for all.
///
/// While MongoDB is unreachable the gauges are unknown.
pub async fn survey(
    inspector: Inspector,
    mut pulse: watch::Receiver<Pulse>,
    mut allotted: watch::Receiver<AssignedPartitions>,
) {
    let mut counts =
        Counts { backlog: Pace::new(), invalid: Pace::new(), search: Search::default() };
    loop {
        let counting = pulse.wait_for(|pulse| *pulse == Pulse::Alive).await.is_ok()
            && allotted.wait_for(owns_first_partition).await.is_ok();
        if !counting {
            // The heartbeat has ended, and the process ends too.
            return std::future::pending().await;
        }
        tokio::select! {
            () = counts.run(&inspector) => {}
            _ = pulse.wait_for(|pulse| *pulse != Pulse::Alive) => counts.clear(),
            _ = allotted.wait_for(|allotted| !owns_first_partition(allotted)) => counts.clear(),
        }
    }
}

fn owns_first_partition(allotted: &AssignedPartitions) -> bool {
    allotted.partitions.first() == Some(&0)
}

/// The two counts: of the backlog, and of invalid records.
struct Counts {
    backlog: Pace,
    invalid: Pace,
    search: Search,
}

/// When the next one of a series of counts is due.
struct Pace {
    due: Instant,
    /// The duration of the last count; zero if it failed.
    last: Duration,
}

/// A search for invalid records by id, which continues where the last one ended.
#[derive(Default)]
struct Search {
    after: Option<RawId>,
    /// Those found since the first id.
    found: u64,
    /// Those found by the last complete search.
    last: u64,
}

impl Counts {
    async fn run(&mut self, inspector: &Inspector) {
        loop {
            let started = Instant::now();
            if self.backlog.due <= started {
                let is_counted = count_backlog(inspector).await;
                self.backlog.ended(started, is_counted);
            }
            // A count of its own: it reads delivered records too.
            let started = Instant::now();
            if self.invalid.due <= started {
                let is_counted = self.search_invalid(inspector).await;
                self.invalid.ended(started, is_counted);
            }
            tokio::time::sleep_until(self.backlog.due.min(self.invalid.due).into()).await;
        }
    }

    /// Continues the search; returns whether it did not fail. The count is a lower bound.
    async fn search_invalid(&mut self, inspector: &Inspector) -> bool {
        let began = Instant::now();
        let search = &mut self.search;
        while began.elapsed() < SEARCH_TIME {
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
                    log_failure(&error);
                    clear_invalid();
                    return false;
                }
            }
        }
        set_records("invalid", search.last.max(search.found) as f64);
        true
    }

    /// Invalidates the gauges, and recounts soon after MongoDB is reachable.
    fn clear(&mut self) {
        clear_backlog();
        clear_invalid();
        let soon = Instant::now() + MIN_PAUSE;
        for pace in [&mut self.backlog, &mut self.invalid] {
            pace.due = pace.due.min(soon);
        }
    }
}

/// Counts; returns whether that did not fail.
async fn count_backlog(inspector: &Inspector) -> bool {
    match inspector.backlog().await {
        Ok(backlog) => {
            let counts = [backlog.pending, backlog.scheduled, backlog.dead];
            for (status, count) in BACKLOG_STATUSES.into_iter().zip(counts) {
                set_records(status, count as f64);
            }
            let age = backlog.oldest_pending.unwrap_or_default();
            gauge!(OLDEST_PENDING).set(age.as_secs_f64());
            true
        }
        Err(error) => {
            log_failure(&error);
            clear_backlog();
            false
        }
    }
}

fn log_failure(error: &StoreError) {
    debug!(error = chain(error), "failed to count records");
}

fn clear_backlog() {
    BACKLOG_STATUSES.into_iter().for_each(|status| set_records(status, UNKNOWN));
    gauge!(OLDEST_PENDING).set(UNKNOWN);
}

fn clear_invalid() {
    set_records("invalid", UNKNOWN);
}

fn set_records(status: &'static str, count: f64) {
    gauge!(OUTBOX_RECORDS, "status" => status).set(count);
}

impl Pace {
    /// The first count is due at once.
    fn new() -> Self {
        Self { due: Instant::now(), last: Duration::ZERO }
    }

    /// Notes the end of a count that began at this moment.
    fn ended(&mut self, started: Instant, is_counted: bool) {
        self.due = Instant::now() + self.pause(started.elapsed(), is_counted);
    }

    /// The pause after a count of this duration.
    ///
    /// It grows with the shorter one of the last two: a single slow count waited for a busy server, and does not
    /// show what a count costs. After a failure it hardly grows: a count that timed out during an outage would
    /// leave the gauges unknown for minutes.
    fn pause(&mut self, took: Duration, is_counted: bool) -> Duration {
        let last =
            std::mem::replace(&mut self.last, if is_counted { took } else { Duration::ZERO });
        if is_counted {
            (took.min(last) * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE)
        } else {
            (took * PAUSE_FACTOR).clamp(MIN_RETRY_PAUSE, MIN_PAUSE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(2);
    const SLOW: Duration = Duration::from_secs(1);
    const HUGE: Duration = Duration::from_secs(10);

    #[test]
    fn pause_grows_when_two_counts_in_a_row_are_slow() {
        let mut pace = Pace::new();

        assert_eq!(pace.pause(SLOW, true), MIN_PAUSE, "the first one may have waited");
        assert_eq!(pace.pause(SLOW, true), SLOW * 100);
        assert_eq!(pace.pause(QUICK, true), MIN_PAUSE);
        assert_eq!(pace.pause(HUGE, true), MIN_PAUSE, "a single slow one");
        assert_eq!(pace.pause(SLOW, true), SLOW * 100, "the shorter one of the two");
        assert_eq!(pace.pause(HUGE, true), SLOW * 100, "the same");
        assert_eq!(pace.pause(HUGE, true), MAX_PAUSE);
    }

    #[test]
    fn pause_after_a_failure_is_bounded() {
        let mut pace = Pace::new();
        pace.pause(SLOW, true);

        assert_eq!(pace.pause(QUICK, false), Duration::from_secs(1));
        assert_eq!(pace.pause(HUGE, false), MIN_PAUSE);
        assert_eq!(pace.pause(SLOW, true), MIN_PAUSE, "the first count after failures");
    }
}
