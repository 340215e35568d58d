//! Two orders, each with its record in the same transaction:
//! `MONGODB_URI=… cargo run --example producer`.

use anyhow::{Context as _, Result};
use bson::{Bson, Document, Timestamp, Uuid, doc};
use mongodb::error::Result as DriverResult;
use mongodb::{Client, ClientSession, Database};
use postrider::outbox::collections::Collections;
use postrider::outbox::{NewRecord, Outbox};
use postrider::schema::{self, SchemaOptions};

#[tokio::main]
async fn main() -> Result<()> {
    let uri = std::env::var("MONGODB_URI").context("MONGODB_URI is not set")?;
    run(Client::with_uri_str(&uri).await?, "postrider_example").await
}

/// Runs the example in this database.
pub async fn run(client: Client, database: &str) -> Result<()> {
    let collections = Collections::new(client.clone(), database, "");
    schema::apply(&collections, &SchemaOptions::default()).await?;
    let db = client.database(database);

    let mut session = client.start_session().await?;
    session.start_transaction().and_run2(async |session| by_library(session, &db).await).await?;
    session.start_transaction().and_run2(async |session| by_driver(session, &db).await).await?;
    Ok(())
}

/// With this crate, which knows the field names and the hash of keys.
async fn by_library(session: &mut ClientSession, db: &Database) -> DriverResult<()> {
    let order = Uuid::new().to_string();
    let orders = db.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": &order, "total": 120 }).session(&mut *session).await?;
    let record = NewRecord::new("OrderCreated", doc! { "order": &order, "total": 120 }).key(&order);
    Outbox::new(db, "").enqueue(session, record).await?;
    Ok(())
}

/// With the driver alone.
async fn by_driver(session: &mut ClientSession, db: &Database) -> DriverResult<()> {
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
