//! The latency of a single record, and where its time is spent: the relay and its change stream in
//! this process, with a client that reports each command.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Bson, Document};
use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{ClientOptions, ReadConcern};
use postrider::change_stream::{Follower, FollowerStatus};
use postrider::ids::RecordId;
use postrider::outbox::collections::Collections;
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::Relay;
use postrider::sink::rabbitmq::{RabbitMq, RabbitMqConfig, RabbitMqSettings};
use postrider::store::connect;
use postrider::wakeup::Wakeup;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support;
use crate::support::daemon::{Daemon, until_divided};
use crate::support::flow;
use crate::support::queue::{Queue, amqp_uri};

/// Records that are not counted: they open connections and warm caches.
const WARM_UP: usize = 40;

/// Between two records, in milliseconds: about a quarter of a second.
const PAUSE: std::ops::Range<u64> = 150..350;

/// The steps of a record, in order.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The change stream has returned the event.
    Event,
    /// The first read after it was sent.
    Scan,
    /// The lease was sent.
    Lease,
    /// The lease was answered.
    Leased,
    /// The sink received the message.
    Publish,
    /// The broker confirmed it.
    Confirmed,
}

/// The time of each step of each record.
#[derive(Clone, Default)]
struct SharedStepTimes(Arc<Mutex<StepTimes>>);

#[derive(Default)]
struct StepTimes {
    steps: HashMap<String, [Option<Instant>; 6]>,
    /// Leases in progress, by the number of their command.
    leases: HashMap<i32, Vec<String>>,
    /// Records with an event, and no read yet.
    unread: Vec<String>,
}

impl StepTimes {
    /// The first time counts.
    fn note(&mut self, id: String, step: Step) {
        self.steps.entry(id).or_default()[step as usize].get_or_insert_with(Instant::now);
    }
}

impl SharedStepTimes {
    fn note(&self, id: String, step: Step) {
        self.0.lock().unwrap().note(id, step);
    }

    fn at(&self, id: &str, step: Step) -> Option<Instant> {
        self.0.lock().unwrap().steps.get(id)?[step as usize]
    }

    fn command(&self, event: CommandEvent) {
        let mut noted = self.0.lock().unwrap();
        match event {
            CommandEvent::Started(event) => match event.command_name.as_str() {
                "find" | "aggregate" => {
                    for id in std::mem::take(&mut noted.unread) {
                        noted.note(id, Step::Scan);
                    }
                }
                "update" => {
                    let ids = leased(&event.command);
                    ids.iter().for_each(|id| noted.note(id.clone(), Step::Lease));
                    noted.leases.insert(event.request_id, ids);
                }
                _ => {}
            },
            CommandEvent::Succeeded(event) if event.command_name == "getMore" => {
                for id in ids_of_events(&event.reply) {
                    noted.note(id.clone(), Step::Event);
                    noted.unread.push(id);
                }
            }
            CommandEvent::Succeeded(event) => {
                for id in noted.leases.remove(&event.request_id).unwrap_or_default() {
                    noted.note(id, Step::Leased);
                }
            }
            CommandEvent::Failed(event) => panic!("{event:?}"),
            _ => {}
        }
    }
}

/// The ids that an update leases.
fn leased(command: &Document) -> Vec<String> {
    let updates = command.get_array("updates").unwrap();
    let ids = updates.iter().filter_map(|update| {
        let update = update.as_document()?;
        let set = update.get_array("u").ok()?.first()?.as_document()?.get_document("$set").ok()?;
        set.contains_key("leaseOwner").then_some(())?;
        update.get_document("q").ok()?.get_document("_id").ok()?.get_array("$in").ok()
    });
    ids.flatten().map(text).collect()
}

/// The ids in a change stream's answer.
fn ids_of_events(reply: &Document) -> Vec<String> {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("nextBatch"));
    let ids = batch.into_iter().flatten().filter_map(|event| {
        event.as_document()?.get_document("fullDocument").ok()?.get("_id").map(text)
    });
    ids.collect()
}

fn text(id: &Bson) -> String {
    RecordId::from(id.clone()).to_string()
}

async fn observed(notes: SharedStepTimes) -> Client {
    let mut options = ClientOptions::parse(support::mongodb_uri()).await.unwrap();
    options.selection_criteria = Some(connect::primary());
    options.read_concern = Some(ReadConcern::majority());
    options.write_concern = Some(connect::majority());
    options.command_event_handler = Some(EventHandler::callback(move |event| notes.command(event)));
    Client::with_options(options).unwrap()
}

pub async fn measure() {
    in_process(true).await;
    in_process(false).await;
    daemon().await;
}

/// How many records are counted.
fn count() -> usize {
    support::seconds_or(60) * 4
}

/// A record that was inserted.
struct Inserted {
    id: String,
    sent: Instant,
    acknowledged: Instant,
}

