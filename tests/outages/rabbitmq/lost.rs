//! A connection that is lost before the confirm: not counted, sent again with the same id; a record
//! that alone loses its connection has the attempt counted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::join_all;

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{
    Outage, RABBIT_UP, all_settled, assert_downs, has_no_error, logged, many, no_errors, to,
    until_down, until_well,
};
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::{address, at};

const COUNT: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Cut,
    /// The broker's answers no longer arrive, and it still receives.
    AnswersEnd,
    /// The other direction: no request arrives.
    RequestsEnd,
    Frozen,
    /// Everything arrives, and too late.
    Delayed,
}

/// Takes messages until there were this many; returns their ids.
async fn take(amqp: &AmqpClient, count: usize) -> Vec<String> {
    let found = tokio::sync::Mutex::new(Vec::new());
    eventually("messages in the queue", async || {
        let mut found = found.lock().await;
        found.extend(amqp.take_ids("taken").await);
        found.len() >= count
    })
    .await;
    found.into_inner()
}

/// Waits until all is settled, with the record behind the poison record; returns the dead one.
async fn only_poison_dies(outbox: &TestOutbox, postrider: &Postrider) -> Document {
    outbox.until_count(doc! { "_id": "behind", "status": "done" }, 1).await;
    outbox.until_count(doc! { "status": "done" }, COUNT as u64 + 1).await;
    until_well(postrider).await;
    let (done, mut dead) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "nobody else was counted: {done:#?}");
    assert_eq!(dead.len(), 1);
    dead.remove(0)
}

async fn run_outage(loss: Loss) {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    // One counted attempt would make a record dead; and a change stream would wake the relay for
    // the first one, so that the others were not in flight.
    let postrider =
        outage.start(&uri, &["relay.max_attempts=1", "relay.change_stream=false"]).await;
    outbox.insert([to("taken", "before", "before")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    assert_eq!(take(amqp, 1).await, ["before"]);

    let records = many("taken", "lost", COUNT);
    let ids: BTreeSet<String> =
        records.iter().map(|record| record.get_str("_id").unwrap().to_owned()).collect();
    let mut arrived = Vec::new();
    match loss {
        Loss::Cut | Loss::AnswersEnd => {
            proxy.hold_answers(true);
            outbox.insert(records).await;
            arrived = take(amqp, COUNT).await;
            proxy.refuse(true);
            match loss {
                Loss::Cut => proxy.cut(),
                _ => proxy.half_close_answers(),
            }
            until_down(&postrider, "rabbit").await;
            proxy.refuse(false);
            proxy.hold_answers(false);
        }
        Loss::RequestsEnd => {
            // Otherwise it would learn that the broker has received the end.
            proxy.hold_answers(true);
            proxy.half_close_requests();
            outbox.insert(records).await;
            until_down(&postrider, "rabbit").await;
            proxy.hold_answers(false);
        }
        Loss::Frozen => {
            proxy.freeze();
            outbox.insert(records).await;
            until_down(&postrider, "rabbit").await;
            proxy.thaw();
        }
        Loss::Delayed => {
            proxy.delay(Duration::from_millis(1_300));
            outbox.insert(records).await;
            until_down(&postrider, "rabbit").await;
            proxy.delay(Duration::ZERO);
        }
    }
    outbox.until_count(doc! { "status": "done" }, COUNT as u64 + 1).await;
    until_well(&postrider).await;

    let (done, _) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "{loss:?}: {done:#?}");
    if arrived.is_empty() {
        arrived = take(amqp, COUNT).await;
    } else {
        let first: BTreeSet<String> = arrived.iter().cloned().collect();
        assert_eq!(first, ids, "{loss:?}");
        let again: BTreeSet<String> = take(amqp, COUNT).await.into_iter().collect();
        assert_eq!(again, ids, "{loss:?}: each again, by the same id");
    }
    assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), ids, "{loss:?}");
    assert_downs(&postrider, 1);
    no_errors(&postrider);
    let settled = Settled::done(COUNT as u64 + 1);
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
}

#[fixture::test]
async fn records_in_flight_on_a_lost_connection_are_sent_again() {
    let losses = [Loss::Cut, Loss::AnswersEnd, Loss::RequestsEnd, Loss::Frozen, Loss::Delayed];

    join_all(losses.map(run_outage)).await;
}

