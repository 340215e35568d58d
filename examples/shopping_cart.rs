//! A shopping cart as a read model, from a queue and from the feed.
//!
//! ```text
//!  append (HTTP) ──▶ postrider run ──▶ cart_event_stream ──▶ feed ────▶ carts.1.carts    shopping_cart feed
//!                                 └──▶ outbox_records ──▶ RabbitMQ ──▶ carts_of_queue   shopping_cart queue
//! ```
//!
//! Both make the same documents, whichever process is killed at whatever moment. `postrider run` needs
//! `api.enabled`, `feed.enabled` and a sink for RabbitMQ; then:
//!
//! ```sh
//! export MONGODB_URI=… DATABASE=shop AMQP_URI=… QUEUE=carts
//! cargo run --example shopping_cart feed &
//! cargo run --example shopping_cart queue &
//! curl -X POST localhost:8080/v1/aggregates/cart/c-1/events -H 'content-type: application/json' -d '{
//!   "requestId": "1", "events": [{ "name": "ProductItemAdded", "body": { "product": "tea", "quantity": 2 } }] }'
//! ```

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use bson::{Bson, Document, doc};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use mongodb::{Client, Database};
use postrider::context::{Context, ContextSettings};
use postrider::events::feed::{Feed, FeedEvent, FeedFilter};
use postrider_projections::{
    ApplyError, Change, EventPlace, GenerationResolver, GenerationWriter, Projector, ReadModel,
    ReadModelSettings, StreamGuard,
};
use tokio_util::sync::CancellationToken;

/// The collection of the carts that are projected from the queue.
pub const OF_QUEUE: &str = "carts_of_queue";

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let client = Client::with_uri_str(variable("MONGODB_URI")?).await?;
    let database = client.database(&variable("DATABASE")?);
    match std::env::args().nth(1).as_deref() {
        Some("feed") => project_from_feed(database).await?,
        Some("rebuild") => rebuild_from_feed(database).await?,
        Some("queue") => {
            project_from_queue(database, &variable("AMQP_URI")?, &variable("QUEUE")?).await?
        }
        _ => bail!("usage: shopping_cart feed|rebuild|queue"),
    }
    Ok(ExitCode::SUCCESS)
}

/// What an event changes in a cart; `None` if it changes nothing.
///
/// A cart has its items by product: the quantity of each. Adding an item that is there raises its
/// quantity; removing the last one removes the item.
pub fn changed(cart: Option<&Document>, event: &str, body: &Document) -> Result<Option<Document>> {
    let mut items =
        cart.and_then(|cart| cart.get_document("items").ok()).cloned().unwrap_or_default();
    match event {
        "ShoppingCartOpened" => {
            let client = body.get_str("client")?;
            return Ok(Some(doc! { "status": "open", "client": client, "items": items }));
        }
        "ProductItemAdded" | "ProductItemRemoved" => {
            let (product, quantity) = (body.get_str("product")?, body.get_i32("quantity")?);
            let sign = if event == "ProductItemAdded" { 1 } else { -1 };
            let quantity = items.get_i32(product).unwrap_or(0) + sign * quantity;
            match quantity {
                0 => _ = items.remove(product),
                1.. => _ = items.insert(product, quantity),
                _ => bail!("{product}: fewer than 0 would be left"),
            }
            return Ok(Some(doc! { "items": items }));
        }
        "ShoppingCartConfirmed" => return Ok(Some(doc! { "status": "confirmed" })),
        _ => {}
    }
    Ok(None)
}

/// Projects the carts from the feed.
#[derive(Clone)]
pub struct Carts;

impl Projector for Carts {
    async fn apply(
        &self,
        into: &mut GenerationWriter<'_>,
        append: &[FeedEvent],
    ) -> Result<(), ApplyError> {
        let carts = into.collection::<Document>("carts");
        for event in append {
            let by_id = doc! { "_id": &event.aggregate_id };
            if event.name == "postrider.StreamErased" {
                carts.delete_one(by_id).session(into.session()).await?;
                continue;
            }
            let cart = carts.find_one(by_id.clone()).session(into.session()).await?;
            let changed = changed(cart.as_ref(), &event.name, &event.body);
            if let Some(set) = changed.map_err(|error| ApplyError::new(error).at(event))? {
                let update = doc! { "$set": set };
                carts.update_one(by_id, update).upsert(true).session(into.session()).await?;
            }
        }
        Ok(())
    }
}

/// Follows the feed, until an error.
pub async fn project_from_feed(database: Database) -> Result<()> {
    let carts = carts_of_feed(database)?;
    Ok(carts.run(&Carts, CancellationToken::new()).await?)
}

/// Makes a new generation of all events, next to the live one; then follows the feed with it.
pub async fn rebuild_from_feed(database: Database) -> Result<()> {
    let carts = carts_of_feed(database)?;
    Ok(carts.rebuild(&Carts, CancellationToken::new()).await?)
}

/// Reads a cart of the live generation. A process has one resolver.
pub async fn read_cart(resolver: &GenerationResolver, id: &str) -> Result<Option<Document>> {
    let carts = resolver.resolve().await?.collection::<Document>("carts");
    Ok(carts.find_one(doc! { "_id": id }).await?)
}

/// The read model of the feed.
pub fn carts_of_feed(database: Database) -> Result<ReadModel> {
    let context = ContextSettings::new(database.name());
    let feed = Feed::new(Context::new(database.client().clone(), context));
    let filter = FeedFilter { aggregates: vec!["cart".into()], ..FeedFilter::default() };
    let settings = ReadModelSettings { filter, ..ReadModelSettings::default() };
    Ok(ReadModel::new(feed, database, "carts", settings)?)
}

/// Projects the carts from a queue, until an error. The messages that are not acknowledged come again.
pub async fn project_from_queue(database: Database, amqp: &str, queue: &str) -> Result<()> {
    // The queue receives all events of each cart.
    let guard = StreamGuard::new(database.collection(OF_QUEUE), &FeedFilter::default())?;
    let connection = Connection::connect(amqp, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(20, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let consuming =
        channel.basic_consume(queue.into(), "carts".into(), options, FieldTable::default());
    let mut messages = consuming.await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        apply_message(&guard, &message).await?;
        // After the write: a message that is acknowledged first is lost with this process.
        message.ack(BasicAckOptions::default()).await?;
    }
    bail!("the queue is closed")
}

async fn apply_message(guard: &StreamGuard, message: &Delivery) -> Result<()> {
    let kind = message.properties.kind().as_ref().context("the message has no type")?.to_string();
    let place = EventPlace::from_headers(|name| header(message, name))?;
    let json: serde_json::Value = serde_json::from_slice(&message.data)?;
    let Bson::Document(body) = Bson::try_from(json)? else { bail!("the body is not an object") };
    let applying = guard.apply(place.aggregate_id.clone(), &place, |cart| {
        if kind == "postrider.StreamErased" {
            return Ok(Change::Clear);
        }
        let changed = changed(cart, &kind, &body).map_err(ApplyError::new)?;
        Ok(changed.map_or(Change::Nothing, |set| Change::Update(doc! { "$set": set })))
    });
    applying.await?;
    Ok(())
}

/// A header of a message, as text.
fn header(message: &Delivery, name: &str) -> Option<String> {
    match message.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        AMQPValue::LongInt(number) => Some(number.to_string()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        _ => None,
    }
}
