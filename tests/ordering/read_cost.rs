//! Hazard 15: what a scan examines does not grow with the size of the outbox.

use std::collections::BTreeMap;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use postrider::ids::SinkName;
use postrider::partition::owned::OwnedPartitions;
use postrider::routing::{Route, Router, SinkRules, Template};
use postrider::wakeup::Wakeup;
use postrider_settings::Glob;
use tokio::sync::watch;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{parts, run, settings};
use crate::support::sink::TestSink;

const RECORDS_OF_EACH_KIND: i32 = 10_000;

/// Everything of type `Down` to a sink that is down, the rest to one that is up.
fn router() -> Router {
    let to = |sink: &str, kind: &str| Route {
        kind: Some(Glob::new(kind)),
        sink: Some(SinkName::from(sink)),
        destination: None,
        key: None,
        headers: BTreeMap::new(),
    };
    let rules = || SinkRules {
        destination: Template::parse("").unwrap(),
        key: Some(Template::parse("{type}").unwrap()),
        allowed_destinations: vec![Glob::new("*")],
        source: None,
    };
    let sinks = ["up", "down"].map(|sink| (SinkName::from(sink), rules()));
    Router::new(vec![to("down", "Down"), to("up", "*")], BTreeMap::from(sinks), None)
}

/// Makes [`RECORDS_OF_EACH_KIND`] records on the server, with these fields; `$n` is the number of each.
async fn fill(outbox: &TestOutbox, name: &str, fields: Document) {
    let mut made = doc! {
        "_id": { "$concat": [name, " ", { "$toString": "$n" }] },
        "type": "T",
        "payload": 1,
        "seq": Timestamp { time: 1, increment: 1 },
        "partition": { "$literal": 7 },
        "key": name,
    };
    made.extend(fields);
    let pipeline = [
        doc! { "$documents": [{ "n": { "$range": [0, RECORDS_OF_EACH_KIND] } }] },
        doc! { "$unwind": "$n" },
        doc! { "$replaceWith": made },
        doc! { "$merge": "outbox_records" },
    ];
    let database = outbox.client.database(&outbox.database);
    database.aggregate(pipeline).await.unwrap();
}

/// Makes the server profile every command on this database.
pub(crate) async fn profile(outbox: &TestOutbox) {
    let database = outbox.client.database(&outbox.database);
    database.create_collection("system.profile").capped(true).size(64 << 20).await.unwrap();
    database.run_command(doc! { "profile": 2 }).await.unwrap();
}

/// The reads of records so far: keys examined, and the filter.
pub(crate) async fn reads(outbox: &TestOutbox) -> Vec<(i64, String)> {
    let database = outbox.client.database(&outbox.database);
    database.run_command(doc! { "profile": 0 }).await.unwrap();
    let of_records = doc! {
        "op": { "$in": ["query", "getmore"] },
        "ns": format!("{}.outbox_records", outbox.database),
    };
    let notes = database.collection::<Document>("system.profile").find(of_records).await.unwrap();
    let notes: Vec<Document> = notes.try_collect().await.unwrap();
    let read = |note: Document| {
        let keys = match note.get("keysExamined") {
            Some(Bson::Int32(keys)) => (*keys).into(),
            Some(Bson::Int64(keys)) => *keys,
            other => panic!("{other:?} in {note}"),
        };
        let mut filter = note.get_document("command").unwrap().to_string();
        filter.truncate(300);
        (keys, filter)
    };
    notes.into_iter().map(read).collect()
}

