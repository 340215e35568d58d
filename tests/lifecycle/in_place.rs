//! An instance that returns under its name takes its predecessor's place at once. Leases and
//! heartbeats are so long here that nothing else can be the reason.

use bson::{Document, doc};
use futures_util::TryStreamExt;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, stdout_settings, stdout_sink};
use crate::support::rabbitmq::address;
use crate::util::{PROMPT_LIMIT, backlog, mongo_through, proxy_to_mongodb, with};

/// Nothing expires within a test.
const LONG_TIMES: [&str; 2] = ["relay.lease=10m", "partitions.stale_after=10m"];

fn named(settings: &[String], name: &str) -> Vec<String> {
    with(settings.to_vec(), &[&format!("instance.name={name}")])
}

async fn instances(outbox: &TestOutbox) -> Vec<Document> {
    let instances = outbox.collections.database().collection::<Document>("outbox_instances");
    instances.find(doc! {}).await.unwrap().try_collect().await.unwrap()
}

async fn leased(outbox: &TestOutbox) -> u64 {
    outbox.count(doc! { "status": "pending", "leaseId": { "$exists": true } }).await
}

async fn names(outbox: &TestOutbox) -> Vec<String> {
    let mut names: Vec<String> = instances(outbox)
        .await
        .iter()
        .map(|instance| instance.get_str("name").unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[fixture::test]
async fn a_restarted_instance_takes_over_its_partitions_and_leases() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let settings = with(queue.settings(&outbox), &LONG_TIMES);
    let to_broker = FaultProxy::to_address(address(&amqp_uri())).await;
    let through_proxy = queue.settings_at(&outbox, &amqp_uri_at(&to_broker.address().to_string()));
    let mut killed = Postrider::start(&with(through_proxy, &LONG_TIMES));
    killed.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    outbox.insert([record("before", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    to_broker.hold_answers(true);
    outbox.insert(backlog(2_000, 100)).await;
    eventually("leases", async || leased(&outbox).await > 0).await;
    killed.signal(Signal::KILL);
    killed.until_ended(PROMPT_LIMIT).await;

    let mut next = Postrider::start(&settings);

    outbox.until_count(doc! { "status": "done" }, 2_001).await;
    queue.ids(2_001).await;
    assert_eq!(instances(&outbox).await.len(), 1, "the predecessor's document is gone");
    let repeated = outbox.count(doc! { "attempt": 2 }).await;
    let crashed = outbox.count(doc! { "leaseCrashes": 1, "attempt": 2 }).await;
    assert!(crashed > 0);
    assert_eq!(crashed, repeated, "each lease of the dead instance counted as one crash");
    next.stop().await;
}

#[fixture::test]
async fn a_name_of_a_live_instance_is_refused_with_its_holder() {
    let outbox = TestOutbox::new().await;
    let settings = named(&with(stdout_settings(&outbox), &LONG_TIMES), "pod-1");
    let mut first = Postrider::start(&settings);
    first.until_ready().await;
    let refused = Postrider::start(&settings).until_ended(PROMPT_LIMIT).await.with_code(1);

    assert!(refused.stderr.contains(r#"instance.name = \"pod-1\""#), "{refused}");
    assert!(refused.stderr.contains("is alive"), "{refused}");
    outbox.insert([record("a", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    assert_eq!(names(&outbox).await, ["pod-1"]);
    first.stop().await;
}

#[fixture::test]
async fn two_instances_of_one_configuration_have_different_names() {
    let outbox = TestOutbox::new().await;
    let settings = with(stdout_settings(&outbox), &LONG_TIMES);
    let mut first = Postrider::start(&settings);
    first.until_ready().await;

    let mut second = Postrider::start(&settings);
    second.until_ready().await;

    let both = names(&outbox).await;
    assert_eq!(both.len(), 2);
    assert_eq!(both[1], format!("{}#2", both[0]));
    first.stop().await;
    second.stop().await;
    let control = outbox.collections.database().collection::<Document>("outbox_control");
    assert_eq!(control.count_documents(doc! {}).await.unwrap(), 0, "names are given up at a stop");
}

#[fixture::test]
async fn a_hanging_holder_is_replaced_and_publishes_nothing_later() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let to_broker = FaultProxy::to_address(address(&amqp_uri())).await;
    let through_proxy = queue.settings_at(&outbox, &amqp_uri_at(&to_broker.address().to_string()));
    let mut holder = Postrider::start(&named(&with(through_proxy, &LONG_TIMES), "pod-1"));
    holder.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    holder.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    outbox.insert([record("before", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    // The first of each key is in flight, the others wait behind it.
    to_broker.hold_answers(true);
    outbox.insert(backlog(60, 20)).await;
    outbox.until_count(doc! { "leaseId": { "$exists": true } }, 60).await;
    holder.signal(Signal::STOP);

    let settings = named(&with(queue.settings(&outbox), &LONG_TIMES), "pod-1");
    let mut next = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done" }, 61).await;
    // Confirms arrive now, after which it would publish the next ones.
    to_broker.hold_answers(false);
    holder.signal(Signal::CONT);

    let ended = holder.until_ended(PROMPT_LIMIT).await.with_code(1);
    assert!(ended.stderr.contains("took over this name"), "{ended}");
    let arrived = queue.arrivals(61).await;
    assert!(arrived.len() <= 61 + 20, "no more twice than were under way: {}", arrived.len());
    assert_eq!(names(&outbox).await, ["pod-1"]);
    outbox.insert([record("after", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 62).await;
    next.stop().await;
}

/// It runs, and MongoDB does not receive its requests: it cannot answer.
#[fixture::test]
async fn a_holder_cut_off_from_mongodb_is_replaced_and_ends() {
    let outbox = TestOutbox::new().await;
    let to_mongodb = proxy_to_mongodb(FaultProxy::to).await;
    let settings = [mongo_through(&to_mongodb, &outbox.database), stdout_sink()].concat();
    let more = ["partitions.heartbeat=500ms", LONG_TIMES[0], LONG_TIMES[1]];
    let mut holder = Postrider::start(&named(&with(settings, &more), "pod-1"));
    holder.until_ready().await;
    to_mongodb.freeze();
    holder
        .until_report("a lost store", |report| report["parts"]["store"]["status"] == "down")
        .await;

    let mut next = Postrider::start(&named(&with(stdout_settings(&outbox), &more), "pod-1"));
    next.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    to_mongodb.open();

    let ended = holder.until_ended(6 * PROMPT_LIMIT).await.with_code(1);
    assert!(ended.stderr.contains("took over this name"), "{ended}");
    assert_eq!(names(&outbox).await, ["pod-1"], "{}", next.stderr());
    next.stop().await;
}

#[fixture::test(long)]
async fn leases_of_a_dead_instance_are_taken_over_with_its_partitions() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    // A busy machine must not let the first one seem dead before it is.
    let short = ["relay.lease=10m", "partitions.stale_after=10s", "partitions.heartbeat=500ms"];
    let settings = with(queue.settings(&outbox), &short);
    let to_broker = FaultProxy::to_address(address(&amqp_uri())).await;
    let through_proxy = queue.settings_at(&outbox, &amqp_uri_at(&to_broker.address().to_string()));
    let mut killed = Postrider::start(&named(&with(through_proxy, &short), "one"));
    let owned = "postrider_partitions_owned";
    killed.until_metric(owned, |owned| owned == 256.0).await;
    killed.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    let owner = instances(&outbox).await[0].get("_id").unwrap().clone();
    let mut other = Postrider::start(&named(&settings, "two"));
    other.until_metric(owned, |owned| owned == 128.0).await;
    to_broker.hold_answers(true);
    outbox.insert(backlog(3_000, 100)).await;
    let held = doc! { "status": "pending", "leaseOwner": owner };
    eventually("leases", async || outbox.count(held.clone()).await > 0).await;
    killed.signal(Signal::KILL);
    killed.until_ended(PROMPT_LIMIT).await;

    outbox.until_count(doc! { "status": "done" }, 3_000).await;
    queue.ids(3_000).await;
    assert!(outbox.count(doc! { "leaseCrashes": 1 }).await > 0, "it was killed under way");
    other.stop().await;
}

/// Whatever `max_attempts` is: it goes alone after its second crash, and dies of the third.
#[cfg(feature = "failpoints")]
#[fixture::test]
async fn a_poison_record_alone_dies_of_its_third_crash() {
    for max_attempts in [1, 2] {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let attempts = format!("relay.max_attempts={max_attempts}");
        let settings = with(queue.settings(&outbox), &[LONG_TIMES[0], LONG_TIMES[1], &attempts]);
        // In the middle of one key, with others in the same leases.
        outbox.insert(backlog(100, 20)).await;
        outbox.insert([record("poison", "k7")]).await;
        outbox.insert((0..20).map(|n| record(&format!("late {n}"), &format!("k{n}")))).await;

        let mut crashes = 0;
        let mut survivor = loop {
            let mut command = crate::support::process::run_with(&settings);
            command.env("FAILPOINTS", "relay::publish poison=return");
            let mut postrider = Postrider::of(command);
            let crashed = tokio::select! {
                ended = postrider.until_ended(6 * PROMPT_LIMIT) => {
                    assert_eq!(ended.code, None, "{ended}");
                    true
                }
                () = outbox.until_count(doc! { "_id": "poison", "status": "dead" }, 1) => false,
            };
            if !crashed {
                break postrider;
            }
            crashes += 1;
        };

        outbox.until_count(doc! { "status": "done" }, 120).await;
        assert_eq!(crashes, 3);
        let poison = outbox.record("poison").await;
        assert_eq!(poison.get_str("deadReason").unwrap(), "lease expired: 3 times");
        queue.ids(120).await;
        survivor.stop().await;
    }
}
