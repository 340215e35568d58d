//! Records that the broker refuses: counted, backed off, dead at the limit.

use bson::{Document, doc};
use lapin::types::AMQPValue;

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{Outage, all_settled, has_no_error, many, no_errors, to, until_counted};
use crate::support::rabbitmq::amqp_client::text;
use crate::support::rabbitmq::vhost::PASSWORD;

/// How many failed attempts of this record were counted that were not its last.
fn retries(record: &Document) -> u64 {
    u64::try_from(record.get_i32("attempt").unwrap()).unwrap() - 1
}

fn id(record: &Document) -> &str {
    record.get_str("_id").unwrap()
}

#[fixture::test]
async fn a_full_queue_counts_attempts_of_its_records_alone() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    let one = [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", text("reject-publish"))];
    amqp.queue("full", &one).await;
    amqp.classic("open").await;
    let more =
        ["relay.backoff.kind=exponential", "relay.backoff.initial=400ms", "relay.max_attempts=4"];
    let postrider = outage.start(&outage.vhost.uri(), &more).await;
    let doubled = |attempt: u32| 400 << (attempt - 1);
    outbox.insert([to("full", "first", "first")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;

    outbox.insert([to("full", "dies", "a"), to("open", "behind", "a")]).await;
    outbox.insert(many("open", "other", 20)).await;
    let failed = until_counted(outbox, "dies", doubled).await;
    let not_due = "postrider_blocked_keys{reason=\"not_due\"}";
    postrider.until_metric(not_due, |count| count == 1.0).await;
    outbox.until_count(doc! { "_id": "behind", "status": "done" }, 1).await;
    let dead = outbox.record("dies").await;
    outbox.insert([to("full", "waits", "b"), to("open", "follows", "b")]).await;
    until_counted(outbox, "waits", doubled).await;
    assert_eq!(amqp.take_ids("full").await, ["first"]);
    outbox.until_count(doc! { "_id": "follows", "status": "done" }, 1).await;

    let (done, _) = all_settled(outbox).await;
    let words = failed.get_str("lastError").unwrap();
    let reason = format!("attempts exhausted: 4 deliveries failed, the last one with: {words}");
    assert_eq!(dead.get_str("deadReason").unwrap(), reason, "{dead}");
    assert_eq!(dead.get_str("lastError").unwrap(), words, "{dead}");
    assert_eq!(dead.get_i32("attempt").unwrap(), 4, "{dead}");
    let died = dead.get_datetime("deadAt").unwrap();
    for record in &done {
        let at = record.get_datetime("doneAt").unwrap();
        match id(record) {
            "waits" => assert_eq!(record.get_str("lastError").unwrap(), words, "{record}"),
            "behind" => assert!(at >= died && has_no_error(record), "{record}"),
            "follows" => assert!(has_no_error(record), "{record}"),
            other => assert!(at < died && has_no_error(record), "{other}: {record}"),
        }
    }
    let waited = done.iter().find(|record| id(record) == "waits").unwrap();
    assert_eq!(amqp.take_ids("full").await, ["waits"]);
    let arrived = amqp.take_ids("open").await;
    assert_eq!(arrived.len(), 22, "{arrived:?}");
    assert_eq!(arrived[20..], ["behind", "follows"]);
    no_errors(&postrider);
    let retry = retries(&dead) + retries(waited);
    let settled = Settled { retry, dead: 1, ..Settled::done(24) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
}

#[fixture::test]
async fn an_unroutable_record_is_counted_alone_until_it_has_a_route() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("open").await;
    amqp.topic("forbidden").await;
    amqp.bind("open", "forbidden", "#").await;
    let user = format!("{}-limited", outage.vhost.name);
    outage.vhost.add_user(&user, r"^(amq\.default|missing)$").await;
    let uri = outage.vhost.uri_of(&user, PASSWORD);
    let postrider = outage.start(&uri, &["relay.max_attempts=1000"]).await;
    let by = |exchange: &str, id: &str| {
        let mut record = to("open", id, id);
        record.insert("destination", exchange);
        record
    };

    outbox
        .insert([
            to("late", "returned", "returned"),
            by("missing", "missing"),
            by("forbidden", "forbidden"),
        ])
        .await;
    let followers = ["returned", "missing", "forbidden"];
    outbox.insert(followers.map(|key| to("open", &format!("behind {key}"), key))).await;
    outbox.insert(many("open", "other", 50)).await;
    let fixed = |_| 100;
    for (id, words) in [
        ("returned", "no queue is bound for it"),
        ("missing", "no exchange 'missing'"),
        ("forbidden", "ACCESS_REFUSED"),
    ] {
        let failed = until_counted(outbox, id, fixed).await;
        let said = failed.get_str("lastError").unwrap();
        assert!(said.contains(words), "{id}: {said}");
    }
    outbox.until_count(doc! { "status": "done" }, 50).await;
    let mut others = amqp.take_ids("open").await;
    others.sort();
    others.dedup();
    assert_eq!(others.len(), 50, "{others:?}");
    let untouched =
        doc! { "status": "pending", "lastError": null, "attempt": { "$in": [null, 0] } };
    assert_eq!(outbox.count(untouched).await, 3, "the followers wait");
    amqp.topic("missing").await;
    amqp.bind("open", "missing", "#").await;
    amqp.classic("late").await;
    outage.vhost.add_user(&user, ".*").await;
    outbox.until_count(doc! { "status": "done" }, 56).await;

    let (done, _) = all_settled(outbox).await;
    let (counted, well): (Vec<_>, Vec<_>) =
        done.iter().partition(|record| followers.contains(&id(record)));
    assert!(well.iter().all(|record| has_no_error(record)), "{well:#?}");
    assert_eq!(amqp.take_ids("late").await, ["returned"]);
    let arrived = amqp.take_ids("open").await;
    for key in ["missing", "forbidden"] {
        let of_key: Vec<_> = arrived.iter().filter(|id| id.ends_with(key)).collect();
        assert_eq!(of_key, [key, &format!("behind {key}")]);
    }
    no_errors(&postrider);
    let retry = counted.iter().map(|record| retries(record)).sum();
    assert!(retry >= 3);
    let settled = Settled { retry, ..Settled::done(56) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.vhost.drop_user(&user).await;
    outage.end(postrider).await;
}

#[fixture::test]
async fn a_blocked_key_is_in_the_metric_until_its_requeue() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("open").await;
    let more = ["relay.max_attempts=1", "relay.on_dead=block"];
    let postrider = outage.start(&outage.vhost.uri(), &more).await;
    let blocked = "postrider_blocked_keys{reason=\"blocked\"}";
    postrider.until_metric(blocked, |count| count == 0.0).await;

    outbox.insert(["a", "b"].map(|key| to("late", key, key))).await;
    outbox.until_count(doc! { "status": "dead", "blocks": true }, 2).await;
    outbox.insert(["a", "b"].map(|key| to("open", &format!("behind {key}"), key))).await;
    outbox.insert([to("open", "other", "other")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider.until_metric(blocked, |count| count == 2.0).await;
    assert_eq!(amqp.take_ids("open").await, ["other"]);
    amqp.classic("late").await;
    let requeue = doc! {
        "$set": { "status": "pending", "attempt": 0 },
        "$unset": { "deadAt": "", "deadReason": "", "blocks": "" },
    };
    outbox.records().update_many(doc! { "status": "dead" }, requeue).await.unwrap();
    outbox.until_count(doc! { "status": "done" }, 5).await;

    let mut late = amqp.take_ids("late").await;
    late.sort();
    assert_eq!(late, ["a", "b"]);
    let settled = Settled { dead: 2, ..Settled::done(5) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
}
