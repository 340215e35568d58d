//! The records of a push subscription that wait: exactly, and without an index of their own.
//!
//! The owner knows the ids of what it has copied, and asks by `_id` which of them are still pending. A new
//! owner reads them once from `lane_idx`, where the keys of a subscription begin with its name. (A count
//! by an index would pass over the deleted entries of the last minutes each time.)

use std::collections::HashSet;

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::options::Hint;
use postrider_outbox::collections::{Collections, names};
use postrider_outbox::fields::{HEADERS, ID, KEY, PARTITION, PENDING, STATUS, exactly};
use postrider_outbox::snapshot::LANE_INDEX;
use postrider_store::{StoreError, limits, within};
use uuid::Uuid;

use crate::subscriptions::records::{KEY_SEPARATOR, header, key};

/// The ids of one read.
const MAX_IDS: usize = 1_000;

/// The records of a subscription that are pending, or were at the last look.
pub(super) struct WaitingRecords {
    records: Collection<Document>,
    ids: HashSet<Uuid>,
}

impl WaitingRecords {
    /// Reads those of a subscription. The caller owns it, so that nothing is added meanwhile.
    pub(super) async fn read(outbox: &Collections, name: &str) -> Result<Self, StoreError> {
        let records: Collection<Document> = outbox.collection(names::RECORDS);
        // The character behind the separator ends the range.
        let end = char::from_u32(u32::from(KEY_SEPARATOR) + 1).unwrap_or(KEY_SEPARATOR);
        let filter = doc! {
            STATUS: PENDING,
            PARTITION: { "$in": (0..256).collect::<Vec<i32>>() },
            KEY: { "$gte": key(name, ""), "$lt": format!("{name}{end}") },
            format!("{HEADERS}.{}", header::SUBSCRIPTION): exactly(name),
        };
        let finding =
            records.find(filter).projection(doc! { ID: 1 }).hint(Hint::Name(LANE_INDEX.to_owned()));
        let reading = async { finding.await?.try_collect().await };
        let reading = within("read waiting records", limits::REPORT_TIMEOUT, reading);
        let found: Vec<Document> = outbox.by_index(LANE_INDEX, reading).await?;
        let ids = found.iter().filter_map(uuid).collect();
        Ok(Self { records, ids })
    }

    /// How many there are at most.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Adds what was copied.
    pub(super) fn add(&mut self, ids: impl Iterator<Item = Uuid>) {
        self.ids.extend(ids);
    }

    /// Forgets what is no longer pending.
    pub(super) async fn refresh(&mut self) -> Result<(), StoreError> {
        let known: Vec<Uuid> = self.ids.iter().copied().collect();
        for ids in known.chunks(MAX_IDS) {
            let binary = |id: &Uuid| {
                Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: id.as_bytes().to_vec() })
            };
            let among: Vec<Bson> = ids.iter().map(binary).collect();
            let filter = doc! { ID: { "$in": among }, STATUS: PENDING };
            let finding = self.records.find(filter).projection(doc! { ID: 1 });
            let reading = async { finding.await?.try_collect().await };
            let reading = within("read waiting records", limits::BATCH_TIMEOUT, reading);
            let found: Vec<Document> = reading.await?;
            let pending: HashSet<Uuid> = found.iter().filter_map(uuid).collect();
            self.ids.retain(|id| pending.contains(id) || !ids.contains(id));
        }
        Ok(())
    }
}

fn uuid(found: &Document) -> Option<Uuid> {
    match found.get(ID) {
        Some(Bson::Binary(id)) => Uuid::from_slice(&id.bytes).ok(),
        _ => None,
    }
}
