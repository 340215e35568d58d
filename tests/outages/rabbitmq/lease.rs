//! A lease that expires during a publish, and another instance that takes over.

use bson::doc;

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{Outage, all_settled, no_errors, owned, settings, to, until_well};
use crate::support::fault_proxy::FaultProxy;
use crate::support::history::{judge, read_back};
use crate::support::outbox::mongodb_uri;
use crate::support::process::{Postrider, Signal};
use crate::support::queue::host_of;
use crate::support::queue_consumer::QueueConsumer;
use crate::support::rabbitmq::{address, at};

/// What is leased when the outage begins: three keys of three.
const LEASED_RECORDS: u64 = 9;

/// Why the first instance cannot renew its lease.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It is suspended, as a whole host may be.
    Suspended,
    /// It runs, and MongoDB does not receive its requests.
    CutOff,
}

async fn run_outage(trouble: Fault) {
    let outage = Outage::new().await;
    let outbox = &outage.outbox;
    let arrivals = QueueConsumer::at(&outage.vhost.uri(), "taken").await;
    let to_broker = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let to_mongodb = FaultProxy::to(&host_of(&mongodb_uri())).await;
    // A publish may take nearly as long as its lease, and both longer than the test until the fault begins.
    let more = ["relay.lease=8s", "sinks.rabbit.timeout=7500ms", "relay.max_attempts=3"];
    let uri = at(&outage.vhost.uri(), to_broker.address());
    let mongo = format!("mongo.uri={}", to_mongodb.mongodb_uri(""));
    let through_proxy = owned(&[&mongo, &format!("mongo.database={}", outbox.database)]);
    // Of another name: one of the same would take its place.
    let named = |name: &str| owned(&[&format!("instance.name={name}")]);
    let first = [settings(outbox, &uri, &more), through_proxy, named("first")].concat();
    let first = Postrider::start(&first);
    until_well(&first).await;
    let records = |from: usize| {
        let number = move |number: usize| format!("{:02}", from + number);
        (0..9).map(move |n| to("taken", &number(n), &format!("key {}", n % 3)))
    };

    to_broker.hold_answers(true);
    outbox.insert(records(0)).await;
    outbox.until_count(doc! { "leaseId": { "$ne": null }, "attempt": 1 }, LEASED_RECORDS).await;
    arrivals.until(3).await;
    match trouble {
        Fault::Suspended => first.signal(Signal::STOP),
        Fault::CutOff => to_mongodb.freeze(),
    }
    // While it is away the others arrive, and those behind what it has leased.
    let second = [settings(outbox, &outage.vhost.uri(), &more), named("second")].concat();
    let second = Postrider::start(&second);
    outbox.insert(records(50)).await;
    outbox.until_count(doc! { "status": "done" }, 18).await;
    let done = all_settled(outbox).await.0;
    match trouble {
        Fault::Suspended => first.signal(Signal::CONT),
        Fault::CutOff => to_mongodb.open(),
    }
    to_broker.hold_answers(false);

    let lost = "postrider_deliveries_total{sink=\"rabbit\",outcome=\"lost\"}";
    first.until_metric(lost, |count| count >= 3.0).await;
    until_well(&first).await;
    // It continues next to the other one.
    outbox.insert(records(70)).await;
    outbox.until_count(doc! { "status": "done" }, 27).await;
    arrivals.until(27).await;
    let (after, dead) = all_settled(outbox).await;
    assert!(dead.is_empty(), "{trouble:?}: {dead:?}");
    for record in &done {
        let id = record.get_str("_id").unwrap();
        // A poison candidate has one counted attempt, for the lease that expired.
        let attempt = if id < "50" { 2 } else { 1 };
        assert_eq!(record.get_i32("attempt").unwrap(), attempt, "{trouble:?}: {record}");
        assert!(!record.contains_key("lastError"), "{trouble:?}: {record}");
        assert!(after.contains(record), "{trouble:?}: what is done is final: {record}");
    }
    let findings = judge(&read_back(&outbox.collections).await, &arrivals.seen());
    findings.assert_kept();
    assert!(findings.duplicates >= 3, "{trouble:?}: the broker had three of them twice");
    no_errors(&first);
    no_errors(&second);
    let counted = async |postrider: &Postrider, outcome: &str| {
        let series = format!("postrider_deliveries_total{{sink=\"rabbit\",outcome=\"{outcome}\"}}");
        postrider.metric(&series).await.unwrap() as u64
    };
    let by_first = counted(&first, "done").await;
    let first_settled = Settled { lost: LEASED_RECORDS, ..Settled::done(by_first) };
    is_whole_and_clean(&first, &["rabbit"], first_settled).await;
    is_whole_and_clean(&second, &["rabbit"], Settled::done(27 - by_first)).await;
    let mut second = second;
    second.stop().await;
    outage.end(first).await;
}

#[fixture::test(long)]
async fn a_lease_that_ends_in_a_publish_counts_once() {
    tokio::join!(run_outage(Fault::Suspended), run_outage(Fault::CutOff));
}
