//! Leases the records that a scan or the change stream has found, and adds them to lanes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_outbox::ids::{LeaseId, RecordId};
use postrider_outbox::lease::{Grant, LeaseRequest};
use postrider_outbox::record::{LaneKey, Record, RecordVersion};
use postrider_outbox::settle::Outcome;
use postrider_store::StoreError;
use postrider_store::boot_instant::BootInstant;
use postrider_store::failpoint;
use postrider_store::text::chain;
use tracing::{debug, info, instrument, warn};

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::context::RelayContext;
use crate::lane::Lane;
use crate::lease::{Lease, LeasedRecord};
use crate::refused_changes::RefusedChanges;
use crate::repairer::Repairer;
use crate::sink::Sink;

/// Pause before a lease of unknown outcome is released again.
const RELEASE_RETRY_PAUSE: Duration = Duration::from_millis(250);

/// How long a stop waits for the release of a lease of unknown outcome.
const RELEASE_GRACE: Duration = Duration::from_secs(2);

/// Records of one lane that will be leased, in order.
#[derive(Debug)]
pub struct Acquisition {
    pub(super) lane: Arc<Lane>,
    /// Empty if a refill found nothing.
    pub(super) records: Vec<Record>,
    /// Whether the key has more records behind these.
    pub(super) more: bool,
    pub(super) origin: Origin,
}

/// Why records are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// They are the first of a new lane.
    NewLane,
    /// Their lane asked for more of its key.
    Refill,
    /// The change stream brought them, for a complete lane.
    Stream,
}

/// The leased records of one acquisition.
struct Leased {
    lane: Arc<Lane>,
    asked: Vec<RecordId>,
    /// How many of its leading records are leased.
    count: usize,
    more: bool,
    origin: Origin,
}

/// The result of one lease command, by acquisition.
#[derive(Default)]
struct Sorted {
    /// The leading records of each lane, in the order of `leased`.
    fronts: Vec<Record>,
    leased: Vec<Leased>,
    /// Records leased behind one that was not leased; they are released.
    behind_gap: Vec<(Arc<Lane>, Record)>,
    /// Records that have no room for a lease.
    oversized: Vec<Record>,
    /// The first record of each key that MongoDB refused to lease.
    refused: HashMap<LaneKey, Blocker>,
}

