//! A feed of many aggregate names: a page reads those that have events in it.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, doc};
use futures_util::StreamExt;
use postrider::events::feed::{Feed, FeedEvent, FeedFilter, MAX_PAGE_BYTES};

use crate::pages::bytes;
use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::eventually;
use crate::util::{TestFeed, all, another, lines, sequence, stream};

/// More than a page reads without knowing where the events are.
const NAMES: usize = 40;

/// Events by their append and index, with their numbers and sizes.
type Appended = BTreeMap<(String, String, i64, i64), (i64, usize)>;

/// The events of an append: none, one or several, a few of them large.
fn events(id: &str) -> Vec<Document> {
    let event = |index| {
        let small = [10, 400, 900, 2_000, 9_000][rand::random_range(0..5)];
        let size = if rand::random_range(0..50) == 0 { 150_000 } else { small };
        let body = doc! { "n": rand::random_range(0..1_000_i64), "text": "x".repeat(size) };
        doc! { "id": format!("{id}-{index}"), "name": format!("E{index}"), "body": body }
    };
    (0..[0, 1, 1, 1, 2, 4][rand::random_range(0..6)]).map(event).collect()
}

fn appended(of: &FeedEvent) -> ((String, String, i64, i64), (i64, usize)) {
    let FeedEvent { aggregate_name, aggregate_id, version, index, body, .. } = of;
    let place = (aggregate_name.clone(), aggregate_id.clone(), *version, *index);
    (place, (body.get_i64("n").unwrap(), body.get_str("text").unwrap().len()))
}

/// Reads up to this position, by pages of any size or by a stream.
async fn read_to(feed: Feed, end: i64, streams: bool) -> Vec<FeedEvent> {
    let (mut read, mut after) = (Vec::new(), 0);
    let filter = FeedFilter::default();
    let mut pages = streams.then(|| Box::pin(feed.pages(None, 0, filter.clone())));
    while after < end {
        let page = if let Some(pages) = &mut pages {
            pages.next().await.unwrap().unwrap()
        } else {
            feed.wait_beyond(after).await;
            let limit = rand::random_range(1..300);
            let page = feed.page(None, after, &filter, limit).await.unwrap();
            assert!(page.items.len() <= limit && page.next > after);
            page
        };
        let size: usize = page.items.iter().map(bytes).sum();
        assert!(size <= MAX_PAGE_BYTES || page.items.len() == 1, "{size}");
        after = page.next;
        read.extend(page.items);
    }
    read
}

/// Names appear, appends have no, one or several events of any size, and readers follow in two processes.
#[fixture::test]
async fn many_names_are_read_in_order_while_they_appear() {
    let test = TestFeed::new().await;
    let (_, other) = another(&test.outbox, test.outbox.client.clone());
    let running = test.sequence();
    let writers = (0..4).map(|writer| {
        let streams: Vec<_> = (0..NAMES)
            .map(|number| (format!("n{number}"), test.streams(&format!("n{number}"))))
            .collect();
        async move {
            let mut appended = Appended::new();
            for round in 0..150 {
                // The first names first.
                let known = (round * NAMES / 100 + 1).min(NAMES);
                let (name, streams) = &streams[rand::random_range(0..known)];
                let (id, version) = (format!("{writer}-{round}"), 1);
                let body = events(&id);
                for (index, event) in (0..).zip(&body) {
                    let body = event.get_document("body").unwrap();
                    let what = (body.get_i64("n").unwrap(), body.get_str("text").unwrap().len());
                    appended.insert((name.clone(), id.clone(), version, index), what);
                }
                let size = i32::try_from(body.len()).unwrap();
                let more =
                    doc! { "body": body, "size": size, "tenantId": format!("t{}", round % 3) };
                streams.insert_one(stream(name, &id, version, more)).await.unwrap();
            }
            appended
        }
    });
    let exists = || async { test.feed.state().await.unwrap().is_some() };
    eventually("the feed", exists).await;
    let early = tokio::spawn(read_to(test.feed.clone(), 300, true));
    let early_pages = tokio::spawn(read_to(other.clone(), 300, false));

    let appended_by_all = futures_util::future::join_all(writers).await;
    let expected: Appended = appended_by_all.into_iter().flatten().collect();
    let head = i64::try_from(expected.len()).unwrap();
    let found = test.until(head).await;

    assert!(found.iter().map(|event| event.position).eq(1..=head), "{:?}", lines(&found));
    assert_eq!(found.iter().map(appended).collect::<Appended>(), expected);
    for read in [early.await.unwrap(), early_pages.await.unwrap()] {
        assert_eq!(lines(&read), lines(&found[..read.len()]));
    }
    for (feed, streams) in [(&test.feed, true), (&other, false), (&other, true)] {
        let read = read_to(feed.clone(), head, streams).await;
        assert!(read == found, "{streams}");
    }
    // Filters that name few, many and no aggregates.
    let of = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
    for (aggregates, events, tenant) in [
        (of(3), vec![], None),
        (of(20), vec![], Some("t1")),
        (vec![], vec!["E1".to_owned(), "E3".to_owned()], None),
        (vec![], vec!["E0".to_owned()], Some("t2")),
        (of(12), vec!["E2".to_owned()], None),
    ] {
        let tenant_id = tenant.map(str::to_owned);
        let filter = FeedFilter { aggregates, events, tenant_id };
        let passes = |event: &&FeedEvent| {
            (filter.aggregates.is_empty() || filter.aggregates.contains(&event.aggregate_name))
                && (filter.events.is_empty() || filter.events.contains(&event.name))
                && (tenant.is_none() || event.tenant_id.as_deref() == tenant)
        };
        let wanted: Vec<FeedEvent> = found.iter().filter(passes).cloned().collect();
        let (mut read, mut after) = (Vec::new(), 0);
        while after < head {
            let limit = rand::random_range(1..100);
            let page = other.page(None, after, &filter, limit).await.unwrap();
            assert!(page.items.len() <= limit && page.next > after, "{filter:?}");
            after = page.next;
            read.extend(page.items);
        }
        assert!(read == wanted, "{filter:?}: {:?}", lines(&read));
    }
    running.stop().await;
}

