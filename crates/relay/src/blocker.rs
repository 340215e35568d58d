//! The blocker of a key: its head as it was when it was read, why it waits, and until when.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use bson::Timestamp;
use bson::raw::RawDocument;
use postrider_outbox::fields::PAYLOAD;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::Record;

use crate::sink::Address;

/// The head of a blocked key, with enough state to recognize it, unchanged, in a later read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its `_id`.
    pub id: RecordId,
    /// The partition in which the record was read.
    pub partition: u8,
    /// Its sequence within the key.
    pub seq: Option<Timestamp>,
    /// A hash of the record without its payload; `None` if it was written since it was read.
    state: Option<u64>,
}

impl Blocker {
    /// Creates the blocker from the record as it was read.
    pub fn of(record: &Record) -> Self {
        Self { state: Some(state(&record.raw)), ..Self::written(record) }
    }

    /// Creates the blocker from a record that was written since: its current state is not known.
    pub fn written(record: &Record) -> Self {
        Self { id: record.id.clone(), partition: record.partition, seq: record.seq, state: None }
    }

    /// Creates the blocker for a dead record that blocks a key of this partition.
    pub(super) fn dead(id: RecordId, partition: u8) -> Self {
        Self { id, partition, seq: None, state: None }
    }

    /// Creates the blocker for a record in this partition that was not read.
    pub(super) fn unseen(partition: u8) -> Self {
        Self::dead(RecordId::from(bson::Bson::Null), partition)
    }

    /// Returns whether a later read can show that the record is still there.
    pub(super) fn is_comparable(&self) -> bool {
        self.seq.is_some()
    }

    /// Returns whether the record was written since it was read.
    pub(super) fn is_written(&self) -> bool {
        self.state.is_none()
    }

    /// Returns whether `record` is this record, unchanged. The payload is not compared.
    pub(super) fn is(&self, record: &Record) -> bool {
        self.id == record.id && self.state == Some(state(&record.raw))
    }

    /// Returns whether `other` can be the same state of the same record. A written state matches
    /// any.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        self.id == other.id && (self.is_written() || self.state == other.state)
    }
}

/// Why the records of a key are not being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockReason {
    /// The head is not due yet: backoff after a failure, or the producer's `visibleAt`.
    NotDue,
    /// Another owner has leased the head.
    Leased,
    /// The sink of the head is down.
    SinkDown,
    /// The destination of the head does not confirm.
    DestinationDown,
    /// The head waits for its turn in quarantine.
    Quarantined,
    /// MongoDB refuses to change the head: a validator of the user's own.
    Refused,
    /// The head will be dead, and the sink of its dead letter is down.
    DeadLetter,
    /// The head is being corrected: it has an invalid partition, or no usable `seq`.
    Repair,
    /// A dead record blocks the key (`on_dead = "block"`), with or without records behind it.
    Blocked,
}

impl BlockReason {
    /// All reasons, for the metrics.
    pub const ALL: [Self; 9] = [
        Self::NotDue,
        Self::Leased,
        Self::SinkDown,
        Self::DestinationDown,
        Self::Quarantined,
        Self::Refused,
        Self::DeadLetter,
        Self::Repair,
        Self::Blocked,
    ];

    /// The label in `postrider_blocked_keys`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Leased => "leased",
            Self::SinkDown => "sink_down",
            Self::DestinationDown => "destination_down",
            Self::Quarantined => "quarantined",
            Self::Refused => "refused",
            Self::DeadLetter => "dead_letter",
            Self::Repair => "repair",
            Self::Blocked => "blocked",
        }
    }

    /// Returns whether only the relay knows the reason: no snapshot shows it.
    pub(super) fn is_of_the_relay(self) -> bool {
        matches!(self, Self::Refused | Self::DeadLetter)
    }
}