/// Inserts records one after the other.
async fn trickle(collections: &Collections) -> Vec<Inserted> {
    let mut inserted = Vec::new();
    for n in 0..WARM_UP + count() {
        tokio::time::sleep(Duration::from_millis(rand::random_range(PAUSE))).await;
        let record = support::record(n, support::KEYS);
        let (id, sent) = (flow::id(&record), Instant::now());
        collections.records().insert_one(record).await.unwrap();
        inserted.push(Inserted { id, sent, acknowledged: Instant::now() });
    }
    inserted.split_off(WARM_UP)
}

async fn in_process(follow: bool) {
    let outbox = support::outbox().await;
    let notes = SharedStepTimes::default();
    let client = observed(notes.clone()).await;
    let collections = Collections::new(client, outbox.database().name(), "");
    let queue = Queue::declare("classic").await;
    let inner =
        RabbitMq::new(RabbitMqSettings::new("rabbit", RabbitMqConfig::at(&amqp_uri()))).unwrap();
    let (to_give, to_confirm) = (notes.clone(), notes.clone());
    let sink = support::ReportingSink {
        inner,
        given: move |id: &str| to_give.note(id.to_owned(), Step::Publish),
        note: move |id| to_confirm.note(id, Step::Confirmed),
    };
    let (stop, wakeup) = (CancellationToken::new(), Wakeup::default());
    let (_owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let sink = ("rabbit", sink);
    let parts = support::relay_parts(&collections, sink, &queue.name, share, wakeup.clone());
    let running = tokio::spawn(Relay::new(parts, stop.clone()).run());
    if follow {
        let follower = Follower::new(collections, wakeup);
        let mut following = follower.status();
        tokio::spawn(follower.run(stop.clone()));
        following.wait_for(|now| *now == FollowerStatus::Up).await.unwrap();
    }
    let inserted = trickle(&outbox).await;
    for Inserted { id, .. } in &inserted {
        while notes.at(id, Step::Confirmed).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let how = if follow { "with the change stream" } else { "by polling" };
    println!("latency  {how}, {} records on their own, in ms", inserted.len());
    let of = |times: &dyn Fn(&Inserted) -> Option<f64>| {
        inserted.iter().filter_map(times).collect::<Vec<f64>>()
    };
    let from_sent = |step| of(&|it| Some(millis(it.sent, notes.at(&it.id, step)?)));
    let from_ack = |step| of(&|it| Some(millis(it.acknowledged, notes.at(&it.id, step)?)));
    let between = |from, to| of(&|it| Some(millis(notes.at(&it.id, from)?, notes.at(&it.id, to)?)));
    print_quantiles("insert sent to confirm", from_sent(Step::Confirmed));
    print_quantiles("insert acknowledged to confirm", from_ack(Step::Confirmed));
    print_quantiles(
        "  insert sent to acknowledged",
        of(&|it| Some(millis(it.sent, it.acknowledged))),
    );
    if follow {
        print_quantiles("  insert sent to event", from_sent(Step::Event));
        print_quantiles("  insert acknowledged to event", from_ack(Step::Event));
        print_quantiles("  event to scan", between(Step::Event, Step::Scan));
        print_quantiles("  scan to lease sent", between(Step::Scan, Step::Lease));
    } else {
        print_quantiles("  insert sent to lease sent", from_sent(Step::Lease));
    }
    print_quantiles("  lease", between(Step::Lease, Step::Leased));
    print_quantiles("  leased to publish", between(Step::Leased, Step::Publish));
    print_quantiles("  publish to confirm", between(Step::Publish, Step::Confirmed));
    stop.cancel();
    running.await.unwrap().unwrap();
    support::drop(outbox).await;
    queue.delete().await;
}

/// Measures the same records through the daemon, to a consumer.
async fn daemon() {
    let (collections, queue) = (support::outbox().await, Queue::declare("classic").await);
    let arrivals = queue.arrivals().await;
    let mut daemons = [Daemon::start(&collections, &queue.settings())];
    until_divided(&mut daemons).await;
    while daemons[0].metric("postrider_change_stream_up").await == 0.0 {
        daemons[0].pause().await;
    }
    let inserted = trickle(&collections).await;
    while arrivals.count() < WARM_UP + inserted.len() {
        daemons[0].pause().await;
    }
    let arrived = arrivals.first();
    println!("latency  the daemon, {} records on their own, in ms", inserted.len());
    let took = inserted.iter().map(|it| millis(it.sent, arrived[&it.id]));
    print_quantiles("insert sent to arrival", took.collect());
    support::drop(collections).await;
    queue.delete().await;
}

/// Negative if the steps happened in the other order.
fn millis(from: Instant, to: Instant) -> f64 {
    let ahead = to.saturating_duration_since(from).as_secs_f64();
    (ahead - from.saturating_duration_since(to).as_secs_f64()) * 1_000.0
}

fn print_quantiles(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| support::at(&times, share));
    println!(
        "  {what:<32} p50 {p50:>7.2}  p90 {p90:>7.2}  p99 {p99:>7.2}  max {max:>7.2}  mean {mean:>7.2}"
    );
}
