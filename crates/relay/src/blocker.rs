//! What a blocked key waits for: the record at its head as it was when it was read, why, and until
//! when.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use bson::Timestamp;
use bson::raw::RawDocument;
use postrider_outbox::fields::PAYLOAD;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::Record;

use crate::sink::Address;

/// The head of a blocked key: enough to see in a later read whether it is still there, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its `_id`.
    pub id: RecordId,
    /// The partition in which it was read.
    pub partition: u8,
    /// Its place in the key.
    pub seq: Option<Timestamp>,
    /// A hash of the record without its payload; `None` where it was written since it was read.
    state: Option<u64>,
}

impl Blocker {
    /// The blocker, as this record was read.
    pub fn of(record: &Record) -> Self {
        Self { state: Some(state(&record.raw)), ..Self::written(record) }
    }

    /// The same after a write to the record: what it looks like now is not known.
    pub fn written(record: &Record) -> Self {
        Self { id: record.id.clone(), partition: record.partition, seq: record.seq, state: None }
    }

    /// The dead record that blocks a key, which is served in this partition.
    pub(super) fn dead(id: RecordId, partition: u8) -> Self {
        Self { id, partition, seq: None, state: None }
    }

    /// A record that was not read, in this partition.
    pub(super) fn unseen(partition: u8) -> Self {
        Self::dead(RecordId::from(bson::Bson::Null), partition)
    }

    /// Whether a later read tells whether it is still there.
    pub(super) fn is_comparable(&self) -> bool {
        self.seq.is_some()
    }

    /// Whether it was written since it was read: the next read shows what it looks like.
    pub(super) fn is_written(&self) -> bool {
        self.state.is_none()
    }

    /// Whether a later read shows it as it was. The payload is not compared.
    pub(super) fn is(&self, record: &Record) -> bool {
        self.id == record.id && self.state == Some(state(&record.raw))
    }

    /// Whether this is it, as far as known: what it looks like after a write is not.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        self.id == other.id && (self.is_written() || self.state == other.state)
    }
}

/// Why what a key has, or comes into it, is not being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockReason {
    /// Its head is not due yet: backoff after a failure, or the producer's `visibleAt`.
    NotDue,
    /// Somebody else's lease is on its head.
    Leased,
    /// Its head's sink is paused.
    SinkPaused,
    /// Its head's destination does not confirm.
    DestinationPaused,
    /// Its head goes alone, and another one is going alone at the moment.
    Suspect,
    /// MongoDB refuses to change its head: a validator of the user's own.
    Refused,
    /// Its head is to become dead, and the sink of its dead letter is paused.
    DeadLetter,
    /// Its head is being corrected: it names an invalid partition, or has no usable `seq`.
    Repair,
    /// A dead record of its own blocks it (`on_dead = "block"`), whether or not anything waits
    /// behind that as yet.
    Blocked,
}

impl BlockReason {
    /// All reasons, for the metrics.
    pub const ALL: [Self; 9] = [
        Self::NotDue,
        Self::Leased,
        Self::SinkPaused,
        Self::DestinationPaused,
        Self::Suspect,
        Self::Refused,
        Self::DeadLetter,
        Self::Repair,
        Self::Blocked,
    ];

    /// The label in `postrider_keys_held`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Leased => "leased",
            Self::SinkPaused => "sink_paused",
            Self::DestinationPaused => "destination_paused",
            Self::Suspect => "suspect",
            Self::Refused => "refused",
            Self::DeadLetter => "dead_letter",
            Self::Repair => "repair",
            Self::Blocked => "blocked",
        }
    }

    /// Whether no snapshot shows it: the relay alone knows.
    pub(super) fn is_of_the_relay(self) -> bool {
        matches!(self, Self::Refused | Self::DeadLetter)
    }
}

/// Why a key is blocked.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyBlock {
    /// Why.
    pub reason: BlockReason,
    /// When the key is read again at the latest, where that is known.
    pub until: Option<Instant>,
    /// Since when it waits for this blocker.
    pub since: Instant,
    /// The head of the key.
    pub blocker: Blocker,
    /// The sink that it waits for.
    pub sink: Option<Arc<str>>,
    /// The destination within the sink, where that is what it waits for.
    pub destination: Option<Address>,
}

impl KeyBlock {
    /// A wait that begins now.
    pub fn new(reason: BlockReason, blocker: Blocker, until: Option<Instant>) -> Self {
        Self { reason, until, since: Instant::now(), blocker, sink: None, destination: None }
    }

    /// A wait for a destination that does not confirm.
    pub fn for_destination(
        blocker: Blocker,
        until: Option<Instant>,
        sink: Arc<str>,
        destination: Address,
    ) -> Self {
        let (sink, destination) = (Some(sink), Some(destination));
        Self { sink, destination, ..Self::new(BlockReason::DestinationPaused, blocker, until) }
    }

    pub(super) fn is_for(&self, sink: &str, destination: &Address) -> bool {
        self.destination.as_ref() == Some(destination) && self.sink.as_deref() == Some(sink)
    }
}

/// A hash of all fields except the payload: a read may leave it out.
fn state(raw: &RawDocument) -> u64 {
    hash_without(raw, &[PAYLOAD])
}

/// A hash of all fields but these, whatever their order: a lease that was released may have moved
/// fields.
pub(super) fn hash_without(raw: &RawDocument, left_out: &[&str]) -> u64 {
    let bytes = raw.as_bytes();
    // Behind the length of the document.
    let mut start = 4;
    let mut state = 0_u64;
    for element in raw.iter_elements() {
        // What follows a breach is not compared.
        let Ok(element) = element else { break };
        let name = element.key().as_str();
        // The type, the name, the byte behind it, the value.
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
    fn blocker_is_recognized_without_its_payload_and_in_any_order() {
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
    fn blocker_that_was_written_looks_like_no_read_of_before() {
        let record = read(&document());

        assert!(!Blocker::of(&record).is_written());
        assert!(Blocker::written(&record).is_written());
        assert!(!Blocker::written(&record).is(&record));
    }
}
