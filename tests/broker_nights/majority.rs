//! A quorum queue without a majority of its nodes, on a cluster whose other queues confirm.

use std::collections::HashSet;

use bson::{Document, doc};

use crate::night::{RABBIT_UP, all_settled, many, settings, until_well, went_well};
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::rabbitmq::hand::Hand;
use crate::support::rabbitmq::node::Node;

/// Rounds of records for the healthy queue, while the other one does not confirm.
const ROUNDS: usize = 20;

const KEYS: usize = 10;

/// One record of each key.
fn round(queue: &str, number: usize) -> Vec<Document> {
    let mut records = many(queue, queue, KEYS);
    for record in &mut records {
        let id = format!("{} {number:02}", record.get_str("_id").unwrap());
        record.insert("_id", id);
    }
    records
}

/// Issue 16, F4: its records were charged, and died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_without_a_majority_delays_only_its_own_records_and_charges_none() {
    let [third, second, first] = Node::cluster().await;
    let outbox = TestOutbox::new().await;
    let hand = Hand::on(&first.uri()).await;
    hand.quorum("sick").await;
    hand.classic("well").await;
    let mut postrider =
        Postrider::start(&settings(&outbox, &first.uri(), &["relay.max_attempts=2"]));
    until_well(&postrider).await;
    outbox.insert([round("sick", 0), round("well", 0)].concat()).await;
    outbox.until_count(doc! { "status": "done" }, 2 * KEYS as u64).await;

    second.kill().await;
    third.kill().await;
    outbox.insert(round("sick", 1)).await;
    postrider.until_logged("destination does not confirm").await;
    for number in 1..=ROUNDS {
        outbox.insert(round("well", number)).await;
        let done = ((2 + number) * KEYS) as u64;
        outbox.until_count(doc! { "status": "done" }, done).await;
    }
    let waiting = doc! { "status": "pending", "type": "sick" };
    assert_eq!(outbox.count(waiting).await, KEYS as u64);
    assert_eq!(postrider.metric(RABBIT_UP).await, Some(1.0));

    outbox.insert(round("sick", 2)).await;
    second.start().await;

    outbox.until_count(doc! { "status": "done" }, ((2 + ROUNDS + 2) * KEYS) as u64).await;
    let (done, _) = all_settled(&outbox).await;
    assert!(done.iter().all(went_well), "{done:#?}");
    let well = hand.take_ids("well").await;
    assert_eq!(well.iter().collect::<HashSet<_>>().len(), (ROUNDS + 1) * KEYS);
    assert_eq!(well.len(), (ROUNDS + 1) * KEYS, "none of them twice");
    let sick = hand.take_ids("sick").await;
    for key in round("sick", 0).iter().map(|record| record.get_str("key").unwrap()) {
        let mut of_key: Vec<&String> = sick.iter().filter(|id| id.starts_with(key)).collect();
        // What was published and not confirmed is there more than once.
        of_key.dedup();
        let expected: Vec<String> = (0..3).map(|number| format!("{key} {number:02}")).collect();
        assert_eq!(of_key, expected.iter().collect::<Vec<_>>());
    }
    postrider.stop().await;
    outbox.drop().await;
    drop([third, second, first]);
}
