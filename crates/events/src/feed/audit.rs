//! When to read what has no position, and how fast to take it.

use std::time::{Duration, Instant};

use postrider_store::StoreError;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use crate::commits::CommittedAppend;
use crate::context::Context;
use crate::feed::metrics::Source;
use crate::feed::scan::Scan;
use crate::feed::settings::FeedConfig;
use crate::names::AggregateName;

/// The appends of one page.
const PAGE: usize = 1_000;

/// The pages that wait.
const MAX_PAGES: usize = 2;

/// The interval of scans while nothing else reports the appends of other processes.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(1);

/// The least pause after a scan, in multiples of its duration: while it is an audit, and while nothing
/// else reports appends.
const AUDIT_PAUSE: u32 = 20;
const FALLBACK_PAUSE: u32 = 5;

/// How long what an audit has found may still be on its way as a report.
const GRACE: Duration = Duration::from_secs(2);

/// The interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// A step of a scan.
#[derive(Debug)]
pub(super) enum Page {
    /// A scan is due: [`Audit::begin`].
    Begins,
    /// These have no position.
    Found(Vec<CommittedAppend>),
    /// It has read everything; so many documents are no appends.
    Ended { invalid: u64 },
}

/// The scans of an owner.
pub(super) struct Audit {
    context: Context,
    interval: Duration,
    /// Appends per second of a scan; `None` without a limit.
    rate: Option<f64>,
    credit: f64,
    credited_at: Instant,
    due_at: Instant,
    /// Whether the change stream is open.
    follows: bool,
    /// Whether the next scan reads what nothing has reported: since before the stream was open.
    is_first: bool,
    /// Whether another scan must follow the current one at once.
    again: bool,
    /// Who has found what is in the queue.
    source: Source,
    running: Option<Running>,
}

struct Running {
    pages: mpsc::Receiver<Result<Page, StoreError>>,
    began: Instant,
    found: usize,
    logged_at: Instant,
    _task: AbortOnDropHandle<()>,
}

impl Audit {
    pub(super) fn new(context: Context, settings: &FeedConfig) -> Self {
        let now = Instant::now();
        let rate = (settings.backfill_rate > 0).then(|| f64::from(settings.backfill_rate));
        Self {
            context,
            interval: settings.audit_interval,
            rate,
            credit: 0.0,
            credited_at: now,
            due_at: now,
            follows: false,
            is_first: true,
            again: false,
            source: Source::Scan,
            running: None,
        }
    }

    /// Whether appends are reported from now on. What was committed before must be read.
    pub(super) fn follows(&mut self, follows: bool) {
        self.follows = follows;
        self.is_first |= follows;
        self.hasten();
    }

    /// Whether appends are reported.
    pub(super) fn follows_now(&self) -> bool {
        self.follows
    }

    /// Makes a scan due that begins after now.
    pub(super) fn hasten(&mut self) {
        self.again = self.running.is_some();
        self.due_at = Instant::now();
    }

    /// The next step. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Page, StoreError> {
        let Some(running) = &mut self.running else {
            tokio::time::sleep_until(self.due_at.into()).await;
            return Ok(Page::Begins);
        };
        let step = running.pages.recv().await;
        let step = step.unwrap_or(Ok(Page::Ended { invalid: 0 }));
        match &step {
            Ok(Page::Found(found)) => running.report_progress(found),
            Ok(Page::Begins) => {}
            Ok(Page::Ended { .. }) | Err(_) => self.end(),
        }
        step
    }

    /// Begins a scan of these collections.
    pub(super) fn begin(&mut self, names: Vec<AggregateName>) {
        let is_audit = self.follows && !self.is_first;
        // (Reports that come later than now are of a stream that was open before.)
        self.is_first = !self.follows;
        let (sender, pages) = mpsc::channel(MAX_PAGES);
        let scan = Scan::new(self.context.clone(), names.into_iter());
        let grace = if is_audit { GRACE } else { Duration::ZERO };
        let task = AbortOnDropHandle::new(tokio::spawn(read(scan, sender, grace)));
        self.source = if is_audit { Source::Audit } else { Source::Scan };
        let now = Instant::now();
        self.running = Some(Running { pages, began: now, found: 0, logged_at: now, _task: task });
    }

    fn end(&mut self) {
        let Some(running) = self.running.take() else { return };
        let took = running.began.elapsed();
        let (interval, pause) = if self.follows {
            (self.interval, AUDIT_PAUSE)
        } else {
            (FALLBACK_INTERVAL, FALLBACK_PAUSE)
        };
        if running.found >= PAGE {
            info!(appends = running.found, ?took, "read all appends without a position");
        }
        self.due_at = Instant::now();
        if !std::mem::take(&mut self.again) {
            self.due_at += interval.max(took * pause);
        }
    }

    /// Who has found what is taken from the scan now.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// How many appends of the scan may get positions now.
    pub(super) fn allowance(&self) -> usize {
        let Some(rate) = self.rate else { return usize::MAX };
        let earned = self.credited_at.elapsed().as_secs_f64() * rate;
        // At most what a second earns.
        (self.credit + earned).min(rate) as usize
    }

    /// Accounts for appends of the scan that got positions.
    pub(super) fn spend(&mut self, appends: usize) {
        let Some(rate) = self.rate else { return };
        let earned = self.credited_at.elapsed().as_secs_f64() * rate;
        self.credit = (self.credit + earned).min(rate) - appends as f64;
        self.credited_at = Instant::now();
    }

    /// When an append of the scan may get a position.
    pub(super) fn allowed_in(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let missing = 1.0 - self.credit - self.credited_at.elapsed().as_secs_f64() * rate;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(missing / rate).max(MIN_PAUSE)
    }
}

