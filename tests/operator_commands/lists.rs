//! `outbox list`: its sorts, its pages, and that no figure or list reads the whole collection.

use std::collections::BTreeSet;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use postrider::outbox::inspect::Inspector;
use postrider::outbox::list::{Filter, Sort, StatusFilter};
use postrider::outbox::stats::{Accuracy, GroupBy, MAX_EXACT_COUNT};
use postrider::store::page::PageSize;
use serde_json::Value;

use crate::support::outbox::{TestOutbox, record};
use crate::{answer, dead, in_seconds, outbox_command, with_status};

fn with(mut record: Document, fields: Document) -> Document {
    record.extend(fields);
    record
}

async fn ids(outbox: &TestOutbox, arguments: &[&str]) -> Vec<String> {
    let listed = answer(outbox, &[&["list"], arguments].concat()).await;
    let listed = listed.as_array().unwrap().iter();
    listed.map(|record| record["id"].as_str().unwrap().to_owned()).collect()
}

fn at(seconds: u32) -> Bson {
    Bson::Timestamp(Timestamp { time: seconds, increment: 1 })
}

#[fixture::test]
async fn the_oldest_record_comes_first_and_its_age_and_sink_are_shown() {
    let outbox = TestOutbox::new().await;
    let now = u32::try_from(DateTime::now().timestamp_millis() / 1_000).unwrap();
    outbox
        .insert([
            with(record("c", "k1"), doc! { "seq": at(now - 7_300) }),
            with(record("a", "k2"), doc! { "seq": at(now - 60), "attempt": 3 }),
            with(record("b", "k3"), doc! { "seq": at(now - 700), "attempt": 9 }),
            with(dead("x", "k", "refused: no"), doc! { "deadAt": in_seconds(-10) }),
            with(dead("y", "k", "unroutable: none"), doc! { "deadAt": in_seconds(-9_000) }),
            with(with_status("s", "k", "scheduled"), doc! { "visibleAt": in_seconds(900) }),
            with(with_status("r", "k", "scheduled"), doc! { "visibleAt": in_seconds(90_000) }),
        ])
        .await;

    assert_eq!(ids(&outbox, &["--status", "pending"]).await, ["c", "b", "a"]);
    assert_eq!(ids(&outbox, &["--status", "pending", "--limit", "1"]).await, ["c"]);
    assert_eq!(ids(&outbox, &["--status", "pending", "--sort", "id"]).await, ["a", "b", "c"]);
    assert_eq!(ids(&outbox, &["--status", "pending", "--sort", "attempt"]).await, ["b", "a", "c"]);
    assert_eq!(ids(&outbox, &["--status", "pending", "--older-than", "10m"]).await, ["c", "b"]);
    assert_eq!(ids(&outbox, &["--status", "dead"]).await, ["y", "x"]);
    assert_eq!(ids(&outbox, &["--status", "dead", "--older-than", "1h"]).await, ["y"]);
    assert_eq!(ids(&outbox, &["--reason", "refused"]).await, ["x"]);
    assert_eq!(ids(&outbox, &["--status", "scheduled"]).await, ["s", "r"]);
    let arguments = ["list", "--status", "pending", "--set", "sinks.out.kind=stdout"];
    let table = outbox_command(&outbox, &arguments).await.with_code(0);
    let first: Vec<&str> = table.stdout.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(first[..6], ["c", "pending", "2h1m", "k1", "T", "out"], "{table}");
}

#[fixture::test]
async fn unknown_sorts_and_pages_are_refused() {
    let outbox = TestOutbox::new().await;

    for (wrong, named) in [
        (&["--status", "nope"][..], "invalid"),
        (&["--status", "failed"], "invalid"),
        (&["--sort", "age"], "deadAt"),
        (&["--sort", "seq"], "pending"),
        (&["--sort", "seq", "--status", "dead"], "pending"),
        (&["--sort", "deadAt", "--status", "pending"], "dead"),
        (&["--sort", "attempt"], "pending or dead"),
        (&["--older-than", "1h"], "status"),
        (&["--older-than", "soon", "--status", "dead"], "older-than"),
        (&["--reason", "refused", "--status", "pending"], "dead"),
        (&["--after", "at:nowhere", "--status", "dead"], "after"),
        (&["--after", "gone", "--status", "dead"], "after"),
    ] {
        let ended = outbox_command(&outbox, &[&["list"], wrong].concat()).await.with_code(2);

        assert!(ended.stderr.contains(named), "{wrong:?}: {ended}");
    }
}

