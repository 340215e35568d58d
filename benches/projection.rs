//! A projection from the feed, compared with the same writes without it: the same transactions, from
//! events in memory, without feed and checkpoint.
//!
//! `cargo bench --bench projection`; the number of events is `POSTRIDER_BENCH_RECORDS`.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection, Database};
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::feed::{Feed, FeedConfig, FeedEvent, FeedFilter};
use postrider::store::connect::{majority, primary};
use postrider_projections::{
    ApplyError, GenerationCollections, GenerationWriter, Projector, ReadModel, ReadModelSettings,
};
use tokio_util::sync::CancellationToken;

const AGGREGATES: usize = 1_000;

/// The events of one append.
const EVENTS: usize = 2;

/// How often each is measured, in turns.
const ROUNDS: usize = 3;

fn main() {
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

/// Adds up the totals of each order: a write for each event.
async fn write(
    orders: &Collection<Document>,
    session: &mut ClientSession,
    append: &[FeedEvent],
) -> mongodb::error::Result<()> {
    for event in append {
        let order = doc! { "_id": &event.aggregate_id };
        let total =
            doc! { "$inc": { "events": 1, "total": event.index }, "$set": { "last": &event.name } };
        orders.update_one(order, total).upsert(true).session(&mut *session).await?;
    }
    Ok(())
}

struct Orders;

impl Projector for Orders {
    async fn prepare(&self, collections: &GenerationCollections) -> Result<(), ApplyError> {
        Ok(collections.database().create_collection(name_of(collections)).await?)
    }

    async fn apply(
        &self,
        into: &mut GenerationWriter<'_>,
        append: &[FeedEvent],
    ) -> Result<(), ApplyError> {
        let orders = into.collection("orders");
        Ok(write(&orders, into.session(), append).await?)
    }
}

fn name_of(collections: &GenerationCollections) -> String {
    collections.collection::<Document>("orders").name().to_owned()
}

async fn measure() {
    let events = support::records();
    let collections = support::outbox().await;
    let database = collections.database().clone();
    let settings = ContextSettings { feed: true, ..ContextSettings::new(database.name()) };
    let context = Context::new(collections.client().clone(), settings);
    let feed = Feed::new(context.clone());
    fill(&context, events / EVENTS).await;
    assign(&feed, events).await;
    let appends = all(&feed).await;

    println!("{events} events of {AGGREGATES} aggregates, {EVENTS} in an append, a write for each");
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let alone = direct(&database, round, &appends).await;
        let projected = project(&feed, &database, round, events).await;
        let rate = |took: Duration| events as f64 / took.as_secs_f64();
        let ratio = rate(projected) / rate(alone);
        println!(
            "round {round}: writes alone {:.0} events/s, projection {:.0} events/s, ratio {ratio:.2}",
            rate(alone),
            rate(projected)
        );
        ratios.push(ratio);
    }
    println!("ratio (median): {:.2}", support::median(&mut ratios));
    support::drop(collections).await;
}

async fn fill(context: &Context, appends: usize) {
    let streams = context.ready(CollectionKind::Events, "order").await.unwrap();
    let document = |number: usize| {
        let (id, version) = (number % AGGREGATES, number / AGGREGATES + 1);
        let event = |index: usize| {
            let body = doc! { "order": 7, "total": "120.00", "lines": "x".repeat(350) };
            doc! { "id": format!("{number}-{index}"), "name": "OrderCreated", "body": body }
        };
        doc! {
            "_id": format!("{number:09}"),
            "contextName": "default",
            "aggregateName": "order",
            "aggregateId": format!("o-{id}"),
            "requestId": number.to_string(),
            "version": i64::try_from(version).unwrap(),
            "createTime": i64::try_from(number).unwrap(),
            "header": {},
            "size": i32::try_from(EVENTS).unwrap(),
            "body": (0..EVENTS).map(event).collect::<Vec<_>>(),
        }
    };
    for begin in (0..appends).step_by(1_000) {
        streams.insert_many((begin..(begin + 1_000).min(appends)).map(document)).await.unwrap();
    }
}

/// Assigns the positions of all.
async fn assign(feed: &Feed, events: usize) {
    let stop = CancellationToken::new();
    let settings = FeedConfig { backfill_rate: 0, ..FeedConfig::default() };
    let sequencing = tokio::spawn(feed.sequencer(settings).run(stop.clone()));
    feed.wait_beyond(i64::try_from(events).unwrap() - 1).await;
    stop.cancel();
    sequencing.await.unwrap();
}

async fn all(feed: &Feed) -> Vec<Vec<FeedEvent>> {
    let (mut appends, mut after): (Vec<Vec<FeedEvent>>, i64) = (Vec::new(), 0);
    loop {
        let page = feed.page(None, after, &FeedFilter::default(), 5_000).await.unwrap();
        for event in page.items {
            match appends.last_mut() {
                Some(append) if event.index > 0 => append.push(event),
                _ => appends.push(vec![event]),
            }
        }
        after = page.next;
        if after >= page.head {
            return appends;
        }
    }
}

/// The same writes in transactions of the same size.
async fn direct(database: &Database, round: usize, appends: &[Vec<FeedEvent>]) -> Duration {
    let name = format!("alone_{round}");
    database.create_collection(&name).await.unwrap();
    let orders = database.collection(&name);
    let began = Instant::now();
    let mut session = database.client().start_session().causal_consistency(false).await.unwrap();
    for batch in appends.chunks(ReadModelSettings::default().batch_events / EVENTS) {
        session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(majority())
            .selection_criteria(primary())
            .await
            .unwrap();
        for append in batch {
            write(&orders, &mut session, append).await.unwrap();
        }
        session.commit_transaction().await.unwrap();
    }
    began.elapsed()
}

/// A projection from position 0.
async fn project(feed: &Feed, database: &Database, round: usize, events: usize) -> Duration {
    let name = format!("orders-{round}");
    let settings = ReadModelSettings::default();
    let model = ReadModel::new(feed.clone(), database.clone(), &name, settings).unwrap();
    let stop = CancellationToken::new();
    let (running, until) = (model.clone(), stop.clone());
    let began = Instant::now();
    let task = tokio::spawn(async move { running.run(&Orders, until).await });
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let Ok(status) = model.status().await else { continue };
        if usize::try_from(status.generations[0].position).unwrap() >= events {
            break;
        }
    }
    let took = began.elapsed();
    stop.cancel();
    task.await.unwrap().unwrap();
    took
}
