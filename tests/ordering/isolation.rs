//! Failures affect only their own destination or record: a destination that does not confirm delays
//! only its own records, and a record that goes alone delays no other.

use std::time::Duration;

use bson::{DateTime, Document, doc};
use postrider::ids::LeaseId;
use postrider::relay::settings::{DeadLetters, Settings};
use postrider::routing::Template;
use postrider::sink::{HeaderValue, PublishFailure};

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{rounds, until_arrived, until_under_way};
use crate::support::relay::{settings, start};
use crate::support::sink::{Fault, TestSink};

/// A record whose routing key is `sick`.
fn to_sick(id: &str, key: &str) -> Document {
    let mut record = record(id, key);
    record.insert("type", "sick");
    record
}

#[fixture::test]
async fn an_unconfirming_destination_delays_only_its_own_records() {
    const KEYS: usize = 60;
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.set_sick(Some("sick"));
    let sick = |n: usize| to_sick(&format!("sick {n:02}"), &format!("sick {n:02}"));
    outbox.insert((0..KEYS).map(sick)).await;
    outbox.insert([to_sick("first", "mixed"), record("second", "mixed")]).await;
    let settings = Settings { max_attempts: 2, ..settings() };
    let relay = start(&outbox.collections, sink.clone(), settings);
    eventually("a few probes", || async { sink.begun_isolated().len() >= 5 }).await;

    rounds(&outbox, &sink).await;

    let begun = sink.begun().iter().filter(|id| !id.starts_with("round ")).count();
    let probes = sink.begun_isolated().len();
    // Each once on the main connection, before the circuit opened; then one at a time.
    assert!(begun <= KEYS + 1 + probes, "{begun} begun, {probes} of them probes");
    eventually("nothing is leased but a probe", || async {
        outbox.count(doc! { "leaseId": { "$ne": null } }).await <= 1
    })
    .await;
    assert_eq!(outbox.count(doc! { "lastError": { "$ne": null } }).await, 0, "nothing is counted");
    assert!(!sink.ids().contains(&"second".to_owned()), "its key waits");
    sink.set_sick(None);

    let all = KEYS as u64 + 2;
    let done = doc! { "status": "done", "_id": { "$not": { "$regex": "^round" } } };
    outbox.until_count(done, all).await;
    assert_eq!(outbox.count(doc! { "attempt": { "$gt": 1 } }).await, 0);
    let ids = sink.ids();
    let place = |id: &str| ids.iter().position(|arrived| arrived == id).unwrap();
    assert!(place("first") < place("second"));
    assert_eq!(ids.len(), outbox.count(doc! {}).await as usize, "no duplicates");
    relay.stop().await;
}

/// Never confirmed, however often it is sent.
fn never() -> Vec<Fault> {
    vec![Fault::AnswerAfter(Duration::from_millis(300), PublishFailure::Unconfirmed); 1_000]
}

/// Relays `odd`, which is not confirmed, and `behind`, which waits for it, while others are
/// delivered to the same destination, until `behind` has arrived: `odd` must be dead then.
async fn relay_until_odd_dies(sink: &TestSink, dead_letter: Option<DeadLetters>) {
    let outbox = TestOutbox::restricted().await;
    outbox.insert([record("odd", "k"), record("behind", "k")]).await;
    let settings = Settings { max_attempts: 3, dead_letter, ..settings() };
    let relay = start(&outbox.collections, sink.clone(), settings);
    until_under_way(sink, "odd").await;

    // A flow to the same destination, so that something is confirmed during each attempt.
    let flow = async {
        loop {
            rounds(&outbox, sink).await;
        }
    };
    tokio::select! {
        () = flow => {}
        () = until_arrived(sink, "behind") => {}
    }

    let odd = outbox.record("odd").await;
    assert_eq!(odd.get_str("status").unwrap(), "dead");
    let reason = odd.get_str("deadReason").unwrap();
    assert!(reason.starts_with("attempts exhausted: 3 deliveries failed"), "{reason}");
    relay.stop().await;
}

/// The destination confirms other records meanwhile, so the record is at fault.
#[fixture::test]
async fn a_record_that_alone_is_unconfirmed_dies_and_its_key_continues() {
    let sink = TestSink::default();
    sink.script("odd", never());

    relay_until_odd_dies(&sink, None).await;
}

/// Dead letters to the only sink.
fn to_the_same_sink() -> Option<DeadLetters> {
    Some(DeadLetters { sink: "test".into(), destination: Template::parse("dead").unwrap() })
}

#[fixture::test]
async fn an_unconfirmed_record_gets_its_dead_letter_on_the_same_sink() {
    let sink = TestSink::default();
    sink.script_at("", "odd", never());

    relay_until_odd_dies(&sink, to_the_same_sink()).await;

    let arrived = sink.arrived();
    let place = |id: &str| arrived.iter().position(|message| message.id == id).unwrap();
    let letter = &arrived[place("odd")];
    assert_eq!(letter.address.destination, "dead");
    assert_eq!(arrived.iter().filter(|message| message.id == "odd").count(), 1, "{arrived:?}");
    let is_reason = |value: &HeaderValue| match value {
        HeaderValue::String(text) => text.starts_with("attempts exhausted: 3 deliveries failed"),
        _ => false,
    };
    let mut headers = letter.headers.iter();
    assert!(headers.any(|(name, value)| name == "x-dead-reason" && is_reason(value)), "{letter:?}");
    assert!(place("odd") < place("behind"));
}