/// Leases records. It publishes nothing: the caller must run the lanes that it returns.
#[derive(Debug)]
pub struct Acquirer<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> Acquirer<'a, S> {
    /// Creates an acquirer of this relay.
    pub fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Leases all acquisitions with one command, and returns the new lanes, which the caller must
    /// run. After a stop it leases nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. Records that were leased nevertheless stay leased until the lease
    /// expires.
    pub async fn acquire(
        &self,
        acquisitions: Vec<Acquisition>,
    ) -> Result<Vec<Arc<Lane>>, StoreError> {
        if self.context.is_stopping() {
            acquisitions.into_iter().for_each(|acquisition| cancel(self.context, acquisition));
            return Ok(Vec::new());
        }
        self.lease(acquisitions).await
    }

    /// Leases one record by itself, for a registered lane. Returns `None` if it could not be
    /// leased.
    pub(super) async fn acquire_one(
        &self,
        lane: Arc<Lane>,
        record: Record,
    ) -> Result<Option<Arc<Lane>>, StoreError> {
        lane.begin(std::slice::from_ref(&record), false);
        self.context.state.in_flight.add(&record);
        let (records, origin) = (vec![record], Origin::NewLane);
        let acquisition = Acquisition { lane, records, more: false, origin };
        Ok(self.lease(vec![acquisition]).await?.pop())
    }

    #[instrument(name = "lease", level = "debug", skip_all, fields(keys = acquisitions.len()))]
    async fn lease(&self, acquisitions: Vec<Acquisition>) -> Result<Vec<Arc<Lane>>, StoreError> {
        let records = acquisitions.iter().flat_map(|acquisition| &acquisition.records);
        let (touched, untouched): (Vec<&Record>, Vec<&Record>) =
            records.partition(|record| record.is_touched);
        // A record without a `seq` is not leased: a scan repairs it first.
        let versions = |records: Vec<&Record>| -> Vec<RecordVersion> {
            records.into_iter().filter_map(Record::version).collect()
        };
        let dead_owners = self.context.state.lease_owners.dead_among(touched.iter().copied());
        let (touched, untouched) = (versions(touched), versions(untouched));
        let request = LeaseRequest { touched, untouched, dead_owners };
        let asked = request.ids();
        let (id, leaser) = (LeaseId::fresh(), &self.context.leaser);
        let lease = Lease::new(id, leaser.length(), BootInstant::now());
        let granted =
            if asked.is_empty() { Ok(Grant::default()) } else { leaser.lease(id, &request).await };
        let grant = match granted {
            Ok(grant) => grant,
            Err(error) => {
                let is_released =
                    !error.is_refusal() && self.release_unknown(id, &asked, &error).await;
                acquisitions.into_iter().for_each(|acquisition| cancel(self.context, acquisition));
                // After a release MongoDB answers again, and the outage is already logged.
                return if is_released { Ok(Vec::new()) } else { Err(error) };
            }
        };
        failpoint::hit("relay::after_lease");
        debug!(asked = asked.len(), leased = grant.held.len(), "leased records");
        let Sorted { fronts, leased, behind_gap, oversized, mut refused } =
            self.sort(acquisitions, &grant);
        self.context.state.leases.add(&lease);
        let (lanes_of_gaps, behind_gap): (Vec<_>, Vec<_>) = behind_gap.into_iter().unzip();
        let records = fronts.into_iter().chain(behind_gap);
        let mut held = lease.hold(records).into_iter();
        let mut lanes = Vec::new();
        for one in leased {
            let records: Vec<LeasedRecord> = held.by_ref().take(one.count).collect();
            records.iter().for_each(|leased| log_lease(&one.lane, leased));
            if one.origin == Origin::NewLane && records.is_empty() {
                self.end_unleased(&one.lane, refused.remove(&one.lane.key));
                continue;
            }
            match one.origin {
                Origin::NewLane => {
                    one.lane.add_expected(records, &one.asked, Some(one.more));
                    lanes.push(one.lane);
                }
                Origin::Refill => one.lane.add(records, one.more),
                Origin::Stream => one.lane.add_expected(records, &one.asked, None),
            }
        }
        for (lane, record) in lanes_of_gaps.iter().zip(held) {
            self.context.queues.settlements.settle(lane, record, "", Outcome::Released).await;
        }
        let repairer = Repairer::new(self.context);
        for record in &oversized {
            if let Err(error) = repairer.mark_oversized(record, "the lease").await {
                let error = chain(&error);
                warn!(error, "failed to dead-letter an oversized record; the next scan retries");
            }
        }
        Ok(lanes)
    }

    /// Keeps the leading leased records of each lane: a record behind a gap would overtake it
    /// (guard 3).
    fn sort(&self, acquisitions: Vec<Acquisition>, grant: &Grant) -> Sorted {
        let mut sorted = Sorted::default();
        for Acquisition { lane, records, more, origin } in acquisitions {
            let asked: Vec<RecordId> = records.iter().map(|record| record.id.clone()).collect();
            let before = sorted.fronts.len();
            let mut is_leading = true;
            for record in records {
                let is_leased = grant.held.contains(&record.id);
                is_leading &= is_leased;
                if is_leading {
                    sorted.fronts.push(record);
                } else if is_leased {
                    sorted.behind_gap.push((lane.clone(), record));
                } else {
                    self.note_unleased(&lane, record, grant, &mut sorted);
                }
            }
            let count = sorted.fronts.len() - before;
            let more = more && count == asked.len();
            sorted.leased.push(Leased { lane, asked, count, more, origin });
        }
        sorted
    }

    fn note_unleased(&self, lane: &Lane, record: Record, grant: &Grant, sorted: &mut Sorted) {
        let state = &self.context.state;
        state.in_flight.remove(record.size());
        if grant.oversized.contains(&record.id) {
            sorted.oversized.push(record);
        } else if let Some(code) = grant.refused.get(&record.id) {
            // Only the first record of a key is noted: the ones behind it wait for it anyway.
            if !sorted.refused.contains_key(&lane.key) {
                sorted.refused.insert(lane.key.clone(), Blocker::of(&record));
                state.refused_changes.report(&record, *code);
            }
        }
    }

    /// Ends a new lane of which no record was leased, because of a peer's lease or a refusal by
    /// MongoDB.
    fn end_unleased(&self, lane: &Lane, refused: Option<Blocker>) {
        lane.close();
        let key_table = &self.context.state.key_table;
        key_table.release(&lane.key);
        if let Some(blocker) = refused {
            let until = Some(Instant::now() + RefusedChanges::RETRY_PAUSE);
            key_table.block(lane.key.clone(), KeyBlock::new(BlockReason::Refused, blocker, until));
        }
    }

    /// Releases, not counted, what a lease of unknown outcome may hold, until a majority confirms
    /// that it holds nothing. Returns whether a majority has confirmed.
    ///
    /// The keys stay registered meanwhile, so that the records are not quarantined when the lease
    /// expires. The number of waiting records is bounded by the number of concurrent leases. A stop
    /// waits no longer than [`RELEASE_GRACE`].
    async fn release_unknown(&self, lease: LeaseId, ids: &[RecordId], error: &StoreError) -> bool {
        let records = ids.len();
        let cause = chain(error);
        warn!(records, error = cause, "the outcome of a lease is unknown; releasing its records");
        let releasing = async {
            // The second release covers a command that was still on its way.
            let mut empty = 0;
            while empty < 2 {
                match self.context.leaser.release(lease, ids).await {
                    Ok(true) => empty += 1,
                    Ok(false) => empty = 0,
                    Err(StoreError::Refused { .. }) => return false,
                    Err(error) => {
                        debug!(
                            error = chain(&error),
                            "failed to release a lease of unknown outcome; retrying"
                        );
                        empty = 0;
                    }
                }
                tokio::time::sleep(RELEASE_RETRY_PAUSE).await;
            }
            true
        };
        let stopping = async {
            self.context.stopping().await;
            tokio::time::sleep(RELEASE_GRACE).await;
        };
        let is_released = tokio::select! {
            is_released = releasing => is_released,
            () = stopping => false,
        };
        if is_released {
            info!(records, "released a lease of unknown outcome");
        } else {
            warn!(
                records,
                "failed to release a lease of unknown outcome; its records stay leased until it \
                 expires"
            );
        }
        is_released
    }
}

fn log_lease(lane: &Lane, leased: &LeasedRecord) {
    let record = &leased.record;
    debug!(
        record.id = %record.id,
        key = lane.key.as_str(),
        partition = lane.partition,
        attempt = leased.attempt(),
        "leased a record"
    );
    if let Some(instance) = record.lease_owner {
        debug!(record.id = %record.id, key = lane.key.as_str(), %instance, "took over a lease");
    }
}

/// Cancels an acquisition of which nothing was leased: releases its key, and its lane expects no
/// more records.
pub(super) fn cancel<S>(context: &RelayContext<S>, acquisition: Acquisition) {
    let Acquisition { lane, records, origin, .. } = acquisition;
    for record in &records {
        context.state.in_flight.remove(record.size());
    }
    match origin {
        Origin::NewLane => {
            lane.close();
            context.state.key_table.release(&lane.key);
        }
        Origin::Refill => lane.add(Vec::new(), false),
        Origin::Stream => {
            let asked: Vec<RecordId> = records.into_iter().map(|record| record.id).collect();
            lane.add_expected(Vec::new(), &asked, None);
        }
    }
}
