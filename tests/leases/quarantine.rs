//! Hazard 7: a poison record, which crashes or hangs its instance, is delivered alone, and dies
//! alone.

use bson::{DateTime, Document, doc};
use postrider::ids::LeaseId;
use postrider::relay::lane::LaneEnd;
use postrider::relay::quarantine::Quarantine;
use postrider::relay::settings::Settings;
use postrider::sink::PublishFailure;

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::fragile::FragileSink;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::until_arrived;
use crate::support::relay::{settings, start, start_counted};
use crate::support::relay_harness::RelayHarness;
use crate::support::sink::{Fault, TestSink};

/// A record whose last two leases ended without an outcome.
fn poison(id: &str, key: &str, attempt: i32) -> Document {
    with_crashes(id, key, attempt, 2)
}

/// A record with this many leases that ended without an outcome; the last one is still on it.
fn with_crashes(id: &str, key: &str, attempt: i32, crashes: i32) -> Document {
    let mut record = record(id, key);
    record.insert("attempt", attempt);
    if crashes > 1 {
        record.insert("leaseCrashes", crashes - 1);
    }
    record.insert("leaseId", LeaseId::fresh());
    record.insert("leaseOwner", LeaseId::fresh());
    record.insert("leaseUntil", DateTime::from_millis(DateTime::now().timestamp_millis() - 1_000));
    record
}

#[fixture::test]
async fn records_go_one_at_a_time_after_their_second_crash() {
    let outbox = TestOutbox::restricted().await;
    let sink = FragileSink::default();
    let poisoned: Vec<String> = (0..6).map(|n| format!("poison {n}")).collect();
    let sound: Vec<String> = (0..40).map(|n| format!("sound {n}")).collect();
    outbox.insert(poisoned.iter().map(|id| poison(id, id, 2))).await;
    outbox.insert(sound.iter().map(|id| record(id, id))).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 46).await;
    let with_neighbours =
        sound.iter().any(|id| sink.neighbours(id).iter().any(|with| !with.is_empty()));
    assert!(with_neighbours, "the sound ones went together");
    for id in &poisoned {
        let neighbours = sink.neighbours(id);
        assert_eq!(neighbours.len(), 1, "published once");
        assert!(neighbours[0].is_empty(), "{id} went with {:?}", neighbours[0]);
    }
    relay.stop().await;
}

#[fixture::test]
async fn records_go_together_after_their_first_crash() {
    let outbox = TestOutbox::restricted().await;
    let sink = FragileSink::default();
    // Two of each key: a crash is not a failure, so they are leased together.
    let ids: Vec<String> = (0..40).map(|n| format!("{n}")).collect();
    let key = |id: &str| format!("key {}", id.parse::<u32>().unwrap() / 2);
    outbox.insert(ids.iter().map(|id| with_crashes(id, &key(id), 1, 1))).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    let done = doc! { "status": "done", "attempt": 2, "leaseCrashes": 1 };
    outbox.until_count(done, 40).await;
    let with_neighbours =
        ids.iter().filter(|id| sink.neighbours(id).iter().any(|with| !with.is_empty()));
    assert!(with_neighbours.count() > 20, "they went together");
    relay.stop().await;
}

/// A release or a failure has ended its lease normally; it was in two crashes all the same.
#[fixture::test]
async fn a_poison_record_without_a_lease_goes_alone_after_a_failure() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("a1", [Fault::Answer(PublishFailure::Retryable)]);
    let mut released = record("a1", "a");
    released.extend(doc! { "attempt": 2, "leaseCrashes": 2 });
    outbox.insert([released, record("behind", "a")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 2).await;
    assert_eq!(sink.begun_isolated(), ["a1", "a1"]);
    assert_eq!(outbox.record("a1").await.get_i32("attempt").unwrap(), 4);
    relay.stop().await;
}

/// Whatever `max_attempts` is: in such a lease another record may have been the cause.
#[fixture::test]
async fn a_record_does_not_die_of_a_lease_with_neighbours() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([with_crashes("once", "a", 1, 1), with_crashes("twice", "b", 2, 2)]).await;

    let settings = Settings { max_attempts: 1, ..settings() };
    let relay = start(&outbox.collections, sink.clone(), settings);

    outbox.until_count(doc! { "status": "done" }, 2).await;
    assert_eq!(sink.begun_isolated(), ["twice"]);
    relay.stop().await;
}

#[fixture::test]
async fn a_poison_record_at_the_limit_dies_and_its_follower_goes() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox
        .insert([
            with_crashes("spent", "a", 10, 3),
            record("behind", "a"),
            with_crashes("one left", "b", 9, 3),
        ])
        .await;

    let (relay, figures) = start_counted(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 2).await;
    let mut ids = sink.ids();
    ids.sort();
    assert_eq!(ids, ["behind", "one left"]);
    let spent = outbox.record("spent").await;
    assert_eq!(spent.get_str("deadReason").unwrap(), "lease expired: 10 times");
    assert_eq!(spent.get_i32("attempt").unwrap(), 10);
    assert!(spent.get_datetime("deadAt").is_ok() && !spent.contains_key("leaseId"), "{spent}");
    let figures = figures.render();
    let mut counted = figures.lines().filter(|line| line.contains("outcome=\"dead\""));
    assert!(counted.any(|line| line.ends_with(" 1")), "{figures}");
    relay.stop().await;
}

