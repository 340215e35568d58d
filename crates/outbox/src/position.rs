//! Positions of the scan in `lane_idx`.

use std::sync::Arc;

use bson::raw::RawBsonRef;
use bson::{Bson, Document, Timestamp, doc};

use crate::fields::KEY;
use crate::partition;
use crate::record::{LaneKey, Placement, Record};

/// A part of `lane_idx` in which keys are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexRange {
    /// Records without a partition, of all keys.
    Unstamped,
    /// Records that name this partition.
    Partition(u8),
}

impl IndexRange {
    /// Returns the range of this record, if its partition is valid.
    pub(crate) fn of(record: &Record) -> Self {
        match record.placement {
            Placement::Absent => Self::Unstamped,
            Placement::Stamped | Placement::Invalid => Self::Partition(record.partition),
        }
    }

    /// Returns the ranges of this key: without a partition, and with its own.
    pub fn both_of(key: &str) -> [Self; 2] {
        [Self::Unstamped, Self::Partition(partition::of_key(key))]
    }
}

/// Returns the values of `partition` that records of a key in these partitions may have, including
/// absent for the key's own.
pub fn partitions_of(partitions: &[u8], key: &str) -> Bson {
    let own = partition::of_key(key);
    let numbers = partitions.iter().map(|partition| Bson::Int32(i32::from(*partition)));
    let mut values: Vec<Bson> = numbers.collect();
    if partitions.contains(&own) {
        values.push(Bson::Null);
    }
    match <[Bson; 1]>::try_from(values) {
        Ok([value]) => value,
        Err(values) => Bson::Document(doc! { "$in": values }),
    }
}

/// A key in a range.
pub type IndexPlace = (IndexRange, Arc<str>);

/// A position in `lane_idx` between two lanes, at which the next page begins.
///
/// The scan rotates through all ranges: a record whose transaction committed late is found in the
/// next round, since no read depends on a remembered `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    range: IndexRange,
    after: After,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum After {
    /// The beginning of the range.
    Nothing,
    /// After all records of this key.
    Key(Arc<str>),
    /// Before all text keys: after numbers.
    Numbers,
    /// Among the records without order: after this one.
    Record { key: Option<Arc<str>>, seq: Timestamp },
}

/// One contiguous read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) partitions: Bson,
    pub(crate) key: Option<Document>,
    pub(crate) seq_after: Option<Timestamp>,
    /// Whether to read only keys that sort after all text, which are invalid.
    pub(crate) is_behind_text: bool,
}

/// The smallest `seq`, for a record without one.
pub const NO_SEQ: Timestamp = Timestamp { time: 0, increment: 0 };

impl Default for Position {
    fn default() -> Self {
        Self::start()
    }
}

impl Position {
    /// Returns the beginning of all ranges.
    pub fn start() -> Self {
        Self { range: IndexRange::Unstamped, after: After::Nothing }
    }

    /// Returns whether pages from here to the end include everything.
    pub fn is_start(&self) -> bool {
        *self == Self::start()
    }

    /// Returns whether a page from here has records without a partition, and not those with one.
    pub(crate) fn is_unstamped(&self) -> bool {
        self.range == IndexRange::Unstamped
    }

    /// Returns the position after the last record without a partition; `None` among those that have
    /// one.
    pub fn next_side(&self) -> Option<Self> {
        let stamped = Self { range: IndexRange::Partition(0), after: After::Nothing };
        self.is_unstamped().then_some(stamped)
    }

    /// Returns whether this is the first position of records with a partition.
    pub fn begins_side(&self) -> bool {
        Self::start().next_side().as_ref() == Some(self)
    }

    /// Returns the position after all records of a key.
    pub fn behind((range, key): &IndexPlace) -> Self {
        Self { range: *range, after: After::Key(key.clone()) }
    }

    /// Returns the first place that a page from here can have.
    pub fn place(&self) -> IndexPlace {
        let key = match &self.after {
            After::Nothing | After::Numbers | After::Record { key: None, .. } => "".into(),
            After::Key(key) | After::Record { key: Some(key), .. } => key.clone(),
        };
        (self.range, key)
    }

