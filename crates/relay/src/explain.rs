//! Explains why a record is not delivered yet, for an operator.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, doc};
use mongodb::options::Hint;
use postrider_outbox::collections::{Collections, names as collection};
use postrider_outbox::fields::{
    BLOCKS, DEAD, DEAD_REASON, DONE, KEY, LAST_ERROR, LEASE_OWNER, PARTITION, PENDING, SCHEDULED,
    SEQ, STATUS, exactly,
};
use postrider_outbox::ids::RecordId;
use postrider_outbox::inspect::decoded;
use postrider_outbox::position::partitions_of;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::{BLOCKS_INDEX, LANE_INDEX};
use postrider_outbox::undecoded::decode_lossy;
use postrider_store::dates::rfc3339;
use postrider_store::{ServerClock, StoreError, limits, within};
use serde::Serialize;

use crate::blocker::BlockReason;
use crate::instance_state::{MAX_NAMED, fields, shortened, state_id};
use crate::partition;
use crate::partition::owner::{Ownership, PartitionOwner, of_partition};
use crate::plan::{Defect, RecordState};

/// Earlier records of a key that are counted.
const MAX_EARLIER: u64 = 10_000;

/// What a record waits for. The words are those of `postrider_blocked_keys` if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The time at which the record gets its sequence.
    Scheduled,
    /// A dead record of its key, under `on_dead = "block"`.
    Blocked,
    /// The end of a delivery that is under way.
    Leased,
    /// Its turn in quarantine: its last delivery ended in a crash or a hang.
    #[serde(rename = "quarantined")]
    Quarantined,
    /// Its backoff, or the producer's `visibleAt`.
    NotDue,
    /// An instance that delivers its partition: there is none at the moment.
    Instance,
    /// The end of a pause (`postrider relay pause`).
    Paused,
    /// MongoDB: it refuses to let the relay change the record.
    Refused,
    /// A correction by the relay: the record has an invalid partition, or no usable `seq`.
    Repair,
    /// The sink of its dead letter, without which it does not become dead.
    DeadLetter,
    /// MongoDB: it refuses or fails to do what the relay asks of it.
    Store,
    /// Its sink.
    SinkDown,
    /// Its destination, which does not confirm.
    DestinationDown,
    /// Nothing: the next scan of a relay acquires it.
    #[serde(rename = "next_scan")]
    Scan,
    /// Nothing that comes by itself: its status is unknown to the relay.
    Invalid,
}

/// Why a record waits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// What it waits for: of the record itself, or of the record that it is behind.
    #[serde(rename = "for")]
    pub waits_for: WaitsFor,
    /// The same as text.
    pub detail: String,
    /// The record of its key that goes first, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// The instance that has leased it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_owner: Option<String>,
    /// The sink of the record that goes first, if the caller knows the routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// The instance that delivers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The record that goes first, for a caller that knows the routes.
    #[serde(skip)]
    pub front: Document,
    /// That instance, if only its own state can explain the wait.
    #[serde(skip)]
    pub owner: Option<PartitionOwner>,
}

impl Explanation {
    fn new(waits_for: WaitsFor, detail: String, front: Document) -> Self {
        Self {
            waits_for,
            detail,
            behind: None,
            lease_owner: None,
            sink: None,
            instance: None,
            front,
            owner: None,
        }
    }

    /// Replaces what the front waits for, for example by its sink.
    pub fn waits(&mut self, waits_for: WaitsFor, detail: &str) {
        let front = self.behind.as_ref().map(|id| format!("behind {id}, which "));
        self.waits_for = waits_for;
        self.detail = format!("{}{detail}", front.unwrap_or_default());
    }
}

/// Explains waits by one read of the outbox. It changes nothing, and the answer may be outdated at
/// once.
#[derive(Debug)]
pub struct Explainer {
    /// The outbox.
    pub collections: Collections,
    /// Whether records of a key are delivered in order.
    pub ordered: bool,
    /// Deliveries that a record may have.
    pub max_attempts: u32,
    /// How long an instance counts as alive after its last heartbeat.
    pub stale_after: Duration,
}

impl Explainer {
    /// Explains why `record` waits; `None` if it does not: it is done or dead, or will never be
    /// delivered.
    pub async fn explain(&self, record: &Document) -> Result<Option<Explanation>, StoreError> {
        let now = ServerClock::asked(self.collections.database()).await?;
        match record.get_str(STATUS) {
            Ok(SCHEDULED) => Ok(Some(scheduled(record, now))),
            Ok(PENDING) => self.pending(record, now).await.map(Some),
            Ok(DONE | DEAD) => Ok(None),
            _ => Ok(Some(invalid(record))),
        }
    }

