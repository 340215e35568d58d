//! Appends per second, and how long each takes, by the number of clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::{Append, EventStore, Expected, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use tokio::task::JoinSet;

use crate::alone::Alone;
use crate::support;
use crate::{body, quantile};

/// How often each of the two is measured, alternately, so that a slow phase of the machine affects
/// both.
const ROUNDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Each client appends to an aggregate of its own, and knows its version.
    Many,
    /// All clients append to one aggregate, at its current version.
    Hot,
}

#[derive(Clone)]
enum Way {
    Store(EventStore),
    Alone(Arc<Alone>),
}

struct Measured {
    rate: f64,
    p50: f64,
    p99: f64,
}

pub async fn measure() {
    let collections = support::outbox().await;
    let database = collections.database().name().to_owned();
    let context = Context::new(collections.client().clone(), ContextSettings::new(&database));
    context.ready(CollectionKind::Events, "order").await.unwrap();
    let store = EventStore::new(context, collections.clone());
    let alone = Arc::new(Alone::new(collections.client().clone(), &database, "order"));
    println!(
        "appends of one event of 400 bytes, for {} s each, best of {ROUNDS}",
        seconds().as_secs()
    );
    println!(
        "shape  clients |    store/s   p50 ms   p99 ms |    alone/s   p50 ms   p99 ms | ratio"
    );
    for (shape, clients) in [
        (Shape::Many, 1),
        (Shape::Many, 8),
        (Shape::Many, 64),
        (Shape::Many, 256),
        (Shape::Hot, 1),
        (Shape::Hot, 8),
        (Shape::Hot, 64),
    ] {
        let (mut ours, mut theirs): (Vec<Measured>, Vec<Measured>) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(run(Way::Store(store.clone()), shape, clients).await);
            theirs.push(run(Way::Alone(alone.clone()), shape, clients).await);
        }
        let best = |mut all: Vec<Measured>| {
            all.sort_by(|one, other| other.rate.total_cmp(&one.rate));
            all.remove(0)
        };
        let (ours, theirs) = (best(ours), best(theirs));
        println!(
            "{:<5} {clients:>8} | {:>10.0} {:>8.2} {:>8.2} | {:>10.0} {:>8.2} {:>8.2} | {:>5.2}",
            format!("{shape:?}"),
            ours.rate,
            ours.p50,
            ours.p99,
            theirs.rate,
            theirs.p50,
            theirs.p99,
            ours.rate / theirs.rate
        );
    }
    collections.database().drop().await.unwrap();
}

fn seconds() -> Duration {
    Duration::from_secs(support::seconds_or(4) as u64)
}

async fn run(way: Way, shape: Shape, clients: usize) -> Measured {
    let run = uuid::Uuid::new_v4().simple().to_string();
    let began = Instant::now();
    let until = began + seconds();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let way = way.clone();
        let aggregate = match shape {
            Shape::Many => format!("{run}-{client}"),
            Shape::Hot => run.clone(),
        };
        tasks.spawn(async move {
            let (mut taken, mut version) = (Vec::new(), 0);
            while Instant::now() < until {
                let (request, sent) = (format!("{client}-{version}"), Instant::now());
                let known = (shape == Shape::Many).then_some(version);
                append(&way, &aggregate, &request, known).await;
                taken.push(sent.elapsed().as_secs_f64() * 1e3);
                version += 1;
            }
            taken
        });
    }
    let mut taken: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    let rate = taken.len() as f64 / began.elapsed().as_secs_f64();
    taken.sort_by(f64::total_cmp);
    Measured { rate, p50: quantile(&taken, 0.5), p99: quantile(&taken, 0.99) }
}

async fn append(way: &Way, aggregate: &str, request: &str, version: Option<i32>) {
    match way {
        Way::Alone(alone) => alone.append(aggregate, request, version).await,
        Way::Store(store) => {
            let name = AggregateName::new("order").unwrap();
            let id = AggregateId::new(aggregate).unwrap();
            let events = vec![NewEvent::new("OrderCreated", body())];
            let expected = version.map_or(Expected::Any, |at| Expected::Exact(at.into()));
            store.append(Append::new(name, id, request, events).expecting(expected)).await.unwrap();
        }
    }
}
