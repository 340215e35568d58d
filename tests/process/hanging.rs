//! Stops while a broker hangs: the time for it, and its end by force.

use std::time::{Duration, Instant};

use bson::doc;
use serde_json::json;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, Signal};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of};
use crate::support::tcp::Door;
use crate::util::{PROMPTLY, backlog, instances, says, with};

/// A relay with a publish under way to a broker that has frozen.
struct Hanging {
    outbox: TestOutbox,
    queue: Queue,
    door: Door,
    postrider: Postrider,
}

impl Hanging {
    async fn start(more: &[&str]) -> Self {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let door = Door::to(&host_of(&amqp_uri())).await;
        let uri = amqp_uri_at(&door.address.to_string());
        let settings = with(queue.settings_at(&outbox, &uri), more);
        let postrider = Postrider::start(&settings);
        // Until then it is connected, and the exchange is known.
        outbox.insert([record("first", "k")]).await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        door.freeze();
        outbox.insert(backlog(10, 5)).await;
        outbox.until_count(doc! { "leaseId": { "$exists": true } }, 10).await;
        Self { outbox, queue, door, postrider }
    }

    async fn delete(self) {
        self.queue.delete().await;
        self.outbox.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_hangs_beyond_the_shutdown_timeout_ends_it_with_1() {
    let settings = ["relay.shutdown_timeout=2s", "relay.lease=5s", "sinks.rabbit.timeout=4s"];
    let mut hanging = Hanging::start(&settings).await;

    hanging.postrider.signal(Signal::TERM);
    hanging.postrider.until_logged("a second signal ends at once").await;
    let (status, report) = hanging.postrider.readyz().await;
    let ended = hanging.postrider.until_ended(PROMPTLY).await.with_code(1);

    assert_eq!((status, &report["status"]), (503, &json!("down")), "draining: {report}");
    says(&ended, &["relay.shutdown_timeout", "wait out their lease"]);
    hanging.door.open();
    let mut next = Postrider::start(&hanging.queue.settings(&hanging.outbox));
    hanging.outbox.until_count(doc! { "status": "done" }, 11).await;
    next.stop().await;
    hanging.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_hangs_is_given_up_in_time_for_a_stop_in_good_order() {
    let mut hanging = Hanging::start(&["sinks.rabbit.timeout=2s"]).await;

    let stopped = hanging.postrider.stop().await;

    says(&stopped, &["everything in flight was settled or released"]);
    let outbox = &hanging.outbox;
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    assert_eq!(outbox.count(doc! { "status": "pending" }).await, 10);
    assert_eq!(instances(outbox).await, 0);
    hanging.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_at_once() {
    let mut hanging = Hanging::start(&[]).await;
    hanging.postrider.signal(Signal::TERM);
    hanging.postrider.until_logged("a second signal ends at once").await;

    let signalled = Instant::now();
    hanging.postrider.signal(Signal::INT);
    let ended = hanging.postrider.until_ended(PROMPTLY).await.with_code(1);

    assert!(signalled.elapsed() < Duration::from_secs(3), "{:?}", signalled.elapsed());
    says(&ended, &["a second signal: ending at once"]);
    hanging.delete().await;
}
