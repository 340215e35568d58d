//! Outages of Kafka: a topic without the right to write, a missing topic, a broker that stops or
//! hangs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::doc;

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{
    all_settled, has_no_error, logged, many, no_errors, owned, to, until_counted, until_down,
    until_well, waits,
};
use crate::support::environment::unique;
use crate::support::kafka::acl::{Operation, Resource};
use crate::support::kafka::secure::{OPEN_LOGIN, PASSWORD, Secure};
use crate::support::kafka::topic::Topic;
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

const COUNT: usize = 30;

fn settings(secure: &Secure, outbox: &TestOutbox, more: &[&str]) -> Vec<String> {
    let sink = [
        "sinks.stream.kind=kafka",
        &format!("sinks.stream.brokers={}", secure.brokers(OPEN_LOGIN)),
        "sinks.stream.timeout=1500ms",
        "sinks.stream.properties.\"security.protocol\"=SASL_PLAINTEXT",
        "sinks.stream.properties.\"sasl.mechanism\"=PLAIN",
        "sinks.stream.properties.\"sasl.username\"=alice",
        &format!("sinks.stream.properties.\"sasl.password\"={PASSWORD}"),
    ];
    [mongo_settings(&outbox.database), waits(), owned(&sink), owned(more)].concat()
}

/// A refused or missing destination costs attempts of its own records only, and they are delivered
/// once it is there.
async fn counted(secure: &Secure, topic: &Topic) {
    let outbox = TestOutbox::new().await;
    let denied = secure.topic(1).await;
    let acl = secure.deny("alice", Operation::Write, Resource::Topic(&denied.name)).await;
    let missing = unique("test-");
    outbox.insert([to(&denied.name, "denied", "denied"), to(&missing, "missing", "missing")]).await;
    let followers = ["denied", "missing"];
    outbox.insert(followers.map(|key| to(&topic.name, &format!("behind {key}"), key))).await;
    outbox.insert(many(&topic.name, "other", COUNT)).await;
    let settings = settings(secure, &outbox, &["relay.max_attempts=1000"]);
    let mut postrider = Postrider::start(&settings);

    for (id, topic) in [("denied", &denied.name), ("missing", &missing)] {
        let failed = until_counted(&outbox, id, |_| 100).await;
        let words = failed.get_str("lastError").unwrap();
        assert!(words.contains(topic), "{id}: {words}");
    }
    outbox.until_count(doc! { "status": "done" }, COUNT as u64).await;
    let untouched =
        doc! { "status": "pending", "lastError": null, "attempt": { "$in": [null, 0] } };
    assert_eq!(outbox.count(untouched).await, 2, "the followers wait");
    let made = Topic::named(&secure.node.brokers(), &missing, 1, &[]).await;
    acl.delete(&secure.node.brokers()).await;
    outbox.until_count(doc! { "status": "done" }, COUNT as u64 + 4).await;

    let (done, _) = all_settled(&outbox).await;
    let mut retry = 0;
    for record in &done {
        if followers.contains(&record.get_str("_id").unwrap()) {
            retry += u64::try_from(record.get_i32("attempt").unwrap()).unwrap() - 1
        } else {
            assert!(has_no_error(record), "{record}")
        }
    }
    assert_eq!(
        (denied.read_ids().await, made.read_ids().await),
        (vec!["denied".into()], vec!["missing".into()])
    );
    no_errors(&postrider);
    let settled = Settled { retry, ..Settled::done(COUNT as u64 + 4) };
    is_whole_and_clean(&postrider, &["stream"], settled).await;
    postrider.stop().await;
}

/// A broker that is down costs no attempts, however long it is down.
async fn down(mut secure: Secure, topic: &Topic) {
    let outbox = TestOutbox::new().await;
    let more = ["relay.max_attempts=2", "relay.backoff.initial=50ms"];
    let mut postrider = Postrider::start(&settings(&secure, &outbox, &more));
    until_well(&postrider).await;
    outbox.insert([to("no-such-topic", "dies", "dies")]).await;
    outbox.until_count(doc! { "status": "dead" }, 1).await;

    let mut outages = 0;
    for trouble in ["stopped", "paused"] {
        match trouble {
            "stopped" => secure.node.stop().await,
            _ => secure.node.freeze(),
        }
        let record =
            |n: usize| to(&topic.name, &format!("{trouble} {n:02}"), &format!("{}", n % 10));
        outbox.insert((0..COUNT).map(record)).await;
        until_down(&postrider, "stream").await;
        let counted = doc! { "status": "pending", "$or": [{ "attempt": { "$gt": 1 } }, { "lastError": { "$ne": null } }] };
        let long = Instant::now() + Duration::from_secs(2);
        while Instant::now() < long {
            assert_eq!(outbox.count(counted.clone()).await, 0, "{trouble}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let waiting =
            doc! { "status": "pending", "leaseId": null, "attempt": { "$in": [null, 0] } };
        assert_eq!(outbox.count(waiting).await, COUNT as u64, "{trouble}: not counted");
        outages += 1;
        assert_eq!(logged(&postrider), (outages, outages), "{trouble}: {}", postrider.stderr());
        match trouble {
            "stopped" => secure.node.start_again().await,
            _ => secure.node.thaw(),
        }
        outbox.until_count(doc! { "status": "done" }, (outages * COUNT) as u64).await;
        until_well(&postrider).await;
        assert_eq!(logged(&postrider), (outages, outages + 1), "{trouble}: {}", postrider.stderr());
    }

    let (done, dead) = all_settled(&outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    let reason = dead[0].get_str("deadReason").unwrap();
    assert!(reason.starts_with("attempts exhausted: 2 deliveries failed"), "{reason}");
    let arrived: BTreeSet<String> = topic.read_ids().await.into_iter().collect();
    for record in &done {
        assert!(arrived.contains(record.get_str("_id").unwrap()), "{record}");
    }
    no_errors(&postrider);
    let settled = Settled { retry: 1, dead: 1, ..Settled::done(2 * COUNT as u64) };
    is_whole_and_clean(&postrider, &["stream"], settled).await;
    postrider.stop().await;
}

#[fixture::test]
async fn kafka_counts_refusals_and_no_attempts_while_it_is_down() {
    let secure = Secure::start().await;
    let topic = secure.topic(2).await;

    counted(&secure, &topic).await;
    down(secure, &topic).await;
}