/// The block of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyBlock {
    /// The reason.
    pub reason: BlockReason,
    /// When the key is read again at the latest, if known.
    pub until: Option<Instant>,
    /// When the key began to wait for this blocker.
    pub since: Instant,
    /// The head of the key.
    pub blocker: Blocker,
    /// The sink that the key waits for.
    pub sink: Option<Arc<str>>,
    /// The destination within the sink, if the key waits for one.
    pub destination: Option<Address>,
}

impl KeyBlock {
    /// Creates a block that begins now.
    pub fn new(reason: BlockReason, blocker: Blocker, until: Option<Instant>) -> Self {
        Self { reason, until, since: Instant::now(), blocker, sink: None, destination: None }
    }

    /// Creates a block for a destination that does not confirm.
    pub fn for_destination(
        blocker: Blocker,
        until: Option<Instant>,
        sink: Arc<str>,
        destination: Address,
    ) -> Self {
        let (sink, destination) = (Some(sink), Some(destination));
        Self { sink, destination, ..Self::new(BlockReason::DestinationDown, blocker, until) }
    }

    pub(super) fn is_for(&self, sink: &str, destination: &Address) -> bool {
        self.destination.as_ref() == Some(destination) && self.sink.as_deref() == Some(sink)
    }
}

/// Hashes all fields except the payload, which a read may leave out.
fn state(raw: &RawDocument) -> u64 {
    hash_without(raw, &[PAYLOAD])
}

/// Hashes all fields except these, independently of their order: a released lease may have moved
/// fields.
pub(super) fn hash_without(raw: &RawDocument, left_out: &[&str]) -> u64 {
    let bytes = raw.as_bytes();
    // Skip the length of the document.
    let mut start = 4;
    let mut state = 0_u64;
    for element in raw.iter_elements() {
        // Fields behind an invalid element are not compared.
        let Ok(element) = element else { break };
        let name = element.key().as_str();
        // An element is a type byte, the name, a zero byte and the value.
        let end = start + 1 + name.len() + 1 + element.size();
        if !left_out.contains(&name) {
            let mut hasher = DefaultHasher::new();
            bytes.get(start..end).hash(&mut hasher);
            state ^= hasher.finish();
        }
        start = end;
    }
    state
}

#[cfg(test)]
mod tests {
    use bson::raw::RawDocumentBuf;
    use bson::{Document, doc};

    use super::*;

    fn read(document: &Document) -> Record {
        Record::read(&RawDocumentBuf::try_from(document).unwrap())
    }

    fn document() -> Document {
        doc! {
            "_id": "a",
            "key": "k",
            "headers": { "x": [1, 2], "y": "z" },
            "payload": { "text": "long" },
            "visibleAt": bson::DateTime::from_millis(5),
            "partition": 7,
            "seq": Timestamp { time: 1, increment: 2 },
        }
    }

    #[test]
    fn blocker_matches_without_payload_and_in_any_field_order() {
        let blocker = Blocker::of(&read(&document()));
        let mut other = document();
        other.remove("payload");
        let visible_at = other.remove("visibleAt").unwrap();
        other.insert("visibleAt", visible_at);

        assert!(blocker.is(&read(&other)));
    }

    #[test]
    fn blocker_differs_when_any_other_field_does() {
        let blocker = Blocker::of(&read(&document()));

        for change in [
            doc! { "visibleAt": bson::DateTime::from_millis(6) },
            doc! { "headers": { "x": [1, 3], "y": "z" } },
            doc! { "leaseId": bson::Uuid::new() },
            doc! { "_id": "b" },
        ] {
            let mut other = document();
            other.extend(change.clone());

            assert!(!blocker.is(&read(&other)), "{change}");
        }
        let mut without = document();
        without.remove("visibleAt");
        assert!(!blocker.is(&read(&without)));
    }

    #[test]
    fn written_blocker_differs_from_every_earlier_read() {
        let record = read(&document());

        assert!(!Blocker::of(&record).is_written());
        assert!(Blocker::written(&record).is_written());
        assert!(!Blocker::written(&record).is(&record));
    }
}
