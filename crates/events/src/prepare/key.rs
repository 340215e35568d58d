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
use super::ttl::Ttl;
use super::value::{decode, encode};
use super::value_eq::values_equal;
use crate::context::{CollectionKind, Context};
use crate::names::{PrepareName, check_id};

/// The tries of a write whose condition fails. Each time another caller has succeeded.
const MAX_TRIES: usize = 100;

/// The prepare keys of a name, in a collection of their own, with values of type `V`.
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
///     // The key is held for ten minutes, or, after this call, for ever:
///     names.reprepare("ada", Some(&user), &user, Ttl::Forever).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// `Bson` and `Document` are stored unchanged. Other types are serialised by serde, which takes a map
/// such as `{"$oid": …}` for extended JSON.
///
/// After [`PrepareError::Store`] it is unknown whether the operation took effect: read the key with
/// [`get`](Self::get), or repeat the operation.
#[derive(Debug)]
pub struct PrepareKey<V = Bson> {
    pub(super) context: Context,
    name: PrepareName,
    values: PhantomData<fn() -> V>,
}

/// A key that is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared<V = Bson> {
    /// The value.
    pub value: V,
    /// When it expires; `None` for never.
    pub ttl_at: Option<DateTime>,
}

/// The outcome of a change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// It was changed.
    Done,
    /// It is reserved with another value than expected.
    Differs,
    /// It is not reserved.
    NotReserved,
}

/// A change of a key that is held.
enum Change {
    To(Vec<Document>),
    Rollback,
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// The keys of this name. Sends nothing.
    pub fn new(context: Context, name: PrepareName) -> Self {
        Self { context, name, values: PhantomData }
    }

    /// The name of these keys.
    pub fn name(&self) -> &PrepareName {
        &self.name
    }

