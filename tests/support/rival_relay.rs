//! Another relay of the same outbox, which leases and settles what the test orders, when it orders.

use std::time::Duration;

use bson::{Document, doc};
use postrider::ids::{InstanceId, LeaseId, RecordId};
use postrider::outbox::collections::Collections;
use postrider::outbox::lease::{LeaseRequest, Leaser, OwnerId};
use postrider::outbox::settle::{Outcome, Settlement, Settlements};

use super::outbox::{eventually, versions};

/// Leases and settles records of an outbox, as another relay does.
pub struct RivalRelay {
    collections: Collections,
    leaser: Leaser,
    settlements: Settlements,
}

/// Record ids of the string kind.
pub fn ids(ids: &[&str]) -> Vec<RecordId> {
    ids.iter().map(|id| RecordId::String((*id).to_owned())).collect()
}

/// Leases of an instance of its own, which outlast any test.
fn leaser(collections: &Collections) -> Leaser {
    let owner = OwnerId::new(InstanceId::fresh());
    Leaser::new(collections.clone(), owner, Duration::from_secs(600))
}

impl RivalRelay {
    /// A relay whose leases outlast any test.
    pub fn new(collections: &Collections) -> Self {
        let leaser = leaser(collections);
        let settlements = Settlements::new(collections.clone(), false);
        Self { collections: collections.clone(), leaser, settlements }
    }

    /// The same, which other instances know as alive and without partitions.
    pub async fn alive(collections: &Collections) -> Self {
        let peer = Self::new(collections);
        let soon = bson::DateTime::now().timestamp_millis() + 3_600_000;
        let document = doc! {
            "_id": peer.leaser.owner(),
            "status": "active",
            "partitions": "none",
            "lastHeartbeat": bson::DateTime::from_millis(soon),
        };
        let instances = collections.collection("outbox_instances");
        instances.insert_one(document).await.unwrap();
        peer
    }

    /// Leases these records, which must be free.
    pub async fn take(&self, records: &[&str]) -> LeaseId {
        let lease = LeaseId::fresh();
        let wanted = versions(&self.collections, records).await;
        let grant = self.leaser.lease(lease, &LeaseRequest::touched(wanted)).await.unwrap();
        assert_eq!(grant.held.len(), records.len(), "the peer holds what it asked for");
        self.until_seen(lease, records.len()).await;
        lease
    }

    /// Lets the lease on this record expire, and leases it as an instance that has never held it.
    pub async fn take_over(&self, record: &str) -> LeaseId {
        let lease = LeaseId::fresh();
        let leaser = leaser(&self.collections);
        eventually("the peer takes an expired record", || async {
            let past = doc! { "$set": { "leaseUntil": bson::DateTime::from_millis(1_000) } };
            let records = self.collections.records();
            records.update_one(doc! { "_id": record }, past).await.unwrap();
            let wanted = LeaseRequest::touched(versions(&self.collections, &[record]).await);
            // The owner may renew it in between.
            !leaser.lease(lease, &wanted).await.unwrap().held.is_empty()
        })
        .await;
        self.until_seen(lease, 1).await;
        lease
    }

    /// Waits until a majority has the lease, which is what tests read.
    async fn until_seen(&self, lease: LeaseId, count: usize) {
        let held = || async {
            let records = self.collections.records();
            records.count_documents(doc! { "leaseId": lease }).await.unwrap()
        };
        eventually("a majority has the lease", || async { held().await == count as u64 }).await;
    }

    /// Settles what it has leased.
    pub async fn settle(&self, lease: LeaseId, record: &str, outcome: Outcome) {
        let records = self.collections.records().clone_with_type::<Document>();
        let found = records.find_one(doc! { "_id": record }).await.unwrap().unwrap();
        let attempt = u32::try_from(found.get_i32("attempt").unwrap()).unwrap();
        let id = RecordId::String(record.to_owned());
        let lost =
            self.settlements.write(&[Settlement { id, lease, attempt, outcome }]).await.unwrap();
        assert!(lost.is_empty(), "the peer holds {record}");
    }
}
