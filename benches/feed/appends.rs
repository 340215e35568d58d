//! What the feed costs appends: the same appends with and without a sequencer in the process, in turn.

use std::time::{Duration, Instant};

use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::feed::Feed;
use postrider::events::{Append, EventStore, Expected, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use tokio::task::JoinSet;

use crate::{Sequencing, body, context, support};

const ROUNDS: usize = 5;

pub async fn measure() {
    println!("\nappends/s, the median of {ROUNDS} rounds of {} s", seconds().as_secs());
    for clients in [1, 64] {
        let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            off.push(run(clients, false).await);
            on.push(run(clients, true).await);
            ratios.push(on[on.len() - 1] / off[off.len() - 1]);
        }
        println!(
            "{clients:>3} clients: {:>8.0} without, {:>8.0} with the feed, ratio {:.2}",
            support::median(&mut off),
            support::median(&mut on),
            support::median(&mut ratios)
        );
    }
}

fn seconds() -> Duration {
    Duration::from_secs(support::seconds_or(5) as u64)
}

async fn run(clients: usize, has_feed: bool) -> f64 {
    let collections = support::outbox().await;
    let context = if has_feed {
        context(&collections)
    } else {
        let settings = ContextSettings::new(collections.database().name());
        Context::new(collections.client().clone(), settings)
    };
    context.ready(CollectionKind::Events, "order").await.unwrap();
    let store = EventStore::new(context.clone(), collections.clone());
    let feed = Feed::new(context);
    let running = has_feed.then(|| Sequencing::start(&feed));
    append(&store, "first", 0).await;
    if has_feed {
        feed.wait_beyond(0).await;
    }
    let began = Instant::now();
    let until = began + seconds();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let store = store.clone();
        tasks.spawn(async move {
            let mut version = 0;
            while Instant::now() < until {
                append(&store, &client.to_string(), version).await;
                version += 1;
            }
            version
        });
    }
    let appended: i64 = tasks.join_all().await.into_iter().sum();
    let rate = appended as f64 / began.elapsed().as_secs_f64();
    if let Some(running) = running {
        // All of them get their positions.
        let began = Instant::now();
        feed.wait_beyond(appended).await;
        let behind = began.elapsed();
        if behind > Duration::from_secs(1) {
            println!("    the feed was {behind:?} behind");
        }
        running.stop().await;
    }
    store.close().await;
    support::drop(collections).await;
    rate
}

async fn append(store: &EventStore, aggregate: &str, version: i64) {
    let name = AggregateName::new("order").unwrap();
    let id = AggregateId::new(aggregate).unwrap();
    let events = vec![NewEvent::new("OrderCreated", body())];
    let append = Append::new(name, id, version.to_string(), events);
    store.append(append.expecting(Expected::Exact(version))).await.unwrap();
}
