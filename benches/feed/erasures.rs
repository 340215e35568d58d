//! What erasures cost a push subscription: those of its events, compared with those of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use postrider::events::feed::{Feed, FeedFilter};
use postrider::events::subscriptions::{
    NewSubscription, Pusher, SubscriptionDelivery, Subscriptions,
};
use postrider::events::{EventStore, PendingRecords, StreamEnding};
use postrider::names::{AggregateId, AggregateName};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{Sequencing, context, stream, support};

const ROUNDS: usize = 5;

/// The events of each of two aggregate names, and their aggregates.
const EVENTS: usize = 8_000;
const AGGREGATES: usize = 400;

/// The clients that erase.
const CLIENTS: usize = 6;

pub async fn measure() {
    println!("\nevents/s of a push subscription while {CLIENTS} clients erase streams");
    let (mut others, mut its_own, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        others.push(run("person").await);
        its_own.push(run("order").await);
        ratios.push(its_own[its_own.len() - 1] / others[others.len() - 1]);
    }
    println!(
        "{:>8.0} of other streams, {:>8.0} of its streams, ratio {:.2}",
        support::median(&mut others),
        support::median(&mut its_own),
        support::median(&mut ratios)
    );
}

async fn run(erased: &'static str) -> f64 {
    let collections = support::outbox().await;
    let context = context(&collections);
    for name in ["order", "person"] {
        let kind = postrider::context::CollectionKind::Events;
        let streams = context.ready(kind, name).await.unwrap();
        let all = (0..EVENTS).map(|number| stream(name, number, AGGREGATES));
        streams.insert_many(all).await.unwrap();
    }
    let feed = Feed::new(context.clone());
    let running = Sequencing::start(&feed);
    let head = 2 * EVENTS as i64;
    feed.wait_beyond(head - 1).await;
    let subscriptions = Subscriptions::new(&context, feed.clone());
    let filter = FeedFilter { aggregates: vec!["order".to_owned()], ..FeedFilter::default() };
    let delivery =
        SubscriptionDelivery::Push { destination: "copies".to_owned(), max_pending: 10_000 };
    let new = NewSubscription { name: "orders".to_owned(), delivery, filter, after: 0 };
    subscriptions.create(&new).await.unwrap();
    let store = EventStore::new(context.clone(), collections.clone());
    let (next, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let mut erasing = JoinSet::new();
    for _ in 0..CLIENTS {
        let (store, next, stop) = (store.clone(), next.clone(), stop.clone());
        erasing.spawn(async move {
            while !stop.is_cancelled() {
                let id = next.fetch_add(1, Ordering::Relaxed);
                if id >= AGGREGATES {
                    return;
                }
                let name = AggregateName::new(erased).unwrap();
                let id = AggregateId::new(&format!("o-{id}")).unwrap();
                let ending = StreamEnding::new("erase", "a benchmark");
                store.erase(&name, &id, ending, PendingRecords::Discard).await.unwrap();
            }
        });
    }

    let pusher = Pusher::new(&context, feed.clone(), collections.clone(), None);
    let began = Instant::now();
    let pushing = tokio::spawn(pusher.run(stop.clone()));
    while subscriptions.get("orders").await.unwrap().position < head {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let rate = EVENTS as f64 / began.elapsed().as_secs_f64();
    let erased_streams = next.load(Ordering::Relaxed).min(AGGREGATES);
    println!("    {rate:.0}/s with {erased_streams} erasures of {erased}");
    stop.cancel();
    pushing.await.unwrap();
    erasing.join_all().await;
    running.stop().await;
    store.close().await;
    support::drop(collections).await;
    rate
}
