//! A minute without MongoDB, at each point of a record's path.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::mongodb::point::points;
use crate::mongodb::process;

const MINUTE: Duration = Duration::from_secs(60);

/// All points in the same minute.
#[fixture::test(long)]
async fn a_minute_without_mongodb_at_any_point_loses_nothing() {
    let mut outages = JoinSet::new();
    let mut names = std::collections::HashMap::new();
    for point in points(MINUTE) {
        let name = point.name;
        let outage = outages.spawn(point.pass(MINUTE));
        names.insert(outage.id(), name);
    }
    let outage = outages.spawn(process::outage(MINUTE));
    names.insert(outage.id(), "a process at work");

    let mut failed = Vec::new();
    while let Some(ended) = outages.join_next_with_id().await {
        if let Err(error) = ended {
            failed.push(names[&error.id()]);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
