//! One batch: copied in as few transactions as its documents permit.

use std::collections::HashSet;
use std::time::Instant;

use bson::{Bson, Document};
use futures_util::TryStreamExt;
use postrider_outbox::collections::names;
use postrider_outbox::fields::ID;
use postrider_outbox::ids::RecordId;
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, within};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::bridge::{Bridge, FAILURE_PAUSE};
use crate::copy::{Copier, CopyOutcome};
use crate::ids::IdKey;
use crate::lease::{BridgeLease, Interrupt, Step};
use crate::read::{CopyCandidate, SkipReason, SkippedDocument};
use crate::report::AdoptReport;

/// How often the transactions of a batch may fail, until the bridge reads again what it must copy.
const MAX_FAILURES: u32 = 20;

/// The most documents that a report lists.
const MAX_LISTED: usize = 1_000;

/// The most that a transaction copies, but for a single document that is larger: more would fill the cache of the
/// server.
const MAX_BYTES: usize = 8 << 20;

impl Bridge {
    /// Copies a batch in its order. A document that changed, or that MongoDB refuses, stays as it is.
    pub(crate) async fn copy(
        &self,
        lease: &mut BridgeLease<'_>,
        batch: Vec<CopyCandidate>,
        token: Option<&Bson>,
        stop: &CancellationToken,
        report: &mut AdoptReport,
    ) -> Step<()> {
        let copier = Copier {
            outbox: &self.outbox,
            mapping: &self.mapping,
            store: &self.store,
            owner: &self.owner,
            epoch: lease.state.epoch,
        };
        // The parts that are not copied yet, the next one last. The resume token belongs behind the last part.
        let mut parts = parts(batch, self.mapping.batch_size);
        let mut failures = 0;
        if parts.is_empty() {
            return lease.renew(token).await;
        }
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            if stop.is_cancelled() {
                return Err(Interrupt::Stopped);
            }
            // (A transaction that MongoDB refuses does not renew the lease.)
            lease.renew(None).await?;
            let token = token.filter(|_| parts.is_empty());
            match copier.copy(lease.session, &part, token).await {
                CopyOutcome::All => {
                    lease.renewed_at = Instant::now();
                    let count = u64::try_from(part.len()).unwrap_or(0);
                    report.copied += count;
                    self.metrics.copied.increment(count);
                }
                CopyOutcome::NotOwner => return Err(Interrupt::NotOwner),
                CopyOutcome::Changed if part.len() == 1 => {
                    let detail = "its status changed meanwhile".to_owned();
                    self.skip_candidate(&part[0], SkipReason::Changed, detail, report);
                }
                CopyOutcome::Changed => {
                    let behind = part.split_off(part.len() / 2);
                    parts.push(behind);
                    parts.push(part);
                }
                CopyOutcome::Refused { at, reason: SkipReason::Duplicate, detail } => {
                    let (known, rest) = self.split_known(part).await?;
                    if known.is_empty() {
                        // Two documents of this batch have one id.
                        let mut rest = rest;
                        let candidate = rest.remove(at.min(rest.len() - 1));
                        self.skip_candidate(&candidate, SkipReason::Duplicate, detail, report);
                        parts.push(rest);
                        continue;
                    }
                    self.skip_known(&known, report);
                    parts.push(rest);
                }
                CopyOutcome::Refused { at, reason, detail } => {
                    let candidate = part.remove(at.min(part.len() - 1));
                    self.skip_candidate(&candidate, reason, detail, report);
                    parts.push(part);
                }
                CopyOutcome::Again(error) => {
                    failures += 1;
                    if failures > MAX_FAILURES {
                        return Err(error.into());
                    }
                    debug!(error = chain(&error), "a transaction failed; trying again");
                    tokio::time::sleep(FAILURE_PAUSE / 10).await;
                    parts.push(part);
                }
                CopyOutcome::Failed(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Counts and logs a document that stays as it is.
    pub(crate) fn skip_document(&self, skipped: SkippedDocument, report: &mut AdoptReport) {
        self.metrics.skipped(skipped.reason);
        *report.skipped.entry(skipped.reason).or_default() += 1;
        if report.listed.len() < MAX_LISTED {
            warn!(
                id = skipped.id,
                reason = skipped.reason.label(),
                detail = skipped.detail,
                "skipped a document"
            );
            report.listed.push(skipped);
        }
    }

    fn skip_candidate(
        &self,
        candidate: &CopyCandidate,
        reason: SkipReason,
        detail: String,
        report: &mut AdoptReport,
    ) {
        let id = RecordId::from(candidate.id.clone()).to_string();
        self.skip_document(SkippedDocument { id, reason, detail }, report);
    }

    /// Separates the documents whose records the outbox has.
    pub(crate) async fn split_known(
        &self,
        candidates: Vec<CopyCandidate>,
    ) -> Result<(Vec<CopyCandidate>, Vec<CopyCandidate>), StoreError> {
        let existing = self.existing(&candidates).await?;
        Ok(candidates.into_iter().partition(|candidate| {
            record_id(candidate).is_some_and(|id| existing.contains(&IdKey::of(&id)))
        }))
    }

    pub(crate) fn skip_known(&self, known: &[CopyCandidate], report: &mut AdoptReport) {
        for candidate in known {
            let detail = "the outbox has a record of this id".to_owned();
            self.skip_candidate(candidate, SkipReason::Duplicate, detail, report);
        }
    }

    /// The ids of these records that the outbox has.
    async fn existing(&self, part: &[CopyCandidate]) -> Result<HashSet<IdKey>, StoreError> {
        let ids: Vec<Bson> = part.iter().filter_map(record_id).collect();
        let records = self.outbox.collection(names::RECORDS);
        let filter = bson::doc! { ID: { "$in": ids } };
        let reading = async {
            records.find(filter).projection(bson::doc! { ID: 1 }).await?.try_collect().await
        };
        let found: Vec<Document> = within("read records", limits::BATCH_TIMEOUT, reading).await?;
        Ok(found.iter().filter_map(|found| found.get(ID)).map(IdKey::of).collect())
    }
}

/// Splits a batch by the number and the size of its documents; the first part is the last of the list.
fn parts(batch: Vec<CopyCandidate>, most: usize) -> Vec<Vec<CopyCandidate>> {
    let mut parts: Vec<Vec<CopyCandidate>> = Vec::new();
    let mut bytes = 0;
    for candidate in batch {
        bytes += candidate.bytes;
        match parts.last_mut() {
            Some(part) if part.len() < most && bytes <= MAX_BYTES => part.push(candidate),
            _ => {
                bytes = candidate.bytes;
                parts.push(vec![candidate]);
            }
        }
    }
    parts.reverse();
    parts
}

fn record_id(candidate: &CopyCandidate) -> Option<Bson> {
    Bson::try_from(candidate.record.get(ID).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use bson::raw::RawDocumentBuf;

    use super::*;

    #[test]
    fn parts_keep_the_order_and_end_at_their_size() {
        let candidate = |id: i32, bytes: usize| CopyCandidate {
            id: Bson::Int32(id),
            status: None,
            record: RawDocumentBuf::new(),
            bytes,
        };
        let large = MAX_BYTES / 2;
        let batch = vec![
            candidate(1, large),
            candidate(2, large),
            candidate(3, 1),
            candidate(4, MAX_BYTES * 2),
            candidate(5, 1),
        ];

        let ids = |most: usize| {
            let mut split = parts(batch.clone(), most);
            let mut ids = Vec::new();
            while let Some(part) = split.pop() {
                ids.push(part.iter().map(|it| it.id.as_i32().unwrap()).collect::<Vec<_>>());
            }
            ids
        };

        assert_eq!(ids(500), [vec![1, 2], vec![3], vec![4], vec![5]]);
        assert_eq!(ids(1), [vec![1], vec![2], vec![3], vec![4], vec![5]]);
        assert!(parts(Vec::new(), 500).is_empty());
    }
}
