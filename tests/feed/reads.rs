//! What readers get.

use futures_util::{StreamExt, TryStreamExt};
use postrider::events::feed::{FeedError, FeedFilter};

use crate::util::{TestFeed, all, lines};

#[fixture::test]
async fn pages_cut_appends_and_continue_within_them() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 5).await;
    test.append("customer", "1", "a", 2).await;
    test.until(7).await;

    for limit in 1..9 {
        let (mut read, mut after) = (Vec::new(), 0);
        while after < 7 {
            let page = test.feed.page(None, after, &FeedFilter::default(), limit).await.unwrap();
            assert!(page.items.len() <= limit && page.next > after, "{limit}: {page:?}");
            after = page.next;
            read.extend(page.items);
        }
        assert_eq!(lines(&read), lines(&all(&test.feed).await), "{limit}");
    }
    running.stop().await;
}

#[fixture::test]
async fn next_advances_where_a_filter_matches_nothing() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 3).await;
    test.append("customer", "1", "a", 1).await;
    test.until(4).await;
    let of = |aggregates: &[&str], events: &[&str]| FeedFilter {
        aggregates: aggregates.iter().map(|name| (*name).to_owned()).collect(),
        events: events.iter().map(|name| (*name).to_owned()).collect(),
        tenant_id: None,
    };

    let page = async |filter| test.feed.page(None, 0, &filter, 10).await.unwrap();
    let nothing = page(of(&["invoice"], &[])).await;
    let some = page(of(&["order"], &["E2", "E0"])).await;

    assert_eq!((nothing.items.len(), nothing.next), (0, 4));
    assert_eq!(lines(&some.items), ["1 order/1@1#0", "3 order/1@1#2"]);
    assert_eq!(some.next, 4);
    running.stop().await;
}

#[fixture::test]
async fn position_of_another_feed_or_ahead_is_refused() {
    let test = TestFeed::new().await;
    let missing = test.feed.page(None, 0, &FeedFilter::default(), 1).await;
    assert!(matches!(missing, Err(FeedError::Missing)), "{missing:?}");
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    let before = test.feed.state().await.unwrap().unwrap();

    let ahead = test.feed.page(Some(&before.feed), 2, &FeedFilter::default(), 1).await;
    let renewed = test.feed.renew().await.unwrap();
    let wrong = test.feed.page(Some(&before.feed), 1, &FeedFilter::default(), 1).await;

    assert!(matches!(ahead, Err(FeedError::PositionAhead { after: 2, head: 1 })), "{ahead:?}");
    let Err(FeedError::WrongFeed { given, actual }) = wrong else { panic!("{wrong:?}") };
    assert_eq!((given, actual), (before.feed, renewed.feed));
    test.append("order", "1", "b", 1).await;
    assert_eq!(test.until(2).await.len(), 2, "the sequencer follows the new id");
    running.stop().await;
}

#[fixture::test]
async fn stream_waits_for_new_events() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "0", 1).await;
    test.until(1).await;
    let mut events = Box::pin(test.feed.events(None, 0, FeedFilter::default()).take(30));

    let reading = async {
        let mut read = Vec::new();
        while let Some(event) = events.try_next().await.unwrap() {
            read.push(event.position);
        }
        read
    };
    let appending = async {
        for number in 1..30 {
            test.append("order", "1", &number.to_string(), 1).await;
        }
    };
    let (read, ()) = tokio::join!(reading, appending);

    assert_eq!(read, (1..=30).collect::<Vec<_>>());
    running.stop().await;
}
