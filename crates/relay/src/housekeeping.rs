//! Work apart from the scans: promotes scheduled records, corrects rare kinds of invalid
//! partitions, and reads the server's clock.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Bson;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::OutboxSnapshot;
use postrider_outbox::undecoded::RawId;
use postrider_outbox::wakeup::Wakeup;
use postrider_store::StoreError;
use postrider_store::codes::TOO_LARGE_CODES;
use tracing::{debug, info, warn};

use crate::context::RelayContext;
use crate::key_table::LivePeriod;
use crate::refused_changes::RefusedChanges;
use crate::repairer::Repairer;
use crate::report::RelayReport;
use crate::reported::Reported;
use crate::sink::Sink;
use crate::store_health::{StoreWork, remedy, words};

/// How often the server is asked for its time. In this time the estimate drifts by a millisecond at
/// worst, the difference of two quartz clocks.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

/// Shortest and longest pause before a failed round is repeated, if `poll_interval` is longer: the
/// next due time is not known then.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// When rare kinds of invalid partitions were last searched.
///
/// The search visits each partition and passes over recently delivered records. While the change
/// stream carries the records it also brings these, so the search is an audit, at the same
/// interval.
#[derive(Default)]
struct Search {
    /// The live period in which the last search began, and when.
    last: Option<(LivePeriod, Instant)>,
}

impl Search {
    /// Returns whether another search is due in this live period; while polling, one always is.
    fn is_due(&self, live: Option<LivePeriod>, now: Instant, interval: Duration) -> bool {
        match (live, self.last) {
            (Some(live), Some((last, began))) => live != last || now >= began + interval,
            _ => true,
        }
    }
}

/// Scheduled records that MongoDB refuses to make pending, and until when they rest.
#[derive(Default)]
struct Unpromoted {
    until: HashMap<RawId, Instant>,
    reported: Reported<RawId>,
}

/// Runs a round in every `poll_interval`, and when a scheduled record is due, forever.
pub(crate) async fn run<S: Sink>(context: Arc<RelayContext<S>>, wakeup: Wakeup) {
    let mut clock_due = Instant::now();
    let (mut unpromoted, mut search) = (Unpromoted::default(), Search::default());
    let (mut again, mut is_reported) = (RETRY_PAUSE.0, false);
    loop {
        if clock_due <= Instant::now()
            && context.clock.sample(context.collections.database()).await.is_ok()
        {
            clock_due = Instant::now() + CLOCK_INTERVAL;
        }
        let poll = context.settings.poll_interval;
        let began = Instant::now();
        let pause = match run_round(&context, &wakeup, &mut unpromoted, &mut search).await {
            Ok(pause) => {
                again = RETRY_PAUSE.0;
                context.state.store_health.succeeded(StoreWork::Promote);
                if std::mem::take(&mut is_reported) {
                    info!("promoting scheduled records again");
                }
                pause
            }
            Err(error) => {
                let is_first = context.state.store_health.failed(StoreWork::Promote, began, &error);
                let (words, remedy) = (words(&error), remedy(&error));
                // The scan meets the same error and logs it, if it finds anything to lease.
                let is_news = !is_first
                    && !is_reported
                    && !context.state.store_health.fails(StoreWork::Lease);
                if error.is_permanent() && is_news {
                    is_reported = true;
                    let error = words;
                    warn!(
                        error,
                        remedy, "MongoDB rejects the relay; scheduled records are not promoted"
                    );
                } else {
                    debug!(error = words, "failed to promote scheduled records; retrying");
                }
                let longer = (again * 2).min(RETRY_PAUSE.1);
                std::mem::replace(&mut again, longer)
            }
        };
        context.metrics.held(&RelayReport::new(&context).block_counts());
        tokio::time::sleep(pause.min(poll)).await;
    }
}