/// A relay among `RECORDS_OF_EACH_KIND` records of each kind that must not slow it.
async fn keys_examined(down_key: Document) -> Vec<(i64, String)> {
    let outbox = TestOutbox::restricted().await;
    let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    fill(&outbox, "done", doc! { "status": "done" }).await;
    fill(&outbox, "scheduled", doc! { "status": "scheduled", "visibleAt": later }).await;
    fill(&outbox, "blocked", doc! { "status": "pending" }).await;
    let of_down = doc! {
        "status": "pending",
        "type": "Down",
        "key": { "$concat": ["down ", { "$toString": down_key.clone() }] },
        "partition": { "$mod": [down_key, 256] },
    };
    fill(&outbox, "down", of_down).await;
    let mut dead = record("dead", "blocked");
    dead.extend(doc! { "status": "dead", "blocks": true });
    outbox.insert([dead]).await;
    outbox.insert((0..2_000).map(|n| record(&format!("live {n}"), &format!("k{}", n % 100)))).await;
    let (up, down) = (TestSink::default(), TestSink::default());
    down.set_down(true);
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let mut parts = parts(&outbox.collections, up.clone(), settings(), share, Wakeup::default());
    parts.router = router();
    parts.sinks =
        BTreeMap::from([("up".to_owned(), up.clone()), ("down".to_owned(), down.clone())]);

    profile(&outbox).await;
    let relay = run(parts, owner);
    eventually("what can go has gone", || async { up.ids().len() == 2_000 }).await;
    crate::support::relay::rounds(&outbox, &up).await;
    let reads = reads(&outbox).await;
    relay.stop().await;

    assert!(down.ids().is_empty());
    assert_eq!(outbox.count(doc! { "status": "pending" }).await, 2 * RECORDS_OF_EACH_KIND as u64);
    reads
}

fn assert_few(reads: &[(i64, String)]) {
    let limit = i64::try_from(settings().batch_size).unwrap();
    assert!(reads.iter().any(|(keys, _)| *keys >= 100), "pages were read: {reads:?}");
    for (keys, filter) in reads {
        assert!(*keys <= 2 * limit, "{keys} keys examined by {filter}");
    }
}

#[fixture::test]
async fn keys_examined_do_not_grow_with_history_or_backlogs() {
    let reads = keys_examined(doc! { "$mod": ["$n", 300] }).await;

    assert_few(&reads);
}

#[fixture::test(long)]
async fn keys_examined_do_not_grow_with_the_keys_of_a_sink_that_is_down() {
    let reads = keys_examined(doc! { "$add": ["$n", 0] }).await;

    assert_few(&reads);
}

/// Each blocked key costs one record and three keys of the index, in the two ranges where it may
/// be, whatever follows its head.
#[fixture::test]
async fn recheck_examines_three_index_keys_for_each_blocked_key() {
    let outbox = TestOutbox::restricted().await;
    let waiting = |n: u32| {
        let mut record = record(&format!("w {n}"), &format!("k{}", n % 600));
        record.extend(doc! { "type": "Down", "seq": Timestamp { time: n + 1, increment: 1 } });
        record
    };
    outbox.insert((0..6_000).map(waiting)).await;
    let (up, down) = (TestSink::default(), TestSink::default());
    down.set_down(true);
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let mut parts = parts(&outbox.collections, up.clone(), settings(), share, Wakeup::default());
    parts.router = router();
    parts.sinks = BTreeMap::from([("up".to_owned(), up.clone()), ("down".to_owned(), down)]);
    let relay = run(parts, owner);
    crate::support::relay::rounds(&outbox, &up).await;
    crate::support::relay::rounds(&outbox, &up).await;

    profile(&outbox).await;
    let database = outbox.client.database(&outbox.database);
    let notes = database.collection::<Document>("system.profile");
    eventually("a round of rechecks", || async {
        let of_it = doc! { "command.filter.$or.seq": { "$exists": true } };
        notes.count_documents(of_it).await.unwrap() >= 4
    })
    .await;
    let reads = reads(&outbox).await;
    relay.stop().await;

    let is_recheck = |filter: &str| filter.contains("$or") && filter.contains("$lte");
    let rechecks: Vec<i64> =
        reads.iter().filter(|(_, filter)| is_recheck(filter)).map(|(keys, _)| *keys).collect();
    // Of 600 keys with ten records each, 500 and 100 with one command.
    assert!(rechecks.iter().all(|keys| (100..=1_500).contains(keys)), "{rechecks:?}");
}
