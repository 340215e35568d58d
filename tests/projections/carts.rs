//! The read model of these tests, and what it must be: a fold of the stored events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::options::ReadConcern;
use postrider::events::feed::FeedEvent;
use postrider_projections::{ApplyError, GenerationCollections, GenerationWriter, Projector};

/// What is known of an aggregate: each event changes the state by what it was before, so that an event
/// that is applied twice, not at all or out of order makes another state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cart {
    pub events: i64,
    pub hash: i64,
    pub is_erased: bool,
}

impl Cart {
    /// The state behind an event.
    pub fn with(&self, version: i64, index: i64, name: &str, number: i64) -> Self {
        let mut hash = self.hash;
        for value in [version, index, number] {
            hash = hash.wrapping_mul(0x0100_0000_01b3).wrapping_add(value + 1);
        }
        let is_erased = self.is_erased || name == "postrider.StreamErased";
        Self { events: self.events + 1, hash, is_erased }
    }

    fn read(found: &Document) -> Self {
        Self {
            events: found.get_i64("events").unwrap(),
            hash: found.get_i64("hash").unwrap(),
            is_erased: found.get_bool("isErased").unwrap(),
        }
    }
}

pub type Carts = BTreeMap<String, Cart>;

/// Keeps a document for each aggregate, and a log of what was applied.
#[derive(Clone, Default)]
pub struct CartProjector {
    /// The calls of `apply`, with those of aborted transactions.
    pub calls: Arc<AtomicUsize>,
    /// The name of events with which it fails, as long as this is above 0.
    pub failures: Arc<AtomicUsize>,
}

/// An error of an application's own, around one of MongoDB.
#[derive(Debug, thiserror::Error)]
#[error("the cart cannot be stored")]
struct CartError(#[from] mongodb::error::Error);

/// The name of events with which the projector fails.
pub const POISON: &str = "Poison";

/// The number in the body of an event.
pub fn number(body: &Document) -> i64 {
    match body.get("n") {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        _ => 0,
    }
}

impl Projector for CartProjector {
    async fn prepare(&self, collections: &GenerationCollections) -> Result<(), ApplyError> {
        let carts = collections.collection::<Document>("carts");
        let index = mongodb::IndexModel::builder().keys(doc! { "events": 1 }).build();
        carts.create_index(index).await?;
        Ok(())
    }

    async fn apply(
        &self,
        into: &mut GenerationWriter<'_>,
        append: &[FeedEvent],
    ) -> Result<(), ApplyError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let carts = into.collection::<Document>("carts");
        // All events of an append are of one aggregate.
        let id = format!("{}/{}", append[0].aggregate_name, append[0].aggregate_id);
        let finding = carts.find_one(doc! { "_id": &id }).session(into.session());
        let found = finding.await.map_err(CartError)?;
        let mut cart = found.as_ref().map(Cart::read).unwrap_or_default();
        for event in append {
            if event.name == POISON && self.failures.load(Ordering::Relaxed) > 0 {
                self.failures.fetch_sub(1, Ordering::Relaxed);
                return Err(ApplyError::new("cannot be applied").at(event));
            }
            cart = cart.with(event.version, event.index, &event.name, number(&event.body));
        }
        let Cart { events, hash, is_erased } = cart;
        let cart = doc! { "events": events, "hash": hash, "isErased": is_erased };
        let replacing = carts.replace_one(doc! { "_id": id }, cart).upsert(true);
        replacing.session(into.session()).await.map_err(CartError)?;
        Ok(())
    }
}

/// What a generation has stored.
pub async fn stored(collections: &GenerationCollections) -> Carts {
    let carts: Collection<Document> = collections.collection("carts");
    let found = carts.find(doc! {}).read_concern(ReadConcern::majority()).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let id = |cart: &Document| cart.get_str("_id").unwrap().to_owned();
    found.iter().map(|cart| (id(cart), Cart::read(cart))).collect()
}

/// What the read model must be: the events in the order of their versions.
pub fn folded<'a>(events: impl IntoIterator<Item = &'a FeedEvent>) -> Carts {
    let mut events: Vec<&FeedEvent> = events.into_iter().collect();
    events.sort_by_key(|event| (event.version, event.index));
    let mut carts = Carts::new();
    for event in events {
        let id = format!("{}/{}", event.aggregate_name, event.aggregate_id);
        let cart = carts.entry(id).or_default();
        *cart = cart.with(event.version, event.index, &event.name, number(&event.body));
    }
    carts
}