/// All ids of a list, page by page as the library returns them.
async fn all_pages(outbox: &TestOutbox, filter: &Filter, limit: u32) -> Vec<String> {
    let inspector = Inspector::new(outbox.collections.clone());
    let size = PageSize::of_answer(limit);
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = inspector.list(filter, after.as_deref(), size).await.unwrap().unwrap();
        assert!(page.records.len() <= limit as usize && page.note.is_none(), "{page:?}");
        found.extend(page.records.iter().map(|record| record.id.text()));
        assert!(found.len() < 200, "{found:?}");
        match page.next {
            Some(next) => after = Some(next),
            None => return found,
        }
    }
}

/// Equal values, absent ones, and values of invalid kinds.
#[fixture::test]
async fn pages_of_every_sort_hold_each_record_once() {
    let outbox = TestOutbox::new().await;
    let odd = |n: i32| match n % 6 {
        0 => Bson::DateTime(DateTime::from_millis(i64::from(n) * 1_000)),
        1 | 2 => Bson::DateTime(DateTime::from_millis(7)),
        3 => Bson::Null,
        4 => Bson::Int32(n % 4),
        _ => Bson::String("x".into()),
    };
    for n in 0..60_i32 {
        // Ids in an order of their own.
        let id = format!("{:02}", (n * 37) % 60);
        let mut record = match n % 3 {
            0 => with(dead(&id, "k", "refused: no"), doc! { "deadAt": odd(n / 3) }),
            1 => with(with_status(&id, "k", "scheduled"), doc! { "visibleAt": odd(n / 3) }),
            _ => with(record(&id, "k"), doc! { "seq": odd(n / 3), "attempt": odd(n / 3 + 4) }),
        };
        if n % 18 == 0 {
            record.remove("deadAt");
        }
        outbox.insert([record]).await;
    }

    for (status, sort) in [
        (StatusFilter::Dead, Sort::DeadAt),
        (StatusFilter::Dead, Sort::Attempt),
        (StatusFilter::Dead, Sort::Id),
        (StatusFilter::Scheduled, Sort::VisibleAt),
        (StatusFilter::Pending, Sort::Seq),
        (StatusFilter::Pending, Sort::Attempt),
        (StatusFilter::Pending, Sort::Id),
    ] {
        for limit in [1, 3, 7, 100] {
            let filter = Filter { status: Some(status), sort: Some(sort), ..Filter::default() };

            let found = all_pages(&outbox, &filter, limit).await;

            let different: BTreeSet<&String> = found.iter().collect();
            let what = format!("{status:?} by {sort:?}, {limit} a page: {found:?}");
            assert_eq!((found.len(), different.len()), (20, 20), "{what}");
        }
    }
}

/// Makes records on the server; `$n` is the number of each.
async fn fill(outbox: &TestOutbox, name: &str, count: u64, fields: Document) {
    let mut made = doc! {
        "_id": { "$concat": [name, " ", { "$toString": "$n" }] },
        "type": "T", "payload": 1, "key": { "$toString": { "$mod": ["$n", 300] } },
        "seq": Timestamp { time: 1_700_000_000, increment: 1 },
        "partition": { "$mod": ["$n", 256] },
    };
    made.extend(fields);
    let pipeline = [
        doc! { "$documents": [{ "n": { "$range": [0, i64::try_from(count).unwrap()] } }] },
        doc! { "$unwind": "$n" },
        doc! { "$replaceWith": made },
        doc! { "$merge": "outbox_records" },
    ];
    outbox.client.database(&outbox.database).aggregate(pipeline).await.unwrap();
}

/// Plans of every read of records since the profiler was switched on, and keys examined by it.
async fn plans(outbox: &TestOutbox) -> Vec<(String, i64, String)> {
    let database = outbox.client.database(&outbox.database);
    let of_records = doc! { "ns": format!("{}.outbox_records", outbox.database) };
    let notes = database.collection::<Document>("system.profile").find(of_records).await.unwrap();
    let notes: Vec<Document> = notes.try_collect().await.unwrap();
    let read = |note: Document| {
        let plan = note.get_str("planSummary").unwrap_or_default().to_owned();
        let keys = match note.get("keysExamined") {
            Some(Bson::Int32(keys)) => (*keys).into(),
            Some(Bson::Int64(keys)) => *keys,
            _ => 0,
        };
        let command = note.get_document("command").unwrap().to_string();
        (plan, keys, command.chars().take(400).collect())
    };
    notes.into_iter().map(read).collect()
}

/// Switches the server's profiler on or off.
async fn profile(outbox: &TestOutbox, level: i32) {
    let database = outbox.client.database(&outbox.database);
    database.run_command(doc! { "profile": level }).await.unwrap();
}

