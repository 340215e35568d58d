//! Stops at moments when something waits: then nothing is in flight.

use std::time::{Duration, Instant};

use bson::{DateTime, Document, Uuid, doc};
use futures_util::join;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of, mongo_settings, stdout_sink};
use crate::support::rabbitmq::address;
use crate::support::schema::BareDatabase;
use crate::util::{backlog, instances, with};

/// The end of a process of a debug build, on a busy machine.
const AT_ONCE_LIMIT: Duration = Duration::from_secs(3);

async fn assert_stops_at_once(mut postrider: Postrider) {
    let stopping = Instant::now();
    postrider.stop().await;
    assert!(stopping.elapsed() < AT_ONCE_LIMIT, "{:?}", stopping.elapsed());
}

/// Asserts the state that every stop leaves.
async fn assert_clean_state(outbox: &TestOutbox) {
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    assert_eq!(instances(outbox).await, 0);
}

async fn while_a_schema_is_waited_for() {
    let bare = BareDatabase::new("").await;
    let settings = [mongo_settings(&bare.name), stdout_sink()].concat();
    let postrider = Postrider::start(&with(settings, &["outbox.auto_init_schema=false"]));
    postrider.until_logged("run `postrider schema apply`").await;

    assert_stops_at_once(postrider).await;

    assert_eq!(bare.collection_names().await, [""; 0]);
}

async fn while_a_sink_is_down_with_a_backlog() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let to_mongodb = FaultProxy::closed_to(&host_of(&amqp_uri())).await;
    let uri = amqp_uri_at(&to_mongodb.address().to_string());
    outbox.insert(backlog(2_000, 1_000)).await;
    let postrider = Postrider::start(&queue.settings_at(&outbox, &uri));
    postrider
        .until_report("a sink that is down", |report| {
            report["parts"]["sink rabbit"]["status"] == "degraded"
        })
        .await;

    assert_stops_at_once(postrider).await;

    let untouched = doc! { "status": "pending", "attempt": { "$in": [0, null] } };
    assert_eq!(outbox.count(untouched).await, 2_000);
    assert_clean_state(&outbox).await;
}

async fn during_the_backoff_of_a_retry() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    // Refused: no queue is bound for it.
    let settings = ["sinks.rabbit.routing_key=no-such-queue", "relay.backoff.initial=1m"];
    let postrider = Postrider::start(&with(queue.settings(&outbox), &settings));
    outbox.insert([record("first", "k"), record("behind", "k")]).await;
    let failed = doc! { "_id": "first", "attempt": 1, "visibleAt": { "$gt": DateTime::now() } };
    outbox.until_count(failed.clone(), 1).await;

    assert_stops_at_once(postrider).await;

    assert_eq!(outbox.count(failed).await, 1, "counted once, and due as before");
    let behind = doc! { "_id": "behind", "status": "pending", "attempt": { "$in": [0, null] } };
    assert_eq!(outbox.count(behind).await, 1);
    assert_clean_state(&outbox).await;
}

async fn while_a_dead_record_blocks_its_key() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let postrider = Postrider::start(&with(queue.settings(&outbox), &["relay.on_dead=block"]));
    let mut malformed = record("dead", "k");
    malformed.remove("payload");
    outbox.insert([malformed, record("behind", "k")]).await;
    outbox.until_count(doc! { "status": "dead", "blocks": true }, 1).await;

    assert_stops_at_once(postrider).await;

    let behind = doc! { "_id": "behind", "status": "pending", "attempt": { "$in": [0, null] } };
    assert_eq!(outbox.count(behind).await, 1);
    assert_clean_state(&outbox).await;
}

async fn with_records_that_are_scheduled() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    let mut scheduled = record("later", "k");
    scheduled.insert("status", "scheduled");
    scheduled.insert("visibleAt", due);
    let postrider = Postrider::start(&queue.settings(&outbox));
    outbox.insert([scheduled, record("now", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;

    assert_stops_at_once(postrider).await;

    let still = doc! { "_id": "later", "status": "scheduled", "visibleAt": due };
    assert_eq!(outbox.count(still).await, 1);
    assert_clean_state(&outbox).await;
}

/// Of two records that must go alone one is in flight, and the other waits for its turn.
async fn while_a_poison_record_goes_alone() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let to_broker = FaultProxy::to_address(address(&amqp_uri())).await;
    let settings = queue.settings_at(&outbox, &amqp_uri_at(&to_broker.address().to_string()));
    let mut postrider = Postrider::start(&settings);
    postrider.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    let expired = |id: &str| -> Document {
        let mut poison = record(id, id);
        poison.insert("attempt", 2);
        poison.insert("leaseCrashes", 1);
        poison.insert("leaseId", Uuid::new());
        poison.insert("leaseOwner", Uuid::new());
        poison.insert("leaseUntil", DateTime::from_millis(1));
        poison
    };
    // The isolated connection is opened by the first record that goes alone.
    outbox.insert([expired("first")]).await;
    outbox.until_count(doc! { "_id": "first", "status": "done" }, 1).await;
    // Its confirm takes this long, once the broker has it.
    to_broker.delay(Duration::from_secs(2));
    outbox.insert([expired("a"), expired("b")]).await;
    let others = doc! { "$ne": "first" };
    outbox.until_count(doc! { "_id": others.clone(), "attempt": 3 }, 1).await;
    queue.arrivals(2).await;

    postrider.stop().await;

    let done = doc! {
        "_id": others,
        "status": "done",
        "attempt": 3,
        "leaseId": { "$exists": false },
    };
    assert_eq!(outbox.count(done).await, 1, "the one that was on its way");
    let waits = doc! { "status": "pending", "attempt": 2, "leaseUntil": DateTime::from_millis(1) };
    assert_eq!(outbox.count(waits).await, 1, "the other one as it was");
    assert_eq!(instances(&outbox).await, 0);
}

#[fixture::test]
async fn waiting_records_do_not_delay_a_stop_and_stay_unchanged() {
    join!(
        while_a_schema_is_waited_for(),
        while_a_sink_is_down_with_a_backlog(),
        during_the_backoff_of_a_retry(),
        while_a_dead_record_blocks_its_key(),
        with_records_that_are_scheduled(),
        while_a_poison_record_goes_alone(),
    );
}