/// Runs one round and returns how long until the next one. The `unpromoted` records delay no
/// others.
async fn run_round<S: Sink>(
    context: &RelayContext<S>,
    wakeup: &Wakeup,
    unpromoted: &mut Unpromoted,
    search: &mut Search,
) -> Result<Duration, StoreError> {
    let limit = context.settings.batch_size;
    let now = Instant::now();
    let live = context.state.key_table.live_period();
    let mut is_more_misplaced = false;
    if search.is_due(live, now, context.settings.audit_interval) {
        let found = correct_misplaced(context, wakeup).await?;
        is_more_misplaced = found == Misplaced::More;
        // Repeated until it finds nothing: a record that MongoDB refuses to correct blocks its key.
        search.last = live.filter(|_| found == Misplaced::Nothing).map(|live| (live, now));
    }
    unpromoted.until.retain(|_, until| *until > now);
    let left_out: HashSet<RawId> = unpromoted.until.keys().cloned().collect();
    let promoted = context.repairs.promote(limit, &left_out).await?;
    if promoted.count > 0 {
        wakeup.all();
    }
    for (id, code) in promoted.failed {
        if !(TOO_LARGE_CODES.contains(&code)
            && Repairer::new(context).mark_unpromotable(&id).await?)
        {
            if unpromoted.reported.is_news(&id) {
                warn!(id = id.text(), code, "MongoDB rejects the promotion of a scheduled record");
            }
            unpromoted.until.insert(id, now + RefusedChanges::RETRY_PAUSE);
        }
    }
    if promoted.more || is_more_misplaced {
        return Ok(Duration::ZERO);
    }
    // A moment after the due time: the estimate is accurate to a round trip.
    let next = promoted.next.map(|due| context.clock.until(due) + Duration::from_millis(2));
    Ok(next.unwrap_or(Duration::MAX))
}

/// The result of a search for records with an invalid partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misplaced {
    /// No records.
    Nothing,
    /// Some records; MongoDB may refuse to correct others.
    Some,
    /// More records than one search may read.
    More,
}

/// Corrects records with any kind of invalid partition.
async fn correct_misplaced<S: Sink>(
    context: &RelayContext<S>,
    wakeup: &Wakeup,
) -> Result<Misplaced, StoreError> {
    let limit = context.settings.batch_size;
    let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
    // Records that rest make room for others.
    let resting = context.state.refused_changes.held();
    let resting: Vec<Bson> = resting.iter().map(|(id, ..)| Bson::from(id)).collect();
    let mut misplaced = snapshot.all_misplaced(&resting, limit).await?;
    drop(snapshot);
    let is_nothing = misplaced.is_empty() && resting.is_empty();
    let is_cut = misplaced.len() >= limit;
    misplaced.retain(|record| record.unfit.is_none());
    let changed = correct_in_order(context, &misplaced).await?;
    if changed {
        wakeup.all();
    }
    Ok(if is_cut && changed {
        Misplaced::More
    } else if is_nothing {
        Misplaced::Nothing
    } else {
        Misplaced::Some
    })
}

/// Corrects records that no scan searches for: the earliest of each key first, and the next one
/// when a majority has the correction. So no scan sees one of them without those before it. Returns
/// whether any was changed.
async fn correct_in_order<S: Sink>(
    context: &RelayContext<S>,
    records: &[Record],
) -> Result<bool, StoreError> {
    let mut in_order: Vec<&Record> = records.iter().collect();
    // A record without a `seq` gets the current one.
    in_order.sort_by_key(|record| (record.seq.is_none(), record.seq));
    let mut lanes: BTreeMap<&LaneKey, VecDeque<&Record>> = BTreeMap::new();
    for record in in_order {
        lanes.entry(&record.lane).or_default().push_back(record);
    }
    let mut changed = false;
    while !lanes.is_empty() {
        let round: Vec<&Record> = lanes.values_mut().filter_map(VecDeque::pop_front).collect();
        changed |= Repairer::new(context).correct(&round).await?;
        lanes.retain(|lane, left| {
            !left.is_empty() && !context.state.refused_changes.holds_key(lane)
        });
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_runs_at_audit_interval_in_live_mode() {
        let (now, interval) = (Instant::now(), Duration::from_secs(60));
        let (live, later) = (LivePeriod::default(), now + interval);
        let searched = Search { last: Some((live, now)) };

        assert!(Search::default().is_due(Some(live), now, interval), "none has begun since");
        assert!(searched.is_due(None, now, interval), "by polling in every round");
        assert!(!searched.is_due(Some(live), later - Duration::from_millis(1), interval));
        assert!(searched.is_due(Some(live), later, interval));
        assert!(searched.is_due(Some(live.next()), now, interval), "live again");
    }
}
