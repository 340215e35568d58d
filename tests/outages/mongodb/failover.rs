//! The promise, kept through failovers, rollbacks and hanging members.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use crate::support::history::{arrivals, judge, read_back};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::producers::Producers;
use crate::support::relay::{Running, settings, start};
use crate::support::replica_set::ReplicaSet;
use crate::support::sink::TestSink;
use bson::{Document, doc};
use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{Acknowledgment, ClientOptions, ReadConcern, WriteConcern};
use postrider::outbox::collections::Collections;
use postrider::relay::settings::Settings;
use postrider::sink::{Message, PublishError, Sink, SinkDown};
use tokio::sync::{Mutex, MutexGuard};

/// Each test has a replica set of its own, and the machine can run one at a time.
async fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

const PRODUCERS: usize = 3;

/// The relay waits until a lease whose answer was lost expires; short here, for a quick test.
fn settings_with_short_lease() -> Settings {
    Settings { lease: Duration::from_secs(10), ..settings() }
}

/// A slow sink, so that much is in flight when a fault happens.
#[derive(Clone)]
struct SlowSink(TestSink);

impl Sink for SlowSink {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.0.publish(message).await
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        self.0.probe().await
    }

    async fn lost(&self) -> SinkDown {
        self.0.lost().await
    }

    async fn close(&self) {
        self.0.close().await;
    }

    fn isolated(&self) -> Self {
        Self(self.0.isolated())
    }
}

/// A relay and producers, on a backlog.
struct Load {
    outbox: TestOutbox,
    sink: TestSink,
    relay: Running,
    producers: Producers,
}

/// Records of each key, before its producer begins.
const BACKLOG: usize = 150;

impl Load {
    async fn start(uri: &str) -> Self {
        let outbox = TestOutbox::at(uri).await;
        for key in Producers::keys(PRODUCERS) {
            // Sorts before all that a producer inserts.
            outbox.insert((0..BACKLOG).map(|n| record(&format!("{key}/+{n:03}"), &key))).await;
        }
        let sink = TestSink::default();
        let relay = start(&outbox.collections, SlowSink(sink.clone()), settings_with_short_lease());
        let producers = Producers::start(&outbox, PRODUCERS);
        let load = Self { outbox, sink, relay, producers };
        load.until_more().await;
        load
    }

    /// Waits until producers and relay have progressed.
    async fn until_more(&self) {
        let arrived = self.sink.arrived().len();
        self.producers.until_more(50).await;
        self.sink.until("more deliveries", |now| now.len() > arrived + 100).await;
    }

    /// Waits until the relay has scanned `member` several times, and delivers nothing more.
    async fn until_nothing_arrives(&self, set: &ReplicaSet, member: usize) {
        eventually("the relay to deliver nothing more", || async {
            let before = self.sink.arrived().len();
            until_scanned(set, member, 40).await;
            before == self.sink.arrived().len()
        })
        .await;
    }

    async fn end(self) {
        self.until_more().await;
        let acknowledged = self.producers.stop().await;
        assert_promise_kept(&self.outbox, &self.sink, &acknowledged).await;
        self.relay.stop().await;
    }
}

/// All records end without an operator, and the promise was kept.
async fn assert_promise_kept(outbox: &TestOutbox, sink: &TestSink, acknowledged: &[String]) {
    let [done, all] = [doc! { "status": "done" }, doc! {}];
    let settled = || async {
        let done = outbox.count(done.clone()).await;
        done >= acknowledged.len() as u64 && done == outbox.count(all.clone()).await
    };
    eventually("everything to be done", settled).await;
    let mut committed = read_back(&outbox.collections).await;

    judge(&committed, &arrivals(&sink.arrived())).assert_kept();

    // What the judge assumes: the set kept what it had acknowledged, and `seq`, by which the judge
    // orders, is the order of each key's producer.
    committed.sort_by(|one, other| (&one.key, one.seq).cmp(&(&other.key, other.seq)));
    let ids: Vec<&str> = committed.iter().map(|record| record.id.as_str()).collect();
    assert!(ids.is_sorted(), "seq is not the order of the commits: {ids:?}");
    for id in acknowledged {
        assert!(ids.binary_search(&id.as_str()).is_ok(), "the set lost {id}");
    }
}

