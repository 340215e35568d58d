//! Moves a value from one key to another, such as when a user is renamed.

use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::FutureExt;
use mongodb::error::Error;
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};
use postrider_store::connect::majority;
use postrider_store::{limits, within};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepareError;
use super::document::{taken_unless_held, while_held};
use super::key::{PrepareKey, check_key, read_prepared};
use super::ttl::Ttl;
use super::value::encode;
use super::value_eq::values_equal;

/// Why the transaction is aborted.
#[derive(Clone, Copy)]
enum AbortReason {
    NotPrepared,
    Taken,
}

/// The move that each try of the transaction makes.
struct Move<'a> {
    keys: Collection<Document>,
    old_key: &'a str,
    old_value: Bson,
    new_key: &'a str,
    pipeline: Vec<Document>,
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// Takes the new key and releases the old one, in one transaction. Returns whether it did: not when
    /// the new key is held.
    ///
    /// # Errors
    ///
    /// [`PrepareError::NotPrepared`] when the old key is not held with the old value, and the others of
    /// [`PrepareError`].
    pub async fn move_key(
        &self,
        old_key: &str,
        old_value: &V,
        new_key: &str,
        new_value: &V,
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        check_key(old_key)?;
        check_key(new_key)?;
        if old_key == new_key {
            return Err(PrepareError::SameKey);
        }
        let (old_value, new_value) = (encode(old_value)?, encode(new_value)?);
        let pipeline = taken_unless_held(&new_value, ttl, None);
        let keys = self.ready().await?;
        let moved = Move { keys, old_key, old_value, new_key, pipeline };
        let moving = async {
            let mut session = self.context.client().start_session().await?;
            let transaction = session
                .start_transaction()
                .read_concern(ReadConcern::snapshot())
                .write_concern(majority());
            let moving = transaction.and_run(moved, |session, moved| moved.make(session).boxed());
            match moving.await {
                Ok(()) => Ok(None),
                Err(error) => match error.get_custom::<AbortReason>() {
                    Some(reason) => Ok(Some(*reason)),
                    None => Err(error),
                },
            }
        };
        match within("move a prepared key", limits::BATCH_TIMEOUT, moving).await? {
            None => Ok(true),
            Some(AbortReason::Taken) => Ok(false),
            Some(AbortReason::NotPrepared) => Err(PrepareError::NotPrepared),
        }
    }
}

impl Move<'_> {
    async fn make(&mut self, session: &mut ClientSession) -> mongodb::error::Result<()> {
        let held = while_held(self.old_key);
        let keys = self.keys.clone_with_type::<RawDocumentBuf>();
        let found = keys.find_one(held.clone()).session(&mut *session).await?;
        let found = read_prepared(found)?;
        if !found.is_some_and(|found| values_equal(&found.value, &self.old_value)) {
            return Err(Error::custom(AbortReason::NotPrepared));
        }
        // This write fails if another one has changed the key since; but it may have expired.
        if self.keys.delete_one(held).session(&mut *session).await?.deleted_count == 0 {
            return Err(Error::custom(AbortReason::NotPrepared));
        }
        let filter = doc! { "_id": self.new_key };
        let taking = self.keys.update_one(filter, self.pipeline.clone()).upsert(true);
        let done = taking.session(session).await?;
        if done.upserted_id.is_some() || done.modified_count > 0 {
            Ok(())
        } else {
            Err(Error::custom(AbortReason::Taken))
        }
    }
}
