//! Metrics of MongoDB: operations by kind, and the pools of connections.
//!
//! Operations are measured in [`within`](crate::within), through which nearly all of them pass, and not by the
//! driver's command events. With a handler of command events, the driver copies each command and each reply
//! and decodes both a second time: it would read every record twice. The events of a pool are cheap.

use std::collections::HashSet;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use mongodb::event::EventHandler;
use mongodb::event::cmap::CmapEvent;
use parking_lot::Mutex;

use crate::metric::Description;
use crate::pools::{self, Pool, STARVED_POOLS};

/// Operations, by kind and outcome.
pub const OPERATIONS: &str = "postrider_mongodb_operations_total";
/// The time that an operation took, by kind.
pub const OPERATION_DURATION_SECONDS: &str = "postrider_mongodb_operation_duration_seconds";
/// Connections of the pools.
pub const CONNECTIONS: &str = "postrider_mongodb_connections";
/// The time that an operation waited for a connection.
pub const CHECKOUT_DURATION_SECONDS: &str = "postrider_mongodb_checkout_duration_seconds";
/// Operations that got no connection.
pub const CHECKOUT_FAILURES: &str = "postrider_mongodb_checkout_failures_total";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 6] = [
    Description::counter(
        OPERATIONS,
        "Operations at MongoDB that ended, by kind and outcome (ok, error), without reads of change streams.",
    ),
    Description::histogram(
        OPERATION_DURATION_SECONDS,
        "Time that operations at MongoDB took, by kind, without reads of change streams.",
    )
    .in_seconds(),
    Description::gauge(
        CONNECTIONS,
        "Connections of the pools to MongoDB: open, and in_use among these.",
    ),
    Description::histogram(
        CHECKOUT_DURATION_SECONDS,
        "Time that operations waited for a connection to MongoDB.",
    )
    .in_seconds(),
    Description::counter(
        CHECKOUT_FAILURES,
        "Operations that got no connection to MongoDB: no server answers, or the pool was cleared.",
    ),
    Description::gauge(
        STARVED_POOLS,
        "1 while operations ask for a connection of a pool and none gets one, by pool.",
    ),
];

/// The kind of every operation that is not in [`KINDS`].
const OTHER: &str = "other";

/// The kinds of operations, and the actions of each as errors name them.
const KINDS: [(&str, &[&str]); 13] = [
    (
        "scan",
        &[
            "read pending records",
            "read pending records of some keys",
            "read a lane",
            "read a record",
            "read blocked keys",
            "read records with an invalid partition",
            "read records of some keys with an invalid partition",
        ],
    ),
    (
        "recheck",
        &[
            "read the heads of blocked keys",
            "read records that wait",
            "read dead records that block",
        ],
    ),
    ("lease", &["lease records", "read back a lease", "release a lease of unknown outcome"]),
    ("renew", &["renew leases"]),
    ("settle", &["settle records", "read back settled records", "delete delivered records"]),
    (
        "promote",
        &[
            "promote scheduled records",
            "read scheduled records",
            "read the next scheduled record",
            "repair seq",
            "correct partitions",
        ],
    ),
    ("heartbeat", &["send a heartbeat"]),
    ("assign", &["assign partitions", "read the instances", "remove stale instances"]),
    ("count", &["count records", "count pending records"]),
    ("append", &["append events", "commit an append", "abort an append"]),
    (
        "load",
        &["read events", "read an aggregate's version", "look up a request", "read a snapshot"],
    ),
    ("query", &["query", "explain a query"]),
    (
        "feed",
        &[
            "assign positions",
            "read the feed",
            "read the predecessors of appends",
            "read appends without a position",
        ],
    ),
];

/// Actions that are not counted: they wait for changes.
const WAITING: [&str; 3] = [
    "read the change stream",
    "open the change stream of the feed",
    "read changes of the other outbox",
];

/// The kind of an action; `None` if it is not counted.
fn kind_of(action: &str) -> Option<&'static str> {
    if WAITING.contains(&action) {
        return None;
    }
    let found = KINDS.iter().find(|(_, actions)| actions.contains(&action));
    Some(found.map_or(OTHER, |(kind, _)| *kind))
}

/// Creates the series of a process, so that they exist from the start.
pub fn create_series() {
    for kind in KINDS.iter().map(|(kind, _)| *kind).chain([OTHER]) {
        for outcome in ["ok", "error"] {
            counter!(OPERATIONS, "operation" => kind, "outcome" => outcome).increment(0);
        }
    }
    open().set(0.0);
    in_use().set(0.0);
    counter!(CHECKOUT_FAILURES).increment(0);
    pools::report();
}

/// Notes that an operation has ended.
pub(crate) fn ended(action: &str, took: Duration, is_ok: bool) {
    let Some(kind) = kind_of(action) else { return };
    let outcome = if is_ok { "ok" } else { "error" };
    counter!(OPERATIONS, "operation" => kind, "outcome" => outcome).increment(1);
    histogram!(OPERATION_DURATION_SECONDS, "operation" => kind).record(took);
}

fn open() -> metrics::Gauge {
    gauge!(CONNECTIONS, "state" => "open")
}

fn in_use() -> metrics::Gauge {
    gauge!(CONNECTIONS, "state" => "in_use")
}

/// Counts the connections of one client, whose pool may be one of those that are watched.
pub(crate) fn of_pool(pool: Option<Pool>) -> EventHandler<CmapEvent> {
    // A connection in use is not checked in if its pool was closed meanwhile.
    let checked_out = Mutex::new(HashSet::new());
    EventHandler::callback(move |event| {
        if let Some(pool) = pool {
            pool.note(&event);
        }
        match event {
            CmapEvent::ConnectionCreated(_) => open().increment(1.0),
            CmapEvent::ConnectionClosed(closed) => {
                open().decrement(1.0);
                if checked_out.lock().remove(&(closed.address, closed.connection_id)) {
                    in_use().decrement(1.0);
                }
            }
            CmapEvent::ConnectionCheckedOut(out) => {
                histogram!(CHECKOUT_DURATION_SECONDS).record(out.duration);
                if checked_out.lock().insert((out.address, out.connection_id)) {
                    in_use().increment(1.0);
                }
            }
            CmapEvent::ConnectionCheckedIn(back)
                if checked_out.lock().remove(&(back.address.clone(), back.connection_id)) =>
            {
                in_use().decrement(1.0);
            }
            CmapEvent::ConnectionCheckoutFailed(_) => counter!(CHECKOUT_FAILURES).increment(1),
            _ => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// All Rust code below a folder, without this file.
    fn code_below(folder: &Path, code: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                code_below(&path, code);
            } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with(file!()) {
                code.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn every_action_of_a_kind_exists_once() {
        let mut code = String::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
            code_below(&entry.unwrap().path().join("src"), &mut code);
        }
        let of_kinds = KINDS.iter().flat_map(|(_, actions)| actions.iter());
        let mut seen = BTreeSet::new();
        for action in of_kinds.chain(&WAITING) {
            assert!(seen.insert(action), "{action}: twice");
            assert!(
                code.contains(&format!("\"{action}\"")),
                "{action}: no operation has this name"
            );
        }
    }

    #[test]
    fn action_without_a_kind_is_other_and_waiting_is_not_counted() {
        assert_eq!(kind_of("lease records"), Some("lease"));
        assert_eq!(kind_of("read the shard key"), Some(OTHER));
        assert_eq!(kind_of("read the change stream"), None);
    }
}
