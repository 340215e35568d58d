//! A peer that consists of its documents: it sends heartbeats, and does whatever else the test
//! does.

use std::time::Duration;

use bson::{Bson, Document, doc};
use postrider::ids::InstanceId;
use tokio::task::JoinHandle;

use crate::support::outbox::TestOutbox;

pub struct Peer {
    pub id: InstanceId,
    beating: JoinHandle<()>,
}

impl Peer {
    /// Sends a heartbeat ten times a second, until dropped.
    pub async fn beat(outbox: &TestOutbox) -> Self {
        let id = InstanceId::fresh();
        let instances = outbox.collections.database().collection::<Document>("outbox_instances");
        let update = vec![doc! { "$set": {
            "hostname": "elsewhere",
            "status": "active",
            "startedAt": { "$ifNull": ["$startedAt", "$$NOW"] },
            "lastHeartbeat": "$$NOW",
            "version": "0",
        } }];
        let beat = move || {
            let (instances, update) = (instances.clone(), update.clone());
            async move {
                let id = doc! { "_id": Bson::from(id) };
                instances.update_one(id, update).upsert(true).await.unwrap();
            }
        };
        beat().await;
        let beating = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                beat().await;
            }
        });
        Self { id, beating }
    }

    /// Makes it the owner of these partitions.
    pub async fn own(&self, outbox: &TestOutbox, partitions: std::ops::RangeInclusive<i32>) {
        let assignments =
            outbox.collections.database().collection::<Document>("outbox_partition_assignments");
        let owned = partitions.map(|partition| {
            doc! {
                "_id": partition,
                "instanceId": Bson::from(self.id),
                "epoch": 1_i64,
                "updatedAt": bson::DateTime::from_millis(0),
            }
        });
        assignments.insert_many(owned).await.unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.beating.abort();
    }
}