    async fn pending(&self, record: &Document, now: DateTime) -> Result<Explanation, StoreError> {
        let read = read(record);
        let LaneKey::Keyed(key) = read.lane.clone() else {
            return self.front(record.clone(), now).await;
        };
        if !self.ordered {
            return self.front(record.clone(), now).await;
        }
        if let Some(dead) = self.blocking(&key).await? {
            return Ok(blocked(dead));
        }
        let front = self.first(&key, &read).await?.unwrap_or_else(|| record.clone());
        let id = id_of(&front);
        if id == read.id {
            return self.front(front, now).await;
        }
        let earlier = self.earlier(&key, &read).await?;
        let others = match earlier.saturating_sub(1) {
            0 => String::new(),
            1 => " and one more earlier record of its key".to_owned(),
            MAX_EARLIER.. => format!(" and more than {MAX_EARLIER} earlier records of its key"),
            others => format!(" and {others} more earlier records of its key"),
        };
        let waiting = self.front(front, now).await?;
        let detail = format!("behind {id}{others}; {id} {}", waiting.detail);
        Ok(Explanation { detail, behind: Some(id.to_string()), ..waiting })
    }

    /// Explains why the first record of its key waits.
    async fn front(&self, front: Document, now: DateTime) -> Result<Explanation, StoreError> {
        let record = read(&front);
        let attempts = record.attempt;
        match RecordState::of(&record, now, |_| false) {
            RecordState::Leased => {
                let owner = front.get(LEASE_OWNER).cloned();
                let who = self.instance(owner.as_ref()).await?;
                let until = time(record.lease_until);
                let detail = format!("is leased until {until} by {who}");
                let lease_owner = owner.map(text);
                let waiting = Explanation::new(WaitsFor::Leased, detail, front);
                Ok(Explanation { lease_owner, ..waiting })
            }
            RecordState::NotDue(due) => {
                let due = time(Some(due));
                if attempts >= self.max_attempts && self.is_dying(&record).await? {
                    let detail = format!(
                        "becomes dead after its dead-letter copy (relay.dead_letter), which is \
                         retried at {due}: its last delivery failed"
                    );
                    return Ok(Explanation::new(WaitsFor::DeadLetter, detail, front));
                }
                let detail = match front.get_str(LAST_ERROR) {
                    Ok(error) if attempts > 0 => format!(
                        "is retried at {due}: delivery {attempts} of {} failed: {error}",
                        self.max_attempts
                    ),
                    _ => format!("is not due before {due} (visibleAt)"),
                };
                Ok(Explanation::new(WaitsFor::NotDue, detail, front))
            }
            of_itself => self.owned(front, &record, of_itself).await,
        }
    }

    /// Returns whether the instance that owns its partition reports that its dead letter waits.
    async fn is_dying(&self, record: &Record) -> Result<bool, StoreError> {
        let ownership = of_partition(&self.collections, record.partition, self.stale_after).await?;
        Ok(match ownership {
            Ownership::Owned(owner) => names(&owner, fields::DEAD_LETTER, record),
            _ => false,
        })
    }

