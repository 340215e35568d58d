//! Reading the feed, compared with a bare find of the same documents.

use std::net::TcpListener;
use std::pin::pin;
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, doc};
use futures_util::{StreamExt, TryStreamExt};
use postrider::context::CollectionKind;
use postrider::events::EventStream;
use postrider::events::feed::{Feed, FeedFilter};

use crate::{Sequencing, context, fill, support};

const ROUNDS: usize = 5;

pub async fn measure() {
    let collections = support::outbox().await;
    let context = context(&collections);
    let count = support::records();
    fill(&context, "order", count).await;
    let feed = Feed::new(context.clone());
    let running = Sequencing::start(&feed);
    feed.wait_beyond(i64::try_from(count).unwrap() - 1).await;
    running.stop().await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = [
        "relay.enabled=false".to_owned(),
        "api.enabled=true".to_owned(),
        "feed.enabled=true".to_owned(),
        format!("api.listen=127.0.0.1:{port}"),
    ];
    let daemon = support::daemon::Daemon::start(&collections, &settings);
    let url = format!("http://127.0.0.1:{port}/v1/feed");
    let client = reqwest::Client::new();
    while !client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let streams = context.collection(CollectionKind::Events, "order");
    let (mut raw, mut documents, mut typed) = (vec![], vec![], vec![]);
    let (mut ours, mut lines) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let find = || streams.clone_with_type::<RawDocumentBuf>();
        let began = Instant::now();
        let bare = find();
        let found = bare.find(doc! { "position": { "$gt": 0 } }).sort(doc! { "position": 1 });
        let mut found = pin!(found.await.unwrap());
        let mut read = 0;
        while found.try_next().await.unwrap().is_some() {
            read += 1;
        }
        raw.push(f64::from(read) / began.elapsed().as_secs_f64());

        let began = Instant::now();
        let found = streams.find(doc! { "position": { "$gt": 0 } }).sort(doc! { "position": 1 });
        let mut found = pin!(found.await.unwrap());
        let mut read = 0;
        while found.try_next().await.unwrap().is_some() {
            read += 1;
        }
        documents.push(f64::from(read) / began.elapsed().as_secs_f64());

        let began = Instant::now();
        let bare = streams.clone_with_type::<EventStream>();
        let found = bare.find(doc! { "position": { "$gt": 0 } }).sort(doc! { "position": 1 });
        let found: Vec<EventStream> = found.await.unwrap().try_collect().await.unwrap();
        typed.push(found.len() as f64 / began.elapsed().as_secs_f64());

        let began = Instant::now();
        let mut events = Box::pin(feed.events(None, 0, FeedFilter::default()).take(count));
        let mut read = 0;
        while events.try_next().await.unwrap().is_some() {
            read += 1;
        }
        ours.push(f64::from(read) / began.elapsed().as_secs_f64());

        let began = Instant::now();
        let request = client.get(&url).header("accept", "application/x-ndjson");
        let text = request.send().await.unwrap().text().await.unwrap();
        assert_eq!(text.lines().count(), count + 1);
        lines.push(count as f64 / began.elapsed().as_secs_f64());
    }
    let bare = support::median(&mut documents);
    println!("\nreading {count} events: {:>24} {:>8}", "events/s", "ratio");
    for (name, mut rates) in [
        ("find of the driver", vec![bare]),
        ("find, nothing decoded", raw),
        ("find, as EventStream", typed),
        ("Feed::events", ours),
        ("NDJSON", lines),
    ] {
        let rate = support::median(&mut rates);
        println!("{name:<40} {rate:>10.0} {:>8.2}", rate / bare);
    }
    drop(daemon);
    support::drop(collections).await;
}
