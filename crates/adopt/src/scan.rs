//! The scan of what is there.

use bson::{Bson, Timestamp};
use postrider_store::{StoreError, cluster_time, failpoint};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::bridge::Bridge;
use crate::changed_since::ChangedSince;
use crate::lease::{BridgeLease, Step};
use crate::report::AdoptReport;
use crate::source::next_page;

/// How often a single copy scans what arrived during the scan before.
const MOST_SCANS: u32 = 5;

impl Bridge {
    /// Scans until nothing was left to the change stream, which a single copy does not read.
    pub(crate) async fn scans(
        &self,
        lease: &mut BridgeLease<'_>,
        behind: Option<&Bson>,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Step<()> {
        for _ in 0..MOST_SCANS {
            self.metrics.scans_at_start.increment(1);
            let at = self.source.snapshot_time().await?;
            report.skipped.clear();
            report.listed.clear();
            report.left = 0;
            self.scan(lease, at, behind, stop, report).await?;
            // (Without a status another scan would read all of it again.)
            if report.left == 0 || !self.mapping.has_state() {
                break;
            }
        }
        Ok(())
    }

    /// Copies what was committed at this time and has not changed since then.
    pub(crate) async fn scan(
        &self,
        lease: &mut BridgeLease<'_>,
        at: Timestamp,
        behind: Option<&Bson>,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Step<()> {
        let mut changed = ChangedSince::open(&self.source, cluster_time::next(at)).await?;
        info!(source = self.mapping.source(), "scanning the other outbox");
        // (The sort reads everything before the first page.)
        let opening = async {
            failpoint::hit("adopt::before_scan");
            self.source.scan(at, behind).await
        };
        let mut scan = lease.during(stop, opening).await?;
        loop {
            let reading = async {
                let page = next_page(&mut scan).await?;
                changed.catch_up().await?;
                Ok::<_, StoreError>(page)
            };
            let Some(mut page) = lease.during(stop, reading).await? else { return Ok(()) };
            let read = page.len();
            page.retain(|document| !changed.contains(document));
            report.left += u64::try_from(read - page.len()).unwrap_or(u64::MAX);
            let candidates = self.read_all(&page, report).await?;
            self.copy(lease, candidates, None, stop, report).await?;
        }
    }
}
