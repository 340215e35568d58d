//! The time of `Outbox::enqueue` compared with the driver's `insert_one` of the same document, each as the only write of
//! a transaction: `MONGODB_URI=…/scratch cargo run --release -p postrider-outbox --example enqueue_cost`.
//!
//! Both take turns, transaction by transaction. It prints the medians of each round and the ratio of the medians of all,
//! of the call alone and of the whole transaction. It drops the collection `outbox_records` of the database at its end.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::error::Result;
use mongodb::{Client, ClientSession, Collection, Database};
use postrider_outbox::{NewRecord, Outbox};

const ROUNDS: usize = 6;
const TRANSACTIONS: usize = 400;

/// The durations of one way: of each call, and of each transaction.
#[derive(Default)]
struct Times {
    calls: Vec<Duration>,
    transactions: Vec<Duration>,
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let client = Client::with_uri_str(std::env::var("MONGODB_URI")?).await?;
    let db = client.default_database().ok_or("MONGODB_URI: add a database")?;
    db.collection::<Document>("outbox_records").insert_one(doc! {}).await?;
    let (mut bare, mut library) = (Times::default(), Times::default());
    // The first round warms up.
    for round in 0..=ROUNDS {
        let (bare_round, library_round) = run(&client, &db).await?;
        let medians = [&bare_round.calls, &library_round.calls].map(|times| median(times));
        if round > 0 {
            println!("round {round}: insert_one {:?}, enqueue {:?}", medians[0], medians[1]);
            bare.add(bare_round);
            library.add(library_round);
        }
    }
    report("call", &bare.calls, &library.calls);
    report("transaction", &bare.transactions, &library.transactions);
    db.collection::<Document>("outbox_records").drop().await?;
    Ok(())
}

impl Times {
    fn add(&mut self, other: Self) {
        self.calls.extend(other.calls);
        self.transactions.extend(other.transactions);
    }
}

async fn run(client: &Client, db: &Database) -> Result<(Times, Times)> {
    let outbox = Outbox::new(db, "");
    let records: Collection<Document> = db.collection("outbox_records");
    let mut session = client.start_session().await?;
    let (mut bare, mut library) = (Times::default(), Times::default());
    for n in 0..TRANSACTIONS {
        // The order of the two changes each time.
        for is_library in [n % 2 == 0, n % 2 == 1] {
            let record = NewRecord::new("OrderChanged", doc! { "order": "order-7", "n": n as i64 })
                .key(format!("order-{n}"))
                .header("source", "shop");
            let times = if is_library { &mut library } else { &mut bare };
            let began = Instant::now();
            session.start_transaction().await?;
            let call = if is_library {
                let began = Instant::now();
                outbox.enqueue(&mut session, record).await?;
                began.elapsed()
            } else {
                let document = record.into_document()?;
                insert(&records, &mut session, document).await?
            };
            session.commit_transaction().await?;
            times.calls.push(call);
            times.transactions.push(began.elapsed());
        }
    }
    Ok((bare, library))
}

async fn insert(
    records: &Collection<Document>,
    session: &mut ClientSession,
    document: Document,
) -> Result<Duration> {
    let began = Instant::now();
    records.insert_one(document).session(session).await?;
    Ok(began.elapsed())
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[sorted.len() / 2]
}

fn report(what: &str, bare: &[Duration], library: &[Duration]) {
    let (bare, library) = (median(bare), median(library));
    let ratio = library.as_secs_f64() / bare.as_secs_f64();
    println!("{what}: insert_one {bare:?}, enqueue {library:?}, ratio {ratio:.3}");
}
