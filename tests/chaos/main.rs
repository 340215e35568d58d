//! A fleet of real processes between real servers, through whatever a seed makes befall it.
//!
//! A history is decided by its seed ([`plan`]): how many processes with which configuration, what
//! producers write, and what happens when. It happens in real time, so that a repetition has the
//! same plan and not the same course. Judged from outside: a change stream tells what a majority
//! has had of every record ([`watch`], [`ledger`]), the wires of the processes tell what they asked
//! for ([`commands`]), and the broker what arrived.
//!
//! `make chaos SEEDS=n` runs many; here are short ones, and the proofs that breaches are caught.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod breaches;
mod broker;
mod commands;
mod fleet;
mod history;
mod ledger;
mod plan;
mod proofs;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
mod watch;

use std::time::Duration;

use history::keeps_the_promise;
use plan::{Kind, Plan};

/// What `make test` has time for.
const SHORT: Duration = Duration::from_secs(12);

/// A short history of this seed, on this broker whatever the seed says.
async fn short(seed: u64, kind: Kind) {
    let mut plan = Plan::of(seed, SHORT);
    plan.setup.kind = kind;
    println!("{}", keeps_the_promise(plan).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_history_with_rabbitmq_keeps_the_promise() {
    short(35, Kind::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_history_with_kafka_keeps_the_promise() {
    short(29, Kind::Kafka).await;
}

#[test]
fn a_plan_is_the_same_whenever_its_seed_is() {
    let plan = |seed| Plan::of(seed, SHORT);

    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
}

/// A variable as a number, if it is set and not empty.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make chaos"]
async fn every_history_keeps_the_promise() {
    let duration = Duration::from_secs(number("DURATION").unwrap_or(30));
    let count = if number("SEED").is_some() { 1 } else { number("SEEDS").unwrap_or(10) };
    for _ in 0..count {
        let seed = number("SEED").unwrap_or_else(|| rand::random::<u32>().into());
        let plan = Plan::of(seed, duration);
        let (kind, faults) = (plan.setup.kind, plan.faults.len());
        println!("seed {seed}: {kind:?}, {} processes, {faults} faults", plan.setup.instances);
        if count == 1 {
            println!("{plan}");
        }
        let verdict = keeps_the_promise(plan).await;
        println!("seed {seed}: kept; {verdict}");
    }
}
