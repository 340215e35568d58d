//! Records without a valid partition. A record that names none belongs to its key's partition, and
//! goes unchanged, in the order of its key. One that names an invalid partition holds back what
//! follows until it is corrected, and one that cannot be corrected delays no other. No read grows
//! with the number of either.

use std::time::Duration;

use bson::{Bson, Decimal128, Document, Timestamp, doc};
use postrider::partition::of_key;
use postrider::relay::settings::Settings;

use crate::read_cost::{profile, reads};
use crate::support::outbox::{TestOutbox, eventually, insert_raw, record, unstamped};
use crate::support::relay::{arrived, rounds, until_arrived};
use crate::support::relay::{settings, start};
use crate::support::sink::TestSink;
use crate::support::sizes::{MAX_DOCUMENT_BYTES, of_size};

fn in_partition(id: &str, key: &str, partition: impl Into<Bson>) -> Document {
    let mut record = record(id, key);
    record.insert("partition", partition);
    record
}

/// MongoDB corrects B before A, since its `_id` is lower, and waits for a transaction that has
/// locked A.
async fn is_held_back(partition: Bson) {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let odd = |id: &str| in_partition(id, "k", partition.clone());
    insert_raw(&outbox.admin, odd("2 A")).await;
    outbox.insert([odd("1 B")]).await;
    let mut session = outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "xTouched": true } };
    let records = outbox.records();
    records.update_one(doc! { "_id": "2 A" }, touch).session(&mut session).await.unwrap();

    let relay = start(&outbox.collections, sink.clone(), settings());
    let stamped = doc! { "_id": "1 B", "partition": i32::from(of_key("k")) };
    let fractional = matches!(partition, Bson::Double(_));
    if !fractional {
        outbox.until_count(stamped, 1).await;
    }
    rounds(&outbox, &sink).await;
    let early = arrived(&sink);
    session.abort_transaction().await.unwrap();

    outbox.until_count(doc! { "status": "done", "key": "k" }, 2).await;
    assert_eq!(early, Vec::<String>::new(), "{partition:?}: behind one that is not corrected yet");
    assert_eq!(arrived(&sink), ["2 A", "1 B"], "{partition:?}");
    relay.stop().await;
}

#[fixture::test]
async fn an_invalid_partition_holds_back_followers_until_corrected() {
    let invalid = [Bson::Int32(700), (-5).into(), "189".into(), 3.5.into(), true.into()];

    futures_util::future::join_all(invalid.map(is_held_back)).await;
}

/// Written by several producers, some of which name the partition.
#[fixture::test]
async fn stamped_and_unstamped_records_go_in_the_order_of_their_key() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let relay = start(&outbox.collections, sink.clone(), settings());

    let mut expected = Vec::new();
    for turn in 0..100 {
        let ids = ["with", "without", "null"].map(|kind| format!("{turn:03} {kind}"));
        let key = format!("k{}", turn % 7);
        let null = in_partition(&ids[2], &key, Bson::Null);
        outbox.insert([record(&ids[0], &key), unstamped(&ids[1], &key), null]).await;
        expected.extend(ids.map(|id| (key.clone(), id)));
    }
    outbox.until_count(doc! { "status": "done" }, 300).await;
    relay.stop().await;

    for key in (0..7).map(|n| format!("k{n}")) {
        let of_key = expected.iter().filter(|(of, _)| *of == key).map(|(_, id)| id.as_str());
        let of_key: Vec<&str> = of_key.collect();
        let delivered = sink.ids();
        let found: Vec<&str> =
            delivered.iter().map(String::as_str).filter(|id| of_key.contains(id)).collect();
        assert_eq!(found, of_key, "{key}");
    }
    assert_eq!(outbox.count(doc! { "partition": { "$type": "null" } }).await, 100, "not changed");
    assert_eq!(outbox.count(doc! { "partition": { "$exists": false } }).await, 100, "not changed");
}

/// As many of one key with a partition as without, more than a scan reads of either.
#[fixture::test]
async fn a_mixed_backlog_of_one_key_goes_in_order_with_bounded_reads() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    // In runs of several lengths, so that sometimes one range is cut and sometimes the other.
    let (mut batch, mut expected) = (Vec::new(), Vec::new());
    for (turn, length) in (0..60).map(|turn| (turn, [7, 211, 40][turn % 3])) {
        for n in 0..length {
            let id = format!("{turn:02} {n:03}");
            batch.push(if turn % 2 == 0 { record(&id, "k") } else { unstamped(&id, "k") });
            expected.push(id);
        }
    }
    for some in batch.chunks(1_000) {
        outbox.insert(some.to_vec()).await;
    }
    profile(&outbox).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, expected.len() as u64).await;
    let reads = reads(&outbox).await;
    relay.stop().await;
    assert_eq!(sink.ids(), expected);
    // A lane that asks for more reads again what it has in flight: a little more than two batches.
    let limit = i64::try_from(settings().batch_size).unwrap();
    for (examined, filter) in reads {
        assert!(examined <= 4 * limit, "{examined} keys examined by {filter}");
    }
}

