//! Topic permissions of RabbitMQ: one forbidden routing key on an exchange that others use.

use std::time::{Duration, Instant};

use bson::{Document, doc};

use crate::outage::{
    Outage, all_settled, has_no_error, logged, no_errors, settings, to, until_well,
};
use crate::support::process::{Postrider, run_with};
use crate::support::rabbitmq::vhost::PASSWORD;

const EXCHANGE: &str = "events";

/// The limit for records that are permitted: far below the pauses and backoffs of forbidden ones.
const PERMITTED_LIMIT: Duration = Duration::from_secs(10);

/// A record with this routing key, of a key of its own.
fn event(routing_key: &str, id: &str) -> Document {
    let mut record = to(routing_key, id, id);
    record.insert("destination", EXCHANGE);
    record
}

fn permitted_events(round: &str) -> Vec<Document> {
    (0..20).map(|number| event("ok.x", &format!("{round} {number:02}"))).collect()
}

/// A user that may publish to the exchange with the routing keys `ok.…` only.
async fn limited(outage: &Outage) -> String {
    let amqp = &outage.amqp;
    amqp.classic("taken").await;
    amqp.topic(EXCHANGE).await;
    amqp.bind("taken", EXCHANGE, "#").await;
    let user = format!("{}-limited", outage.vhost.name);
    outage.vhost.add_user(&user, ".*").await;
    outage.vhost.permit_routing_keys(&user, EXCHANGE, r"^ok\.").await;
    user
}

fn id(record: &Document) -> &str {
    record.get_str("_id").unwrap()
}

#[fixture::test(long)]
async fn a_forbidden_routing_key_counts_attempts_of_its_record_alone() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    let user = limited(&outage).await;
    let uri = outage.vhost.uri_of(&user, PASSWORD);
    // The backoff lets several attempts reach the broker.
    let more = ["relay.max_attempts=4", "relay.backoff.initial=3s", "relay.change_stream=false"];
    let postrider = outage.start(&uri, &more).await;

    let mut records = permitted_events("first");
    records.insert(10, event("bad.x", "bad"));
    let begin = Instant::now();
    outbox.insert(records).await;
    outbox.until_count(doc! { "status": "done" }, 20).await;
    assert!(begin.elapsed() < PERMITTED_LIMIT, "{:?}", begin.elapsed());
    // More of both while the first one is retried.
    let mut expected = 20;
    while outbox.record("bad").await.get_str("status").unwrap() == "pending" {
        let (round, begin) = (format!("round {expected}"), Instant::now());
        outbox.insert(permitted_events(&round)).await;
        outbox.insert([event("bad.x", &format!("bad {round}"))]).await;
        expected += 20;
        outbox.until_count(doc! { "status": "done" }, expected).await;
        assert!(begin.elapsed() < PERMITTED_LIMIT, "{:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    outbox.until_count(doc! { "status": "pending" }, 0).await;
    until_well(&postrider).await;

    let (done, dead) = all_settled(outbox).await;
    assert_eq!(done.len() as u64, expected);
    for record in &done {
        assert!(has_no_error(record), "{record}");
    }
    for record in &dead {
        assert!(id(record).starts_with("bad"), "{record}");
        let reason = record.get_str("deadReason").unwrap();
        assert!(reason.contains("attempts exhausted") && reason.contains("'bad.x'"), "{reason}");
    }
    let mut arrived = amqp.take_ids("taken").await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len() as u64, expected);
    // The first refusal closes the channel of the others, and no later one does.
    let (downs, _) = logged(&postrider);
    assert!(downs <= 1, "{downs}: {}", postrider.stderr());
    no_errors(&postrider);
    outage.vhost.drop_user(&user).await;
    outage.end(postrider).await;
}

#[fixture::test]
async fn a_routing_key_that_is_permitted_again_is_delivered() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    let user = limited(&outage).await;
    let uri = outage.vhost.uri_of(&user, PASSWORD);
    let postrider = outage.start(&uri, &["relay.max_attempts=1000"]).await;
    outbox.insert([event("bad.x", "bad"), event("ok.x", "ok")]).await;
    let counted = doc! { "_id": "bad", "status": "pending", "lastError": { "$ne": null } };
    outbox.until_count(counted, 1).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;

    outage.vhost.permit_routing_keys(&user, EXCHANGE, ".*").await;

    outbox.until_count(doc! { "status": "done" }, 2).await;
    let mut arrived = amqp.take_ids("taken").await;
    arrived.dedup();
    assert_eq!(arrived, ["ok", "bad"]);
    // From now on it needs no trial.
    outbox.insert((0..20).map(|number| event("bad.x", &number.to_string()))).await;
    outbox.until_count(doc! { "status": "done" }, 22).await;
    let (done, _) = all_settled(outbox).await;
    let permitted = done.iter().filter(|record| id(record) != "bad");
    let troubled = permitted.filter(|record| !has_no_error(record)).collect::<Vec<_>>();
    assert!(troubled.is_empty(), "{troubled:#?}");
    outage.vhost.drop_user(&user).await;
    outage.end(postrider).await;
}

