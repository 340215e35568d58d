//! The cost of idle daemons.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bson::{Bson, doc};
use postrider::outbox::collections::Collections;

use crate::support;
use crate::support::cost;
use crate::support::daemon::{Daemon, until_divided};

/// After this time the pauses between two scans have grown to their maximum.
const SETTLED: Duration = Duration::from_secs(5);

pub async fn measure() {
    let seconds = support::seconds_or(30) as u64;
    for (count, follow) in [(0, true), (1, true), (1, false), (4, true), (4, false)] {
        let collections = support::outbox().await;
        let settings =
            ["sinks.out.kind=stdout".to_owned(), format!("relay.change_stream={follow}")];
        let mut daemons: Vec<Daemon> =
            (0..count).map(|_| Daemon::start(&collections, &settings)).collect();
        if !daemons.is_empty() {
            until_divided(&mut daemons).await;
        }
        tokio::time::sleep(SETTLED).await;
        let pid = cost::mongo(&collections).await.pid;
        let cpu = || daemons.iter().map(|daemon| cost::cpu_micros(&daemon.pid())).sum::<u64>();
        let (before, own, mongod) = (commands(&collections).await, cpu(), cost::cpu_micros(&pid));
        let started = Instant::now();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let after = commands(&collections).await;
        let took = started.elapsed().as_secs_f64();
        let (own, mongod) = (cpu() - own, cost::cpu_micros(&pid) - mongod);
        // The command of this measurement itself, once.
        let mut by_kind: Vec<(f64, &str)> = after
            .iter()
            .map(|(name, total)| (*total - before[name], name.as_str()))
            .map(|(count, name)| (if name == "serverStatus" { count - 1.0 } else { count }, name))
            .filter(|(count, _)| *count > 0.0)
            .map(|(count, name)| (count / took, name))
            .collect();
        by_kind.sort_by(|one, other| other.0.total_cmp(&one.0));
        let all: f64 = by_kind.iter().map(|(rate, _)| rate).sum();
        let kinds: Vec<String> =
            by_kind.iter().map(|(rate, name)| format!("{name} {rate:.2}")).collect();
        let how = if follow { "change stream" } else { "polling" };
        println!(
            "idle     {count} daemons, {how}: {all:.1} commands/s ({}); cpu: own {:.2} % each, mongod {:.2} %",
            kinds.join(", "),
            own as f64 / took / 10_000.0 / f64::from(count.max(1)),
            mongod as f64 / took / 10_000.0,
        );
        std::mem::drop(daemons);
        support::drop(collections).await;
    }
}

/// How often each command was run on this server, by any client.
async fn commands(collections: &Collections) -> BTreeMap<String, f64> {
    let status = collections.database().run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
    let totals =
        commands.iter().filter_map(|(name, counts)| match counts.as_document()?.get("total")? {
            Bson::Int64(total) => Some((name.clone(), *total as f64)),
            Bson::Int32(total) => Some((name.clone(), f64::from(*total))),
            _ => None,
        });
    totals.collect()
}
