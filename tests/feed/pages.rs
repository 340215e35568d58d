//! How large a page is, and what MongoDB answers for it.

use bson::doc;
use postrider::events::feed::{FeedEvent, FeedFilter, MAX_PAGE_BYTES};

use crate::support::command_recorder::CommandRecorder;
use crate::util::{TestFeed, another, lines, stream};

/// The documents of an answer take about this much at most.
const ANSWER_BYTES: usize = 2 << 20;

/// About how many bytes an event takes.
pub fn bytes(event: &FeedEvent) -> usize {
    let size = |document| bson::serialize_to_vec(document).unwrap().len();
    size(&event.body) + size(&event.header)
}

fn body(count: usize, size: usize) -> bson::Document {
    let event = |index| doc! { "id": format!("{index}"), "name": "E", "body": { "text": "x".repeat(size) } };
    doc! { "body": (0..count).map(event).collect::<Vec<_>>() }
}

/// Many small events, then large ones of several names, one that is larger than a page, and appends whose
/// header or events would fill many pages.
#[fixture::test]
async fn page_and_answers_end_at_their_bytes() {
    let test = TestFeed::new().await;
    let small =
        (0..3_000).map(|number| stream("small", &format!("{number}"), 1, doc! { "createTime": 1 }));
    test.streams("small").insert_many(small).await.unwrap();
    for number in 0..30 {
        let name = format!("large-{}", number % 10);
        test.insert(&name, &format!("{number}"), 1, body(1, 200_000)).await;
    }
    test.insert("huge", "1", 1, body(1, 3 << 20)).await;
    let mut header = body(60, 10);
    header.insert("header", doc! { "h": "x".repeat(300_000) });
    test.insert("header", "1", 1, header).await;
    test.insert("wide", "1", 1, body(300, 9_000)).await;
    test.insert("last", "1", 1, body(3, 10)).await;
    let running = test.sequence();
    let head = 3_000 + 30 + 1 + 60 + 300 + 3;
    test.feed.wait_beyond(head - 1).await;
    running.stop().await;
    let recorder = CommandRecorder::on(&test.outbox).await;
    let (_, feed) = another(&test.outbox, recorder.collections.client().clone());

    let (mut read, mut after, mut pages) = (Vec::new(), 0, 0);
    while after < head {
        let page = feed.page(None, after, &FeedFilter::default(), 10_000).await.unwrap();
        let size: usize = page.items.iter().map(bytes).sum();
        assert!(size <= MAX_PAGE_BYTES || page.items.len() == 1, "{after}: {size}");
        assert!(page.next > after);
        after = page.next;
        read.extend(page.items);
        pages += 1;
    }

    assert!(read.iter().map(|event| event.position).eq(1..=head), "{:?}", lines(&read));
    // 30 large events are 6 MB, the append with the header 18 MB, the wide one 2.7 MB.
    assert!((30..60).contains(&pages), "{pages}");
    for command in recorder.commands("aggregate") {
        let answer = bson::serialize_to_vec(&command.answer).unwrap().len();
        let batch = command.answer.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let is_alone = batch.len() == 1;
        assert!(answer <= ANSWER_BYTES + (100 << 10) || is_alone, "{answer}: {}", batch.len());
    }
}