#[fixture::test]
async fn figures_are_exact_up_to_a_limit_without_a_collection_scan() {
    let outbox = TestOutbox::new().await;
    let inspector = Inspector::new(outbox.collections.clone());
    fill(&outbox, "done", MAX_EXACT_COUNT - 300, doc! { "status": "done", "doneAt": "$$NOW" })
        .await;
    fill(&outbox, "pending", 200, doc! { "status": "pending" }).await;
    fill(&outbox, "dead", 90, doc! { "status": "dead", "deadAt": "$$NOW" }).await;
    fill(&outbox, "invalid", 10, doc! { "status": "failed" }).await;
    let database = outbox.client.database(&outbox.database);
    database.create_collection("system.profile").capped(true).size(64 << 20).await.unwrap();

    profile(&outbox, 2).await;
    let exact = inspector.stats().await.unwrap();
    profile(&outbox, 0).await;
    fill(&outbox, "more", 1_000, doc! { "status": "done", "doneAt": "$$NOW" }).await;
    profile(&outbox, 2).await;
    let marked = inspector.stats().await.unwrap();
    let backlog = inspector.backlog().await.unwrap();
    profile(&outbox, 0).await;
    fill(&outbox, "late", MAX_EXACT_COUNT, doc! { "status": "pending" }).await;
    profile(&outbox, 2).await;
    let many = inspector.stats().await.unwrap();
    let groups = inspector.groups(GroupBy::Type, 5).await.unwrap();
    for status in
        [None, Some(StatusFilter::Pending), Some(StatusFilter::Dead), Some(StatusFilter::Invalid)]
    {
        for key in [None, Some("7".to_owned())] {
            let filter = Filter { status, key, ..Filter::default() };
            inspector.list(&filter, None, PageSize::of_answer(20)).await.unwrap().unwrap();
        }
    }

    profile(&outbox, 0).await;
    assert_eq!(
        (exact.done, exact.pending, exact.dead, exact.invalid),
        (MAX_EXACT_COUNT - 300, 200, 90, 10)
    );
    assert!(exact.accuracy.is_empty() && exact.oldest_pending_seconds.is_some(), "{exact:?}");
    assert_eq!((marked.pending, marked.dead, backlog.pending, backlog.dead), (200, 90, 200, 90));
    assert_eq!(marked.accuracy["done"], Accuracy::Estimate, "{marked:?}");
    // A limited count finds some of the invalid ones, which do not count as done.
    assert_eq!(marked.done + marked.invalid, MAX_EXACT_COUNT + 710, "{marked:?}");
    assert_eq!(
        (many.pending, many.accuracy["pending"]),
        (MAX_EXACT_COUNT, Accuracy::AtLeast),
        "{many:?}"
    );
    assert_eq!(many.accuracy["done"], Accuracy::AtMost, "{many:?}");
    assert_eq!(groups.partial, ["pending"]);
    let plans = plans(&outbox).await;
    assert!(plans.iter().any(|(plan, ..)| plan.contains("lane") || plan.contains("partition")));
    for (plan, keys, command) in plans {
        assert!(!plan.contains("COLLSCAN"), "{plan}: {command}");
        let bound = i64::try_from(MAX_EXACT_COUNT).unwrap() + 2_000;
        let is_list = command.contains("\"value\"");
        assert!(keys <= bound || is_list, "{keys} keys by {plan}: {command}");
    }
}

#[fixture::test]
async fn invalid_records_are_found_among_others() {
    let outbox = TestOutbox::new().await;
    fill(&outbox, "done", 30_000, doc! { "status": "done" }).await;
    let mut none = record("none", "k");
    none.remove("status");
    outbox
        .insert([
            with_status("zzz", "k", "Pending"),
            with_status("aaa", "k", ""),
            with(record("list", "k"), doc! { "status": ["pending"] }),
            none,
        ])
        .await;

    let found = ids(&outbox, &["--status", "invalid"]).await;
    let page = ids(&outbox, &["--status", "invalid", "--limit", "1", "--after", "list"]).await;
    let listed: Value = answer(&outbox, &["list", "--status", "invalid", "--limit", "1"]).await;

    assert_eq!(found, ["aaa", "list", "none", "zzz"]);
    assert_eq!(page, ["none"]);
    let marked = listed[0]["invalid"][0].as_str().unwrap();
    assert!(marked.starts_with("status: must be pending"), "{marked}");
    let removed = answer(&outbox, &["discard", "aaa", "list", "none", "zzz", "--yes"]).await;
    assert_eq!(removed["discarded"], 4);
}