/// The names that these commands read.
fn names_of(commands: &[Command]) -> BTreeSet<String> {
    let of_stage = |stage: &bson::Bson| {
        let union = stage.as_document()?.get_document("$unionWith").ok()?;
        Some(union.get_str("coll").unwrap().to_owned())
    };
    let reads = commands.iter().filter(|command| command.name == "aggregate");
    reads
        .flat_map(|command| {
            let others = command.sent.get_array("pipeline").unwrap().iter().filter_map(of_stage);
            let first = command.sent.get_str("aggregate").unwrap().to_owned();
            others.chain([first]).collect::<Vec<_>>()
        })
        .collect()
}

#[fixture::test]
async fn page_reads_the_names_that_have_events_in_it() {
    let test = TestFeed::new().await;
    for number in 0..120 {
        test.insert(&format!("n{number}"), "1", 1, doc! {}).await;
    }
    let running = test.sequence();
    let first = test.until(120).await;
    let recorder = CommandRecorder::on(&test.outbox).await;
    let (_, feed) = another(&test.outbox, recorder.collections.client().clone());
    let page = async |after, limit| {
        let before = recorder.all().len();
        let page = feed.page(None, after, &FeedFilter::default(), limit).await.unwrap();
        (page, recorder.all().split_off(before))
    };

    // A reader at the head, in a process that has read nothing yet.
    for version in 2..5 {
        test.insert("n7", "1", version, doc! {}).await;
        let head = 118 + version;
        test.feed.wait_beyond(head).await;
        let (page, commands) = page(head, 100).await;
        assert_eq!(lines(&page.items), [format!("{} n7/1@{version}#0", head + 1)]);
        let sent: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
        assert_eq!(sent, ["find", "aggregate"]);
        assert_eq!(names_of(&commands), BTreeSet::from(["n7_event_stream".to_owned()]));
    }
    let (_, commands) = page(123, 100).await;
    assert_eq!(commands.len(), 1, "nothing is behind the head: {commands:?}");

    // One that reads from the beginning: the first page finds out where the events are.
    let (_, commands) = page(0, 10).await;
    assert!(commands.len() <= 7 && names_of(&commands).len() == 120, "{}", commands.len());
    for after in [10, 50, 90] {
        let (page, commands) = page(after, 10).await;
        let expected = &first[usize::try_from(after).unwrap()..][..10];
        assert_eq!(lines(&page.items), lines(expected));
        assert!(commands.len() <= 3, "{}", commands.len());
        let names: BTreeSet<String> =
            expected.iter().map(|event| format!("{}_event_stream", event.aggregate_name)).collect();
        assert_eq!(names_of(&commands), names);
    }
    running.stop().await;
}

/// What readers know of names is of no use then.
#[fixture::test]
async fn renamed_collection_is_read_under_its_new_name() {
    let test = TestFeed::new().await;
    for number in 0..12 {
        test.insert(&format!("n{number}"), "1", 1, doc! {}).await;
    }
    let running = test.sequence();
    test.until(12).await;
    // In the slots of the last positions.
    for number in 0..12 {
        test.insert(&format!("n{number}"), "1", 2, doc! {}).await;
    }
    let before = test.until(24).await;
    running.stop().await;
    let database = &test.outbox.database;
    let rename = doc! {
        "renameCollection": format!("{database}.n3_event_stream"),
        "to": format!("{database}.other_event_stream"),
    };
    test.outbox.client.database("admin").run_command(rename).await.unwrap();

    let again = sequence(&test.feed);
    test.insert("other", "2", 1, doc! {}).await;

    assert_eq!(lines(&test.until(25).await)[..24], lines(&before));
    let (_, fresh) = another(&test.outbox, test.outbox.client.clone());
    assert_eq!(lines(&all(&fresh).await)[..24], lines(&before));
    again.stop().await;
}
