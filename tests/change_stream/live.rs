//! While the change stream carries the records: the order of keys, and no record is missed.

use std::collections::HashMap;
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use postrider::outbox::redrive::{Redrive, Redriver};
use postrider::outbox::undecoded::RawId;
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::RelayParts;
use postrider::relay::settings::{OnDead, Settings};
use postrider::sink::PublishFailure;
use postrider::wakeup::Wakeup;
use tokio::sync::watch;

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, eventually, record, unstamped};
use crate::support::relay::{Running, parts, run};
use crate::support::sink::{Fault, TestSink};
use crate::{RunningStream, settings_without_rescan, to_another_destination};

/// A relay that depends on its stream: no timer fires within any test.
struct LiveRelay {
    outbox: TestOutbox,
    recorder: CommandRecorder,
    sink: TestSink,
    relay: Running,
    followed: RunningStream,
    share: watch::Sender<OwnedPartitions>,
}

impl LiveRelay {
    async fn start() -> Self {
        Self::with(settings_without_rescan()).await
    }

    async fn with(settings: Settings) -> Self {
        Self::over(TestOutbox::new().await, settings).await
    }

    /// Over an outbox that has records.
    async fn over(outbox: TestOutbox, settings: Settings) -> Self {
        let recorder = CommandRecorder::on(&outbox).await;
        let scene = Self::recorded(outbox, recorder, settings).await;
        scene.until_live().await;
        scene
    }

    /// Not live yet.
    async fn recorded(outbox: TestOutbox, recorder: CommandRecorder, settings: Settings) -> Self {
        let (sink, wake) = (TestSink::default(), Wakeup::default());
        let followed = RunningStream::up(&recorder.collections, &wake).await;
        let (share, shares) = watch::channel(OwnedPartitions::of(0..=255));
        let parts: RelayParts<TestSink> =
            parts(&recorder.collections, sink.clone(), settings, shares, wake);
        let relay = run(parts, share.clone());
        Self { outbox, recorder, sink, relay, followed, share }
    }

    /// Waits until an insert causes no read.
    async fn until_live(&self) {
        eventually("the stream carries the records", || self.costs_no_read()).await;
    }

    /// What has arrived, except the records of [`until_live`](Self::until_live).
    fn ids(&self) -> Vec<String> {
        self.sink.ids().into_iter().filter(|id| !id.starts_with("probe")).collect()
    }

    async fn costs_no_read(&self) -> bool {
        let before = self.recorder.commands("find").len();
        let id = format!("probe {}", uuid::Uuid::new_v4());
        self.outbox.insert([record(&id, &id)]).await;
        // Not until it is settled: that write may wait for others until the next recheck.
        self.sink.until("the probe", |arrived| arrived.iter().any(|it| it.id == id)).await;
        let costs_none = self.recorder.commands("find").len() == before;
        self.until_done(&[&id]).await;
        costs_none
    }

    async fn until_done(&self, ids: &[&str]) {
        let count = u64::try_from(ids.len()).unwrap();
        self.outbox.until_count(doc! { "_id": { "$in": ids }, "status": "done" }, count).await;
    }

    async fn until_under_way(&self, id: &str) {
        eventually("it is under way", || async { self.sink.is_under_way(id) }).await;
    }

    async fn stop(self) {
        self.relay.stop().await;
        drop((self.followed, self.share));
    }
}

/// The keys in the order of the insertions, single ones and several with one command.
#[fixture::test]
async fn a_flow_is_delivered_in_key_order_without_a_read() {
    let scene = LiveRelay::start().await;
    let before = scene.recorder.commands("find").len();

    let mut expected: HashMap<String, Vec<String>> = HashMap::new();
    for turn in 0..300 {
        let batch: Vec<(String, String)> = (0..1 + turn % 7)
            .map(|n| (format!("{turn:03} {n}"), format!("k{}", (turn * 3 + n / 2) % 40)))
            .collect();
        let record = |(id, key): &(String, String)| match turn % 3 {
            0 => record(id, key),
            _ => unstamped(id, key),
        };
        scene.outbox.insert(batch.iter().map(record)).await;
        for (id, key) in batch {
            expected.entry(key).or_default().push(id);
        }
    }
    scene.outbox.until_count(doc! { "status": { "$ne": "done" } }, 0).await;

    let arrived = scene.ids();
    for (key, ids) in &expected {
        let of_key: Vec<&String> = arrived.iter().filter(|id| ids.contains(id)).collect();
        assert_eq!(of_key, ids.iter().collect::<Vec<_>>(), "{key}");
    }
    let reads = scene.recorder.commands("find").len() - before;
    // Housekeeping and the recheck read at their own times.
    assert!(reads < 40, "{reads} reads for {} records", arrived.len());
    scene.stop().await;
}