#[fixture::test]
async fn a_record_that_breaks_the_connection_dies_alone() {
    let outbox = TestOutbox::restricted().await;
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
    assert_eq!(outbox.count(of_others).await, 21, "no other was counted");
    let publishes = sink.neighbours("poison");
    assert_eq!(publishes.len(), 2 + 3, "twice in company, then alone until it was dead");
    assert!(publishes[2..].iter().all(|with| with.is_empty()), "{publishes:?}");
    relay.stop().await;
}

/// While one record goes alone, the other one's key waits for its turn.
#[fixture::test]
async fn a_key_whose_poison_record_is_gone_at_its_turn_continues() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("a1", [Fault::Hold]);
    sink.script("b1", [Fault::Hold]);
    outbox.insert([poison("a1", "a", 2), poison("b1", "b", 2)]).await;
    let relay = start(&outbox.collections, sink.clone(), settings());
    eventually("one goes alone", || async { sink.is_under_way("a1") || sink.is_under_way("b1") })
        .await;
    let (waiting, key) = if sink.is_under_way("a1") { ("b1", "b") } else { ("a1", "a") };

    outbox.records().delete_one(doc! { "_id": waiting }).await.unwrap();
    outbox.insert([record("follower", key)]).await;
    sink.release();

    until_arrived(&sink, "follower").await;
    relay.stop().await;
}

#[fixture::test]
async fn a_poison_record_without_a_key_has_one_turn() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let sink = TestSink::default();
    let keyless = |id: &str| {
        let mut record = poison(id, "", 2);
        record.remove("key");
        record
    };
    sink.script("a", [Fault::Hold]);
    sink.script("b", [Fault::Hold]);
    outbox.insert([keyless("a"), keyless("b")]).await;
    let relay = start(&recorder.collections, sink.clone(), settings());
    let pages = || recorder.commands("find").iter().filter(|find| reads_pages(&find.sent)).count();
    eventually("the waiting one is met often", || async { pages() > 20 }).await;

    sink.release();

    outbox.until_count(doc! { "status": "done" }, 2).await;
    relay.stop().await;
    let turns = recorder.commands("find").into_iter().filter(|find| {
        let filter = find.sent.get_document("filter").unwrap();
        filter.contains_key("_id") && filter.get_str("status").is_ok() && is_snapshot(&find.sent)
    });
    assert!(turns.count() <= 2);
    let leases = recorder.commands("update").into_iter().filter(|update| {
        let statement = update.sent.get_array("updates").unwrap()[0].as_document().unwrap();
        statement.get_array("u").is_ok_and(|stages| stages[0].to_string().contains("leaseOwner"))
    });
    assert_eq!(leases.count(), 2, "each is leased by itself");
}

/// A rotation read its pages while the record still waited, and plans them when it has gone.
#[fixture::test]
async fn a_poison_record_gets_no_second_turn_from_an_old_page() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let mut keyless = poison("a", "", 2);
    keyless.remove("key");
    outbox.insert([keyless]).await;
    let harness = RelayHarness::new(&recorder.collections, TestSink::default(), settings()).await;
    let waiting = harness.scan().await.candidates.pop().expect("it waits for its turn");
    let shared = harness.context.clone();
    let shows_it = |command: &Command| command.name == "find" && reads_pages(&command.sent);
    recorder.after(shows_it, || async move {
        let went = Quarantine::new(&shared).deliver(waiting).await.unwrap();
        let (lane, end) = went.expect("it goes alone");
        assert_eq!(end, LaneEnd::Drained);
        shared.state.key_table.release(&lane.key);
    });

    let seen = harness.scan().await;

    assert!(recorder.has_paused());
    assert_eq!(outbox.count(doc! { "status": "done" }).await, 1);
    assert!(seen.candidates.is_empty(), "{:?}", seen.candidates);
}

/// Whether a find reads pages of the rotation.
fn reads_pages(find: &Document) -> bool {
    let partition = find.get_document("filter").unwrap().get_document("partition");
    partition.is_ok_and(|partition| partition.contains_key("$in"))
}

fn is_snapshot(find: &Document) -> bool {
    find.get_document("readConcern").unwrap().get_str("level").unwrap_or("") == "snapshot"
}

/// A relay that was paused between its scan and the death must not mark a record of another
/// instance dead.
#[fixture::test]
async fn an_exhausted_poison_record_requeued_meanwhile_does_not_die() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([with_crashes("a1", "a", 10, 3)]).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    assert!(!seen.repairs.is_empty());
    let requeue = doc! {
        "$set": { "attempt": 0 },
        "$unset": { "leaseId": "", "leaseUntil": "", "leaseOwner": "" },
    };
    outbox.records().update_one(doc! { "_id": "a1" }, requeue).await.unwrap();
    let requeued = outbox.record("a1").await;

    harness.acquire(seen).await;

    assert_eq!(outbox.record("a1").await, requeued);
}
