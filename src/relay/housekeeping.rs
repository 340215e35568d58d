//! What must be done apart from the takes: scheduled records, rare kinds of invalid partitions,
//! the clock.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Bson;
use tracing::{debug, info, warn};

use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::Snapshot;
use crate::outbox::undecoded::RawId;
use crate::relay::failing::{Work, remedy, words};
use crate::relay::refusals::Refusals;
use crate::relay::reported::Reported;
use crate::relay::shared::Shared;
use crate::relay::wake::Wake;
use crate::sink::Sink;
use crate::store::write::TOO_LARGE;
use crate::store::{Meaning, StoreError};

/// How often the server is asked for its time: the estimate drifts by the difference of
/// two quartz clocks, a millisecond in this time at worst.
const CLOCK: Duration = Duration::from_secs(10);

/// Pauses before a round that failed is made again, from and to, where `poll_interval` is longer:
/// when the next scheduled record is due is not known then.
const AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Scheduled records that MongoDB refuses to make pending, and until when they rest.
#[derive(Default)]
struct Unpromoted {
    until: HashMap<RawId, Instant>,
    reported: Reported<RawId>,
}

/// Keeps house, for ever, once in every `poll_interval` and when a scheduled record is due.
pub(crate) async fn run<S: Sink>(shared: Arc<Shared<S>>, wake: Wake) {
    let mut clock_due = Instant::now();
    let mut unpromoted = Unpromoted::default();
    let (mut again, mut is_told) = (AGAIN.0, false);
    loop {
        if clock_due <= Instant::now()
            && shared.clock.sample(shared.collections.database()).await.is_ok()
        {
            clock_due = Instant::now() + CLOCK;
        }
        let poll = shared.settings.poll_interval;
        let began = Instant::now();
        let pause = match once(&shared, &wake, &mut unpromoted).await {
            Ok(pause) => {
                again = AGAIN.0;
                shared.failing.succeeded(Work::Promote);
                if std::mem::take(&mut is_told) {
                    info!("scheduled records are made pending again");
                }
                pause
            }
            Err(error) => {
                let is_first = shared.failing.failed(Work::Promote, began, &error);
                let (words, remedy) = (words(&error), remedy(&error));
                // The take meets the same trouble and reports it, where it finds anything to take.
                let is_news = !is_first && !is_told && !shared.failing.fails(Work::Take);
                if error.meaning() == Meaning::Permanent && is_news {
                    is_told = true;
                    let error = words;
                    warn!(
                        error,
                        remedy, "MongoDB refuses the relay: scheduled records are not made pending"
                    );
                } else {
                    debug!(error = words, "housekeeping is put off");
                }
                let longer = (again * 2).min(AGAIN.1);
                std::mem::replace(&mut again, longer)
            }
        };
        shared.metrics.held(&shared.waits());
        tokio::time::sleep(pause.min(poll)).await;
    }
}

/// One round; answers how long until the next one. Those that are `unpromoted` hold up no others.
async fn once<S: Sink>(
    shared: &Shared<S>,
    wake: &Wake,
    unpromoted: &mut Unpromoted,
) -> Result<Duration, StoreError> {
    let limit = shared.settings.batch_size;
    let mut snapshot = Snapshot::begin(&shared.collections).await?;
    // Those that rest make room for others.
    let resting = shared.refusals.resting();
    let resting: Vec<Bson> = resting.iter().map(|(id, ..)| Bson::from(id)).collect();
    let mut odd = snapshot.all_misplaced(&resting, limit).await?;
    drop(snapshot);
    let more = odd.len() >= limit;
    odd.retain(|record| record.unfit.is_none());
    let changed = mend_in_order(shared, &odd).await?;
    if changed {
        wake.all();
    }
    let now = Instant::now();
    unpromoted.until.retain(|_, until| *until > now);
    let left_out: HashSet<RawId> = unpromoted.until.keys().cloned().collect();
    let promoted = shared.repairs.promote(limit, &left_out).await?;
    if promoted.count > 0 {
        wake.all();
    }
    for (id, code) in promoted.failed {
        if !(TOO_LARGE.contains(&code) && shared.bury_unpromoted(&id).await?) {
            if unpromoted.reported.is_news(&id) {
                warn!(id = id.text(), code, "MongoDB refuses to make a scheduled record pending");
            }
            unpromoted.until.insert(id, now + Refusals::REST);
        }
    }
    if promoted.more || (more && changed) {
        return Ok(Duration::ZERO);
    }
    // A moment behind the due time, since the estimate is good to a round trip.
    let next = promoted.next.map(|due| shared.clock.until(due) + Duration::from_millis(2));
    Ok(next.unwrap_or(Duration::MAX))
}

/// Corrects records for which no look probes: of each key the earliest first, and the next one when
/// a majority has that. So no look sees one of them without those before it. Answers whether any
/// was changed.
async fn mend_in_order<S: Sink>(
    shared: &Shared<S>,
    records: &[Record],
) -> Result<bool, StoreError> {
    let mut in_order: Vec<&Record> = records.iter().collect();
    // One without a `seq` gets one of now.
    in_order.sort_by_key(|record| (record.seq.is_none(), record.seq));
    let mut lanes: BTreeMap<&LaneKey, VecDeque<&Record>> = BTreeMap::new();
    for record in in_order {
        lanes.entry(&record.lane).or_default().push_back(record);
    }
    let mut changed = false;
    while !lanes.is_empty() {
        let round: Vec<&Record> = lanes.values_mut().filter_map(VecDeque::pop_front).collect();
        changed |= shared.mend(&round).await?;
        lanes.retain(|lane, left| !left.is_empty() && !shared.refusals.holds(lane));
    }
    Ok(changed)
}