#[fixture::test]
async fn a_record_of_a_key_in_flight_goes_after_it() {
    let scene = LiveRelay::start().await;
    scene.sink.script("1", [Fault::Hold]);

    scene.outbox.insert([record("1", "k")]).await;
    scene.until_under_way("1").await;
    scene.outbox.insert([unstamped("2", "k"), record("3", "k")]).await;
    scene.outbox.insert([to_another_destination("other", "o")]).await;
    scene.until_done(&["other"]).await;
    assert_eq!(scene.ids(), ["other"]);
    scene.sink.release();

    scene.until_done(&["1", "2", "3"]).await;
    assert_eq!(scene.ids(), ["other", "1", "2", "3"]);
    scene.stop().await;
}

#[fixture::test]
async fn a_record_after_a_blocker_waits_whatever_ends_the_block() {
    let scene = LiveRelay::start().await;
    scene.sink.script("fails", [Fault::Answer(PublishFailure::Retryable)]);
    let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 1_500);
    let mut due = record("due", "b");
    due.insert("visibleAt", later);

    scene.outbox.insert([record("fails", "a"), due]).await;
    scene.outbox.insert([record("a2", "a"), record("b2", "b")]).await;
    scene.until_done(&["fails", "a2", "due", "b2"]).await;

    let place = |id: &str| scene.ids().iter().position(|other| other == id).unwrap();
    assert!(place("fails") < place("a2") && place("due") < place("b2"), "{:?}", scene.ids());
    scene.stop().await;
}

/// Each has changed since its event when the relay leases it.
#[fixture::test]
async fn a_record_changed_after_its_event_strands_none_of_its_key() {
    let scene = LiveRelay::start().await;
    scene.sink.script("head", [Fault::Hold]);
    scene.outbox.insert([record("head", "k")]).await;
    scene.until_under_way("head").await;
    scene.outbox.insert([record("deleted", "k"), record("replaced", "k")]).await;
    scene.outbox.records().delete_one(doc! { "_id": "deleted" }).await.unwrap();
    let mut other = record("replaced", "k");
    other.insert("payload", "another one");
    scene.outbox.records().replace_one(doc! { "_id": "replaced" }, other).await.unwrap();
    scene.outbox.insert([record("last", "k")]).await;
    scene.sink.release();

    scene.until_done(&["head", "replaced", "last"]).await;
    let ids = scene.ids();
    let place = |id: &str| ids.iter().position(|other| other == id).unwrap();
    assert!(place("head") < place("replaced") && place("replaced") < place("last"), "{ids:?}");
    let delivered = scene.sink.contents();
    // (What was replaced is sent too if it was leased before.)
    let last_of_it = delivered.iter().rfind(|(id, _)| id == "replaced");
    assert_eq!(last_of_it.map(|(_, payload)| payload.as_str()), Some("another one"));
    scene.outbox.insert([record("after", "k")]).await;
    scene.until_done(&["after"]).await;
    scene.stop().await;
}

/// It is replaced, or deleted and inserted again, before the relay receives the event of its
/// insertion.
#[fixture::test]
async fn a_record_replaced_before_its_lease_is_sent_with_its_new_content() {
    for is_deleted in [false, true] {
        let scene = LiveRelay::start().await;
        let records = scene.outbox.records();
        let brings_it = |command: &Command| {
            command.name == "getMore" && command.answer.to_string().contains("twice")
        };
        scene.recorder.after(brings_it, move || async move {
            let mut again = record("twice", "k");
            again.insert("payload", "the second one");
            if is_deleted {
                records.delete_one(doc! { "_id": "twice" }).await.unwrap();
                records.insert_one(again).await.unwrap();
            } else {
                records.replace_one(doc! { "_id": "twice" }, again).await.unwrap();
            }
        });

        scene.outbox.insert([record("twice", "k")]).await;
        scene.outbox.insert([record("behind", "k")]).await;
        scene.until_done(&["twice", "behind"]).await;

        let delivered = scene.sink.contents();
        let of_it: Vec<&str> = delivered
            .iter()
            .filter(|(id, _)| id == "twice")
            .map(|(_, payload)| payload.as_str())
            .collect();
        assert_eq!(of_it, ["the second one"]);
        assert!(scene.recorder.has_paused());
        scene.stop().await;
    }
}

