//! The promise, checked from outside: what was committed against what arrived.
//!
//! [`judge`] knows nothing of leases, lanes or attempts. Its input is the committed set, as a
//! majority has it at the end, and the arrivals in the order in which the consumer saw them.
//! `tests/ordering/history_checker.rs` proves that it finds each kind of breach.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use bson::{Bson, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use postrider::outbox::collections::Collections;
use postrider::sink::Message;

/// A record that a majority has.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    pub id: String,
    /// `None` for a record without an order.
    pub key: Option<String>,
    pub seq: Timestamp,
    /// Of its message; see [`content`].
    pub content: u64,
    /// Its status at the end of the test.
    pub status: String,
    /// Not ordered: scheduled, requeued after it was skipped, or repaired. Only the test knows.
    pub exempt: bool,
}

/// A message that the consumer saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    pub id: String,
    pub key: Option<String>,
    /// See [`content`].
    pub content: u64,
}

/// Stands for the bytes of a message.
pub fn content(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The content of a record's message: what `docs/producers.md` says of its payload.
pub fn content_of(record: &Document) -> u64 {
    match record.get("payload") {
        None | Some(Bson::Null) => content(&[]),
        Some(Bson::String(text)) => content(text.as_bytes()),
        Some(Bson::Binary(binary)) => content(&binary.bytes),
        Some(other) => content(other.clone().into_relaxed_extjson().to_string().as_bytes()),
    }
}

/// What is wrong with a history; and, allowed, how many messages were repeated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Committed, but neither delivered nor dead.
    pub losses: Vec<String>,
    /// Delivered, but not committed, or not under that key, or not with that content.
    pub phantoms: Vec<String>,
    /// First deliveries that were late.
    pub inversions: Vec<Inversion>,
    /// Arrivals beyond the first of their record.
    pub duplicates: usize,
}

/// The first delivery of `late` came after that of `overtaker`, which follows it in its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Inversion {
    pub key: String,
    pub late: String,
    pub overtaker: String,
}

impl Findings {
    /// Whether the promise was kept. Duplicates do not break it.
    pub fn is_kept(&self) -> bool {
        self.losses.is_empty() && self.phantoms.is_empty() && self.inversions.is_empty()
    }

    /// Fails the test if it was not.
    pub fn assert_kept(&self) {
        assert!(self.is_kept(), "the promise was broken: {self:#?}");
    }
}

/// Compares the committed set with the arrivals.
pub fn judge(committed: &[Committed], arrivals: &[Arrival]) -> Findings {
    // An id has several contents if its document was replaced.
    let known: HashMap<(&str, u64), &Committed> =
        committed.iter().map(|record| ((record.id.as_str(), record.content), record)).collect();
    assert_eq!(known.len(), committed.len(), "a record was read back twice");
    let mut findings = Findings::default();
    let mut delivered: HashSet<(&str, u64)> = HashSet::new();
    // The record of the highest `seq` that each key has delivered so far.
    let mut latest: HashMap<&str, &Committed> = HashMap::new();
    for arrival in arrivals {
        let record = known.get(&(arrival.id.as_str(), arrival.content));
        let record = record.filter(|record| record.key == arrival.key);
        let Some(record) = record else {
            findings.phantoms.push(arrival.id.clone());
            continue;
        };
        if !delivered.insert((&record.id, record.content)) {
            findings.duplicates += 1;
            continue;
        }
        let Some(key) = record.key.as_deref().filter(|_| !record.exempt) else { continue };
        match latest.entry(key) {
            Entry::Vacant(entry) => _ = entry.insert(record),
            Entry::Occupied(entry) if record.seq < entry.get().seq => {
                findings.inversions.push(Inversion {
                    key: key.to_owned(),
                    late: record.id.clone(),
                    overtaker: entry.get().id.clone(),
                });
            }
            Entry::Occupied(mut entry) => _ = entry.insert(record),
        }
    }
    let lost = committed.iter().filter(|record| {
        record.status != "dead" && !delivered.contains(&(record.id.as_str(), record.content))
    });
    findings.losses = lost.map(|record| record.id.clone()).collect();
    findings
}

/// The arrivals at a sink.
pub fn arrivals(messages: &[Message]) -> Vec<Arrival> {
    let arrival = |message: &Message| Arrival {
        id: message.id.clone(),
        key: message.key.as_deref().map(str::to_owned),
        content: content(message.payload.as_deref().unwrap_or_default()),
    };
    messages.iter().map(arrival).collect()
}

/// The committed set: every record that a majority has, none of them exempt.
pub async fn read_back(collections: &Collections) -> Vec<Committed> {
    let records = collections.records().clone_with_type::<Document>();
    let find = records
        .find(doc! {})
        .projection(doc! { "_id": 1, "key": 1, "seq": 1, "status": 1, "payload": 1 })
        .read_concern(ReadConcern::majority());
    let documents: Vec<Document> = find.await.unwrap().try_collect().await.unwrap();
    documents.into_iter().map(committed).collect()
}

fn committed(mut document: Document) -> Committed {
    let Some(Bson::String(id)) = document.remove("_id") else {
        panic!("the checker reads string ids only: {document}");
    };
    Committed {
        id,
        content: content_of(&document),
        key: document.get_str("key").ok().map(str::to_owned),
        seq: document.get_timestamp("seq").unwrap(),
        status: document.get_str("status").unwrap().to_owned(),
        exempt: false,
    }
}
