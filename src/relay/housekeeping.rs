//! What must be looked after beside the takes: scheduled records, odd partitions, the clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::outbox::snapshot::Snapshot;
use crate::relay::shared::Shared;
use crate::relay::wake::Wake;
use crate::sink::Sink;
use crate::store::StoreError;

/// How often the server is asked for its time: the estimate drifts by the difference of
/// two quartz clocks, a millisecond in this time at worst.
const CLOCK: Duration = Duration::from_secs(10);

/// Keeps house, for ever, once in every `poll_interval` and when a scheduled record is due.
pub(crate) async fn run<S: Sink>(shared: Arc<Shared<S>>, wake: Wake) {
    let mut clock_due = Instant::now();
    loop {
        if clock_due <= Instant::now()
            && shared.clock.sample(shared.collections.database()).await.is_ok()
        {
            clock_due = Instant::now() + CLOCK;
        }
        let poll = shared.settings.poll_interval;
        let pause = match once(&shared, &wake).await {
            Ok(pause) => pause.min(poll),
            Err(error) => {
                // The take meets the same trouble, and reports it.
                debug!(error = crate::telemetry::chain(&error), "housekeeping is put off");
                poll
            }
        };
        shared.metrics.held(&shared.hands.held());
        tokio::time::sleep(pause).await;
    }
}

/// One round; answers how long until the next one.
async fn once<S: Sink>(shared: &Shared<S>, wake: &Wake) -> Result<Duration, StoreError> {
    let limit = shared.settings.batch_size;
    let mut snapshot = Snapshot::begin(&shared.collections).await?;
    let odd = snapshot.misstamped(limit).await?;
    drop(snapshot);
    if !odd.is_empty() {
        shared.metrics.repaired(shared.repairs.mend(&odd).await?);
        wake.all();
    }
    let promoted = shared.repairs.promote(limit).await?;
    if promoted.count > 0 {
        wake.all();
    }
    if promoted.more || odd.len() >= limit {
        return Ok(Duration::ZERO);
    }
    // A moment behind the due time, since the estimate is good to a round trip.
    let next = promoted.next.map(|due| shared.clock.until(due) + Duration::from_millis(2));
    Ok(next.unwrap_or(Duration::MAX))
}