#[fixture::test]
async fn a_record_that_loses_every_connection_dies_alone() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    proxy.cut_at("p0ison");
    outbox.insert([to("taken", "p0ison", "k"), to("taken", "behind", "k")]).await;
    outbox.insert(many("taken", "other", COUNT)).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    let postrider = outage.start(&uri, &["relay.max_attempts=2"]).await;

    let dead = only_poison_dies(outbox, &postrider).await;

    let reason = dead.get_str("deadReason").unwrap();
    let words = "attempts exhausted: 2 deliveries failed, the last one with: ";
    assert!(reason.starts_with(words) && reason.contains("connection"), "{reason}");
    assert_eq!(dead.get_i32("attempt").unwrap(), 2);
    assert!(
        dead.get_datetime("deadAt").unwrap()
            <= outbox.record("behind").await.get_datetime("doneAt").unwrap()
    );
    // Twice together with others, on the main connection, and twice alone, on the isolated one. One
    // of its neighbours is sent there too, before the others may go to their own destination.
    assert_downs(&postrider, 2);
    // The sink has one more, for look-ups.
    assert!((6..=7).contains(&proxy.accepted()), "{} connections", proxy.accepted());
    let arrived: BTreeSet<String> = take(amqp, COUNT + 1).await.into_iter().collect();
    assert_eq!(arrived.len(), COUNT + 1);
    no_errors(&postrider);
    let settled = Settled { retry: 1, dead: 1, ..Settled::done(COUNT as u64 + 1) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
}

#[fixture::test]
async fn records_stay_leased_when_a_connection_is_lost_briefly() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    let more = ["relay.max_attempts=1", "relay.lease=60s"];
    let postrider = outage.start(&uri, &more).await;
    proxy.hold_answers(true);
    outbox.insert(many("taken", "lost", COUNT)).await;
    outbox.insert((0..COUNT).map(|n| to("taken", &format!("more {n:03}"), "lost 000"))).await;
    let first = take(amqp, COUNT).await;

    proxy.refuse(true);
    proxy.cut();
    // Otherwise the answers that were held may still arrive.
    until_down(&postrider, "rabbit").await;
    proxy.hold_answers(false);
    proxy.refuse(false);

    outbox.until_count(doc! { "status": "done" }, 2 * COUNT as u64).await;
    let (done, _) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    let again = take(amqp, 2 * COUNT).await;
    assert!(first.iter().all(|id| again.contains(id)), "each again, with the same id: {again:?}");
    let of_key = again.iter().filter(|id| *id == "lost 000" || id.starts_with("more"));
    let of_key: Vec<&String> = of_key.collect();
    assert!(of_key.is_sorted() && of_key.len() == COUNT + 1, "{of_key:?}");
    let settled = Settled { released: 0..=0, ..Settled::done(2 * COUNT as u64) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
}