    /// Explains why a record waits that an instance must handle.
    async fn owned(
        &self,
        front: Document,
        record: &Record,
        of_itself: RecordState,
    ) -> Result<Explanation, StoreError> {
        let partition = record.partition;
        let owner = match of_partition(&self.collections, partition, self.stale_after).await? {
            Ownership::Owned(owner) => owner,
            Ownership::NoInstance => {
                let detail = "waits for an instance: none is alive; start `postrider run`";
                return Ok(Explanation::new(WaitsFor::Instance, detail.to_owned(), front));
            }
            Ownership::Paused => {
                let detail = "waits, since the relay is paused; resume it with `postrider relay \
                              resume`";
                return Ok(Explanation::new(WaitsFor::Paused, detail.to_owned(), front));
            }
            Ownership::Unowned => {
                let detail = format!(
                    "waits for an instance: none owns its partition {partition} yet; one \
                     acquires it within seconds"
                );
                return Ok(Explanation::new(WaitsFor::Instance, detail, front));
            }
            Ownership::Stale(owner) => {
                let detail = format!(
                    "waits for an instance: its partition {partition} belongs to {}, whose \
                     heartbeat is stale; another instance takes it over",
                    owner.name()
                );
                let waiting = Explanation::new(WaitsFor::Instance, detail, front);
                return Ok(Explanation { instance: Some(owner.id), ..waiting });
            }
        };
        let who = owner.name();
        let (waits_for, detail) = if names(&owner, fields::REFUSED, record) {
            let detail = format!(
                "waits, since MongoDB rejects the changes of {who}; change the validator of \
                 outbox_records to permit what the relay writes"
            );
            (WaitsFor::Refused, detail)
        } else if let RecordState::Defect(wrong) = of_itself {
            let wrong = in_words(wrong, &front);
            (WaitsFor::Repair, format!("is corrected by {who} before its delivery: {wrong}"))
        } else if of_itself == RecordState::Poison {
            let (attempts, most) = (record.attempt, self.max_attempts);
            let crashes = record.crashes();
            let detail = format!(
                "is in quarantine on {who}: {crashes} of its leases ended without an outcome \
                 (delivery {attempts} of {most}){}",
                unnamed(&owner)
            );
            (WaitsFor::Quarantined, detail)
        } else if names(&owner, fields::ALONE, record) {
            let detail = format!(
                "is in quarantine on {who}: it was in flight each time its connection was lost"
            );
            (WaitsFor::Quarantined, detail)
        } else if names(&owner, fields::DEAD_LETTER, record) {
            let detail = format!(
                "becomes dead when {who} can send its dead-letter copy (relay.dead_letter): the \
                 sink is down, or the destination does not confirm"
            );
            (WaitsFor::DeadLetter, detail)
        } else if names(&owner, fields::UNCONFIRMED, record) {
            let detail =
                format!("waits for its destination, which does not confirm according to {who}");
            (WaitsFor::DestinationDown, detail)
        } else if let Some(trouble) = store_trouble(&owner) {
            let detail =
                format!("waits for MongoDB according to {who} ({}): {trouble}", owner.as_of());
            (WaitsFor::Store, detail)
        } else {
            (WaitsFor::Scan, format!("is leased at the next scan of {who}{}", unnamed(&owner)))
        };
        let instance = Some(owner.id.clone());
        let waiting = Explanation::new(waits_for, detail, front);
        Ok(Explanation { instance, owner: Some(owner), ..waiting })
    }

    async fn blocking(&self, key: &str) -> Result<Option<Document>, StoreError> {
        let filter = doc! { BLOCKS: true, STATUS: exactly(DEAD), KEY: key };
        self.find_one(filter, doc! {}, BLOCKS_INDEX).await
    }

    /// Returns the earliest pending record of the key, in its partition or without one.
    async fn first(&self, key: &str, record: &Record) -> Result<Option<Document>, StoreError> {
        // Records of the key with an invalid partition are in neither.
        let number = |partition: u8| Bson::Int32(partition.into());
        let hashed = number(partition::of_key(key));
        let own = Some(number(record.partition)).filter(|own| *own != hashed);
        let valid: Vec<Bson> = (0..=u8::MAX).map(number).chain([Bson::Null]).collect();
        let invalid = Bson::Document(doc! { "$nin": valid });
        let mut first = None;
        for partition in own.into_iter().chain([hashed, Bson::Null, invalid]) {
            let filter = doc! { STATUS: exactly(PENDING), PARTITION: partition, KEY: key };
            let found = self.find_one(filter, doc! { SEQ: 1 }, LANE_INDEX).await?;
            let Some(found) = found else { continue };
            // A record without a `seq` gets a future one.
            let seq = read(&found).seq;
            let place = (seq.is_none(), seq);
            if first.as_ref().is_none_or(|(earliest, _)| place < *earliest) {
                first = Some((place, found));
            }
        }
        Ok(first.map(|(_, found)| found))
    }

    async fn earlier(&self, key: &str, record: &Record) -> Result<u64, StoreError> {
        let seq = record.seq.unwrap_or(postrider_outbox::position::NO_SEQ);
        let filter = doc! {
            STATUS: exactly(PENDING),
            PARTITION: partitions_of(&[record.partition], key),
            KEY: key,
            SEQ: { "$lt": seq },
        };
        let records = self.collections.records();
        let counting = records.count_documents(filter);
        let counting = counting.limit(MAX_EARLIER + 1).hint(Hint::Name(LANE_INDEX.into()));
        let counted = within("count records", limits::BATCH_TIMEOUT, counting.into_future());
        self.collections.by_index(LANE_INDEX, counted).await
    }

    /// Describes an instance.
    async fn instance(&self, id: Option<&Bson>) -> Result<String, StoreError> {
        let Some(id) = id else { return Ok("an unnamed instance".to_owned()) };
        let instances = self.collections.collection(collection::INSTANCES);
        let instances = instances.clone_with_type::<RawDocumentBuf>();
        let finding = instances.find_one(doc! { "_id": { "$eq": id } });
        let found = within("read instances", limits::BATCH_TIMEOUT, finding.into_future()).await?;
        let name = text(id.clone());
        let found = found.map(|instance| decode_lossy(&instance).0);
        Ok(match found.as_ref().and_then(|instance| instance.get_str("hostname").ok()) {
            Some(host) => format!("instance {name} on {host}"),
            None => format!("instance {name}, which no longer exists"),
        })
    }

