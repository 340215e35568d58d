//! Several real processes between real servers, through faults that a seed decides.
//!
//! A history is decided by its seed ([`plan`]): the number of processes and their configuration,
//! what producers write, and which faults happen when. It runs in real time, so that a repetition
//! has the same plan and not the same course. It is judged from outside: a change stream has every
//! state of each record that a majority had ([`watch`], [`ledger`]), the proxies of the processes
//! have their commands ([`commands`]), and the broker has what arrived.
//!
//! `make chaos SEEDS=n` runs many; here are short ones, and the proofs that breaches are caught.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod appends;
mod breaches;
mod broker;
#[path = "../feed/checker.rs"]
mod checker;
mod commands;
mod cost;
mod feed;
mod history;
mod instance;
mod ledger;
mod operator;
mod plan;
mod privileges;
mod proofs;
mod proofs_of_feed;
mod proofs_of_mixed;
#[path = "../feed/readers.rs"]
mod readers;
mod runs;
mod sickness;
mod summary;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
mod verdict;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use history::Servers;
use plan::{Kind, Plan};

/// The duration in `make test`.
const SHORT_DURATION: Duration = Duration::from_secs(12);

/// A short history of this plan.
async fn short(plan: Plan) {
    match runs::run(plan, &mut Servers::default()).await {
        Ok(verdict) => println!("{verdict}"),
        Err(broken) => panic!("{}", broken.text),
    }
}

/// A plan with this broker, whatever the seed decides.
fn plan_with(seed: u64, kind: Kind) -> Plan {
    let mut plan = Plan::of(seed, SHORT_DURATION, false);
    plan.setup.kind = kind;
    plan
}

#[fixture::test(long)]
async fn a_short_history_with_rabbitmq_keeps_the_promise() {
    short(plan_with(35, Kind::RabbitMq)).await;
}

#[fixture::test(long)]
async fn a_short_history_with_kafka_keeps_the_promise() {
    short(plan_with(29, Kind::Kafka)).await;
}

#[fixture::test]
async fn a_short_mixed_history_keeps_the_promise() {
    short(Plan::of(12, SHORT_DURATION, true)).await;
}

/// Three processes, one of which assigns positions at a time, through all that may disturb them.
#[fixture::test(long)]
async fn a_short_history_with_a_feed_keeps_the_promise() {
    let mut plan = Plan::of(1, SHORT_DURATION, true);
    plan.setup.mixed_options.appenders = 3;
    plan.setup.mixed_options.feed = true;
    short(plan).await;
}

#[test]
fn a_seed_always_has_the_same_plan() {
    for is_mixed in [false, true] {
        let plan = |seed| Plan::of(seed, SHORT_DURATION, is_mixed);

        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }
}

#[fixture::test]
#[ignore = "make chaos"]
async fn every_history_keeps_the_promise() {
    let list = std::env::var_os("CHAOS_LIST").map(PathBuf::from);
    let list = list.expect("CHAOS_LIST is not set: run the histories by `make chaos`");

    let broken = runs::run_all(&list).await;

    assert!(broken.is_empty(), "broken: {broken:#?}");
}
