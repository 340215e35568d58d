//! A suspended host: its monotonic clock was stopped, and its leases expired meanwhile.

use bson::doc;
use futures_util::future::join_all;

use crate::support::clock::Clock;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal, run_with};
use crate::support::queue::Queue;
use crate::support::rival_relay::RivalRelay as Thief;

/// Starts a process with this clock, which the test can stop: tokio and `Instant` read it.
fn start(clock: &Clock, settings: &[String]) -> Postrider {
    let mut command = run_with(settings);
    clock
        .rule(&mut command)
        // Time for the host to be suspended in.
        .env("FAILPOINTS", "relay::after_confirm=1*sleep(5000)");
    Postrider::of(command)
}

/// By its clock no time has passed since it leased, so its lease seems valid.
#[fixture::test]
async fn a_resumed_host_publishes_nothing_by_an_expired_lease() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    let more = ["relay.lease=4s", "sinks.rabbit.timeout=3s", "relay.change_stream=false"];
    let settings = [queue.settings(&outbox), more.map(str::to_owned).to_vec()].concat();
    let clock = Clock::right();
    let mut sleeper = start(&clock, &settings);
    sleeper.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    sleeper.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    // The first has just been confirmed, and the second is about to be published.
    outbox.insert([record("1", "k"), record("2", "k")]).await;
    outbox.until_count(doc! { "leaseId": { "$exists": true } }, 2).await;
    assert_eq!(queue.ids(1).await, ["1"]);

    sleeper.signal(Signal::STOP);
    let expired = doc! { "$expr": { "$lt": ["$leaseUntil", "$$NOW"] } };
    outbox.until_count(expired, 2).await;
    clock.set("-8s");
    let thief = Thief::alive(&outbox.collections).await;
    thief.take_over("2").await;
    sleeper.signal(Signal::CONT);

    // It knows the confirm of the first one, and loses the second.
    let settled =
        |outcome| format!("postrider_deliveries_total{{sink=\"rabbit\",outcome=\"{outcome}\"}}");
    sleeper.until_metric(&settled("done"), |done| done >= 1.0).await;
    eventually("an end of its lane", || async {
        // The lane, a renewal or neither finds out.
        let of_none = |outcome| settled(outcome).replace("rabbit", "");
        let given_up = [settled("lost"), of_none("lost"), of_none("released")];
        let counts = given_up.map(async |series| sleeper.metric(&series).await.unwrap_or(0.0));
        join_all(counts).await.iter().sum::<f64>() >= 1.0
    })
    .await;
    clock.set("+0");
    outbox.insert([record("end", "other")]).await;
    assert_eq!(queue.ids(1).await, ["end"], "nothing came before");
    sleeper.stop().await;
}
