//! What becomes pending is delivered at once: the timer of these relays fires after ten minutes.

use std::time::{Duration, Instant};

use bson::{Bson, DateTime, Document, doc};
use postrider::outbox::collections::Collections;
use postrider::outbox::redrive::{Redrive, Redriver};
use postrider::outbox::snapshot::ReadLimit;
use postrider::outbox::undecoded::RawId;
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::scanner::{ScanScope, ScanTarget, Scanner};
use postrider::sink::PublishFailure;
use postrider::wakeup::{ScanHint, Wakeup};
use tokio::sync::watch;

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, eventually, insert_raw, record};
use crate::support::relay::{Running, parts, run};
use crate::support::relay_harness::RelayHarness;
use crate::support::rival_relay::{RivalRelay, ids};
use crate::support::sink::{Fault, TestSink};
use crate::{RunningStream, settings_without_rescan, to_another_destination};

/// A relay with a change stream, which is idle.
struct IdleRelay {
    outbox: TestOutbox,
    recorder: CommandRecorder,
    sink: TestSink,
    relay: Running,
    followed: RunningStream,
}

impl IdleRelay {
    async fn start(partitions: std::ops::RangeInclusive<u8>) -> Self {
        Self::with(partitions, |collections| collections).await
    }

    /// The same on a sharded cluster, as far as the relay knows: there an event causes a scan.
    async fn hinted() -> Self {
        Self::with(0..=255, Collections::sharded).await
    }

    async fn with(
        partitions: std::ops::RangeInclusive<u8>,
        on: impl FnOnce(Collections) -> Collections,
    ) -> Self {
        let outbox = TestOutbox::new().await;
        let (recorder, sink, wake) =
            (CommandRecorder::on(&outbox).await, TestSink::default(), Wakeup::default());
        let collections = on(recorder.collections.clone());
        let followed = RunningStream::up(&collections, &wake).await;
        let (owner, share) = watch::channel(OwnedPartitions::of(partitions));
        let relay =
            run(parts(&collections, sink.clone(), settings_without_rescan(), share, wake), owner);
        let woken = Self { outbox, recorder, sink, relay, followed };
        eventually("the first look", || async { !woken.scans().is_empty() }).await;
        woken.until_idle().await;
        woken
    }

