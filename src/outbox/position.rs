//! Where in `lane_idx` a rotation stands.

use std::sync::Arc;

use bson::{Bson, Document, Timestamp, doc};

use crate::outbox::record::{LaneKey, Record};

/// A place in `lane_idx` between two lanes, from which the next page is read.
///
/// Rotating through all partitions is the sweep: nothing is ever reachable only by a
/// remembered `seq`, so a record whose transaction was slow is met in the next round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    partition: u8,
    after: After,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum After {
    /// At the beginning of everything.
    #[default]
    Nothing,
    /// Behind all records of this key.
    Key(Arc<str>),
    /// Behind everything of this partition.
    All,
    /// Among the records without order: behind this one.
    Record { key: Option<Arc<str>>, seq: Timestamp },
}

/// One contiguous read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) partitions: Bson,
    pub(crate) key: Option<Document>,
    pub(crate) seq_after: Option<Timestamp>,
}

/// The least `seq`, for a record that has none yet.
pub(crate) const NO_SEQ: Timestamp = Timestamp { time: 0, increment: 0 };

impl Position {
    /// The beginning of everything.
    pub fn start() -> Self {
        Self::default()
    }

    /// Whether a page from here, read to its end, has seen everything.
    pub fn is_start(&self) -> bool {
        *self == Self::start()
    }

    /// Behind everything of a partition.
    pub fn behind(partition: u8) -> Self {
        Self { partition, after: After::All }
    }

    /// Partition and key from which on pages from here show anything.
    pub(crate) fn place(&self) -> (u8, Arc<str>) {
        match &self.after {
            After::Nothing | After::Record { key: None, .. } => (self.partition, "".into()),
            After::Key(key) | After::Record { key: Some(key), .. } => (self.partition, key.clone()),
            // Behind the last one there is nothing; to look there does no harm.
            After::All => (self.partition.saturating_add(1), "".into()),
        }
    }

    /// Behind the lane of `record`; behind itself if it has no order, or `within_keys`.
    pub(crate) fn after(record: &Record, within_keys: bool) -> Self {
        let after = match &record.lane {
            LaneKey::Keyed(key) if !within_keys => After::Key(key.clone()),
            LaneKey::Keyed(_) | LaneKey::Single(_) => After::Record {
                key: record.raw.get_str(crate::outbox::fields::KEY).ok().map(Into::into),
                seq: record.seq.unwrap_or(NO_SEQ),
            },
        };
        Self { partition: record.partition.unwrap_or(0), after }
    }

    /// The reads that lead from here to the end of the last partition in `owned`.
    pub(crate) fn segments(&self, owned: &[u8]) -> Vec<Segment> {
        let here = Bson::Int32(self.partition.into());
        let beyond = |key: &str| doc! { "$nin": [Bson::Null], "$not": { "$lte": key } };
        let mut segments = Vec::new();
        let mut push = |partitions: &Bson, key: Option<Document>, seq_after| {
            segments.push(Segment { partitions: partitions.clone(), key, seq_after });
        };
        match &self.after {
            After::Nothing => {
                push(&among(owned.iter()), None, None);
                return segments;
            }
            After::All => {}
            _ if !owned.contains(&self.partition) => {}
            After::Key(key) => push(&here, Some(beyond(key)), None),
            After::Record { key: None, seq } => {
                push(&here, Some(doc! { "$eq": Bson::Null }), Some(*seq));
                push(&here, Some(doc! { "$nin": [Bson::Null] }), None);
            }
            After::Record { key: Some(key), seq } => {
                push(&here, Some(doc! { "$eq": key.as_ref() }), Some(*seq));
                push(&here, Some(beyond(key)), None);
            }
        }
        let rest = owned.iter().filter(|partition| **partition > self.partition);
        if rest.clone().next().is_some() {
            push(&among(rest), None, None);
        }
        segments
    }
}

fn among<'a>(partitions: impl Iterator<Item = &'a u8>) -> Bson {
    let partitions: Vec<i32> = partitions.map(|partition| i32::from(*partition)).collect();
    Bson::Document(doc! { "$in": partitions })
}
