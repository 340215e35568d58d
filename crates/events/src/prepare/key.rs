//! The operations on a key.

use std::marker::PhantomData;

use bson::{Bson, DateTime, Document, RawDocumentBuf, Uuid, doc};
use mongodb::Collection;
use postrider_store::limits;
use postrider_store::{DUPLICATE_KEY, StoreError, within};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepareError;
use super::document::{
    RESERVATION, TTL_AT, VALUE, changed, taken_unless_held, while_held, while_held_with,
    while_reserved,
};
use super::equal::equal;
use super::ttl::Ttl;
use super::value::{decoded, encoded};
use crate::context::{Context, Kind};
use crate::names::{PrepareName, check_id};

/// How often a write is tried that finds something else than it was to find. Each time somebody
/// else has succeeded.
const TRIES: usize = 100;

/// A kind of prepare key, in a collection of its own; its values are of type `V`, as BSON.
///
/// ```no_run
/// use std::time::Duration;
///
/// use mongodb::{Client, bson::oid::ObjectId};
/// use postrider_events::context::{Context, ContextSettings};
/// use postrider_events::prepare::{PrepareKey, PrepareName, Ttl};
///
/// # async fn run(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::new(client, ContextSettings::new("shop"));
/// let names = PrepareKey::<String>::new(context, PrepareName::new("username")?);
///
/// let user = "user-7".to_owned();
/// if names.prepare("ada", &user, Ttl::For(Duration::from_secs(600))).await? {
///     // Nobody else has it for ten minutes, or, once this is done:
///     names.reprepare("ada", Some(&user), &user, Ttl::Forever).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// `Bson` and `Document` are kept as they are. Of other types serde makes BSON, and takes a map such
/// as `{"$oid": …}` for extended JSON.
///
/// An error of [`PrepareError::Store`] leaves it open whether the operation took effect: ask
/// with [`get`](Self::get), or repeat it.
#[derive(Debug)]
pub struct PrepareKey<V = Bson> {
    pub(super) context: Context,
    name: PrepareName,
    values: PhantomData<fn() -> V>,
}

/// A key that is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared<V = Bson> {
    /// What it was prepared with.
    pub value: V,
    /// When it expires; `None` for never.
    pub ttl_at: Option<DateTime>,
}

/// What became of a key that was to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was changed.
    Done,
    /// It is held with another value than was expected.
    Differs,
    /// Nobody holds it.
    NotHeld,
}

/// What is done to a key that is held with the expected value.
enum Change {
    To(Vec<Document>),
    Rollback,
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// The keys of this name; nothing is contacted yet.
    pub fn new(context: Context, name: PrepareName) -> Self {
        Self { context, name, values: PhantomData }
    }

    /// The name of these keys.
    pub fn name(&self) -> &PrepareName {
        &self.name
    }