    async fn find_one(
        &self,
        filter: Document,
        order: Document,
        index: &str,
    ) -> Result<Option<Document>, StoreError> {
        let records = self.collections.records();
        let finding = records.find_one(filter).sort(order).hint(Hint::Name(index.to_owned()));
        let found = within("read a record", limits::BATCH_TIMEOUT, finding.into_future());
        let found = self.collections.by_index(index, found).await?;
        Ok(found.as_deref().map(decoded))
    }
}

/// Returns what MongoDB refuses or fails to do for the instance.
fn store_trouble(owner: &PartitionOwner) -> Option<&str> {
    owner.relay.as_ref()?.get_str(fields::STORE_TROUBLE).ok()
}

/// Describes what the relay must correct before it delivers the record.
fn in_words(wrong: Defect, front: &Document) -> String {
    match wrong {
        Defect::Seq => "it has no valid seq".to_owned(),
        Defect::Partition => {
            let partition = front.get(PARTITION).map(ToString::to_string).unwrap_or_default();
            let partition = shortened(&partition, 100);
            format!("its partition, {partition}, is not an integer from 0 to 255")
        }
    }
}

/// Returns whether the instance names this record in a list of its state.
fn names(owner: &PartitionOwner, list: &str, record: &Record) -> bool {
    let named = owner.relay.as_ref().and_then(|relay| relay.get_array(list).ok());
    let id = state_id(&record.id);
    named.is_some_and(|ids| ids.iter().any(|named| named.as_str() == Some(&id)))
}

/// Returns a note that the owner does not name all records that wait for something only it knows.
fn unnamed(owner: &PartitionOwner) -> String {
    let counts =
        owner.relay.as_ref().and_then(|relay| relay.get_document(fields::BLOCKED_KEYS).ok());
    let count = |reason: &BlockReason| {
        let count = counts.and_then(|counts| counts.get_i64(reason.as_str()).ok());
        count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    };
    let of_the_relay = [
        BlockReason::Quarantined,
        BlockReason::Refused,
        BlockReason::DeadLetter,
        BlockReason::DestinationDown,
    ];
    match of_the_relay.iter().map(count).max().unwrap_or(0) {
        0..=MAX_NAMED => String::new(),
        many => format!(
            ", unless it is one of {many} waiting records, of which that instance reports only \
             {MAX_NAMED}; list them with `postrider relay blocked-keys`"
        ),
    }
}

fn scheduled(record: &Document, now: DateTime) -> Explanation {
    let due = read(record).visible_at;
    let detail = match due.filter(|due| *due > now) {
        Some(due) => format!("becomes pending at {} (visibleAt)", time(Some(due))),
        None => "is due; an instance makes it pending at its next scan".to_owned(),
    };
    Explanation::new(WaitsFor::Scheduled, detail, record.clone())
}

fn invalid(record: &Document) -> Explanation {
    let status = match record.get(STATUS) {
        Some(Bson::String(status)) => format!("the status {:?}", shortened(status, 100)),
        Some(_) => "a status that is not a string".to_owned(),
        None => "no status".to_owned(),
    };
    let detail = format!(
        "is never delivered, since it has {status}, which must be pending, scheduled, done or \
         dead; correct the status, or remove the record"
    );
    Explanation::new(WaitsFor::Invalid, detail, record.clone())
}

fn blocked(dead: Document) -> Explanation {
    let id = id_of(&dead);
    let reason = dead.get_str(DEAD_REASON).unwrap_or("no reason stored");
    let detail = format!(
        "behind {id}, which is dead and blocks its key ({reason}); requeue or discard it with \
         `postrider outbox requeue` or `discard`"
    );
    Explanation {
        behind: Some(id.to_string()),
        ..Explanation::new(WaitsFor::Blocked, detail, dead)
    }
}

fn read(record: &Document) -> Record {
    // A decoded document always encodes.
    let raw = bson::RawDocumentBuf::try_from(record).unwrap_or_default();
    Record::read(&raw)
}

fn id_of(record: &Document) -> RecordId {
    RecordId::from(record.get("_id").cloned().unwrap_or(Bson::Null))
}

fn time(date: Option<DateTime>) -> String {
    date.and_then(rfc3339).unwrap_or_else(|| "an unrepresentable time".to_owned())
}

fn text(id: Bson) -> String {
    RecordId::from(id).to_string()
}