/// While the destination of dead letters confirms nothing, no record dies without its dead letter.
/// Where it confirms others, the letter is at fault.
#[fixture::test]
async fn a_record_dies_without_dead_letter_only_if_others_get_confirmed() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let refused = |id: &str| sink.script_at("", id, [Fault::Answer(PublishFailure::Rejected)]);
    refused("odd");
    sink.script_at("dead", "odd", never());
    outbox.insert([record("odd", "k"), record("behind", "k")]).await;
    let settings = Settings { dead_letter: to_the_same_sink(), ..settings() };
    let relay = start(&outbox.collections, sink.clone(), settings);
    // Twice as many attempts as it would get where others were confirmed.
    eventually("many tries", || async { sink.tries("odd") > 6 }).await;
    rounds(&outbox, &sink).await;
    assert_eq!(outbox.record("odd").await.get_str("status").unwrap(), "pending");
    assert!(!sink.ids().contains(&"behind".to_owned()), "its key waits");

    let others = async {
        for number in 0.. {
            let id = format!("other {number}");
            refused(&id);
            outbox.insert([record(&id, &id)]).await;
            outbox.until_count(doc! { "_id": &id, "status": "dead" }, 1).await;
        }
    };
    tokio::select! {
        () = others => {}
        () = until_arrived(&sink, "behind") => {}
    }

    assert_eq!(outbox.record("odd").await.get_str("status").unwrap(), "dead");
    assert!(!sink.ids().contains(&"odd".to_owned()), "its letter never arrived");
    relay.stop().await;
}

#[fixture::test]
async fn a_record_that_goes_alone_delays_nothing_else() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut poison = record("poison", "poison");
    poison.insert("attempt", 2);
    poison.insert("leaseCrashes", 1);
    poison.insert("leaseId", LeaseId::fresh());
    poison.insert("leaseOwner", LeaseId::fresh());
    let before = DateTime::now().timestamp_millis() - 1_000;
    poison.insert("leaseUntil", DateTime::from_millis(before));
    sink.script("poison", [Fault::Hold]);
    outbox.insert([poison]).await;
    let relay = start(&outbox.collections, sink.clone(), settings());
    until_under_way(&sink, "poison").await;

    rounds(&outbox, &sink).await;

    assert_eq!(sink.begun_isolated(), ["poison"]);
    assert!(sink.is_under_way("poison"));
    sink.release();
    until_arrived(&sink, "poison").await;
    relay.stop().await;
}

/// Records that probe are in memory in addition to those that `batch_bytes` limits.
#[fixture::test]
async fn large_records_probe_their_destinations_a_few_at_a_time() {
    const DESTINATIONS: usize = 12;
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let ids: Vec<String> = (0..DESTINATIONS).map(|n| format!("large {n}")).collect();
    for id in &ids {
        let mut large = record(id, id);
        large.insert("type", id);
        large.insert("payload", "x".repeat(900 << 10));
        sink.script(id, never());
        outbox.insert([large]).await;
    }
    // A quarter of it has room for two of them.
    let settings = Settings { batch_bytes: 8 << 20, ..settings() };
    let relay = start(&outbox.collections, sink.clone(), settings);

    eventually("each has probed its destination", || async {
        let begun = sink.begun_isolated();
        ids.iter().all(|id| begun.iter().filter(|begun| *begun == id).count() >= 2)
    })
    .await;

    assert!(sink.most_isolated() <= 2, "{} at once", sink.most_isolated());
    relay.stop().await;
}

/// A short interruption releases nothing; a long one releases everything.
#[fixture::test]
async fn records_wait_for_a_sink_that_is_down_for_the_grace_only() {
    const COUNT: u64 = 50;
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    (0..COUNT).for_each(|n| {
        sink.script(&format!("{n:02}"), [Fault::HoldThenAnswer(PublishFailure::SinkDown)])
    });
    outbox.insert((0..COUNT).map(|n| record(&format!("{n:02}"), &format!("k{n}")))).await;
    let settings = Settings { lease: Duration::from_secs(36), ..settings() };
    let relay = start(&outbox.collections, sink.clone(), settings);
    let all = || (0..COUNT).all(|n| sink.is_under_way(&format!("{n:02}")));
    eventually("all are under way", || async { all() }).await;
    let leased = doc! { "leaseId": { "$ne": null } };
    // The lease takes a moment to reach a majority.
    outbox.until_count(leased.clone(), COUNT).await;

    sink.set_down(true);
    sink.release();

    eventually("none is under way", || async {
        !(0..COUNT).any(|n| sink.is_under_way(&format!("{n:02}")))
    })
    .await;
    assert_eq!(outbox.count(leased.clone()).await, COUNT, "they wait");
    outbox.until_count(leased, 0).await;
    assert_eq!(outbox.count(doc! { "attempt": { "$gt": 0 } }).await, 0, "not counted");
    sink.set_down(false);
    outbox.until_count(doc! { "status": "done" }, COUNT).await;
    assert_eq!(outbox.count(doc! { "attempt": 1 }).await, COUNT);
    relay.stop().await;
}
