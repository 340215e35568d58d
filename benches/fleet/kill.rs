//! One of two daemons is killed: when its partitions resume, and what arrives twice.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use postrider::ids::InstanceId;
use postrider::outbox::collections::Collections;
use postrider::partition::fleet::Fleet;

use crate::support;
use crate::support::daemon::{Daemon, until_divided};
use crate::support::flow::{Flow, Sent};
use crate::support::queue::{Arrivals, Queue};

const KILLS: usize = 3;

/// Records per second.
const RECORDS_PER_SECOND: u32 = 500;

/// A steady record that takes longer was delayed by the kill.
const LATE: Duration = Duration::from_secs(1);

/// Seconds after the takeover in which all records arrive that waited for the takeover only.
const CATCH_UP_SECONDS: f64 = 2.0;

/// Seconds after a kill in which messages still arrive that the broker had received before.
const MOMENT: f64 = 2.0;

/// The default, by which an instance counts as stale.
const STALE_AFTER: Duration = Duration::from_secs(12);

/// The kill has no effect any more after this time: stale_after, rebalance, and a lease that was
/// new.
const OVER: Duration = Duration::from_secs(50);

pub async fn measure() {
    for number in 1..=KILLS {
        steady(number).await;
    }
    for number in 1..=KILLS {
        backlog(number).await;
    }
}

/// Two daemons that share an outbox, and the messages that arrive from them.
struct Pair {
    collections: Collections,
    queue: Queue,
    arrivals: Arrivals,
    other: Daemon,
    victim: Daemon,
    id: InstanceId,
}

impl Pair {
    async fn start() -> Self {
        let (collections, queue) = (support::outbox().await, Queue::declare("classic").await);
        let arrivals = queue.arrivals().await;
        let start = || Daemon::start(&collections, &queue.settings());
        let mut daemons = vec![start()];
        until_divided(&mut daemons).await;
        let before = members(&collections).await;
        daemons.push(start());
        until_divided(&mut daemons).await;
        let id = *members(&collections).await.difference(&before).next().unwrap();
        let (victim, other) = (daemons.remove(1), daemons.remove(0));
        Self { collections, queue, arrivals, other, victim, id }
    }
}

async fn members(collections: &Collections) -> BTreeSet<InstanceId> {
    let view = Fleet::new(collections.clone(), STALE_AFTER).view().await.unwrap();
    view.members.keys().copied().collect()
}

/// Measures a kill under a steady flow.
async fn steady(number: usize) {
    let Pair { collections, queue, arrivals, other, victim, id } = Pair::start().await;
    let flow = Flow::start(&collections, RECORDS_PER_SECOND);
    // The kill falls at a random time between two heartbeats.
    let until = Duration::from_millis(rand::random_range(4_000..7_000));
    tokio::time::sleep(until).await;
    let view = Fleet::new(collections.clone(), STALE_AFTER).view().await.unwrap();
    let orphans: BTreeSet<u8> = view.owned_by(id).into_iter().collect();
    let killed = Instant::now();
    victim.kill();
    tokio::time::sleep(OVER).await;
    let sent = flow.stop().await;
    until_all(&arrivals, sent.len()).await;
    let arrived = arrivals.first();

    let is_orphan = |sent: &&Sent| orphans.contains(&sent.partition);
    let after = |sent: &&Sent| sent.at > killed;
    let first = sent.iter().filter(is_orphan).filter(after).map(|sent| arrived[&sent.id]).min();
    let late = |sent: &&Sent| arrived[&sent.id].duration_since(sent.at) > LATE;
    let of_others = sent.iter().filter(|sent| !is_orphan(sent)).filter(late).count();
    let late = sent.iter().filter(is_orphan).filter(late);
    let mut waited: Vec<f64> = late.map(|sent| since(killed, arrived[&sent.id])).collect();
    waited.sort_by(f64::total_cmp);
    let first = since(killed, first.unwrap());
    // Their keys were leased by the killed daemon.
    let leased = waited.iter().filter(|at| **at > first + CATCH_UP_SECONDS).count();
    println!(
        "kill     {number}, {RECORDS_PER_SECOND}/s, {} partitions of the dead: first arrival after {first:.1} s; of {} late ones {leased} waited out a lease, the last until {:.1} s; late of other partitions {of_others}; arrived twice {}",
        orphans.len(),
        waited.len(),
        waited.last().unwrap(),
        arrivals.repeated(),
    );
    end(collections, queue, other).await;
}

/// Measures a kill at full speed.
async fn backlog(number: usize) {
    let Pair { collections, queue, arrivals, other, victim, id } = Pair::start().await;
    let view = Fleet::new(collections.clone(), STALE_AFTER).view().await.unwrap();
    let orphans: BTreeSet<u8> = view.owned_by(id).into_iter().collect();
    let records = support::records();
    let mut partitions = HashMap::new();
    let all: Vec<_> = (0..records).map(|n| support::record(n, support::KEYS)).collect();
    partitions.extend(all.iter().map(Sent::now).map(|sent| (sent.id, sent.partition)));
    let records_of = collections.records();
    for chunk in all.chunks(1_000) {
        records_of.insert_many(chunk).await.unwrap();
    }
    while arrivals.count() < records / 10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let killed = Instant::now();
    victim.kill();
    until_all(&arrivals, records).await;
    let arrived = arrivals.first();
    let of_orphans = arrived.iter().filter(|(id, _)| orphans.contains(&partitions[*id]));
    let mut times: Vec<f64> = of_orphans.map(|(_, at)| since(killed, *at)).collect();
    times.sort_by(f64::total_cmp);
    // Messages that the broker had received before the kill arrive within a moment.
    let (before, after): (Vec<f64>, Vec<f64>) = times.into_iter().partition(|at| *at < MOMENT);
    let pairs = after.windows(2).map(|pair| (pair[0], pair[1]));
    let silence = pairs.max_by(|one, other| (one.1 - one.0).total_cmp(&(other.1 - other.0)));
    let (from, to) = silence.unwrap();
    let leased = after.iter().filter(|at| **at >= to).count();
    println!(
        "kill     {number}, a backlog of {records}, {} partitions of the dead: last arrival before at {:.1} s, the first of the other at {:.1} s, of {}; its longest silence from {from:.1} to {to:.1} s, for {leased}, until {:.1} s; arrived twice {}",
        orphans.len(),
        before.last().unwrap(),
        after[0],
        after.len(),
        after.last().unwrap(),
        arrivals.repeated(),
    );
    end(collections, queue, other).await;
}

pub fn since(killed: Instant, at: Instant) -> f64 {
    let after = at.saturating_duration_since(killed).as_secs_f64();
    after - killed.saturating_duration_since(at).as_secs_f64()
}

pub async fn until_all(arrivals: &Arrivals, count: usize) {
    while arrivals.count() < count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn end(collections: Collections, queue: Queue, daemon: Daemon) {
    daemon.stop().await;
    support::drop(collections).await;
    queue.delete().await;
}
