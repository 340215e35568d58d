//! Hazard 7, poison: who crashes or hangs its deliverer goes alone, and dies alone.

use bson::{DateTime, Document, doc};
use postrider::ids::LeaseId;
use postrider::relay::settings::Settings;

use crate::support::fragile::FragileSink;
use crate::support::outbox::{TestOutbox, record};
use crate::support::relay::{settings, start};
use crate::support::sink::TestSink;

/// A record whose last deliverer never came back.
fn suspect(id: &str, key: &str, attempt: i32) -> Document {
    let mut record = record(id, key);
    record.insert("attempt", attempt);
    record.insert("leaseId", LeaseId::fresh());
    record.insert("leaseOwner", LeaseId::fresh());
    record.insert("leaseUntil", DateTime::from_millis(DateTime::now().timestamp_millis() - 1_000));
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_an_expired_lease_go_one_at_a_time() {
    let outbox = TestOutbox::new().await;
    let sink = FragileSink::default();
    let suspects: Vec<String> = (0..6).map(|n| format!("suspect {n}")).collect();
    let sound: Vec<String> = (0..40).map(|n| format!("sound {n}")).collect();
    outbox.insert(suspects.iter().map(|id| suspect(id, id, 1))).await;
    outbox.insert(sound.iter().map(|id| record(id, id))).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 46).await;
    let in_company = sound.iter().any(|id| sink.company(id).iter().any(|with| !with.is_empty()));
    assert!(in_company, "the sound ones went together");
    for id in &suspects {
        let company = sink.company(id);
        assert_eq!(company.len(), 1, "published once");
        assert!(company[0].is_empty(), "{id} went with {:?}", company[0]);
    }
    relay.stop().await;
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspect_at_the_ceiling_dies_undelivered_and_its_follower_goes() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    outbox
        .insert([suspect("spent", "a", 10), record("behind", "a"), suspect("one left", "b", 9)])
        .await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 2).await;
    let mut ids = sink.ids();
    ids.sort();
    assert_eq!(ids, ["behind", "one left"]);
    let spent = outbox.record("spent").await;
    assert_eq!(spent.get_str("deadReason").unwrap(), "lease expired: 10 times");
    assert_eq!(spent.get_i32("attempt").unwrap(), 10);
    assert!(spent.get_datetime("deadAt").is_ok() && !spent.contains_key("leaseId"), "{spent}");
    relay.stop().await;
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_breaks_the_connection_is_charged_alone_and_dies_alone() {
    let outbox = TestOutbox::new().await;
    let sink = FragileSink::poisoned(&["poison"]);
    let neighbours: Vec<String> = (0..20).map(|n| format!("neighbour {n}")).collect();
    outbox.insert([record("poison", "poison"), record("behind", "poison")]).await;
    outbox.insert(neighbours.iter().map(|id| record(id, id))).await;

    let relay =
        start(&outbox.collections, sink.clone(), Settings { max_attempts: 3, ..settings() });

    outbox.until_count(doc! { "status": "done" }, 21).await;
    let poison = outbox.record("poison").await;
    assert_eq!(
        poison.get_str("deadReason").unwrap(),
        "attempts exhausted: 3 deliveries failed, the last one with: the connection broke"
    );
    let of_others = doc! { "_id": { "$ne": "poison" }, "attempt": 1, "lastError": null };
    assert_eq!(outbox.count(of_others).await, 21, "nobody else was charged");
    let publishes = sink.company("poison");
    assert_eq!(publishes.len(), 2 + 3, "twice in company, then alone until it was dead");
    assert!(publishes[2..].iter().all(|with| with.is_empty()), "{publishes:?}");
    relay.stop().await;
    outbox.drop().await;
}