#[fixture::test(long)]
async fn a_step_down_under_load_loses_and_inverts_nothing() {
    let _turn = one_at_a_time().await;
    let set = ReplicaSet::start().await;
    let load = Load::start(&set.uri()).await;

    for _ in 0..2 {
        set.step_down().await;
        load.until_more().await;
    }

    load.end().await;
}

#[fixture::test]
async fn a_rollback_under_load_keeps_the_promise() {
    let _turn = one_at_a_time().await;
    let mut set = ReplicaSet::start().await;
    let load = Load::start(&set.uri()).await;
    let (old, others) = (set.primary().await, set.secondaries().await);

    // From here on the primary writes for itself alone, and does not know.
    for secondary in &others {
        set.stop_replication(*secondary).await;
    }
    let keys = Producers::keys(PRODUCERS).chain(["quiet".to_owned()]);
    let doomed: Vec<String> = keys.flat_map(|key| [1, 2].map(|n| format!("{key}/x{n}"))).collect();
    insert_on_primary_alone(&load.outbox, &doomed).await;
    // Records that a majority has are still delivered for a while; after that there would be time
    // for the others.
    load.until_nothing_arrives(&set, old).await;
    assert_none_arrived(&load.sink, &doomed);
    let rollback_id = set.rollback_id(old).await;
    set.kill(old);
    for secondary in &others {
        set.restart_replication(*secondary).await;
    }
    set.primary_other_than(old).await;
    load.until_more().await;
    set.restart(old).await;
    set.secondaries().await;

    assert!(set.rollback_id(old).await > rollback_id, "there was no rollback");
    let survived = load.outbox.count(doc! { "_id": { "$in": &doomed } }).await;
    assert_eq!(survived, 0, "the writes were to be rolled back");
    let sink = load.sink.clone();
    load.end().await;
    assert_none_arrived(&sink, &doomed);
}

/// URI options that the relay must override. `available` means `local` here, and `journal` changes
/// nothing: no operation sets either, so on the wire they show that the URI was obeyed.
const MISLEADING_OPTIONS: &str =
    "readPreference=secondaryPreferred&readConcernLevel=available&w=1&journal=false";

#[fixture::test(long)]
async fn no_record_is_leased_before_a_majority_has_it() {
    let _turn = one_at_a_time().await;
    let set = ReplicaSet::start().await;
    let (primary, secondaries) = (set.primary().await, set.secondaries().await);
    let uri = format!("{}&{MISLEADING_OPTIONS}", set.uri());
    // The first client is Postrider's. The second obeys the URI, as a driver does: there each
    // operation must set its own concern.
    let outbox = TestOutbox::at(&uri).await;
    let obedient = TestOutbox::at(&set.uri()).await;
    let (client, misled) = obedient_client(&uri, set.host(primary)).await;
    let through_uri = Collections::new(client, &obedient.database, "");
    let sinks = [TestSink::default(), TestSink::default()];
    let relays = [
        start(&outbox.collections, sinks[0].clone(), settings()),
        start(&through_uri, sinks[1].clone(), settings()),
    ];
    let (before, during) = (["k/1", "l/1"], ["k/2", "k/3", "l/2"].map(str::to_owned));
    for (outbox, sink) in [&outbox, &obedient].into_iter().zip(&sinks) {
        outbox.insert(before.map(|id| record(id, &id[..1]))).await;
        sink.until("what a majority has", |arrived| arrived.len() == before.len()).await;
        outbox.until_count(doc! { "status": "done" }, 2).await;
    }

    for secondary in &secondaries {
        set.stop_replication(*secondary).await;
    }
    for outbox in [&outbox, &obedient] {
        insert_on_primary_alone(outbox, &during).await;
    }
    until_scanned(&set, primary, 80).await;

    for (outbox, sink) in [&outbox, &obedient].into_iter().zip(&sinks) {
        assert_none_arrived(sink, &during);
        let database = set.direct(primary).database(&outbox.database);
        let records = database.collection::<Document>("outbox_records");
        let untouched = doc! { "status": "pending", "leaseId": null, "attempt": null };
        let untouched = records.count_documents(untouched).read_concern(ReadConcern::local());
        assert_eq!(untouched.await.unwrap(), 3, "a record was taken before a majority had it");
    }
    for secondary in &secondaries {
        set.restart_replication(*secondary).await;
    }
    for (outbox, sink) in [&outbox, &obedient].into_iter().zip(&sinks) {
        assert_promise_kept(outbox, sink, &during).await;
    }
    let misled = misled.lock().unwrap().clone();
    assert!(misled.is_empty(), "the URI had a say in: {misled:#?}");
    for relay in relays {
        relay.stop().await;
    }
}

