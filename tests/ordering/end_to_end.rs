//! The real process between a real MongoDB and a real RabbitMQ, checked by what arrives.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::environment::unique;
use crate::support::history::{Arrival, content, judge, read_back};
use crate::support::kafka::{self, topic::Topic};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::{amqp_uri, mongo_settings};
use crate::support::queue_consumer::QueueConsumer;
use bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, WriteConcern};

/// Settings of a relay from this outbox to this queue, with short waits.
fn settings(outbox: &TestOutbox, uri: &str, queue: &str) -> Vec<String> {
    let more = [
        "sinks.rabbit.kind=rabbitmq",
        &format!("sinks.rabbit.uri={uri}"),
        &format!("sinks.rabbit.routing_key={queue}"),
        "sinks.rabbit.timeout=1s",
        "relay.lease=2s",
        // A crash leaves up to twelve batches whose records go one by one.
        "relay.batch_size=40",
        "relay.poll_interval=100ms",
        "relay.sink_probe_interval_max=500ms",
        "relay.backoff.kind=fixed",
        "relay.backoff.initial=100ms",
        "relay.backoff.jitter=0.0",
    ];
    let more = more.iter().map(|setting| (*setting).to_owned()).collect();
    [mongo_settings(&outbox.database), more].concat()
}

/// A relay that kills itself at a named place (`FAILPOINTS`).
fn start_with_fail_point(settings: &[String], fail_point: &str) -> Postrider {
    let mut command = run_with(settings);
    command.env("FAILPOINTS", fail_point);
    Postrider::of(command)
}

/// Inserts `records` records over `keys` keys by transactions of four, of which a tenth abort.
/// Returns the ids of the committed ones.
async fn produce(outbox: Arc<TestOutbox>, records: usize, keys: usize) -> BTreeSet<String> {
    const PRODUCERS: usize = 8;
    let number = Arc::new(AtomicUsize::new(0));
    let producers = (0..PRODUCERS).map(|producer| {
        let (outbox, number) = (outbox.clone(), number.clone());
        tokio::spawn(async move {
            let mut committed = BTreeSet::new();
            let mut session = outbox.client.start_session().await.unwrap();
            // Each key is one producer's, so that its transactions follow one another.
            let own: Vec<usize> = (producer..keys).step_by(PRODUCERS).collect();
            for turn in 0.. {
                let number = number.fetch_add(4, Ordering::Relaxed);
                if number >= records {
                    return committed;
                }
                let keys = [own[turn % own.len()], own[(turn * 7 + 3) % own.len()]];
                let abort = turn % 10 == 9;
                if abort {
                    let ghosts = write(&outbox, &mut session, "ghost", number, keys).await;
                    session.abort_transaction().await.unwrap();
                    drop(ghosts);
                }
                let ids = write(&outbox, &mut session, "record", number, keys).await;
                session.commit_transaction().await.unwrap();
                committed.extend(ids);
            }
            unreachable!("the loop ends by itself");
        })
    });
    let mut committed = BTreeSet::new();
    for producer in producers.collect::<Vec<_>>() {
        committed.extend(producer.await.unwrap());
    }
    committed
}

async fn write(
    outbox: &TestOutbox,
    session: &mut mongodb::ClientSession,
    word: &str,
    number: usize,
    keys: [usize; 2],
) -> Vec<String> {
    let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
    session.start_transaction().write_concern(majority).await.unwrap();
    let records: Vec<Document> = (0..4)
        .map(|n| record(&format!("{word}-{:06}", number + n), &format!("key-{}", keys[n / 2])))
        .collect();
    let ids = records.iter().map(|record| record.get_str("_id").unwrap().to_owned()).collect();
    outbox.records().insert_many(records).session(session).await.unwrap();
    ids
}

/// Produces while a relay dies at five places; returns the one that survives, and what was
/// committed.
async fn relay_with_five_deaths(
    outbox: &Arc<TestOutbox>,
    settings: &[String],
    records: usize,
) -> (Postrider, BTreeSet<String>) {
    let producing = tokio::spawn(produce(outbox.clone(), records, 1_000));
    for fail_point in [
        "relay::after_lease=3*off->return",
        "sink::after_handover=700*off->return",
        "relay::after_confirm=900*off->return",
        "relay::before_settle=4*off->return",
        "relay::after_settle=4*off->return",
    ] {
        let mut relay = start_with_fail_point(settings, fail_point);
        let ended = relay.until_ended(Duration::from_secs(60)).await;
        assert_eq!(ended.code, None, "killed at {fail_point}: {ended}");
    }
    (Postrider::start(settings), producing.await.unwrap())
}

/// A minute for each half: on a busy machine the records of crashed leases, one by one, take that
/// long.
async fn until_done(outbox: &TestOutbox, count: u64) {
    let done = || outbox.count(doc! { "status": "done" });
    eventually("half of them to be done", async || done().await >= count / 2).await;
    outbox.until_count(doc! { "status": "done" }, count).await;
}