/// The shortest pause for a rate: a transaction for a single append is expensive.
const MIN_PAUSE: Duration = Duration::from_millis(20);

impl Running {
    fn report_progress(&mut self, found: &[CommittedAppend]) {
        self.found += found.len();
        if self.logged_at.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.logged_at = Instant::now();
        let reached = found.last().map(|append| bson::DateTime::from_millis(append.create_time));
        let reached = reached.and_then(|time| time.try_to_rfc3339_string().ok());
        info!(appends = self.found, reached, "reading appends without a position");
    }
}

async fn read(mut scan: Scan, pages: mpsc::Sender<Result<Page, StoreError>>, grace: Duration) {
    loop {
        let page = scan.next(PAGE).await;
        let page = match page {
            Ok(found) if found.is_empty() => Ok(Page::Ended { invalid: scan.invalid }),
            Ok(found) => {
                tokio::time::sleep(grace).await;
                Ok(Page::Found(found))
            }
            Err(error) => Err(error),
        };
        let is_last = !matches!(page, Ok(Page::Found(_)));
        if pages.send(page).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextSettings;

    /// An audit whose scan runs, and where the pages of that scan are sent.
    async fn scanning() -> (Audit, mpsc::Sender<Result<Page, StoreError>>) {
        let client = mongodb::Client::with_uri_str("mongodb://127.0.0.1:1").await.unwrap();
        let context = Context::new(client, ContextSettings::new("none"));
        let never = Duration::from_secs(3600);
        let settings = FeedConfig { audit_interval: never, ..FeedConfig::default() };
        let mut audit = Audit::new(context, &settings);
        let (sender, pages) = mpsc::channel(1);
        let _task = AbortOnDropHandle::new(tokio::spawn(async {}));
        let began = Instant::now();
        audit.running = Some(Running { pages, began, found: 0, logged_at: began, _task });
        (audit, sender)
    }

    /// Ends the scan; whether another one is due at once.
    async fn another_is_due(
        audit: &mut Audit,
        pages: &mpsc::Sender<Result<Page, StoreError>>,
    ) -> bool {
        pages.send(Ok(Page::Ended { invalid: 0 })).await.unwrap();
        assert!(matches!(audit.next().await, Ok(Page::Ended { .. })));
        let next = tokio::time::timeout(FALLBACK_INTERVAL / 2, audit.next()).await;
        matches!(next, Ok(Ok(Page::Begins)))
    }

    /// What was committed behind the place of that scan, and before the stream was open, is in neither.
    #[tokio::test]
    async fn stream_that_opens_during_a_scan_makes_another_one_due() {
        let (mut audit, pages) = scanning().await;

        audit.follows(true);

        assert!(another_is_due(&mut audit, &pages).await);
        audit.begin(Vec::new());
        assert_eq!(audit.source(), Source::Scan, "it is no audit: nothing has reported these");
    }

    #[tokio::test]
    async fn scan_is_followed_by_a_pause_when_nothing_changes() {
        let (mut audit, pages) = scanning().await;
        (audit.follows, audit.is_first) = (true, false);

        assert!(!another_is_due(&mut audit, &pages).await);
    }
}
