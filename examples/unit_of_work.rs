//! An order and the stock that it takes: `MONGODB_URI=… cargo run --example unit_of_work`.
//!
//! The order's event, the application's own document and a message without an event are written
//! in one transaction: all of it, or nothing.

use anyhow::{Context as _, Result, ensure};
use bson::{Document, doc};
use mongodb::{Client, Collection};
use postrider::context::{Context, ContextSettings};
use postrider::events::{Append, EventStore, Expected, NewEvent, UnitError, UnitOutcome};
use postrider::names::{AggregateId, AggregateName};
use postrider::outbox::NewRecord;
use postrider::outbox::collections::Collections;
use postrider::schema::{self, SchemaOptions};

#[tokio::main]
async fn main() -> Result<()> {
    let uri = std::env::var("MONGODB_URI").context("MONGODB_URI is not set")?;
    run(Client::with_uri_str(&uri).await?, "postrider_example").await
}

/// Runs the example in this database.
pub async fn run(client: Client, database: &str) -> Result<()> {
    let outbox = Collections::new(client.clone(), database, "");
    schema::apply(&outbox, &SchemaOptions::default()).await?;
    let stock = client.database(database).collection("stock");
    let store = EventStore::new(Context::new(client, ContextSettings::new(database)), outbox);

    let tea = uuid::Uuid::new_v4().to_string();
    stock.insert_one(doc! { "_id": &tea, "left": 1 }).await?;
    let request = uuid::Uuid::new_v4().to_string();

    let placed = order(&request, &tea)?;
    let first = place(&store, &stock, &placed, &tea).await?;
    println!("{first:?}");
    ensure!(matches!(first, UnitOutcome::Committed { value: 0, .. }));

    // The same request again takes nothing more, although nothing is left.
    let again = place(&store, &stock, &placed, &tea).await?;
    ensure!(matches!(again, UnitOutcome::Replayed { .. }));

    // Another request finds nothing left, and leaves no event and no message.
    let other = order(&uuid::Uuid::new_v4().to_string(), &tea)?;
    match place(&store, &stock, &other, &tea).await {
        Err(UnitError::Abandoned(reason)) => println!("no order: {reason}"),
        other => anyhow::bail!("expected that nothing is left: {other:?}"),
    }
    ensure!(store.last(&other.name, &other.id, None).await?.is_none());
    store.close().await;
    Ok(())
}

/// The append that places the order of a request.
fn order(request: &str, article: &str) -> Result<Append> {
    let (name, id) = (AggregateName::new("order")?, AggregateId::new(&format!("order-{request}"))?);
    let event = NewEvent::new("OrderPlaced", doc! { "article": article });
    Ok(Append::new(name, id, request, vec![event]).expecting(Expected::None))
}

/// Places an order, takes an article for it, and returns how many are left.
async fn place(
    store: &EventStore,
    stock: &Collection<Document>,
    order: &Append,
    article: &str,
) -> Result<UnitOutcome<i32>, UnitError> {
    // This may run several times: what it has written is undone before.
    let outcome = store.unit_of_work(async |mut unit| {
        // First, so that a repeated request returns here even where the rest would fail.
        unit.append(order.clone()).await?;
        let some_left = doc! { "_id": article, "left": { "$gt": 0 } };
        let taking = stock.find_one_and_update(some_left, doc! { "$inc": { "left": -1 } });
        let Some(before) = taking.session(unit.session()).await? else {
            return Err(UnitError::abandon("nothing is left"));
        };
        let left = before.get_i32("left").map_err(UnitError::abandon)? - 1;
        let message = NewRecord::new("StockFell", doc! { "article": article, "left": left });
        unit.enqueue(message.key(article))?;
        Ok(left)
    });
    outcome.await
}