#[fixture::test(long)]
async fn kafka_receives_all_in_order_through_five_kills_of_the_relay() {
    let outbox = Arc::new(TestOutbox::new().await);
    let topic = Topic::new(4).await;
    let mut settings = settings(&outbox, &amqp_uri(), "unused");
    settings.push("sinks.stream.kind=kafka".into());
    settings.push(format!("sinks.stream.brokers={}", kafka::brokers()));
    settings.push(format!("sinks.stream.topic={}", topic.name));
    settings.push("sinks.stream.timeout=1s".into());
    settings.push("relay.default_sink=stream".into());
    let (mut relay, committed) = relay_with_five_deaths(&outbox, &settings, 10_000).await;

    until_done(&outbox, 10_000).await;
    relay.stop().await;
    let stored = read_back(&outbox.collections).await;
    let stored_ids: BTreeSet<String> = stored.iter().map(|record| record.id.clone()).collect();
    assert_eq!(stored_ids, committed, "the committed ones are those stored");
    // A key is in one partition, and in its order there.
    let arrived = topic.read().await.into_iter().map(|record| Arrival {
        id: record.id().to_owned(),
        content: content(record.payload.as_deref().unwrap_or_default()),
        key: record.key.map(|key| String::from_utf8(key).unwrap()),
    });
    let findings = judge(&stored, &arrived.collect::<Vec<_>>());
    findings.assert_kept();
    assert!(findings.duplicates > 0, "a kill between confirm and settle costs duplicates");
}

#[fixture::test]
async fn rabbitmq_receives_all_in_order_through_five_kills() {
    let outbox = Arc::new(TestOutbox::new().await);
    let queue = unique("test_kills_");
    let arrivals = QueueConsumer::at(&amqp_uri(), &queue).await;
    let settings = settings(&outbox, &amqp_uri(), &queue);
    let (mut relay, committed) = relay_with_five_deaths(&outbox, &settings, 8_000).await;

    until_done(&outbox, 8_000).await;
    arrivals.until(8_000).await;
    relay.stop().await;
    let stored = read_back(&outbox.collections).await;
    let stored_ids: BTreeSet<String> = stored.iter().map(|record| record.id.clone()).collect();
    assert_eq!(stored_ids, committed, "the committed ones are those stored");
    let findings = judge(&stored, &arrivals.seen());
    findings.assert_kept();
    assert!(findings.duplicates > 0, "a kill between confirm and settle costs duplicates");
}

#[fixture::test]
async fn undeliverable_records_die_alone_among_good_ones() {
    let outbox = TestOutbox::new().await;
    let queue = unique("test_odd_");
    let arrivals = QueueConsumer::at(&amqp_uri(), &queue).await;
    let mut settings = settings(&outbox, &amqp_uri(), &queue);
    settings.push("relay.max_attempts=3".into());
    let odd = |id: &str, field: &str, value: Bson| {
        let mut record = record(id, "k7");
        record.insert(field, value);
        record
    };
    let good = |from: usize| {
        (from..from + 250).map(|n| record(&format!("good-{n:03}"), &format!("k{}", n % 20)))
    };
    let long = "x".repeat(300);
    outbox.insert(good(0)).await;
    outbox
        .insert([
            odd("no-exchange", "destination", "test.no.such.exchange".into()),
            odd("no-queue", "destination", "amq.direct".into()),
            odd("malformed", "headers", "text".into()),
            odd("nested", "headers", Bson::Document(doc! { "a": { "b": 1 } })),
            odd("refused", "type", long.as_str().into()),
        ])
        .await;
    outbox.insert(good(250)).await;

    let mut relay = Postrider::start(&settings);

    outbox.until_count(doc! { "status": "done" }, 500).await;
    outbox.until_count(doc! { "status": "dead" }, 5).await;
    arrivals.until(500).await;
    assert_eq!(
        outbox.count(doc! { "status": "done", "attempt": 1 }).await,
        500,
        "one attempt each"
    );
    for (id, reason, attempt) in [
        ("no-exchange", "attempts exhausted: ", Some(3)),
        ("no-queue", "attempts exhausted: ", Some(3)),
        ("malformed", "malformed: headers: ", None),
        ("nested", "malformed: headers.a: ", None),
        ("refused", "refused: ", None),
    ] {
        let dead = outbox.record(id).await;
        let said = dead.get_str("deadReason").unwrap();
        assert!(said.starts_with(reason), "{id}: {said}");
        if let Some(attempt) = attempt {
            assert_eq!(dead.get_i32("attempt").unwrap(), attempt, "{dead}");
        }
    }
    let stored = read_back(&outbox.collections).await;
    let findings = judge(&stored, &arrivals.seen());
    findings.assert_kept();
    assert_eq!(findings.duplicates, 0);
    relay.stop().await;
}
