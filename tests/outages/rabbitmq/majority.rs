//! A quorum queue without a majority of its nodes, on a cluster whose other queues confirm.

use std::collections::HashSet;

use bson::{Document, doc};

use crate::outage::{RABBIT_UP, all_settled, has_no_error, many, settings, until_well};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::node::Node;

/// Rounds of records for the healthy queue, while the other one does not confirm.
const ROUNDS: usize = 20;

const KEYS: usize = 10;

/// One record of each key.
fn round(queue: &str, number: usize) -> Vec<Document> {
    round_of(KEYS, queue, number)
}

fn round_of(keys: usize, queue: &str, number: usize) -> Vec<Document> {
    let mut records = many(queue, queue, keys);
    for record in &mut records {
        let id = format!("{} {number:02}", record.get_str("_id").unwrap());
        record.insert("_id", id);
    }
    records
}

/// A relay to two queues of a cluster, after a round of each.
struct TwoQueues {
    /// The last node is that of the relay and the queues; it is dropped last.
    cluster: [Node; 3],
    outbox: TestOutbox,
    amqp: AmqpClient,
    postrider: Postrider,
}

impl TwoQueues {
    /// The queue `sick` has lost its majority, and `well` needs none.
    async fn without_majority(more: &[&str]) -> Self {
        let cluster = Node::cluster().await;
        let [third, second, first] = &cluster;
        let outbox = TestOutbox::new().await;
        let amqp = AmqpClient::on(&first.uri()).await;
        amqp.quorum("sick").await;
        amqp.classic("well").await;
        let postrider = Postrider::start(&settings(&outbox, &first.uri(), more));
        until_well(&postrider).await;
        outbox.insert([round("sick", 0), round("well", 0)].concat()).await;
        outbox.until_count(doc! { "status": "done" }, 2 * KEYS as u64).await;
        second.kill().await;
        third.kill().await;
        Self { cluster, outbox, amqp, postrider }
    }
}

/// Its records once had attempts counted, and died.
#[fixture::test(long)]
async fn a_queue_without_a_majority_delays_only_its_own_records() {
    let TwoQueues { cluster, outbox, amqp, mut postrider } =
        TwoQueues::without_majority(&["relay.max_attempts=2"]).await;
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
    cluster[1].start().await;

    outbox.until_count(doc! { "status": "done" }, ((2 + ROUNDS + 2) * KEYS) as u64).await;
    let (done, _) = all_settled(&outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    let well = amqp.take_ids("well").await;
    assert_eq!(well.iter().collect::<HashSet<_>>().len(), (ROUNDS + 1) * KEYS);
    assert_eq!(well.len(), (ROUNDS + 1) * KEYS, "none of them twice");
    let sick = amqp.take_ids("sick").await;
    for key in round("sick", 0).iter().map(|record| record.get_str("key").unwrap()) {
        let mut of_key: Vec<&String> = sick.iter().filter(|id| id.starts_with(key)).collect();
        // What was published and not confirmed is there more than once.
        of_key.dedup();
        let expected: Vec<String> = (0..3).map(|number| format!("{key} {number:02}")).collect();
        assert_eq!(of_key, expected.iter().collect::<Vec<_>>());
    }
    postrider.stop().await;
    drop(cluster);
}

/// RabbitMQ stops reading a connection when more than 32 messages of such a queue wait on it and
/// 400 others followed them.
#[fixture::test(long)]
async fn other_queues_get_another_connection_when_reading_stops() {
    const BURST_RECORDS: usize = 300;
    // What waits on the first connection must wait there for longer than this test runs.
    let patient = ["relay.max_attempts=1", "relay.lease=5m", "sinks.rabbit.timeout=2m"];
    let TwoQueues { cluster, outbox, amqp, mut postrider } =
        TwoQueues::without_majority(&patient).await;
    outbox.insert(round_of(BURST_RECORDS, "sick", 1)).await;
    let stopped = || postrider.stderr().contains("opening another connection");
    let mut number = 0;
    let mut next = async || {
        number += 1;
        let what = format!("well {number:02}");
        outbox.insert(many("well", &what, 4 * KEYS)).await;
        doc! { "status": "done", "_id": { "$gte": &what, "$lt": format!("{what}~") } }
    };
    while !stopped() {
        let of_round = next().await;
        eventually("the end of the round, or of the connection", async || {
            stopped() || outbox.count(of_round.clone()).await == 4 * KEYS as u64
        })
        .await;
    }
    // (What was in transit waits with the first connection.)
    for _ in 0..ROUNDS {
        let of_round = next().await;
        outbox.until_count(of_round, 4 * KEYS as u64).await;
    }
    let logged = |words: &str| postrider.stderr().matches(words).count();
    assert_eq!(logged("opening another connection"), 1, "{}", postrider.stderr());
    assert_eq!(logged("sink is down"), 0, "{}", postrider.stderr());
    let well = (KEYS + number * 4 * KEYS) as u64;

    cluster[1].start().await;

    outbox.until_count(doc! { "status": "done" }, well + (KEYS + BURST_RECORDS) as u64).await;
    let (done, _) = all_settled(&outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    let ids = amqp.take_ids("well").await;
    assert_eq!(ids.len() as u64, well, "none of them twice");
    let sick = amqp.take_ids("sick").await;
    assert_eq!(sick.iter().collect::<HashSet<_>>().len(), KEYS + BURST_RECORDS);
    postrider.stop().await;
    drop(cluster);
}