#[fixture::test(long)]
async fn a_frozen_majority_loses_nothing_and_the_relay_resumes() {
    let _turn = one_at_a_time().await;
    let mut set = ReplicaSet::start().await;
    // A shorter timeout than an election takes: the relay must meet failures, not only waits.
    let load = Load::start(&format!("{}&serverSelectionTimeoutMS=500", set.uri())).await;
    let (old, others) = (set.primary().await, set.secondaries().await);

    for secondary in &others {
        set.freeze(*secondary);
    }
    eventually("the primary to give up", || async { !set.is_primary(old).await }).await;
    // The relay, which asks as often, has met failures by then.
    let mut failures = 0;
    while failures < 3 {
        let found = load.outbox.records().find_one(doc! {}).await;
        failures += u32::from(found.is_err());
    }
    for secondary in &others {
        set.thaw(*secondary);
    }

    load.end().await;
}

#[fixture::test(long)]
async fn a_hanging_primary_is_replaced_and_does_no_harm_later() {
    let _turn = one_at_a_time().await;
    let mut set = ReplicaSet::start().await;
    // Otherwise the driver's monitor takes twenty seconds to notice; the test waits for it.
    let uri = format!("{}&heartbeatFrequencyMS=1000&connectTimeoutMS=2000", set.uri());
    let load = Load::start(&uri).await;
    let old = set.primary().await;

    set.freeze(old);
    set.primary_other_than(old).await;
    load.until_more().await;
    set.thaw(old);
    set.secondaries().await;

    load.end().await;
}

/// Inserts records, with the key before the `/`, that only the primary has, in its journal.
async fn insert_on_primary_alone(outbox: &TestOutbox, ids: &[String]) {
    let records = ids.iter().map(|id| record(id, id.split('/').next().unwrap()));
    let alone = WriteConcern::builder().w(Acknowledgment::from(1)).journal(true).build();
    outbox.records().insert_many(records).write_concern(alone).await.unwrap();
}

/// Waits until the relays have read this many more times from `member`; there are no other clients.
async fn until_scanned(set: &ReplicaSet, member: usize, times: i64) {
    let goal = set.commands(member, "find").await + times;
    let looked = || async { set.commands(member, "find").await >= goal };
    eventually("the relay to look at the primary", looked).await;
}

fn assert_none_arrived(sink: &TestSink, ids: &[String]) {
    let arrived = sink.ids();
    for id in ids {
        assert!(!arrived.contains(id), "{id} was delivered, and no majority had it");
    }
}

/// A client that obeys the URI, and the list of commands on which the URI or a server default had
/// an effect: sent to another member than `primary`, or without a concern of their own, or with one
/// of [`MISLEADING_OPTIONS`].
async fn obedient_client(uri: &str, primary: String) -> (Client, Arc<StdMutex<Vec<String>>>) {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    let misled = Arc::new(StdMutex::new(Vec::new()));
    let list = misled.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let CommandEvent::Started(started) = event else { return };
        let command = &started.command;
        let decided = match started.command_name.as_str() {
            "find" | "aggregate" | "count" | "distinct" => command
                .get_document("readConcern")
                .is_ok_and(|own| own.get_str("level").is_ok_and(|level| level != "available")),
            "insert" | "update" | "delete" | "findAndModify" | "commitTransaction" => command
                .get_document("writeConcern")
                .is_ok_and(|own| own.contains_key("w") && !own.contains_key("j")),
            // It may go to any member.
            "endSessions" => return,
            _ => true,
        };
        if !decided || started.connection.address.to_string() != primary {
            list.lock().unwrap().push(command.to_string());
        }
    }));
    (Client::with_options(options).unwrap(), misled)
}
