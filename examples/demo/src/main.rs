//! `make demo`: a shop that inserts orders, and a consumer that checks what arrives.
//!
//! Each order's life is a few events under the order's key. The producer writes the order and
//! its event in one transaction, and a tenth of the transactions abort: what they wrote must
//! never arrive. The consumer checks that each order's events come in their order, and, at the
//! end, that all of the committed ones came.

use std::collections::{BTreeMap, HashSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bson::{Document, doc};
use futures_util::{FutureExt, StreamExt};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, Consumer, ExchangeKind};
use mongodb::options::{Acknowledgment, WriteConcern};
use mongodb::{Client, Database};
use postrider_outbox::ids::RecordId;
use postrider_outbox::{NewRecord, Outbox};
use tokio::sync::Mutex;
use uuid::Uuid;

const DATABASE: &str = "postrider_demo";
const EXCHANGE: &str = "demo.orders";
const QUEUE: &str = "demo.orders.log";

/// Orders of the finite demo: a few seconds of work.
const ORDERS: u64 = 300;

/// What happens to an order, in this order.
const LIFE: [&str; 4] = ["OrderCreated", "OrderPaid", "OrderShipped", "OrderDelivered"];

/// Producers at work at a time.
const PRODUCERS: u64 = 4;

#[derive(Default)]
struct Counts {
    committed: AtomicU64,
    aborted: AtomicU64,
    arrived: AtomicU64,
    duplicates: AtomicU64,
}

/// What the consumer has seen of each order: the step that comes next.
#[derive(Default)]
struct Ledger {
    next: BTreeMap<String, usize>,
    seen: HashSet<String>,
    committed: HashSet<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let forever = std::env::var("DEMO").is_ok_and(|demo| demo == "forever");
    let mongodb = variable("POSTRIDER_TEST_MONGODB_URI")?;
    let amqp = variable("POSTRIDER_TEST_AMQP_URI")?;
    let client = Client::with_uri_str(&mongodb).await.context("MongoDB")?;
    let database = client.database(DATABASE);
    // Left by an earlier demo; the relay's own records stay, delivered.
    database.collection::<Document>("orders").drop().await?;
    let connection = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let consumer = consume(&connection).await.context("RabbitMQ")?;

    let counts = Arc::new(Counts::default());
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let stopped = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    tokio::spawn({
        let stopped = stopped.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    });
    println!("orders go into MongoDB ({DATABASE}), their events come out of RabbitMQ ({EXCHANGE})");
    let shop = tokio::spawn(shop(
        client.clone(),
        database,
        counts.clone(),
        ledger.clone(),
        stopped.clone(),
        (!forever).then_some(ORDERS),
    ));
    let watching = tokio::spawn(watch(consumer, counts.clone(), ledger.clone()));
    let progress = tokio::spawn(progress(counts.clone(), started));

    shop.await??;
    let arrived = until_all_arrived(&counts, &watching).await;
    progress.abort();
    println!();
    if watching.is_finished() {
        watching.await??;
    }
    arrived?;
    summary(&counts, started.elapsed());
    connection.close(200, "bye".into()).await?;
    Ok(())
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: run `make demo`"))
}

/// Declares the exchange that the relay publishes to, and a queue bound to all of it.
async fn consume(connection: &Connection) -> Result<Consumer> {
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let none = FieldTable::default;
    channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, none()).await?;
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(QUEUE.into(), durable, none()).await?;
    let bind = QueueBindOptions::default();
    channel.queue_bind(QUEUE.into(), EXCHANGE.into(), "#".into(), bind, none()).await?;
    channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    Ok(channel.basic_consume(QUEUE.into(), "demo".into(), options, none()).await?)
}

