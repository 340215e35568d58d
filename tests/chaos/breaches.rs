//! Proves the whole checker: a breach of each kind, made on purpose in a real history.

use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};

use crate::history::{History, Servers};
use crate::ledger::Breach;
use crate::plan::{Kind, LinkFault, Peer, Plan};
use crate::support::outbox::{eventually, record};
use crate::support::process::Signal;

/// A history of one process without faults.
async fn quiet() -> History {
    let mut plan = Plan::of(2, Duration::from_secs(3), false);
    plan.faults.clear();
    let setup = &mut plan.setup;
    (setup.kind, setup.instances, setup.blocks) = (Kind::RabbitMq, 1, false);
    (setup.lease, setup.poll) = (Duration::from_secs(6), Duration::from_millis(100));
    History::begin(plan, Servers::default()).await
}

/// A record of a key of its own, leased by the process, which waits for the broker.
async fn insert_leased(history: &History, id: &str) {
    history.outbox.insert([record(id, id)]).await;
    let leased = doc! { "_id": id, "leaseId": { "$exists": true } };
    history.outbox.until_count(leased, 1).await;
}

async fn change(history: &History, id: &str, change: Document) {
    history.outbox.records().update_one(doc! { "_id": id }, change).await.unwrap();
}

#[fixture::test]
async fn a_seeded_breach_of_each_kind_is_caught() {
    let history = quiet().await;
    let mut acknowledged = history.happen().await;
    history.outbox.insert((0..3).map(|n| record(&format!("o{n}"), "o"))).await;
    history.outbox.insert([record("lost", "lost"), record("woken", "woken")]).await;
    eventually("the deliveries", || async { history.finished() }).await;

    // Forgotten: acknowledged to a producer, and not stored.
    acknowledged.records.push("forgotten".to_owned());
    // Lost and out of order: of what has arrived one is dropped, and one arrives again, and late.
    let arrived = history.broker.lock().await.steal(&["lost", "o1"]).await;
    assert_eq!(arrived, 2);
    history.broker.lock().await.publish_stray("o1", "o").await;
    history.broker.lock().await.publish_stray("stray", "k").await;
    change(&history, "woken", doc! { "$set": { "status": "pending" } }).await;
    eventually("the second delivery", || async { history.finished() }).await;
    history.hurt(Peer::Broker, LinkFault::Frozen, true);
    insert_leased(&history, "settled").await;
    insert_leased(&history, "stolen").await;
    let done = doc! { "$set": { "status": "done" }, "$unset": { "leaseId": "", "leaseUntil": "" } };
    change(&history, "settled", done).await;
    let soon = DateTime::now().saturating_add_duration(Duration::from_secs(1));
    let lease = doc! { "leaseId": Bson::from(bson::Uuid::new()), "leaseUntil": soon };
    change(&history, "stolen", doc! { "$set": lease }).await;
    history.hurt(Peer::Broker, LinkFault::Frozen, false);
    let mut held = record("stuck", "stuck");
    let for_ever = DateTime::now().saturating_add_duration(Duration::from_secs(3600));
    held.extend(doc! { "leaseId": Bson::from(bson::Uuid::new()), "leaseUntil": for_ever });
    history.outbox.insert([held]).await;
    eventually("all but one to be over", || async {
        history.watch.ledger.lock().unwrap().open() == ["stuck"]
    })
    .await;
    history.signal(Signal::KILL).await;
    let verdict = history.end(&acknowledged, Duration::from_secs(1)).await;

    assert!(!verdict.is_good());
    // What is stuck has not arrived either.
    assert_eq!(verdict.findings.losses, ["lost", "stuck"]);
    assert_eq!(verdict.findings.phantoms, ["stray"]);
    let inverted = &verdict.findings.inversions;
    let late: Vec<_> = inverted.iter().map(|one| (&*one.late, &*one.overtaker)).collect();
    assert_eq!(late, [("o1", "o2")]);
    assert_eq!(verdict.stuck, ["stuck"]);
    assert_eq!(verdict.forgotten, ["forgotten"]);
    assert!(verdict.oddities.iter().any(|odd| odd.contains("ended by itself")), "{verdict:?}");
    for id in ["woken", "settled", "stolen"] {
        let caught = verdict.breaches.iter().filter(|breach| match breach {
            Breach::Revived { id: found } => found == id && id == "woken",
            Breach::Unfenced { id: found, .. } => found == id && id == "settled",
            Breach::Stolen { id: found, .. } => found == id && id == "stolen",
            Breach::OutOfTurn { .. } | Breach::Robbed { .. } => false,
        });
        assert_eq!(caught.count(), 1, "{id}: {:?}", verdict.breaches);
    }
    assert_eq!(verdict.breaches.len(), 3, "{:?}", verdict.breaches);
}