    /// Returns the position after the lane of `record`; after the record itself if it has no order,
    /// or `within_keys`. `None` if nothing follows.
    ///
    /// Keys that are neither text nor absent are malformed. The position skips all of their type,
    /// so that they do not delay other records.
    pub(crate) fn after(record: &Record, within_keys: bool) -> Option<Self> {
        let range = IndexRange::of(record);
        let seq = record.seq.unwrap_or(NO_SEQ);
        let after = match (&record.lane, KeyKind::of(record)) {
            (LaneKey::Keyed(key), _) if !within_keys => After::Key(key.clone()),
            (_, KeyKind::Text(key)) => After::Record { key: Some(key.into()), seq },
            (_, KeyKind::Absent) => After::Record { key: None, seq },
            (_, KeyKind::Number) => After::Numbers,
            (_, KeyKind::Other) => {
                let range = match range {
                    IndexRange::Unstamped => IndexRange::Partition(0),
                    IndexRange::Partition(partition) => {
                        IndexRange::Partition(partition.checked_add(1)?)
                    }
                };
                return Some(Self { range, after: After::Nothing });
            }
        };
        Some(Self { range, after })
    }

    /// Returns the reads from here to `until` (inclusive) or to the end: of records without a
    /// partition, or of those in `owned`.
    pub(crate) fn segments(&self, owned: &[u8], until: Option<&IndexPlace>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let segment = |partitions: &Bson, key: Option<Document>| {
            let partitions = partitions.clone();
            Segment { partitions, key, seq_after: None, is_behind_text: false }
        };
        let here = match self.range {
            IndexRange::Unstamped => Bson::Null,
            IndexRange::Partition(partition) => Bson::Int32(partition.into()),
        };
        let ends_here = until.filter(|(range, _)| *range == self.range).map(|(_, key)| &**key);
        // The complete range is read with the later ones.
        let is_whole = self.after == After::Nothing && ends_here.is_none();
        let is_ours = match self.range {
            IndexRange::Unstamped => true,
            IndexRange::Partition(partition) => owned.contains(&partition) && !is_whole,
        };
        match &self.after {
            _ if !is_ours => {}
            After::Nothing => segments.push(segment(&here, ends_here.map(up_to))),
            After::Key(key) => segments.push(segment(&here, Some(beyond(Some(key), ends_here)))),
            After::Numbers => segments.push(segment(&here, Some(text_from("$gte", "", ends_here)))),
            After::Record { key, seq } => {
                let same = key.as_deref().map_or(Bson::Null, Bson::from);
                let same = segment(&here, Some(doc! { "$eq": same }));
                segments.push(Segment { seq_after: Some(*seq), ..same });
                segments.push(segment(&here, Some(beyond(key.as_deref(), ends_here))));
            }
        }
        let is_among_text = match &self.after {
            After::Nothing | After::Record { key: None, .. } => false,
            After::Key(_) | After::Numbers | After::Record { key: Some(_), .. } => true,
        };
        if is_ours && is_among_text && ends_here.is_none() {
            segments.push(Segment { is_behind_text: true, ..segment(&here, None) });
        }
        let IndexRange::Partition(from) = self.range else { return segments };
        if ends_here.is_some() {
            return segments;
        }
        let last = until.and_then(|(range, key)| match range {
            IndexRange::Partition(partition) => Some((*partition, &**key)),
            IndexRange::Unstamped => None,
        });
        let rest = owned.iter().copied().filter(|own| *own > from || (is_whole && *own == from));
        let whole: Vec<i32> = rest
            .clone()
            .filter(|own| last.is_none_or(|(last, _)| *own < last))
            .map(i32::from)
            .collect();
        if !whole.is_empty() {
            segments.push(segment(&Bson::Document(doc! { "$in": whole }), None));
        }
        if let Some((last, key)) = last
            && rest.clone().any(|own| own == last)
        {
            segments.push(segment(&Bson::Int32(last.into()), Some(up_to(key))));
        }
        segments
    }
}

