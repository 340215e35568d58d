//! Changes of orders, each with its message in the same transaction:
//! `echo "order-7 1" | MONGODB_URI=…/shop cargo run --example producer`.
//!
//! Each line of standard input is a key and a number. The message id is printed after the commit.

use anyhow::{Context as _, Result};
use bson::{Bson, Document, Timestamp, Uuid, doc};
use mongodb::error::Result as DriverResult;
use mongodb::{Client, ClientSession, Database};
use postrider::ids::RecordId;
use postrider::outbox::{NewRecord, Outbox};

// docs:begin producer
/// Changes an order and enqueues its message. Returns the message id.
pub async fn change_order(db: &Database, key: &str, n: i64) -> DriverResult<RecordId> {
    // Made once, so that a transaction that the driver repeats enqueues the same message.
    let record = NewRecord::new("OrderChanged", doc! { "order": key, "n": n }).key(key);
    let outbox = Outbox::new(db, "");
    let mut session = db.client().start_session().await?;
    let changing = session.start_transaction().and_run2(async |session| {
        let (order, change) = (doc! { "_id": key }, doc! { "$push": { "changes": n } });
        let orders = db.collection::<Document>("orders");
        orders.update_one(order, change).upsert(true).session(&mut *session).await?;
        outbox.enqueue(session, record.clone()).await
    });
    changing.await
}
// docs:end producer

/// Reads lines to the end of standard input.
async fn run() -> Result<()> {
    let uri = std::env::var("MONGODB_URI").context("MONGODB_URI is not set")?;
    let client = Client::with_uri_str(&uri).await?;
    let db = client.default_database().context("MONGODB_URI: add a database: …/shop")?;
    Outbox::new(&db, "").probe().await?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (key, n) = line.split_once(' ').context("a line must be a key and a number")?;
        println!("{}", change_order(&db, key, n.parse()?).await?);
    }
    Ok(())
}

/// The same with the driver alone.
#[allow(dead_code, reason = "another way, for the documentation")]
pub async fn by_driver(session: &mut ClientSession, db: &Database) -> DriverResult<()> {
    let order = Uuid::new().to_string();
    let orders = db.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": &order, "total": 80 }).session(&mut *session).await?;
    let record = doc! {
        "_id": Uuid::new(),
        "key": &order,
        "type": "OrderCreated",
        "payload": { "order": &order, "total": 80 },
        "status": "pending",
        "seq": Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
    };
    db.collection("outbox_records").insert_one(record).session(session).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    run().await
}
