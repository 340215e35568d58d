//! Pages of a feed of many aggregate names, compared with those of one name.

use std::time::Instant;

use bson::doc;
use futures_util::{StreamExt, TryStreamExt};
use postrider::context::{CollectionKind, Context};
use postrider::events::feed::{Feed, FeedFilter};

use crate::{Sequencing, context, stream, support};

const NAMES: usize = 300;
const EVENTS: usize = 30_000;

/// The events of a page.
const LIMIT: usize = 100;

const ROUNDS: usize = 15;

/// How the events are divided among the names.
#[derive(Clone, Copy)]
enum Division {
    /// There is one name.
    One,
    /// Each name has an event, and one name has all others.
    MostOfOne,
    /// Each event is of another name than the one before.
    Even,
}

impl Division {
    fn name_of(self, number: usize) -> String {
        match self {
            Self::One => "n0".to_owned(),
            Self::MostOfOne if number >= NAMES => "n0".to_owned(),
            Self::MostOfOne | Self::Even => format!("n{}", number * 7 % NAMES),
        }
    }
}

/// Milliseconds of pages: by a process that has read nothing, by one that has, of a stream from the
/// beginning, and at the head.
type Figures = [f64; 4];

pub async fn measure() {
    let mut one = None;
    println!("\npages of {LIMIT} events, in ms (ratio to one name)");
    println!("{:<34} {:>14} {:>14} {:>14} {:>14}", "", "cold", "warm", "1,000 streamed", "head");
    for (title, division) in [
        ("one name", Division::One),
        ("300 names, most events of one", Division::MostOfOne),
        ("300 names, evenly divided", Division::Even),
    ] {
        let found = figures(division).await;
        let one = *one.get_or_insert(found);
        print!("{title:<34}");
        for (figure, one) in found.into_iter().zip(one) {
            print!(" {figure:>7.2} ({:>4.1})", figure / one);
        }
        println!();
    }
}

async fn figures(division: Division) -> Figures {
    let collections = support::outbox().await;
    let context = context(&collections);
    fill_divided(&context, division).await;
    let feed = Feed::new(context.clone());
    let running = Sequencing::start(&feed);
    let head = i64::try_from(EVENTS).unwrap();
    feed.wait_beyond(head - 1).await;
    let all = FeedFilter::default();
    let page = async |feed: &Feed, after| {
        let began = Instant::now();
        let page = feed.page(None, after, &all, LIMIT).await.unwrap();
        (began.elapsed().as_secs_f64() * 1e3, page)
    };

    let (mut cold, mut warm, mut at_head) = (vec![], vec![], vec![]);
    for round in (0..).take(ROUNDS) {
        let (took, found) = page(&Feed::new(context.clone()), 10_000 + round * 1_000).await;
        assert_eq!(found.items.len(), LIMIT);
        cold.push(took);
    }
    let reader = Feed::new(context.clone());
    let (_, mut last) = page(&reader, 1_000).await;
    for _ in 0..ROUNDS {
        let (took, found) = page(&reader, last.next).await;
        assert_eq!(found.items.len(), LIMIT);
        warm.push(took);
        last = found;
    }
    let began = Instant::now();
    let read = Feed::new(context.clone()).events(None, 0, all.clone()).take(EVENTS);
    let read: Vec<_> = read.try_collect().await.unwrap();
    let streamed = began.elapsed().as_secs_f64() * 1e6 / read.len() as f64;
    for (number, after) in (EVENTS..).zip(head..).take(ROUNDS) {
        let name = division.name_of(number);
        let streams = context.collection(CollectionKind::Events, &name);
        let mut event = stream(&name, number, 1);
        event.extend(doc! { "aggregateId": format!("head-{number}"), "version": 1 });
        streams.insert_one(event).await.unwrap();
        feed.wait_beyond(after).await;
        let (took, found) = page(&reader, after).await;
        assert_eq!(found.items.len(), 1);
        at_head.push(took);
    }
    running.stop().await;
    support::drop(collections).await;
    let [cold, warm, at_head] = [cold, warm, at_head].map(|mut it| support::median(&mut it));
    [cold, warm, streamed, at_head]
}

async fn fill_divided(context: &Context, division: Division) {
    let mut of_names = std::collections::BTreeMap::new();
    for number in 0..EVENTS {
        let name = division.name_of(number);
        let mut event = stream(&name, number, 1);
        // The order of the positions.
        event.extend(doc! {
            "aggregateId": format!("{number}"),
            "version": 1,
            "createTime": i64::try_from(number).unwrap(),
        });
        of_names.entry(name).or_insert_with(Vec::new).push(event);
    }
    for (name, events) in of_names {
        let streams = context.collection(CollectionKind::Events, &name);
        for part in events.chunks(1_000) {
            streams.insert_many(part).await.unwrap();
        }
    }
}