/// Runs the producers in parallel, each with orders of its own.
async fn shop(
    client: Client,
    database: Database,
    counts: Arc<Counts>,
    ledger: Arc<Mutex<Ledger>>,
    stopped: Arc<AtomicBool>,
    orders: Option<u64>,
) -> Result<()> {
    let run = std::process::id();
    let producers = (0..PRODUCERS).map(|producer| {
        let (client, database) = (client.clone(), database.clone());
        let (counts, ledger, stopped) = (counts.clone(), ledger.clone(), stopped.clone());
        tokio::spawn(async move {
            let mut number = producer;
            while orders.is_none_or(|orders| number < orders) && !stopped.load(Ordering::Relaxed) {
                let order = format!("order-{run}-{number}");
                live(&client, &database, &order, number, &counts, &ledger).await?;
                number += PRODUCERS;
            }
            anyhow::Ok(())
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await??;
    }
    Ok(())
}

/// Writes one order's life, a transaction for each step.
async fn live(
    client: &Client,
    database: &Database,
    order: &str,
    number: u64,
    counts: &Counts,
    ledger: &Mutex<Ledger>,
) -> Result<()> {
    let outbox = Outbox::new(database, "");
    let orders = database.collection::<Document>("orders");
    for (step, kind) in LIFE.iter().enumerate() {
        // A tenth of the transactions are aborted: their records must never arrive.
        if (number + step as u64).is_multiple_of(10) {
            let mut session = client.start_session().await?;
            session.start_transaction().await?;
            let ghost = NewRecord::new("Ghost", doc! { "order": order }).key(order);
            // It does not matter whether the server aborts it (a conflict) or the producer does.
            let _ = outbox.enqueue(&mut session, ghost).await;
            session.abort_transaction().await?;
            counts.aborted.fetch_add(1, Ordering::Relaxed);
        }
        let id = Uuid::new_v4();
        // Before the commit: the consumer may be faster than the next line.
        ledger.lock().await.committed.insert(id.to_string());
        let payload = doc! { "order": order, "step": step as i32 };
        let event = NewRecord::new(*kind, payload).id(RecordId::Uuid(id)).key(order);
        let change = doc! { "$set": { "state": kind } };
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
        let mut session = client.start_session().await?;
        // Repeats the transaction where MongoDB says that a repetition may succeed.
        let transaction = session.start_transaction().write_concern(majority);
        let written = transaction.and_run((), |session, ()| {
            let (orders, outbox) = (orders.clone(), outbox.clone());
            let (change, event) = (change.clone(), event.clone());
            let order = doc! { "_id": order };
            async move {
                orders.update_one(order, change).upsert(true).session(&mut *session).await?;
                outbox.enqueue(session, event).await?;
                Ok(())
            }
            .boxed()
        });
        written.await?;
        counts.committed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Checks every message that arrives.
async fn watch(
    mut consumer: Consumer,
    counts: Arc<Counts>,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<()> {
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        let properties = &delivery.properties;
        let id = properties.message_id().as_ref().context("a message without an id")?.to_string();
        let kind = properties.kind().as_ref().context("a message without a type")?.to_string();
        let headers = properties.headers().as_ref().context("a message without headers")?;
        let order = match headers.inner().get("message-key") {
            Some(AMQPValue::LongString(key)) => {
                String::from_utf8_lossy(key.as_bytes()).into_owned()
            }
            _ => bail!("a message without a key"),
        };
        let mut ledger = ledger.lock().await;
        if !ledger.committed.contains(&id) {
            // The record of an earlier demo that was interrupted.
            if order.starts_with(&format!("order-{}-", std::process::id())) {
                bail!("{kind} of {order} arrived, but its transaction had aborted");
            }
        } else if !ledger.seen.insert(id) {
            counts.duplicates.fetch_add(1, Ordering::Relaxed);
        } else {
            let next = ledger.next.entry(order.clone()).or_default();
            if LIFE.get(*next) != Some(&kind.as_str()) {
                bail!("{kind} of {order} arrived where {:?} was due", LIFE.get(*next));
            }
            *next += 1;
            let arrived = counts.arrived.fetch_add(1, Ordering::Relaxed) + 1;
            if arrived <= 8 {
                println!("  arrived: {order}  {kind}  {}", String::from_utf8_lossy(&delivery.data));
            } else if arrived == 9 {
                println!("  … and so on");
            }
        }
        drop(ledger);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

async fn until_all_arrived(
    counts: &Counts,
    watching: &tokio::task::JoinHandle<Result<()>>,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while counts.arrived.load(Ordering::Relaxed) < counts.committed.load(Ordering::Relaxed) {
        if watching.is_finished() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("a minute after the last commit, not everything has arrived");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// One line that is updated on a terminal; elsewhere a line now and then.
async fn progress(counts: Arc<Counts>, started: Instant) {
    let terminal = std::io::stdout().is_terminal();
    let every = if terminal { Duration::from_millis(250) } else { Duration::from_secs(5) };
    loop {
        tokio::time::sleep(every).await;
        let line = format!(
            "{:>5.0} s  committed {}  aborted {}  arrived {}",
            started.elapsed().as_secs_f64(),
            counts.committed.load(Ordering::Relaxed),
            counts.aborted.load(Ordering::Relaxed),
            counts.arrived.load(Ordering::Relaxed),
        );
        if terminal {
            print!("\r{line}");
            // A terminal that is gone is not an error.
            let _ = std::io::stdout().flush();
        } else {
            println!("{line}");
        }
    }
}

fn summary(counts: &Counts, took: Duration) {
    let committed = counts.committed.load(Ordering::Relaxed);
    println!("in {:.1} s:", took.as_secs_f64());
    println!("  {committed:>6} events committed, each with its order's change in one transaction");
    println!(
        "  {:>6} transactions aborted, none of whose events arrived",
        counts.aborted.load(Ordering::Relaxed)
    );
    println!(
        "  {:>6} events arrived, every order's in order",
        counts.arrived.load(Ordering::Relaxed)
    );
    println!("  {:>6} came twice", counts.duplicates.load(Ordering::Relaxed));
    println!("nothing lost, nothing swapped");
}
