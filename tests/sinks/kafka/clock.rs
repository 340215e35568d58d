//! A host whose clock is set back while librdkafka waits by it.

use std::time::Duration;

use bson::doc;

use crate::support::clock::Clock;
use crate::support::kafka::node::Node;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::mongo_settings;

/// Found by `make chaos`, seed 3465120956: a pending request took ten minutes, and so did the sink.
#[fixture::test(long)]
async fn a_clock_that_is_set_back_does_not_keep_the_sink_down() {
    let mut node = Node::start().await;
    let topic = Topic::on(&node.brokers(), 1, &[]).await;
    let outbox = TestOutbox::new().await;
    let settings = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.topic={}", topic.name),
        format!("sinks.k.brokers={}", node.brokers()),
        "sinks.k.timeout=1500ms".to_owned(),
        "relay.sink_probe_interval_max=500ms".to_owned(),
    ];
    let settings = [mongo_settings(&outbox.database), settings.to_vec()].concat();
    let clock = Clock::right();
    let mut command = run_with(&settings);
    clock.rule(&mut command).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut postrider = Postrider::of(command);
    outbox.insert([record("before", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;

    // The client retries a broker that is gone. A wait that librdkafka begins while the clock is
    // ahead lasts an hour once the clock is right again.
    clock.set("+1h");
    node.kill();
    outbox.insert([record("after", "k")]).await;
    postrider.until_metric("postrider_sink_up{sink=\"k\"}", |up| up == 0.0).await;
    // Longer than the pause between two probes: one is in progress.
    tokio::time::sleep(Duration::from_secs(1)).await;
    clock.set("+0");
    node.start_again().await;

    outbox.until_count(doc! { "status": "done" }, 2).await;
    assert!(topic.read_ids().await.contains(&"after".to_owned()));
    postrider.stop().await;
}