/// No event says that it became pending: it was pending before, in another key.
#[fixture::test]
async fn a_record_waits_for_an_earlier_one_that_got_its_key_later() {
    let scene = LiveRelay::with(Settings {
        poll_interval: Duration::from_millis(500),
        ..settings_without_rescan()
    })
    .await;
    let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    let mut waits = unstamped("waits", "a");
    waits.insert("visibleAt", later);
    scene.outbox.insert([waits]).await;
    let records = scene.outbox.records();
    let set = async |fields: Document| {
        let update = doc! { "$set": fields };
        records.update_one(doc! { "_id": "waits" }, update).await.unwrap();
    };

    set(doc! { "key": "b" }).await;
    scene.outbox.insert([record("behind", "b"), record("other", "o")]).await;
    scene.until_done(&["other"]).await;
    assert_eq!(scene.ids(), ["other"]);
    set(doc! { "visibleAt": DateTime::now() }).await;

    scene.until_done(&["waits", "behind"]).await;
    assert_eq!(scene.ids(), ["other", "waits", "behind"]);
    scene.stop().await;
}

/// A page ends within the second of its partitions, directly after the first.
#[fixture::test]
async fn a_key_in_two_returning_partitions_is_delivered_completely() {
    let scene = LiveRelay::with(Settings { batch_size: 2, ..settings_without_rescan() }).await;
    scene.share.send_replace(OwnedPartitions::of(9..=255));
    let within = |id: &str, partition: i32| {
        let mut within = record(id, "k");
        within.insert("partition", partition);
        within
    };
    scene.outbox.insert([within("1", 8), within("2", 8), within("3", 7)]).await;

    scene.share.send_replace(OwnedPartitions::of(0..=255));

    scene.until_done(&["1", "2", "3"]).await;
    scene.stop().await;
}

/// The scan after the partition's return skips the key, which waits.
#[fixture::test]
async fn a_waiting_keys_records_in_a_returning_partition_are_found() {
    let settings =
        Settings { poll_interval: Duration::from_millis(300), ..settings_without_rescan() };
    let scene = LiveRelay::with(settings).await;
    let within = |id: &str, partition: i32| {
        let mut within = record(id, "k");
        within.insert("partition", partition);
        within
    };
    let mut waits = within("waits", 7);
    let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    waits.insert("visibleAt", later);
    scene.outbox.insert([waits]).await;
    scene.share.send_replace(OwnedPartitions::of(0..=7));
    scene.outbox.insert([within("hidden", 8)]).await;
    scene.share.send_replace(OwnedPartitions::of(0..=255));
    scene.until_live().await;

    let due = doc! { "$set": { "visibleAt": DateTime::now() } };
    scene.outbox.records().update_one(doc! { "_id": "waits" }, due).await.unwrap();

    scene.until_done(&["waits", "hidden"]).await;
    scene.stop().await;
}

/// A dead record blocks its key until an operator discards it, here without a wake-up of the relay,
/// or gives it another key.
#[fixture::test]
async fn a_blocked_key_continues_when_its_dead_record_is_resolved() {
    let settings = Settings {
        on_dead: OnDead::Block,
        poll_interval: Duration::from_millis(500),
        ..settings_without_rescan()
    };
    let scene = LiveRelay::with(settings).await;
    for id in ["dies", "dies too", "dies as well"] {
        scene.sink.script(id, [Fault::Answer(PublishFailure::Rejected)]);
    }
    let dying = [record("dies", "a"), record("dies too", "b"), record("dies as well", "c")];
    scene.outbox.insert(dying).await;
    scene.outbox.until_count(doc! { "status": "dead" }, 3).await;
    let behind = [record("a2", "a"), record("b2", "b"), record("c2", "c"), record("other", "o")];
    scene.outbox.insert(behind).await;
    scene.until_done(&["other"]).await;
    assert_eq!(scene.outbox.count(doc! { "status": "pending" }).await, 3);

    let redriver = Redriver::new(scene.outbox.admin.clone());
    let id = |id: &str| RawId::from(&bson::Bson::from(id));
    redriver.redrive(Redrive::Discard, &[id("dies")]).await.unwrap().unwrap();
    redriver.redrive(Redrive::Requeue, &[id("dies too")]).await.unwrap().unwrap();

    let of_another = doc! { "$set": { "key": "z" } };
    let records = scene.outbox.records();
    records.update_one(doc! { "_id": "dies as well" }, of_another).await.unwrap();

    scene.until_done(&["a2", "dies too", "b2", "c2"]).await;
    let ids = scene.ids();
    let place = |id: &str| ids.iter().position(|other| other == id).unwrap();
    assert!(place("dies too") < place("b2"), "{ids:?}");
    scene.stop().await;
}