/// A connection hangs under a steady load, and new ones pass; returns how often the sink went down.
async fn downs_by_a_connection_that_hangs(more: &[&str]) -> usize {
    let outage = Outage::new().await;
    let outbox = &outage.outbox;
    outage.amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    let more = [&["relay.max_attempts=1"], more].concat();
    let postrider = outage.start(&uri, &more).await;
    let mut count = 0;
    let mut load = async |rounds: usize| {
        for _ in 0..rounds {
            outbox.insert(many("taken", &format!("round {count}"), 5)).await;
            count += 5;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    load(20).await;
    proxy.freeze_existing();
    // For far longer than a broker may stay silent.
    load(100).await;

    outbox.until_count(doc! { "status": "done" }, count).await;
    until_well(&postrider).await;
    let (done, _) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    let (downs, ups) = logged(&postrider);
    assert_eq!(ups, downs + 1, "one line each\n{}", postrider.stderr());
    no_errors(&postrider);
    // Each record at most once.
    let settled = Settled { released: 0..=count, ..Settled::done(count) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
    downs
}

#[fixture::test(long)]
async fn a_connection_that_hangs_is_replaced_and_its_sink_stays_up() {
    // On a busy machine a connection takes longer to open than the two seconds of the other
    // outages, and now and then than these.
    let more = ["sinks.rabbit.key_window=1", "sinks.rabbit.timeout=6s", "relay.lease=20s"];

    for _ in 0..3 {
        if downs_by_a_connection_that_hangs(&more).await == 0 {
            return;
        }
    }
    panic!("the sink went down each time");
}

/// Messages of one key keep their order on one connection only.
#[fixture::test(long)]
async fn a_hanging_connection_shuts_a_sink_with_key_window_once() {
    assert_eq!(downs_by_a_connection_that_hangs(&["sinks.rabbit.key_window=2"]).await, 1);
}

/// Every message to one queue breaks its connection, and more arrive all the time.
#[fixture::test(long)]
async fn a_destination_that_kills_connections_is_isolated() {
    const ROUNDS: usize = 100;
    let outage = Outage::new().await;
    let outbox = &outage.outbox;
    outage.amqp.classic("taken").await;
    outage.amqp.classic("killer").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    let postrider = outage.start(&uri, &["relay.sink_probe_interval_max=5s"]).await;
    proxy.cut_at("fatal");

    for round in 0..ROUNDS {
        outbox.insert(many("taken", &format!("well {round}"), 2)).await;
        if round % 2 == 0 {
            outbox.insert(many("killer", &format!("fatal {round}"), 1)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let well = doc! { "type": "taken", "status": "done" };
    outbox.until_count(well, 2 * ROUNDS as u64).await;
    let (downs, _) = logged(&postrider);
    assert!((1..=4).contains(&downs), "{downs} times\n{}", postrider.stderr());
    proxy.cut_at("");
    outbox.until_count(doc! { "status": "pending" }, 0).await;
    no_errors(&postrider);
    outage.end(postrider).await;
}

#[fixture::test]
async fn a_stop_ends_publishes_on_a_replaced_connection() {
    let outage = Outage::new().await;
    let outbox = &outage.outbox;
    outage.amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    // What waits must wait for longer than this test runs.
    let patient = ["relay.lease=5m", "sinks.rabbit.timeout=2m", "relay.shutdown_timeout=4s"];
    let mut postrider = outage.start(&uri, &patient).await;
    outbox.insert([to("taken", "first", "first")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;

    proxy.freeze_existing();
    outbox.insert(many("taken", "waits", COUNT)).await;
    postrider.until_logged("the broker does not respond on the connection").await;
    postrider.stop().await;

    let free = doc! { "status": "pending", "leaseId": null, "attempt": 0 };
    assert_eq!(outbox.count(free).await, COUNT as u64);
}

/// The dead letters that arrived, and how many were sent and failed.
async fn dead_letters_of(letter_breaks: bool) -> (Vec<String>, f64, f64) {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    for queue in ["p0ison", "taken", "buried"] {
        amqp.classic(queue).await;
    }
    amqp.topic("dead").await;
    amqp.bind("buried", "dead", "#").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    // In basic.publish: an empty exchange, then the length of the routing key, and the key. The
    // dead letter has another exchange.
    proxy.cut_at(if letter_breaks { "p0ison" } else { "\0\u{6}p0ison" });
    outbox.insert([to("p0ison", "poison", "k"), to("taken", "behind", "k")]).await;
    outbox.insert(many("taken", "other", COUNT)).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    let more = [
        "relay.max_attempts=2",
        "relay.dead_letter.sink=rabbit",
        "relay.dead_letter.destination=dead",
    ];
    let postrider = outage.start(&uri, &more).await;

    let dead = only_poison_dies(outbox, &postrider).await;

    let reason = dead.get_str("deadReason").unwrap();
    assert!(reason.starts_with("attempts exhausted: 2 deliveries failed"), "{reason}");
    // Twice together with others, twice alone, and up to four times with the dead letter; one for look-ups.
    assert!(proxy.accepted() <= 13, "{} connections", proxy.accepted());
    assert_downs(&postrider, 2);
    no_errors(&postrider);
    let [sent, failed] = postrider.dead_letters("rabbit").await;
    let letters = amqp.take_ids("buried").await;
    outage.end(postrider).await;
    (letters, sent, failed)
}

/// The dead letter used to be postponed as long as its own record had just broken the sink, and the
/// record was delivered again and again.
#[fixture::test]
async fn a_record_that_breaks_its_sink_dies_with_a_dead_letter_on_it() {
    assert_eq!(dead_letters_of(false).await, (vec!["poison".to_owned()], 1.0, 0.0));
}

#[fixture::test(long)]
async fn a_record_dies_without_a_dead_letter_that_breaks_the_sink() {
    assert_eq!(dead_letters_of(true).await, (vec![], 0.0, 1.0));
}

#[fixture::test(long)]
async fn a_sink_that_is_down_is_probed_with_growing_pauses() {
    let outage = Outage::new().await;
    outage.amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    let uri = at(&outage.vhost.uri(), proxy.address());
    let more = ["relay.max_attempts=1", "relay.sink_probe_interval_max=1500ms"];
    let postrider = outage.start(&uri, &more).await;
    proxy.refuse(true);
    proxy.cut();

    let mut probes = Vec::new();
    for _ in 0..5 {
        let before = proxy.accepted();
        eventually("a probe", async || proxy.accepted() > before).await;
        probes.push(Instant::now());
        // A probe may open two connections, which both end at once.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    outage.outbox.insert(many("taken", "waits", COUNT)).await;
    let pauses: Vec<Duration> = probes.windows(2).map(|two| two[1] - two[0]).collect();
    until_down(&postrider, "rabbit").await;
    proxy.refuse(false);

    for (pause, expected) in pauses.iter().zip([500, 1_000, 1_500, 1_500]) {
        let expected = Duration::from_millis(expected);
        let is_right = *pause > expected.mul_f64(0.9) && *pause < expected + expected / 2;
        assert!(is_right, "{pauses:?}");
    }
    postrider.until_metric(RABBIT_UP, |up| up == 1.0).await;
    outage.outbox.until_count(doc! { "status": "done" }, COUNT as u64).await;
    assert!(all_settled(&outage.outbox).await.0.iter().all(has_no_error));
    assert_downs(&postrider, 1);
    is_whole_and_clean(&postrider, &["rabbit"], Settled::done(COUNT as u64)).await;
    outage.end(postrider).await;
}