/// A first message to each closed the channel of the others.
#[fixture::test]
async fn closed_and_internal_exchanges_do_not_take_the_sink_down() {
    refuse_exchanges("rabbitmq::look_up_sent=off").await;
}

/// The broker's reply to a look-up is lost whenever it arrives before the next request on that channel. Regression: then
/// the exchange counted as refused, also if only the routing key of the look-up was forbidden.
#[fixture::test]
async fn a_lost_reply_to_a_look_up_is_asked_for_again() {
    refuse_exchanges("rabbitmq::look_up_sent=sleep(100)").await;
}

/// Publishes to two exchanges that are refused, and to one with a topic permission.
async fn refuse_exchanges(fail_point: &str) {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("taken").await;
    for exchange in [EXCHANGE, "closed"] {
        amqp.topic(exchange).await;
    }
    amqp.internal("internal").await;
    amqp.bind("taken", EXCHANGE, "#").await;
    let user = format!("{}-limited", outage.vhost.name);
    outage.vhost.add_user(&user, "^(events|internal)$").await;
    outage.vhost.permit_routing_keys(&user, EXCHANGE, r"^ok\.").await;
    let uri = outage.vhost.uri_of(&user, PASSWORD);
    let more = ["relay.max_attempts=3", "relay.backoff.initial=500ms"];
    let mut command = run_with(&settings(outbox, &uri, &more));
    command.env("FAILPOINTS", fail_point);
    let postrider = Postrider::of(command);
    until_well(&postrider).await;

    for round in 0..10 {
        let refused = ["closed", "internal"].map(|exchange| {
            let mut record = event("any", &format!("{exchange} {round}"));
            record.insert("destination", exchange);
            record
        });
        outbox.insert([permitted_events(&round.to_string()), refused.into()].concat()).await;
        outbox.until_count(doc! { "status": "done" }, (round + 1) * 20).await;
    }
    outbox.until_count(doc! { "status": "dead" }, 20).await;

    let (done, dead) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    for record in &dead {
        let named = format!("exchange '{}'", record.get_str("destination").unwrap());
        let reason = record.get_str("deadReason").unwrap();
        assert!(reason.contains("attempts exhausted") && reason.contains(&named), "{reason}");
    }
    let mut arrived = amqp.take_ids("taken").await;
    let mut expected: Vec<&str> = done.iter().map(id).collect();
    arrived.sort();
    expected.sort();
    assert_eq!(arrived, expected);
    assert_eq!(logged(&postrider).0, 0, "{}", postrider.stderr());
    no_errors(&postrider);
    outage.vhost.drop_user(&user).await;
    outage.end(postrider).await;
}

/// Each of them closed the channel of the others.
#[fixture::test]
async fn forbidden_routing_keys_disturb_the_others_once() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    let user = limited(&outage).await;
    let uri = outage.vhost.uri_of(&user, PASSWORD);
    let more = ["relay.max_attempts=2", "relay.change_stream=false"];
    let postrider = outage.start(&uri, &more).await;

    for round in 0..10 {
        outbox.insert(permitted_events(&round.to_string())).await;
        let new = (0..5).map(|number| format!("{round}.{number}"));
        outbox.insert(new.map(|new| event(&format!("bad.{new}"), &format!("bad {new}")))).await;
        // These need a trial, and pass it.
        let other = format!("other {round}");
        outbox.insert([event(&format!("ok.{round}"), &other)]).await;
        outbox.until_count(doc! { "status": "done" }, (round + 1) * 21).await;
    }

    outbox.until_count(doc! { "status": "dead" }, 50).await;
    let (done, _) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    let mut arrived = amqp.take_ids("taken").await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 210);
    let (downs, _) = logged(&postrider);
    assert!(downs <= 1, "{downs}: {}", postrider.stderr());
    no_errors(&postrider);
    outage.vhost.drop_user(&user).await;
    outage.end(postrider).await;
}