/// A record that is dead, and blocks its key.
fn dead(id: &str, key: &str) -> Document {
    let mut dead = record(id, key);
    dead.extend(doc! { "status": "dead", "blocks": true });
    dead
}

/// The dead records of all keys may be very many, and are read from disk with their payloads.
#[fixture::test]
async fn a_slow_read_of_all_dead_blockers_delays_no_free_key() {
    let outbox = TestOutbox::new().await;
    outbox.insert([dead("dies", "a"), record("pending", "b")]).await;
    let recorder = CommandRecorder::on(&outbox).await;
    let reads_all_dead = |command: &Command| {
        let is_sorted = command.sent.get_document("sort").is_ok_and(|sort| !sort.is_empty());
        is_sorted && command.sent.get_str("hint").is_ok_and(|hint| hint == "blocks_idx")
    };
    let hold = recorder.hold(reads_all_dead);
    let settings = Settings { on_dead: OnDead::Block, ..settings_without_rescan() };
    let scene = LiveRelay::recorded(outbox, recorder, settings).await;
    scene.until_done(&["pending"]).await;

    // Known by its event alone: the pass has read everything else.
    scene.outbox.insert([record("inserted", "c")]).await;
    scene.until_done(&["inserted"]).await;
    scene.outbox.insert([record("more", "c"), record("behind", "a")]).await;
    scene.until_done(&["more"]).await;
    drop(hold);
    scene.until_live().await;
    scene.outbox.insert([record("last", "c"), record("behind too", "a")]).await;
    scene.until_done(&["last"]).await;

    assert_eq!(scene.ids(), ["pending", "inserted", "more", "last"]);
    scene.stop().await;
}

/// What was before the second stream is not in it, so all keys are read again: many reads, each with
/// a pause nine times as long.
#[fixture::test(long)]
async fn a_key_is_freed_before_all_dead_blockers_are_read() {
    const KEYS: usize = 20_000;
    let outbox = TestOutbox::new().await;
    outbox.insert((0..KEYS).map(|n| dead(&format!("dead {n}"), &format!("k{n}")))).await;
    let settings = Settings {
        on_dead: OnDead::Block,
        poll_interval: Duration::from_millis(500),
        ..settings_without_rescan()
    };
    let scene = LiveRelay::over(outbox, settings).await;
    let opened = || {
        let commands = scene.recorder.all();
        commands.iter().position(|one| one.sent.to_string().contains("removedFields"))
    };
    eventually("the second stream is open", || async { opened().is_some() }).await;

    let redriver = Redriver::new(scene.outbox.admin.clone());
    let id = RawId::from(&Bson::from("dead 0"));
    redriver.redrive(Redrive::Requeue, &[id]).await.unwrap().unwrap();
    scene.sink.until("it", |arrived| arrived.iter().any(|it| it.id == "dead 0")).await;

    let since = scene.recorder.all().split_off(opened().unwrap());
    let is_check = |command: &&Command| {
        let filter = command.sent.get_document("filter");
        let keys = filter.and_then(|filter| filter.get_document("key"));
        let is_of_dead = command.sent.get_str("hint").is_ok_and(|hint| hint == "blocks_idx");
        is_of_dead && keys.is_ok_and(|keys| keys.contains_key("$in"))
    };
    let checks = since.iter().filter(is_check).count();
    assert!(checks < KEYS / 500, "{checks} reads of 500 keys");
    scene.stop().await;
}