/// In the same key others have a valid one.
#[fixture::test]
async fn a_stamped_record_waits_for_an_earlier_invalid_partition() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut expected = Vec::new();
    for turn in 0..30 {
        let ids = ["a", "b", "c", "d"].map(|name| format!("{} {turn:02}", name));
        outbox
            .insert([
                in_partition(&ids[0], "k", 256),
                record(&ids[1], "k"),
                in_partition(&ids[2], "k", -1),
                unstamped(&ids[3], "k"),
            ])
            .await;
        expected.extend(ids);
    }

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 120).await;
    assert_eq!(sink.ids(), expected);
    relay.stop().await;
}

/// Twenty keys, always the same wrong value, random ids: what a faulty producer writes.
#[fixture::test]
async fn a_producer_with_a_constant_wrong_partition_is_ordered() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let relay = start(&outbox.collections, sink.clone(), settings());

    let mut written: Vec<(String, String)> = Vec::new();
    for turn in 0..150 {
        let batch: Vec<(String, String)> = (0..10)
            .map(|n| (uuid::Uuid::new_v4().to_string(), format!("k{}", (turn + n) % 20)))
            .collect();
        let partition = [Bson::Int32(-5), 3.5.into()][turn % 20 / 10].clone();
        let record = |(id, key): &(String, String)| in_partition(id, key, partition.clone());
        outbox.insert(batch.iter().map(record)).await;
        written.extend(batch);
    }
    outbox.until_count(doc! { "status": "done" }, 1_500).await;

    let delivered = sink.arrived();
    // Where a key changes its wrong value its producers disagree: no order is promised.
    for key in (0..20).map(|n| format!("k{n}")) {
        let of_key = |value: usize| -> Vec<&str> {
            let places = written.iter().enumerate().filter(|(_, (_, of))| *of == key);
            let places = places.filter(|(at, _)| at / 10 % 20 / 10 == value);
            places.map(|(_, (id, _))| id.as_str()).collect()
        };
        for expected in [of_key(0), of_key(1)] {
            let ids = delivered.iter().map(|message| message.id.as_str());
            let found: Vec<&str> = ids.filter(|id| expected.contains(id)).collect();
            assert_eq!(found, expected, "{key}");
        }
    }
    relay.stop().await;
}

#[fixture::test]
async fn a_decimal_without_a_fraction_is_a_valid_partition() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let decimal = |text: &str| Bson::Decimal128(text.parse::<Decimal128>().unwrap());
    outbox
        .insert([
            in_partition("1", "order-123", decimal("189.0")),
            in_partition("2", "order-123", decimal("1.89E+2")),
            record("3", "order-123"),
            in_partition("half", "user-456", decimal("22.5")),
        ])
        .await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 4).await;
    let of_key: Vec<String> = sink.ids().into_iter().filter(|id| id != "half").collect();
    assert_eq!(of_key, ["1", "2", "3"]);
    assert_eq!(outbox.record("1").await.get("partition"), Some(&decimal("189.0")), "as it was");
    assert_eq!(outbox.record("half").await.get_i32("partition").unwrap(), 22);
    relay.stop().await;
}

#[fixture::test]
async fn a_record_too_large_to_correct_is_dead_and_delays_no_other() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    // A number takes more bytes than a boolean.
    let (large, _) = of_size("a large", MAX_DOCUMENT_BYTES + 1);
    let mut large = Document::try_from(large.as_ref()).unwrap();
    large.insert("partition", true);
    assert_eq!(
        bson::RawDocumentBuf::try_from(&large).unwrap().as_bytes().len(),
        MAX_DOCUMENT_BYTES - 2
    );
    outbox.insert([large]).await;
    outbox.insert([unstamped("b behind it", "k"), unstamped("c other", "other")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 2).await;
    outbox.until_count(doc! { "_id": "a large", "status": "dead" }, 1).await;
    let only = doc! { "deadReason": 1 };
    let records = outbox.records();
    let dead = records.find_one(doc! { "_id": "a large" }).projection(only).await.unwrap().unwrap();
    // As much of the reason as there was room for.
    assert!(dead.get_str("deadReason").map_or(true, |why| why.starts_with("too large:")), "{dead}");
    relay.stop().await;
}