    /// Waits until what has arrived is settled, which may cause a scan, and until there was no scan
    /// for a while: there will be none before a wake-up.
    async fn until_idle(&self) {
        eventually("what has arrived to be settled", || async {
            let arrived = doc! { "_id": { "$in": self.sink.ids() }, "status": "pending" };
            self.outbox.count(arrived).await == 0
        })
        .await;
        let (mut scans, mut since) = (0, Instant::now());
        while since.elapsed() < Duration::from_millis(150) {
            let now = self.scans().len();
            if now != scans {
                (scans, since) = (now, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The reads of all scans so far.
    fn scans(&self) -> Vec<Command> {
        self.recorder.commands("find")
    }

    async fn until_arrived(&self, id: &str) {
        self.sink.until(id, |arrived| arrived.iter().any(|message| message.id == id)).await;
    }

    /// Inserts it and waits for its arrival.
    async fn insert(&self, record: Document) {
        self.until_idle().await;
        let id = record.get_str("_id").unwrap().to_owned();
        insert_raw(&self.outbox.admin, record).await;
        self.until_arrived(&id).await;
    }

    async fn stop(self) {
        self.relay.stop().await;
        drop(self.followed);
    }
}

fn without(fields: &[&str], mut record: Document) -> Document {
    for field in fields {
        record.remove(field);
    }
    record
}

/// Whether a read is part of a full scan.
fn is_of_all(command: &Command) -> bool {
    let Ok(filter) = command.sent.get_document("filter") else { return false };
    let is_of_one = filter.contains_key("_id") || filter.get_str("key").is_ok();
    filter.contains_key("partition") && !is_of_one
}

#[fixture::test]
async fn an_insert_wakes_its_key_without_a_full_scan() {
    let woken = IdleRelay::hinted().await;
    let mut long = record("of another type", "long");
    long.insert("partition", Bson::Double(f64::from(long.get_i32("partition").unwrap())));

    for record in [record("keyed", "k"), record("again", "k"), long] {
        woken.until_idle().await;
        let before = woken.scans().len();
        let key = record.get_str("key").unwrap().to_owned();

        woken.insert(record).await;

        let first: Vec<Command> = woken.scans().into_iter().skip(before).take(3).collect();
        assert!(!first.iter().any(is_of_all), "{first:#?}");
        let of_key = |find: &Command| {
            find.sent.get_document("filter").unwrap().get_str("key").is_ok_and(|of| of == key)
        };
        assert!(first.iter().any(of_key), "{first:#?}");
    }
    woken.stop().await;
}

#[fixture::test]
async fn an_insert_is_read_from_the_stream_alone() {
    let woken = IdleRelay::start(0..=255).await;
    let mut long = record("of another type", "long");
    long.insert("partition", Bson::Double(f64::from(long.get_i32("partition").unwrap())));

    for record in [record("keyed", "k"), record("again", "k"), long] {
        woken.until_idle().await;
        let before = woken.scans().len();

        woken.insert(record).await;

        let reads: Vec<Command> = woken.scans().into_iter().skip(before).collect();
        assert!(reads.is_empty(), "{reads:#?}");
    }
    woken.stop().await;
}

#[fixture::test]
async fn a_record_without_a_key_is_woken_by_its_id() {
    let woken = IdleRelay::start(0..=255).await;
    let keyless = without(&["key"], record("keyless", ""));
    let mut null = record("null", "");
    null.insert("key", Bson::Null);

    for record in [keyless, null] {
        woken.until_idle().await;
        let before = woken.scans().len();

        woken.insert(record).await;

        let first: Vec<Command> = woken.scans().into_iter().skip(before).take(3).collect();
        assert!(!first.iter().any(is_of_all), "{first:#?}");
    }
    woken.stop().await;
}

/// Between the event and the scan it was replaced by one that has a key, with another before it.
#[fixture::test]
async fn a_record_that_got_a_key_meanwhile_keeps_its_order() {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("first", "k"), record("second", "k")]).await;
    RivalRelay::new(&outbox.admin).take(&["first"]).await;
    let sink = TestSink::default();
    let harness =
        RelayHarness::new(&outbox.collections, sink.clone(), settings_without_rescan()).await;
    let partition = postrider::partition::of_key("k");
    let target = ScanTarget::At(ScanHint::Record { partition, id: ids(&["second"]).remove(0) });
    let owned: Vec<u8> = (0..=255).collect();
    let room = ReadLimit { records: 500, bytes: 16 << 20 };

    let seen = Scanner::new(&harness.context)
        .scan(ScanScope::Targets(vec![target]), &owned, room)
        .await
        .unwrap();
    harness.deliver(harness.acquire(seen).await).await;

    assert_eq!(sink.ids(), [""; 0]);
}

#[fixture::test]
async fn a_record_that_needs_a_repair_is_woken_too() {
    let woken = IdleRelay::start(0..=255).await;

    for (id, lacks) in [
        ("without partition", ["partition"].as_slice()),
        ("without seq", &["seq"]),
        ("bare", &["seq", "partition", "key"]),
    ] {
        woken.insert(without(lacks, record(id, id))).await;
    }

    woken.stop().await;
}

#[fixture::test]
async fn a_requeued_promoted_or_replaced_record_is_woken_too() {
    let woken = IdleRelay::start(0..=255).await;
    let of_status = |id: &str, status: &str| {
        let mut record = record(id, id);
        record.extend(doc! { "status": status, "visibleAt": DateTime::MAX });
        record
    };
    let waiting = [("dead", "dead"), ("due", "scheduled"), ("draft", "draft")];
    woken.outbox.insert(waiting.map(|(id, status)| of_status(id, status))).await;
    let records = woken.outbox.records();

    woken.until_idle().await;
    let redriver = Redriver::new(woken.outbox.admin.clone());
    redriver.redrive(Redrive::Requeue, &[RawId::from(&Bson::from("dead"))]).await.unwrap().unwrap();
    woken.until_arrived("dead").await;
    woken.until_idle().await;
    let promotion = doc! {
        "$set": { "status": "pending" },
        "$unset": { "visibleAt": "" },
        "$currentDate": { "seq": { "$type": "timestamp" } },
    };
    records.update_one(doc! { "_id": "due" }, promotion).await.unwrap();
    woken.until_arrived("due").await;
    woken.until_idle().await;
    records.replace_one(doc! { "_id": "draft" }, record("draft", "draft")).await.unwrap();
    woken.until_arrived("draft").await;

    woken.stop().await;
}

#[fixture::test]
async fn many_inserts_at_once_do_not_cost_a_scan_each() {
    const RECORDS: usize = 100;
    let woken = IdleRelay::start(0..=255).await;
    let before = woken.scans().len();

    for n in 0..RECORDS {
        let key = format!("nothing {n}");
        let partition = postrider::partition::of_key(&key);
        woken.relay.wake.at(ScanHint::Key { partition, key: key.into() });
    }
    woken.insert(record("last", "l")).await;

    let of_one = |find: &&Command| find.sent.get_document("filter").unwrap().get_str("key").is_ok();
    let reads = woken.scans()[before..].iter().filter(of_one).count();
    assert!(reads < RECORDS / 2, "{reads}");
    woken.stop().await;
}

#[fixture::test]
async fn inserts_in_partitions_of_others_cost_no_scan() {
    const OTHERS: usize = 40;
    let woken = IdleRelay::start(0..=127).await;
    let keys = |partitions: std::ops::RangeInclusive<u8>| {
        let keys = (0..).map(|n| format!("k{n}"));
        keys.filter(move |key| partitions.contains(&postrider::partition::of_key(key)))
    };
    let before = woken.scans().len();

    for key in keys(128..=255).take(OTHERS) {
        woken.outbox.insert([record(&key, &key)]).await;
    }
    let ours = keys(0..=127).next().unwrap();
    woken.outbox.insert([record("ours", &ours)]).await;
    woken.until_arrived("ours").await;

    // Each scan begins with this read.
    let is_first = |find: &&Command| {
        find.sent.get_document("filter").unwrap().get("partition") == Some(&Bson::Null)
    };
    let scans = woken.scans()[before..].iter().filter(is_first).count();
    assert!(scans < OTHERS / 2, "{scans}");
    assert_eq!(woken.sink.ids(), ["ours"]);
    woken.stop().await;
}

/// It would find what the relay has already.
#[fixture::test]
async fn an_insert_into_a_key_in_flight_costs_no_scan() {
    let woken = IdleRelay::start(0..=255).await;
    woken.sink.script("first", [Fault::Hold]);
    woken.outbox.insert([record("first", "k")]).await;
    eventually("a publish under way", || async { woken.sink.is_under_way("first") }).await;
    woken.until_idle().await;
    let before = woken.scans().len();

    for id in ["second", "third"] {
        woken.outbox.insert([record(id, "k")]).await;
    }
    woken.insert(to_another_destination("other", "other")).await;

    let of_key = |find: &Command| {
        find.sent.get_document("filter").unwrap().get_str("key").is_ok_and(|of| of == "k")
    };
    assert!(!woken.scans()[before..].iter().any(of_key));
    woken.sink.release();
    woken.until_arrived("third").await;
    assert_eq!(woken.sink.ids(), ["other", "first", "second", "third"]);
    woken.stop().await;
}

/// A scan in progress has read past what was just inserted.
#[fixture::test]
async fn a_scan_requested_during_another_follows_it() {
    let outbox = TestOutbox::new().await;
    let (recorder, sink, wake) =
        (CommandRecorder::on(&outbox).await, TestSink::default(), Wakeup::default());
    let collections = outbox.admin.clone();
    let waking = wake.clone();
    // The relay knows that it will be woken: it does not poll often.
    wake.set_followed(true);
    recorder.after(is_of_all, || async move {
        insert_raw(&collections, record("late", "k")).await;
        waking.all();
        // The relay has received it by then; if it has not, this test proves nothing.
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));

    let relay = run(
        parts(&recorder.collections, sink.clone(), settings_without_rescan(), share, wake),
        owner,
    );

    sink.until("late", |arrived| arrived.iter().any(|message| message.id == "late")).await;
    relay.stop().await;
}

/// Deliveries cause many updates; none of them wakes the relay.
#[fixture::test]
async fn leases_settlements_and_failures_wake_nothing() {
    let woken = IdleRelay::start(0..=255).await;
    woken.sink.script("fails", [Fault::Answer(PublishFailure::Retryable)]);

    woken.insert(record("goes", "g")).await;
    woken.insert(record("fails", "f")).await;
    woken.outbox.until_count(doc! { "status": "done" }, 2).await;
    woken.insert(record("last", "l")).await;

    let batches = woken.recorder.commands("getMore");
    let events: Vec<&Bson> = batches
        .iter()
        .flat_map(|more| {
            more.answer.get_document("cursor").unwrap().get_array("nextBatch").unwrap()
        })
        .collect();
    assert_eq!(events.len(), 3, "{events:#?}");
    woken.stop().await;
}