/// As by a restore: no lane has delivered it.
#[fixture::test]
async fn a_record_behind_one_that_is_inserted_dead_waits() {
    let scene = LiveRelay::start().await;

    scene.outbox.insert([dead("dead", "a")]).await;
    scene.outbox.insert([record("behind", "a")]).await;
    scene.outbox.insert([record("free", "b")]).await;
    scene.until_done(&["free"]).await;
    scene.outbox.insert([record("behind too", "a"), record("last", "b")]).await;
    scene.until_done(&["last"]).await;

    assert_eq!(scene.ids(), ["free", "last"]);
    scene.stop().await;
}

/// More keys than a read skips, and than are read again one by one.
#[fixture::test]
async fn thousands_of_blocked_keys_cost_no_read_until_one_is_freed() {
    const KEYS: usize = 2_500;
    let outbox = TestOutbox::new().await;
    let named = |name: &str, n: usize| record(&format!("{name} {n}"), &format!("k{n}"));
    outbox.insert((0..KEYS).map(|n| dead(&format!("dead {n}"), &format!("k{n}")))).await;
    outbox.insert((0..KEYS).map(|n| named("behind", n))).await;
    let settings = Settings {
        on_dead: OnDead::Block,
        poll_interval: Duration::from_millis(500),
        audit_interval: Duration::from_secs(3_600),
        ..settings_without_rescan()
    };
    let scene = LiveRelay::over(outbox, settings).await;
    // The finds that read pending or dead records.
    let reads = || {
        let indexes = ["lane_idx", "blocks_idx", "_id_"];
        let finds = scene.recorder.commands("find");
        let reads =
            |find: &&Command| find.sent.get_str("hint").is_ok_and(|hint| indexes.contains(&hint));
        finds.iter().filter(reads).count()
    };
    let polls = || scene.recorder.commands("getMore").len();
    eventually("no record is read", || async {
        let (before, polled) = (reads(), polls());
        eventually("the streams are read", || async { polls() > polled + 20 }).await;
        reads() == before
    })
    .await;

    let before = reads();
    scene.outbox.insert((0..20).map(|n| named("later", n))).await;
    scene.outbox.insert([record("free", "free")]).await;
    scene.until_done(&["free"]).await;
    assert_eq!(reads(), before, "a new record of a blocked key is no reason to read");

    let redriver = Redriver::new(scene.outbox.admin.clone());
    let id = RawId::from(&Bson::from("dead 0"));
    redriver.redrive(Redrive::Requeue, &[id]).await.unwrap().unwrap();
    let records = scene.outbox.records();
    records.delete_one(doc! { "_id": "dead 1" }).await.unwrap();
    for (id, edit) in [
        ("dead 2", doc! { "$unset": { "blocks": "" } }),
        ("dead 3", doc! { "$set": { "status": "done", "doneAt": DateTime::now() } }),
        ("dead 4", doc! { "$set": { "key": "another" } }),
    ] {
        records.update_one(doc! { "_id": id }, edit).await.unwrap();
    }
    let freed = ["behind", "later"].map(|name| (0..5).map(move |n| format!("{name} {n}")));
    let freed: Vec<String> = freed.into_iter().flatten().collect();
    let freed: Vec<&str> = freed.iter().map(String::as_str).chain(["dead 0"]).collect();
    scene.until_done(&freed).await;
    let ids = scene.ids();
    let place = |id: &str| ids.iter().position(|other| other == id).unwrap();
    assert!(place("dead 0") < place("behind 0") && place("behind 0") < place("later 0"));
    assert_eq!(ids.len(), freed.len() + 1, "and no other: {ids:?}");

    records.delete_many(doc! { "status": "dead" }).await.unwrap();
    scene.outbox.until_count(doc! { "status": "pending" }, 0).await;
    scene.stop().await;
}

/// A fraction and an array are where no scan of the key reads: the array among the records of
/// partition 7, or nowhere at all.
#[fixture::test]
async fn an_invalid_partition_goes_before_later_records() {
    let scene = LiveRelay::start().await;
    let odd: [Bson; 5] = [
        3.5.into(),
        vec![Bson::Int32(7)].into(),
        Bson::Array(Vec::new()),
        vec![Bson::Int32(300)].into(),
        Bson::Int32(-5),
    ];

    let mut keys = Vec::new();
    for (turn, partition) in odd.iter().cycle().take(50).enumerate() {
        let key = format!("k{turn}");
        let mut first = record(&format!("{key} first"), &key);
        first.insert("partition", partition.clone());
        scene.outbox.insert([first]).await;
        scene.outbox.insert([unstamped(&format!("{key} behind"), &key)]).await;
        keys.push(key);
    }
    scene.outbox.until_count(doc! { "status": { "$ne": "done" } }, 0).await;

    let ids = scene.ids();
    let place = |id: String| ids.iter().position(|other| *other == id).unwrap();
    let swapped: Vec<&String> = keys
        .iter()
        .filter(|key| place(format!("{key} first")) > place(format!("{key} behind")))
        .collect();
    assert_eq!(swapped, Vec::<&String>::new());
    assert_eq!(ids.len(), 2 * keys.len(), "once each");
    scene.stop().await;
}

