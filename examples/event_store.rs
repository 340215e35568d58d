//! Orders as events: `MONGODB_URI=… cargo run --example event_store`.
//!
//! Each append writes its events and their outbox records in one transaction; a relay
//! (`postrider run`) delivers the records in the order of the versions.

use anyhow::{Context as _, Result, ensure};
use bson::doc;
use futures_util::TryStreamExt;
use mongodb::Client;
use postrider::context::{Context, ContextSettings};
use postrider::events::{Append, AppendError, EventStore, Expected, NewEvent, Range};
use postrider::names::{AggregateId, AggregateName};
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
    let store = EventStore::new(Context::new(client, ContextSettings::new(database)), outbox);
    let order = AggregateName::new("order")?;
    let id = AggregateId::new(&format!("order-{}", uuid::Uuid::new_v4()))?;
    let append = |request: &str, event: &str, expected| {
        let event = NewEvent::new(event, doc! { "by": request });
        let append = Append::new(order.clone(), id.clone(), request, vec![event]);
        store.append(append.expecting(expected))
    };

    let created = append("request-1", "OrderCreated", Expected::None).await?;
    println!("version {}, message {}", created.version, created.records[0]);
    append("request-2", "OrderPaid", Expected::Exact(1)).await?;

    // A client without an answer repeats the request, and gets the first answer.
    let again = append("request-1", "OrderCreated", Expected::None).await?;
    ensure!(again.replayed && again.records == created.records);

    // An append that expects an older version is refused.
    match append("request-3", "OrderCancelled", Expected::Exact(1)).await {
        Err(AppendError::VersionConflict { actual, .. }) => println!("it is at version {actual}"),
        other => anyhow::bail!("expected a conflict: {other:?}"),
    }

    let mut streams = Box::pin(store.load(&order, &id, &Range::default()).await?);
    let mut names = Vec::new();
    while let Some(stream) = streams.try_next().await? {
        names.extend(stream.body.into_iter().map(|event| event.name));
    }
    println!("{names:?}");
    ensure!(names == ["OrderCreated", "OrderPaid"]);
    store.close().await;
    Ok(())
}