    /// Takes a key that is not held. Returns whether it did: of several callers at once one does.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn prepare(&self, key: &str, value: &V, ttl: Ttl) -> Result<bool, PrepareError> {
        self.take(key, value, ttl, None).await
    }

    /// The same for a reservation, by which the key is recognised later.
    pub(super) async fn take(
        &self,
        key: &str,
        value: &V,
        ttl: Ttl,
        reservation: Option<Uuid>,
    ) -> Result<bool, PrepareError> {
        check_key(key)?;
        let pipeline = taken_unless_held(&encode(value)?, ttl, reservation);
        let keys = self.ready().await?;
        for _ in 0..MAX_TRIES {
            let taking = keys.update_one(doc! { "_id": key }, pipeline.clone()).upsert(true);
            match within("prepare a key", limits::BATCH_TIMEOUT, taking).await {
                Ok(done) => return Ok(done.upserted_id.is_some() || done.modified_count > 0),
                // Another caller inserted the key: the next try finds it.
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
    /// [`PrepareError`].
    pub async fn get(&self, key: &str) -> Result<Option<Prepared<V>>, PrepareError> {
        check_key(key)?;
        let Some(found) = self.read(while_held(key)).await? else { return Ok(None) };
        Ok(Some(Prepared { value: decode(found.value)?, ttl_at: found.ttl_at }))
    }

    /// The value of a key, while it is held.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn get_value(&self, key: &str) -> Result<Option<V>, PrepareError> {
        Ok(self.get(key).await?.map(|read_prepared| read_prepared.value))
    }

    /// Changes value and end of a held key if its value is `old` (`None`: any value). Returns whether it
    /// did. An expired key stays expired.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn reprepare(
        &self,
        key: &str,
        old: Option<&V>,
        new: &V,
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        Ok(self.try_reprepare(key, old, new, ttl).await? == KeyOutcome::Done)
    }

    /// The same, with the reason when it did not.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn try_reprepare(
        &self,
        key: &str,
        old: Option<&V>,
        new: &V,
        ttl: Ttl,
    ) -> Result<KeyOutcome, PrepareError> {
        check_key(key)?;
        let change = Change::To(changed(&encode(new)?, ttl));
        self.change_if_held(key, old, change).await
    }

    /// Releases a key. Returns whether it was held.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn rollback(&self, key: &str) -> Result<bool, PrepareError> {
        Ok(self.try_rollback(key, None).await? == KeyOutcome::Done)
    }

    /// Releases a key with this value. Returns whether it was held with it.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn rollback_value(&self, key: &str, value: &V) -> Result<bool, PrepareError> {
        Ok(self.try_rollback(key, Some(value)).await? == KeyOutcome::Done)
    }

    /// Releases a key if its value is this one (`None`: any value), with the reason when it did not.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub async fn try_rollback(
        &self,
        key: &str,
        value: Option<&V>,
    ) -> Result<KeyOutcome, PrepareError> {
        check_key(key)?;
        self.change_if_held(key, value, Change::Rollback).await
    }

    async fn change_if_held(
        &self,
        key: &str,
        expected: Option<&V>,
        change: Change,
    ) -> Result<KeyOutcome, PrepareError> {
        let Some(expected) = expected else {
            let keys = self.ready().await?;
            let is_done = self.change(&keys, while_held(key), &change).await?;
            return Ok(if is_done { KeyOutcome::Done } else { KeyOutcome::NotReserved });
        };
        self.change_if_equal(key, None, &encode(expected)?, change).await
    }

    /// Whether this reservation still holds the key, with any value.
    pub(super) async fn is_reserved(
        &self,
        key: &str,
        reservation: Uuid,
    ) -> Result<bool, PrepareError> {
        Ok(self.read(while_reserved(key, reservation)).await?.is_some())
    }

    /// Releases a key that this reservation still holds with this value.
    pub(super) async fn rollback_reserved(
        &self,
        key: &str,
        reservation: Uuid,
        value: &V,
    ) -> Result<bool, PrepareError> {
        let value = encode(value)?;
        let outcome =
            self.change_if_equal(key, Some(reservation), &value, Change::Rollback).await?;
        Ok(outcome == KeyOutcome::Done)
    }

    /// Changes a key that is held, by the reservation if one is given, with a value equal to `expected`.
    ///
    /// The server compares fields in their order only. So the value is read and compared here, and the
    /// write requires that it is unchanged.
    async fn change_if_equal(
        &self,
        key: &str,
        reservation: Option<Uuid>,
        expected: &Bson,
        change: Change,
    ) -> Result<KeyOutcome, PrepareError> {
        let keys = self.ready().await?;
        let held = match reservation {
            Some(reservation) => while_reserved(key, reservation),
            None => while_held(key),
        };
        for _ in 0..MAX_TRIES {
            let Some(found) = self.read(held.clone()).await? else {
                return Ok(KeyOutcome::NotReserved);
            };
            if !values_equal(&found.value, expected) {
                return Ok(KeyOutcome::Differs);
            }
            let mut unchanged = while_held_with(key, &found.value);
            if let Some(reservation) = reservation {
                unchanged.insert(RESERVATION, reservation);
            }
            if self.change(&keys, unchanged, &change).await? {
                return Ok(KeyOutcome::Done);
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
                let changing = keys.update_one(filter, pipeline.clone());
                let done = within("change a prepared key", limits::BATCH_TIMEOUT, changing).await?;
                Ok(done.matched_count > 0)
            }
            Change::Rollback => {
                let deleting = keys.delete_one(filter);
                let done =
                    within("roll a prepared key back", limits::BATCH_TIMEOUT, deleting).await?;
                Ok(done.deleted_count > 0)
            }
        }
    }

    async fn read(&self, held: Document) -> Result<Option<Prepared>, PrepareError> {
        let keys = self.context.collection(CollectionKind::Prepare, self.name.as_str());
        let keys = keys.clone_with_type::<RawDocumentBuf>();
        let reading = keys.find_one(held);
        let found = within("read a prepared key", limits::BATCH_TIMEOUT, reading).await?;
        read_prepared(found).map_err(PrepareError::Decode)
    }

    pub(super) async fn ready(&self) -> Result<Collection<Document>, PrepareError> {
        Ok(self.context.ready(CollectionKind::Prepare, self.name.as_str()).await?)
    }
}

// Not derived, which would require `V: Clone`.
impl<V> Clone for PrepareKey<V> {
    fn clone(&self) -> Self {
        Self { context: self.context.clone(), name: self.name.clone(), values: PhantomData }
    }
}

/// The key as it is held, if it is. Read without serde, which takes a value such as `{"$oid": …}` for
/// extended JSON.
pub(super) fn read_prepared(
    found: Option<RawDocumentBuf>,
) -> Result<Option<Prepared>, bson::error::Error> {
    let Some(found) = found else { return Ok(None) };
    let mut document = Document::try_from(found)?;
    let ttl_at = Ttl::end(document.get(TTL_AT));
    Ok(document.remove(VALUE).map(|value| Prepared { value, ttl_at }))
}

pub(super) fn check_key(key: &str) -> Result<(), PrepareError> {
    check_id(key).map_err(PrepareError::Key)
}
