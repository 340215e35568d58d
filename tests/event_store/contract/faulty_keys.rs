//! Prepare keys that each break one promise, which the suite must notice.

use std::collections::HashMap;
use std::sync::Mutex;

use bson::Bson;
use postrider::prepare::{PrepareError, Prepared, Ttl, UsingError};

use crate::contract::stores::Keys;

/// The fault of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    TakesAHeldKey,
    LetsSeveralWin,
    NeverFreesAnExpiredKey,
    ShowsAnExpiredKey,
    RevivesAnExpiredKey,
    ReleasesAnExpiredKey,
    MovesAnExpiredKey,
    ForgetsTheEnd,
    ChangesAnyValue,
    ReleasesAnyValue,
    ComparesFieldsInTheirOrder,
    LeavesTheOldKey,
    LosesTheOldKey,
    LeavesTheNewKey,
    MovesAKeyToItself,
    KeepsAKeyWhoseWorkFailed,
    ReleasesAKeyWhoseWorkIsDone,
    WorksWithoutTheKey,
}

pub struct Faulty<K> {
    keys: K,
    fault: Fault,
    /// The prepared values, expired or not.
    known: Mutex<HashMap<String, Bson>>,
}

impl<K> Faulty<K> {
    pub fn new(keys: K, fault: Fault) -> Self {
        Self { keys, fault, known: Mutex::default() }
    }
}

impl<K: Keys> Faulty<K> {
    /// Whether the key is held by a value with the same fields, in the same order if the fault requires
    /// it.
    async fn compares(&self, key: &str, expected: Option<&Bson>) -> bool {
        let Some(expected) = expected else { return true };
        // As text: documents compare without the order of fields.
        let held = self.keys.get_value(key).await.unwrap().map(|held| held.to_string());
        self.fault != Fault::ComparesFieldsInTheirOrder || held == Some(expected.to_string())
    }
}

impl<K: Keys> Keys for Faulty<K> {
    async fn prepare(&self, key: &str, value: &Bson, ttl: Ttl) -> Result<bool, PrepareError> {
        match self.fault {
            Fault::TakesAHeldKey => drop(self.keys.rollback(key).await?),
            Fault::NeverFreesAnExpiredKey if self.known.lock().unwrap().contains_key(key) => {
                return Ok(false);
            }
            _ => {}
        }
        let taken = self.keys.prepare(key, value, ttl).await?;
        if taken {
            self.known.lock().unwrap().insert(key.to_owned(), value.clone());
        }
        Ok(taken || self.fault == Fault::LetsSeveralWin)
    }

    async fn get(&self, key: &str) -> Result<Option<Prepared>, PrepareError> {
        let mut found = self.keys.get(key).await?;
        match (self.fault, &mut found) {
            (Fault::ForgetsTheEnd, Some(found)) => found.ttl_at = None,
            (Fault::ShowsAnExpiredKey, None) => {
                let known = self.known.lock().unwrap().get(key).cloned();
                found = known.map(|value| Prepared { value, ttl_at: None });
            }
            _ => {}
        }
        Ok(found)
    }

    async fn get_value(&self, key: &str) -> Result<Option<Bson>, PrepareError> {
        Ok(self.get(key).await?.map(|found| found.value))
    }

    async fn reprepare(
        &self,
        key: &str,
        old: Option<&Bson>,
        new: &Bson,
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        let old = old.filter(|_| self.fault != Fault::ChangesAnyValue);
        if !self.compares(key, old).await {
            return Ok(false);
        }
        let changed = self.keys.reprepare(key, old, new, ttl).await?;
        let is_known = self.known.lock().unwrap().contains_key(key);
        if self.fault == Fault::RevivesAnExpiredKey && is_known && !changed {
            self.keys.prepare(key, new, ttl).await
        } else {
            Ok(changed)
        }
    }

    async fn rollback(&self, key: &str) -> Result<bool, PrepareError> {
        let released = self.keys.rollback(key).await?;
        let is_known = self.known.lock().unwrap().remove(key).is_some();
        Ok(released || self.fault == Fault::ReleasesAnExpiredKey && is_known)
    }

    async fn rollback_value(&self, key: &str, value: &Bson) -> Result<bool, PrepareError> {
        if self.fault == Fault::ReleasesAnyValue {
            return self.keys.rollback(key).await;
        }
        Ok(self.compares(key, Some(value)).await && self.keys.rollback_value(key, value).await?)
    }

    async fn move_key(
        &self,
        (old_key, old_value): (&str, &Bson),
        (new_key, new_value): (&str, &Bson),
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        let new = (new_key, new_value);
        let moved = self.keys.move_key((old_key, old_value), new, ttl).await;
        match (self.fault, &moved) {
            (Fault::LeavesTheOldKey, Ok(true)) => {
                self.keys.prepare(old_key, old_value, ttl).await?;
            }
            (Fault::LosesTheOldKey, Ok(false)) => drop(self.keys.rollback(old_key).await?),
            (Fault::LeavesTheNewKey, Err(PrepareError::NotPrepared)) => {
                self.keys.prepare(new_key, new_value, ttl).await?;
            }
            (Fault::MovesAnExpiredKey, Err(PrepareError::NotPrepared))
            | (Fault::MovesAKeyToItself, Err(PrepareError::SameKey)) => return Ok(true),
            _ => {}
        }
        moved
    }

    async fn using_prepared(
        &self,
        key: &str,
        value: &Bson,
        ttl: Ttl,
        body: impl Future<Output = Result<u32, String>>,
    ) -> Result<Option<u32>, UsingError<String, u32>> {
        if self.fault == Fault::WorksWithoutTheKey {
            let rolled_back = self.keys.prepare(key, value, ttl).await;
            return match body.await {
                Ok(done) => Ok(Some(done)),
                Err(error) => {
                    self.keys.rollback(key).await?;
                    Err(UsingError::Body { error, rolled_back })
                }
            };
        }
        let done = self.keys.using_prepared(key, value, ttl, body).await;
        match (self.fault, &done) {
            (Fault::KeepsAKeyWhoseWorkFailed, Err(UsingError::Body { .. })) => {
                self.keys.prepare(key, value, ttl).await?;
            }
            (Fault::ReleasesAKeyWhoseWorkIsDone, Ok(Some(_))) => {
                self.keys.rollback(key).await?;
            }
            _ => {}
        }
        done
    }
}
