//! A value that moves from one key to another: a user who takes another name.

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
use super::equal::equal;
use super::key::{PrepareKey, checked, prepared};
use super::ttl::Ttl;
use super::value::encoded;

/// Why the transaction is to be undone.
#[derive(Clone, Copy)]
enum Undone {
    NotPrepared,
    Taken,
}

/// One move, as each try of its transaction makes it.
struct Move<'a> {
    keys: Collection<Document>,
    old_key: &'a str,
    old_value: Bson,
    new_key: &'a str,
    pipeline: Vec<Document>,
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// Takes the new key and gives the old one back, in one transaction: both or neither, also
    /// when this process dies in between. Answers whether it did: not where the new key is held.
    ///
    /// # Errors
    ///
    /// [`PrepareError::SameKey`], [`PrepareError::NotPrepared`] where the old key is not held
    /// with the old value, and the others of [`PrepareError`].
    pub async fn move_key(
        &self,
        old_key: &str,
        old_value: &V,
        new_key: &str,
        new_value: &V,
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        checked(old_key)?;
        checked(new_key)?;
        if old_key == new_key {
            return Err(PrepareError::SameKey);
        }
        let (old_value, new_value) = (encoded(old_value)?, encoded(new_value)?);
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
                Err(error) => match error.get_custom::<Undone>() {
                    Some(undone) => Ok(Some(*undone)),
                    None => Err(error),
                },
            }
        };
        match within("move a prepared key", limits::BATCH, moving).await? {
            None => Ok(true),
            Some(Undone::Taken) => Ok(false),
            Some(Undone::NotPrepared) => Err(PrepareError::NotPrepared),
        }
    }
}

impl Move<'_> {
    async fn make(&mut self, session: &mut ClientSession) -> mongodb::error::Result<()> {
        let held = while_held(self.old_key);
        let keys = self.keys.clone_with_type::<RawDocumentBuf>();
        let found = keys.find_one(held.clone()).session(&mut *session).await?;
        let found = prepared(found)?;
        if !found.is_some_and(|found| equal(&found.value, &self.old_value)) {
            return Err(Error::custom(Undone::NotPrepared));
        }
        // Nobody changes in between what a transaction has read, or this write fails; but time
        // passes.
        if self.keys.delete_one(held).session(&mut *session).await?.deleted_count == 0 {
            return Err(Error::custom(Undone::NotPrepared));
        }
        let filter = doc! { "_id": self.new_key };
        let taking = self.keys.update_one(filter, self.pipeline.clone()).upsert(true);
        let done = taking.session(session).await?;
        match done.upserted_id.is_some() || done.modified_count > 0 {
            true => Ok(()),
            false => Err(Error::custom(Undone::Taken)),
        }
    }
}