/// An operator's validator forbids the correction of more records than one scan reads.
#[fixture::test]
async fn uncorrectable_records_hold_back_only_their_keys() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    for batch in 0..3 {
        let sealed = (0..400).map(|n| {
            let key = format!("a{}", batch * 400 + n);
            let mut record = in_partition(&format!("sealed {key}"), &key, -5);
            record.insert("sealed", true);
            record
        });
        outbox.insert(sealed).await;
    }
    outbox.insert([record("behind", "a7"), unstamped("other", "z"), record("stamped", "y")]).await;
    // Of the kind that no scan reads, which sorts after all of those.
    outbox.insert([in_partition("fraction", "x", 3.5)]).await;
    let validator = doc! { "$or": [{ "sealed": null }, { "partition": -5 }] };
    let database = outbox.client.database(&outbox.database);
    let change = doc! { "collMod": "outbox_records", "validator": validator };
    database.run_command(change).await.unwrap();

    let relay = start(&outbox.collections, sink.clone(), settings());
    until_arrived(&sink, "other").await;
    until_arrived(&sink, "stamped").await;
    until_arrived(&sink, "fraction").await;
    rounds(&outbox, &sink).await;
    let mut early = arrived(&sink);
    early.sort();

    assert_eq!(early, ["fraction", "other", "stamped"]);
    let permit = doc! { "collMod": "outbox_records", "validator": {} };
    database.run_command(permit).await.unwrap();
    outbox.until_count(doc! { "status": "pending" }, 0).await;
    let ids = sink.ids();
    let place = |id: &str| ids.iter().position(|other| other == id).unwrap();
    assert!(place("sealed a7") < place("behind"));
    relay.stop().await;
}

/// Records without a partition in these keys, `each` of them, made on the server. Such keys are
/// malformed, and die when they are due; until then they must delay no other record, however many
/// there are. Text sorts between them.
#[fixture::test]
async fn waiting_records_with_a_non_text_key_delay_no_others() {
    const MANY: i32 = 70;
    let outbox = TestOutbox::restricted().await;
    let later = bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + 3_600_000);
    let odd = |n: i32, key: Bson, is_stamped: bool| {
        let mut odd = record(&format!("{key} {is_stamped}"), "k");
        odd.extend(doc! { "key": key, "visibleAt": later, "partition": n % 3 });
        if !is_stamped {
            odd.remove("partition");
        }
        odd
    };
    let both = |n: i32| [Bson::Int32(n), doc! { "of": n }.into()];
    let all = (0..MANY).flat_map(|n| both(n).map(|key| (n, key)));
    outbox
        .insert(all.flat_map(|(n, key)| [true, false].map(|stamped| odd(n, key.clone(), stamped))))
        .await;
    let text = (0..30).flat_map(|n| {
        let (key, other) = (format!("k{n}"), format!("o{n}"));
        [record(&key, &key), unstamped(&other, &other)]
    });
    outbox.insert(text).await;
    let settings = Settings { batch_size: 20, ..settings() };

    let sink = TestSink::default();
    let relay = start(&outbox.collections, sink.clone(), settings);

    outbox.until_count(doc! { "status": "done" }, 60).await;
    assert_eq!(outbox.count(doc! { "status": "pending" }).await, 4 * MANY as u64);
    relay.stop().await;
}

async fn backlog(outbox: &TestOutbox, keys: i32, each: i32) {
    let pipeline = [
        doc! { "$documents": [{ "n": { "$range": [0, keys * each] } }] },
        doc! { "$unwind": "$n" },
        doc! { "$replaceWith": {
            "_id": "$n",
            "type": "T",
            "payload": 1,
            "status": "pending",
            "key": { "$concat": ["k", { "$toString": { "$mod": ["$n", keys] } }] },
            "seq": Timestamp { time: 1, increment: 1 },
        } },
        doc! { "$merge": "outbox_records" },
    ];
    let database = outbox.client.database(&outbox.database);
    database.aggregate(pipeline).await.unwrap();
}

async fn no_read_grows(keys: i32, each: i32) {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    backlog(&outbox, keys, each).await;
    profile(&outbox).await;

    let relay = start(&outbox.collections, sink.clone(), settings());
    let all = u64::try_from(keys * each).unwrap();
    let waiting = eventually("everything is delivered", || async {
        outbox.count(doc! { "status": "done" }).await == all
    });
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap();
    let reads = reads(&outbox).await;
    relay.stop().await;

    // A lane that asks for more reads again what it has in flight: a little more than two batches.
    let limit = i64::try_from(settings().batch_size).unwrap();
    for (examined, filter) in reads {
        assert!(examined <= 4 * limit, "{examined} keys examined by {filter}");
    }
}

#[fixture::test]
async fn no_read_grows_with_the_unstamped_backlog_of_a_key() {
    no_read_grows(1, 8_000).await;
}

#[fixture::test(long)]
async fn no_read_grows_with_the_unstamped_backlogs_of_some_keys() {
    no_read_grows(10, 1_500).await;
}