/// An operator's validator forbids the correction, at each of several attempts.
#[fixture::test]
async fn a_record_after_a_fraction_waits_until_it_is_corrected() {
    let scene = LiveRelay::start().await;
    let database = scene.outbox.client.database(&scene.outbox.database);
    let change = async |validator: Document| {
        let change = doc! { "collMod": "outbox_records", "validator": validator };
        database.run_command(change).await.unwrap();
    };
    change(doc! { "$or": [{ "sealed": null }, { "partition": 3.5 }] }).await;
    let mut first = record("first", "k");
    first.extend(doc! { "partition": 3.5, "sealed": true });
    scene.outbox.insert([first]).await;
    scene.outbox.insert([unstamped("second", "k")]).await;
    let tries = || {
        let updates = scene.recorder.commands("update");
        let corrects = |sent: &str| sent.contains("first") && sent.contains("partition");
        updates.iter().filter(|update| corrects(&update.sent.to_string())).count()
    };
    // Each time one update for its partition, and one for the record alone.
    eventually("it was tried again", || async { tries() >= 4 }).await;
    scene.outbox.insert([record("other", "o")]).await;
    scene.until_done(&["other"]).await;
    assert_eq!(scene.ids(), ["other"]);

    change(doc! {}).await;
    scene.outbox.insert([unstamped("third", "k")]).await;

    scene.until_done(&["first", "second", "third"]).await;
    assert_eq!(scene.ids(), ["other", "first", "second", "third"]);
    scene.stop().await;
}

/// More at once than the relay can lease, and then a flow again.
#[fixture::test]
async fn a_burst_is_delivered_in_order_and_the_stream_resumes() {
    let scene = LiveRelay::start().await;
    for batch in 0..20 {
        let burst =
            (0..1_000).map(|n| unstamped(&format!("{batch:02} {n:04}"), &format!("k{}", n % 700)));
        scene.outbox.insert(burst).await;
    }
    scene.outbox.until_count(doc! { "status": { "$ne": "done" } }, 0).await;

    let mut last: HashMap<usize, String> = HashMap::new();
    for id in scene.ids() {
        let key = id[3..].parse::<usize>().unwrap() % 700;
        let before = last.insert(key, id.clone());
        let of_key = || -> Vec<String> {
            let ids = scene.ids().into_iter();
            ids.filter(|id| id[3..].parse::<usize>().unwrap() % 700 == key).collect()
        };
        assert!(before.as_ref().is_none_or(|before| *before < id), "{id} late: {:?}", of_key());
    }
    scene.until_live().await;
    scene.stop().await;
}

/// Partitions leave and return, while records of them are inserted.
#[fixture::test]
async fn returning_partitions_are_served_from_a_new_scan() {
    let scene = LiveRelay::start().await;
    for turn in 0..10 {
        scene.share.send_replace(OwnedPartitions::of(0..=100));
        scene
            .outbox
            .insert((0..20).map(|n| unstamped(&format!("{turn} a {n}"), &format!("k{n}"))))
            .await;
        scene.share.send_replace(OwnedPartitions::of(0..=255));
        scene
            .outbox
            .insert((0..20).map(|n| record(&format!("{turn} b {n}"), &format!("k{n}"))))
            .await;
    }
    scene.outbox.until_count(doc! { "status": { "$ne": "done" } }, 0).await;

    let ids = scene.ids();
    for n in 0..20 {
        let mut seen: Vec<&String> = Vec::new();
        let of_key = ids.iter().filter(|id| id[4..] == n.to_string());
        // Repetitions are permitted where a partition is handed over.
        of_key.for_each(|id| {
            if !seen.contains(&id) {
                seen.push(id)
            }
        });
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(seen.len(), 20);
    }
    scene.stop().await;
}
