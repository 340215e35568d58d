//! One daemon becomes three, and three become two, under a steady flow: how long a record waits,
//! and the load on MongoDB.

use std::time::{Duration, Instant};

use postrider::outbox::collections::Collections;

use crate::support;
use crate::support::cost;
use crate::support::daemon::{Daemon, until_divided};
use crate::support::flow::{self, Flow};
use crate::support::queue::Queue;

/// Records per second: well below the machine's limit, so that a record waits only for a handover.
const RECORDS_PER_SECOND: u32 = 500;

/// How long the flow is measured after a change.
const AFTER: Duration = Duration::from_secs(2);

/// One phase of the measurement.
struct Phase {
    name: &'static str,
    from: Instant,
    to: Instant,
    /// Microseconds of CPU.
    mongod: u64,
    commands: i64,
}

/// Where the latest phase ended.
struct Phases {
    collections: Collections,
    all: Vec<Phase>,
    began: Instant,
    cpu: u64,
    commands: i64,
}

impl Phases {
    async fn begin(collections: &Collections) -> Self {
        let cost = cost::mongo(collections).await;
        Self {
            collections: collections.clone(),
            all: Vec::new(),
            began: Instant::now(),
            cpu: cost::cpu_micros(&cost.pid),
            commands: cost.commands,
        }
    }

    /// Ends the phase that began at the last call.
    async fn end(&mut self, name: &'static str) -> Instant {
        let next = Self::begin(&self.collections).await;
        self.all.push(Phase {
            name,
            from: self.began,
            to: next.began,
            mongod: next.cpu - self.cpu,
            commands: next.commands - self.commands,
        });
        *self = Self { all: std::mem::take(&mut self.all), ..next };
        self.began
    }
}

pub async fn measure() {
    let steady = Duration::from_secs(support::seconds() as u64);
    let (collections, queue) = (support::outbox().await, Queue::declare("classic").await);
    let arrivals = queue.arrivals().await;
    let start = || Daemon::start(&collections, &queue.settings());
    let flow = Flow::start(&collections, RECORDS_PER_SECOND);
    let mut phases = Phases::begin(&collections).await;
    tokio::time::sleep(steady).await;
    phases.end("none").await;
    let mut daemons = vec![start()];
    until_divided(&mut daemons).await;
    tokio::time::sleep(steady).await;

    phases.end("one, that catches up").await;
    tokio::time::sleep(steady).await;
    let joining = phases.end("one").await;
    daemons.extend([start(), start()]);
    until_divided(&mut daemons).await;
    let joined = joining.elapsed();
    tokio::time::sleep(AFTER).await;
    phases.end("one becomes three").await;
    tokio::time::sleep(steady).await;
    let leaving = phases.end("three").await;
    daemons.remove(0).stop().await;
    let stopped = leaving.elapsed();
    until_divided(&mut daemons).await;
    let left = leaving.elapsed();
    tokio::time::sleep(AFTER).await;
    phases.end("three become two").await;
    tokio::time::sleep(steady).await;
    phases.end("two").await;

    let sent = flow.stop().await;
    while arrivals.count() < sent.len() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "gap      {RECORDS_PER_SECOND}/s; divided among three {:.1} s after the start of two more; one of three ended {:.2} s after its SIGTERM, divided among two after {:.2} s; {} arrived twice",
        joined.as_secs_f64(),
        stopped.as_secs_f64(),
        left.as_secs_f64(),
        arrivals.repeated(),
    );
    let arrived = arrivals.first();
    for Phase { name, from, to, mongod, commands } in phases.all {
        let waited = flow::waited(&sent, &arrived, (from, to));
        let longest = waited.last().unwrap();
        let millis: Vec<f64> = waited.iter().map(|waited| waited.seconds * 1_000.0).collect();
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| support::at(&millis, share));
        println!(
            "  {name:<20} {:>6} records  insert to arrival, ms: p50 {p50:>6.1}  p99 {p99:>7.1}  p99.9 {p999:>7.1}  max {:>7.1} (partition {:>3})  per record: mongod {:>4.0} us with its insertion, {:.2} commands without",
            waited.len(),
            longest.seconds * 1_000.0,
            longest.partition,
            mongod as f64 / waited.len() as f64,
            commands as f64 / waited.len() as f64,
        );
    }
    std::mem::drop(daemons);
    support::drop(collections).await;
    queue.delete().await;
}
