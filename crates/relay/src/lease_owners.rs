//! Tracks which lease owners are alive: the leases of the others are taken over before they expire.
//!
//! A lease that is taken over too early costs duplicates, never the order (`docs/concepts.md`). An
//! owner counts as dead by a majority read that was sent after its lease was seen: it announces
//! each id before it leases under it, so such a read shows it if it is alive.
//! `tests/model/src/takeover` has the rules, and what breaks without each.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use postrider_outbox::ids::InstanceId;
use postrider_outbox::lease::OwnerId;
use postrider_outbox::record::Record;
use postrider_store::boot_instant::BootInstant;

use crate::partition::owned::LiveOwners;

/// Lease owners that are remembered. Beyond it a lease waits until it expires.
const MAX_SEEN: usize = 1_000;

/// What is known of lease owners.
#[derive(Debug)]
pub struct LeaseOwners {
    own: Arc<OwnerId>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The owners that are alive; `None` if that was not read.
    alive: Option<LiveOwners>,
    /// When a lease of an owner that is not alive was first seen.
    seen: HashMap<InstanceId, BootInstant>,
}

impl Known {
    fn is_dead(&self, owner: InstanceId) -> bool {
        let Some(alive) = &self.alive else { return false };
        let seen = self.seen.get(&owner);
        !alive.owners.contains(&owner) && seen.is_some_and(|seen| *seen < alive.as_of)
    }
}

impl LeaseOwners {
    /// Creates the state without any known owner. `predecessor`: the owner that this instance
    /// replaces, whose leases it will see.
    pub(crate) fn new(own: Arc<OwnerId>, predecessor: Option<InstanceId>) -> Self {
        let seen = predecessor.map(|owner| (owner, BootInstant::now())).into_iter().collect();
        Self { own, known: Mutex::new(Known { alive: None, seen }) }
    }

    /// Replaces the owners that are alive. Returns whether a known lease may have a dead owner: one
    /// that was alive, or one that was seen.
    pub(crate) fn set_alive(&self, alive: Option<LiveOwners>) -> bool {
        let mut known = self.known.lock();
        let was_dead: BTreeSet<InstanceId> =
            known.seen.keys().copied().filter(|owner| known.is_dead(*owner)).collect();
        let is_gone = match (&known.alive, &alive) {
            (Some(before), Some(now)) => !before.owners.is_subset(&now.owners),
            _ => false,
        };
        known.alive = alive;
        if let Known { alive: Some(alive), seen } = &mut *known {
            seen.retain(|owner, _| !alive.owners.contains(owner));
        }
        is_gone || known.seen.keys().any(|owner| known.is_dead(*owner) && !was_dead.contains(owner))
    }

    /// Returns whether the instance that leased this record is dead. Remembers that its lease was
    /// seen.
    pub fn is_dead(&self, record: &Record) -> bool {
        let Some(owner) = record.lease_owner.filter(|owner| *owner != self.own.current()) else {
            return false;
        };
        let mut known = self.known.lock();
        let is_alive = known.alive.as_ref().is_none_or(|alive| alive.owners.contains(&owner));
        if !is_alive && (known.seen.len() < MAX_SEEN || known.seen.contains_key(&owner)) {
            known.seen.entry(owner).or_insert_with(BootInstant::now);
        }
        known.is_dead(owner)
    }

    /// Returns whether this instance leased this record, under its current owner id or an earlier one.
    pub(crate) fn is_own(&self, record: &Record) -> bool {
        record.lease_owner.is_some_and(|owner| self.own.is_own(owner))
    }

    /// Returns the dead owners of these records, each once.
    pub(crate) fn dead_among<'a>(
        &self,
        records: impl Iterator<Item = &'a Record>,
    ) -> Vec<InstanceId> {
        let dead = records.filter(|record| self.is_dead(record));
        let dead: BTreeSet<InstanceId> = dead.filter_map(|record| record.lease_owner).collect();
        dead.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bson::raw::RawDocumentBuf;
    use bson::{Bson, doc};

    use super::*;

    fn leased_by(owner: InstanceId) -> Record {
        let document = doc! { "_id": 1, "leaseOwner": Bson::from(owner) };
        Record::read(&RawDocumentBuf::try_from(&document).unwrap())
    }

    /// The result of a read that is sent a second from now.
    fn alive<const N: usize>(owners: [InstanceId; N]) -> Option<LiveOwners> {
        let as_of = BootInstant::now() + Duration::from_secs(1);
        Some(LiveOwners { owners: Arc::new(BTreeSet::from(owners)), as_of })
    }

    #[test]
    fn owner_is_dead_by_a_read_sent_after_its_lease_was_seen() {
        let [own, peer] = [InstanceId::fresh(), InstanceId::fresh()];
        let owners = LeaseOwners::new(OwnerId::new(own), None);
        let before = Some(LiveOwners { owners: Arc::default(), as_of: BootInstant::now() });

        assert!(!owners.is_dead(&leased_by(peer)), "nothing was read");
        assert!(!owners.set_alive(before));
        assert!(!owners.is_dead(&leased_by(peer)), "it may have come since");
        assert!(owners.set_alive(alive([own])), "the lease was seen before this read");
        assert!(owners.is_dead(&leased_by(peer)));
        assert!(!owners.set_alive(alive([own])), "that is known");
        assert!(!owners.set_alive(alive([own, peer])));
        assert!(!owners.is_dead(&leased_by(peer)));
        assert!(owners.set_alive(alive([own])), "it has gone: its leases are looked at again");
        assert!(!owners.set_alive(None));
        assert!(!owners.is_dead(&leased_by(peer)));
    }

    #[test]
    fn predecessor_is_dead_by_the_first_read_after_a_restart() {
        let [own, before] = [InstanceId::fresh(), InstanceId::fresh()];
        let owners = LeaseOwners::new(OwnerId::new(own), Some(before));

        assert!(owners.set_alive(alive([own])));
        assert!(owners.is_dead(&leased_by(before)));
    }

    #[test]
    fn own_leases_are_alive_until_the_id_is_replaced() {
        let before = InstanceId::fresh();
        let id = OwnerId::new(before);
        let owners = LeaseOwners::new(id.clone(), None);
        let now = Some(LiveOwners { owners: Arc::default(), as_of: BootInstant::now() });
        owners.set_alive(now);

        assert!(!owners.is_dead(&leased_by(before)), "its own announcement may be on its way");
        id.replace();
        assert!(!owners.is_dead(&leased_by(before)));
        owners.set_alive(alive([]));
        assert_eq!(owners.dead_among([leased_by(before), leased_by(before)].iter()), [before]);
    }
}
