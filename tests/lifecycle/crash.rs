//! Ends without a stop: killed, suspended.

use bson::doc;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal};
use crate::support::queue::Queue;
use crate::util::{PROMPT_LIMIT, backlog, with};

#[fixture::test]
async fn the_next_process_delivers_everything_after_a_kill() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    // What was in flight goes one by one: little of it.
    let settings = ["relay.lease=3s", "sinks.rabbit.timeout=1s", "relay.batch_size=10"];
    let settings = with(queue.settings(&outbox), &settings);
    outbox.insert(backlog(2000, 20)).await;
    let mut killed = Postrider::start(&settings);
    eventually("the first deliveries", || async {
        outbox.count(doc! { "status": "done" }).await > 50
    })
    .await;

    killed.signal(Signal::KILL);
    let ended = killed.until_ended(PROMPT_LIMIT).await;
    let left = outbox.count(doc! { "status": "pending" }).await;
    let mut next = Postrider::start(&settings);

    assert_eq!(ended.code, None, "{ended}");
    assert!(left > 0, "it was killed under way");
    outbox.until_count(doc! { "status": "done" }, 2000).await;
    queue.ids(2000).await;
    next.stop().await;
}

#[fixture::test(long)]
async fn a_suspended_process_continues_and_loses_nothing() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let settings = ["relay.lease=2s", "sinks.rabbit.timeout=1s", "relay.batch_size=10"];
    outbox.insert(backlog(2000, 20)).await;
    // Two names: an instance of the same name would take the other's place.
    let named = |name| [&settings[..], &[name]].concat();
    let start = |name| Postrider::start(&with(queue.settings(&outbox), &named(name)));
    let mut suspended = start("instance.name=one");
    eventually("the first deliveries", || async {
        outbox.count(doc! { "status": "done" }).await > 50
    })
    .await;

    suspended.signal(Signal::STOP);
    let mut other = start("instance.name=two");
    outbox.until_count(doc! { "status": "done" }, 2000).await;
    suspended.signal(Signal::CONT);
    outbox.insert([record("last", "k")]).await;

    outbox.until_count(doc! { "status": "done" }, 2001).await;
    queue.ids(2001).await;
    suspended.stop().await;
    other.stop().await;
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
}