    /// Takes a key that nobody holds, and answers whether it did: of many who try at once, for
    /// a new key or an expired one, one does.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn prepare(&self, key: &str, value: &V, ttl: Ttl) -> Result<bool, PrepareError> {
        self.take(key, value, ttl, None).await
    }

    /// The same in the name of a reservation, by which the key is recognised later.
    pub(super) async fn take(
        &self,
        key: &str,
        value: &V,
        ttl: Ttl,
        reservation: Option<Uuid>,
    ) -> Result<bool, PrepareError> {
        checked(key)?;
        let pipeline = taken_unless_held(&encoded(value)?, ttl, reservation);
        let keys = self.ready().await?;
        for _ in 0..TRIES {
            let taking = keys.update_one(doc! { "_id": key }, pipeline.clone()).upsert(true);
            match within("prepare a key", limits::BATCH, taking.into_future()).await {
                Ok(done) => return Ok(done.upserted_id.is_some() || done.modified_count > 0),
                // Somebody else's insert came between: the next one meets it.
                Err(error) if error.code() == Some(DUPLICATE_KEY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(PrepareError::Contended)
    }

    /// The value of a key and its end, while it is held.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn get(&self, key: &str) -> Result<Option<Prepared<V>>, PrepareError> {
        checked(key)?;
        let Some(found) = self.read(while_held(key)).await? else { return Ok(None) };
        Ok(Some(Prepared { value: decoded(found.value)?, ttl_at: found.ttl_at }))
    }

    /// The value of a key, while it is held.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn get_value(&self, key: &str) -> Result<Option<V>, PrepareError> {
        Ok(self.get(key).await?.map(|prepared| prepared.value))
    }

    /// Gives a key that is held another value and end, where its value is `old` (`None`: whatever
    /// it is), and answers whether it did. One that has expired stays so.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn reprepare(
        &self,
        key: &str,
        old: Option<&V>,
        new: &V,
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        Ok(self.try_reprepare(key, old, new, ttl).await? == Outcome::Done)
    }

    /// The same, and tells why it did not.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn try_reprepare(
        &self,
        key: &str,
        old: Option<&V>,
        new: &V,
        ttl: Ttl,
    ) -> Result<Outcome, PrepareError> {
        checked(key)?;
        let change = Change::To(changed(&encoded(new)?, ttl));
        self.change_held(key, old, change).await
    }

    /// Gives a key back, and answers whether it was held.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn rollback(&self, key: &str) -> Result<bool, PrepareError> {
        Ok(self.try_rollback(key, None).await? == Outcome::Done)
    }

    /// Gives a key back where it has this value, and answers whether it was so held.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn rollback_value(&self, key: &str, value: &V) -> Result<bool, PrepareError> {
        Ok(self.try_rollback(key, Some(value)).await? == Outcome::Done)
    }

    /// Gives a key back, where its value is this one (`None`: whatever it is), and tells why it
    /// did not.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`].
    pub async fn try_rollback(
        &self,
        key: &str,
        value: Option<&V>,
    ) -> Result<Outcome, PrepareError> {
        checked(key)?;
        self.change_held(key, value, Change::Rollback).await
    }

    async fn change_held(
        &self,
        key: &str,
        expected: Option<&V>,
        change: Change,
    ) -> Result<Outcome, PrepareError> {
        let Some(expected) = expected else {
            let keys = self.ready().await?;
            return Ok(match self.change(&keys, while_held(key), &change).await? {
                true => Outcome::Done,
                false => Outcome::NotHeld,
            });
        };
        self.compare(key, None, &encoded(expected)?, change).await
    }

    /// Whether this reservation still holds the key, with whatever value.
    pub(super) async fn is_reserved(
        &self,
        key: &str,
        reservation: Uuid,
    ) -> Result<bool, PrepareError> {
        Ok(self.read(while_reserved(key, reservation)).await?.is_some())
    }

    /// Gives back a key that this reservation still holds, with this value.
    pub(super) async fn rollback_reserved(
        &self,
        key: &str,
        reservation: Uuid,
        value: &V,
    ) -> Result<bool, PrepareError> {
        let value = encoded(value)?;
        let outcome = self.compare(key, Some(reservation), &value, Change::Rollback).await?;
        Ok(outcome == Outcome::Done)
    }

    /// Changes a key that is held, by the reservation if one is named, with a value equal to
    /// `expected`.
    ///
    /// The server knows no equality without the order of fields: what is read is compared here,
    /// and the write is on the condition that it is still exactly that.
    async fn compare(
        &self,
        key: &str,
        reservation: Option<Uuid>,
        expected: &Bson,
        change: Change,
    ) -> Result<Outcome, PrepareError> {
        let keys = self.ready().await?;
        let held = match reservation {
            Some(reservation) => while_reserved(key, reservation),
            None => while_held(key),
        };
        for _ in 0..TRIES {
            let Some(found) = self.read(held.clone()).await? else { return Ok(Outcome::NotHeld) };
            if !equal(&found.value, expected) {
                return Ok(Outcome::Differs);
            }
            let mut unchanged = while_held_with(key, &found.value);
            if let Some(reservation) = reservation {
                unchanged.insert(RESERVATION, reservation);
            }
            if self.change(&keys, unchanged, &change).await? {
                return Ok(Outcome::Done);
            }
        }
        Err(PrepareError::Contended)
    }

    async fn change(
        &self,
        keys: &Collection<Document>,
        filter: Document,
        change: &Change,
    ) -> Result<bool, StoreError> {
        match change {
            Change::To(pipeline) => {
                let changing = keys.update_one(filter, pipeline.clone()).into_future();
                let done = within("change a prepared key", limits::BATCH, changing).await?;
                Ok(done.matched_count > 0)
            }
            Change::Rollback => {
                let deleting = keys.delete_one(filter).into_future();
                let done = within("roll a prepared key back", limits::BATCH, deleting).await?;
                Ok(done.deleted_count > 0)
            }
        }
    }

    async fn read(&self, held: Document) -> Result<Option<Prepared>, PrepareError> {
        let keys = self.context.collection(Kind::Prepare, self.name.as_str());
        let keys = keys.clone_with_type::<RawDocumentBuf>();
        let reading = keys.find_one(held).into_future();
        let found = within("read a prepared key", limits::BATCH, reading).await?;
        prepared(found).map_err(PrepareError::Decode)
    }

    pub(super) async fn ready(&self) -> Result<Collection<Document>, PrepareError> {
        Ok(self.context.ready(Kind::Prepare, self.name.as_str()).await?)
    }
}

// Not derived: that would ask for a value that can be cloned.
impl<V> Clone for PrepareKey<V> {
    fn clone(&self) -> Self {
        Self { context: self.context.clone(), name: self.name.clone(), values: PhantomData }
    }
}

/// What is held, if anything. Not by serde: it takes a document such as `{"$oid": …}`, which an
/// application may well have prepared, for extended JSON.
pub(super) fn prepared(
    found: Option<RawDocumentBuf>,
) -> Result<Option<Prepared>, bson::error::Error> {
    let Some(found) = found else { return Ok(None) };
    let mut document = Document::try_from(found)?;
    let ttl_at = Ttl::end(document.get(TTL_AT));
    Ok(document.remove(VALUE).map(|value| Prepared { value, ttl_at }))
}

pub(super) fn checked(key: &str) -> Result<(), PrepareError> {
    check_id(key).map_err(PrepareError::Key)
}
