//! The scan of what is there.

use bson::{Bson, Timestamp};
use postrider_store::{cluster_time, failpoint};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::bridge::{Bridge, Ended, Owned};
use crate::changed_since::ChangedSince;
use crate::report::{AdoptError, AdoptReport};
use crate::source::next_page;

/// How often a single copy scans what arrived during the scan before.
const MOST_SCANS: u32 = 5;

impl Bridge {
    /// Scans until nothing was left to the change stream, which a single copy does not read.
    pub(crate) async fn scans(
        &self,
        owned: &mut Owned<'_>,
        behind: Option<&Bson>,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Option<Ended>, AdoptError> {
        for _ in 0..MOST_SCANS {
            self.metrics.scans_at_start.increment(1);
            let at = self.source.snapshot_time().await?;
            report.skipped.clear();
            report.listed.clear();
            report.left = 0;
            if let Some(ended) = self.scan(owned, at, behind, stop, report).await? {
                return Ok(Some(ended));
            }
            // (Without a status another scan would read all of it again.)
            if report.left == 0 || !self.mapping.has_state() {
                break;
            }
        }
        Ok(None)
    }

    /// Copies what was committed at this time and has not changed since then; `Some` where the work ends.
    pub(crate) async fn scan(
        &self,
        owned: &mut Owned<'_>,
        at: Timestamp,
        behind: Option<&Bson>,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Result<Option<Ended>, AdoptError> {
        let mut changed = ChangedSince::open(&self.source, cluster_time::next(at)).await?;
        info!(source = self.mapping.source(), "scanning the other outbox");
        // (The sort reads everything before the first page.)
        let opening = async {
            failpoint::hit("adopt::before_scan");
            self.source.scan(behind).await
        };
        let mut scan = match self.while_owned(owned, stop, opening).await? {
            Ok(scan) => scan,
            Err(ended) => return Ok(Some(ended)),
        };
        loop {
            let reading = async {
                let page = next_page(&mut scan).await?;
                changed.catch_up().await?;
                Ok(page)
            };
            let mut page = match self.while_owned(owned, stop, reading).await? {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(ended) => return Ok(Some(ended)),
            };
            let read = page.len();
            page.retain(|document| !changed.contains(document));
            report.left += u64::try_from(read - page.len()).unwrap_or(u64::MAX);
            let candidates = self.read_all(&page, report).await?;
            if let Some(ended) = self.copy(owned, candidates, None, stop, report).await? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }
}