/// Matches what follows records without a key, or text after a key, up to another key.
fn beyond(key: Option<&str>, until: Option<&str>) -> Document {
    if let Some(key) = key {
        return text_from("$gt", key, until);
    }
    let mut beyond = until.map(up_to).unwrap_or_default();
    beyond.insert("$nin", [Bson::Null]);
    beyond
}

fn text_from(operator: &str, key: &str, until: Option<&str>) -> Document {
    let mut text = doc! { operator: key };
    if let Some(until) = until {
        text.insert("$lte", until);
    }
    text
}

/// Matches all keys except text after this key.
fn up_to(key: &str) -> Document {
    doc! { "$not": { "$gt": key } }
}

/// Type of a record's key, in the order of an index.
pub(crate) enum KeyKind<'a> {
    Absent,
    Number,
    Text(&'a str),
    Other,
}

impl<'a> KeyKind<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        match record.raw.get(KEY).ok().flatten() {
            // Types that sort before null do not occur; they would be read again.
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::MinKey) => {
                Self::Absent
            }
            Some(RawBsonRef::String(key) | RawBsonRef::Symbol(key)) => Self::Text(key),
            Some(
                RawBsonRef::Int32(_)
                | RawBsonRef::Int64(_)
                | RawBsonRef::Double(_)
                | RawBsonRef::Decimal128(_),
            ) => Self::Number,
            Some(_) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(partition: u8, key: &str) -> IndexPlace {
        (IndexRange::Partition(partition), key.into())
    }

    fn reads(
        from: &Position,
        owned: &[u8],
        until: Option<&IndexPlace>,
    ) -> Vec<(Bson, Option<Document>)> {
        let segments = from.segments(owned, until).into_iter();
        segments.map(|segment| (segment.partitions, segment.key)).collect()
    }

    fn several(partitions: &[i32]) -> Bson {
        Bson::Document(doc! { "$in": partitions })
    }

    #[test]
    fn segments_begin_without_partition_and_then_the_owned() {
        let start = Position::start();

        assert_eq!(reads(&start, &[3, 7], None), [(Bson::Null, None)]);
        let stamped = start.next_side().unwrap();
        assert_eq!(reads(&stamped, &[3, 7], None), [(several(&[3, 7]), None)]);
        assert_eq!(stamped.next_side(), None);
    }

    #[test]
    fn segments_after_a_key_include_later_partitions() {
        let from = Position::behind(&place(3, "k"));

        let behind = doc! { "$gt": "k" };
        let expected =
            [(Bson::Int32(3), Some(behind)), (Bson::Int32(3), None), (several(&[7, 9]), None)];
        assert_eq!(reads(&from, &[1, 3, 7, 9], None), expected);
        let behind_text: Vec<bool> = from
            .segments(&[1, 3, 7, 9], None)
            .into_iter()
            .map(|segment| segment.is_behind_text)
            .collect();
        assert_eq!(behind_text, [false, true, false]);
        assert_eq!(reads(&from, &[7, 9], None), [(several(&[7, 9]), None)]);
    }

    #[test]
    fn segments_end_with_the_bounding_key() {
        let from = Position::behind(&place(3, "k"));
        let behind = doc! { "$gt": "k" };
        let mut between = behind.clone();
        between.insert("$lte", "m");

        assert_eq!(
            reads(&from, &[3, 7, 9], Some(&place(3, "m"))),
            [(Bson::Int32(3), Some(between))]
        );
        assert_eq!(
            reads(&from, &[3, 7, 9], Some(&place(9, "m"))),
            [
                (Bson::Int32(3), Some(behind)),
                (Bson::Int32(3), None),
                (several(&[7]), None),
                (Bson::Int32(9), Some(doc! { "$not": { "$gt": "m" } })),
            ]
        );
    }
}
