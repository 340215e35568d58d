//! Snapshot stores that each break one promise, which the suite must notice.

use std::sync::Mutex;

use postrider::names::{AggregateId, AggregateName};
use postrider::snapshot::{Saved, Snapshot, SnapshotError};

use crate::contract::stores::Snapshots;

/// The fault of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    LetsTheLastWin,
    SaysWrittenAlways,
    KeepsTheEqual,
    KeepsTheFirst,
    ForgetsThatItIsDeleted,
    LosesAField,
    IgnoresTheTenant,
    MakesAVersionUp,
    TakesAnyVersion,
}

pub struct Faulty<S> {
    store: S,
    fault: Fault,
    last: Mutex<Option<Snapshot>>,
}

impl<S> Faulty<S> {
    pub fn new(store: S, fault: Fault) -> Self {
        Self { store, fault, last: Mutex::new(None) }
    }
}

impl<S: Snapshots> Snapshots for Faulty<S> {
    async fn save(
        &self,
        name: &AggregateName,
        mut snapshot: Snapshot,
    ) -> Result<Saved, SnapshotError> {
        let version = snapshot.version;
        let written = Ok(Saved { written: true, version });
        match self.fault {
            Fault::LetsTheLastWin => {
                *self.last.lock().unwrap() = Some(snapshot);
                return written;
            }
            Fault::KeepsTheEqual | Fault::KeepsTheFirst => {
                let there = self.store.version(name, &snapshot.aggregate_id).await?;
                if there == version || self.fault == Fault::KeepsTheFirst && there > 0 {
                    return written;
                }
            }
            Fault::TakesAnyVersion => snapshot.version = version.max(1),
            _ => {}
        }
        let saved = self.store.save(name, snapshot).await?;
        if self.fault == Fault::SaysWrittenAlways { written } else { Ok(saved) }
    }

    async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        let tenant = tenant.filter(|_| self.fault != Fault::IgnoresTheTenant);
        if self.fault == Fault::LetsTheLastWin {
            return Ok(self.last.lock().unwrap().clone());
        }
        let mut loaded = self.store.load(name, id, tenant).await?;
        if let Some(snapshot) = &mut loaded {
            match self.fault {
                Fault::ForgetsThatItIsDeleted => snapshot.deleted = false,
                Fault::LosesAField => snapshot.owner_id = None,
                _ => {}
            }
        }
        Ok(loaded)
    }

    async fn version(&self, name: &AggregateName, id: &AggregateId) -> Result<i64, SnapshotError> {
        if self.fault == Fault::LetsTheLastWin {
            return Ok(self.last.lock().unwrap().as_ref().map_or(0, |last| last.version));
        }
        let version = self.store.version(name, id).await?;
        Ok(if self.fault == Fault::MakesAVersionUp { version.max(1) } else { version })
    }
}
