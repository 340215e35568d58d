//! Where in `lane_idx` a rotation stands.

use std::sync::Arc;

use bson::raw::RawBsonRef;
use bson::{Bson, Document, Timestamp, doc};

use crate::fields::KEY;
use crate::partition;
use crate::record::{LaneKey, Placement, Record};

/// A part of `lane_idx` within which keys are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Range {
    /// Records without a partition, of all keys.
    Unstamped,
    /// Records that name this partition.
    Partition(u8),
}

impl Range {
    /// Where this record lies. (One with an invalid partition lies elsewhere.)
    pub(crate) fn of(record: &Record) -> Self {
        match record.placement {
            Placement::Absent => Self::Unstamped,
            Placement::Stamped | Placement::Invalid => Self::Partition(record.partition),
        }
    }

    /// Where records of this key lie: those without a partition, and those with its own.
    pub fn both_of(key: &str) -> [Self; 2] {
        [Self::Unstamped, Self::Partition(partition::of_key(key))]
    }
}

/// The values of `partition` that records of a key in these partitions may have. Where the key's own
/// is among them, there are those that name none as well.
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
pub type Place = (Range, Arc<str>);

/// A place in `lane_idx` between two lanes, from which the next page is read.
///
/// Rotating through all ranges is the sweep: nothing is ever reachable only by a
/// remembered `seq`, so a record whose transaction was slow is met in the next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    range: Range,
    after: After,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum After {
    /// At the beginning of the range.
    Nothing,
    /// Behind all records of this key.
    Key(Arc<str>),
    /// Before all keys that are text: behind numbers.
    Numbers,
    /// Among the records without order: behind this one.
    Record { key: Option<Arc<str>>, seq: Timestamp },
}

/// One contiguous read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) partitions: Bson,
    pub(crate) key: Option<Document>,
    pub(crate) seq_after: Option<Timestamp>,
    /// Whether only those keys are meant that sort behind all text: what no record should have.
    pub(crate) is_behind_text: bool,
}

/// The least `seq`, for a record that has none yet.
pub const NO_SEQ: Timestamp = Timestamp { time: 0, increment: 0 };

impl Default for Position {
    fn default() -> Self {
        Self::start()
    }
}

impl Position {
    /// The beginning of everything.
    pub fn start() -> Self {
        Self { range: Range::Unstamped, after: After::Nothing }
    }

    /// Whether pages from here to the end have seen everything.
    pub fn is_start(&self) -> bool {
        *self == Self::start()
    }

    /// Whether a page from here shows records without a partition, and not those that name one.
    pub(crate) fn is_unstamped(&self) -> bool {
        self.range == Range::Unstamped
    }

    /// Where to go on behind the last record without a partition; `None` behind those that have one.
    pub fn next_side(&self) -> Option<Self> {
        let stamped = Self { range: Range::Partition(0), after: After::Nothing };
        self.is_unstamped().then_some(stamped)
    }

    /// Whether it is the first place of those records that name a partition.
    pub fn begins_side(&self) -> bool {
        Self::start().next_side().as_ref() == Some(self)
    }

    /// Behind all records of a key.
    pub fn behind((range, key): &Place) -> Self {
        Self { range: *range, after: After::Key(key.clone()) }
    }

    /// The first place from which on pages from here show anything.
    pub fn place(&self) -> Place {
        let key = match &self.after {
            After::Nothing | After::Numbers | After::Record { key: None, .. } => "".into(),
            After::Key(key) | After::Record { key: Some(key), .. } => key.clone(),
        };
        (self.range, key)
    }

    /// Behind the lane of `record`; behind itself if it has no order, or `within_keys`. `None` where
    /// nothing is behind it.
    ///
    /// Keys that are neither text nor absent make a record malformed. Behind one of these are all of
    /// its kind, so that however many of them wait, they hold up no others.
    pub(crate) fn after(record: &Record, within_keys: bool) -> Option<Self> {
        let range = Range::of(record);
        let seq = record.seq.unwrap_or(NO_SEQ);
        let after = match (&record.lane, KeyKind::of(record)) {
            (LaneKey::Keyed(key), _) if !within_keys => After::Key(key.clone()),
            (_, KeyKind::Text(key)) => After::Record { key: Some(key.into()), seq },
            (_, KeyKind::Absent) => After::Record { key: None, seq },
            (_, KeyKind::Number) => After::Numbers,
            (_, KeyKind::Other) => {
                let range = match range {
                    Range::Unstamped => Range::Partition(0),
                    Range::Partition(partition) => Range::Partition(partition.checked_add(1)?),
                };
                return Some(Self { range, after: After::Nothing });
            }
        };
        Some(Self { range, after })
    }

    /// The reads that lead from here to `until`, that key included, or to the end: among those
    /// without a partition, or through those in `owned`.
    pub(crate) fn segments(&self, owned: &[u8], until: Option<&Place>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let segment = |partitions: &Bson, key: Option<Document>| {
            let partitions = partitions.clone();
            Segment { partitions, key, seq_after: None, is_behind_text: false }
        };
        let here = match self.range {
            Range::Unstamped => Bson::Null,
            Range::Partition(partition) => Bson::Int32(partition.into()),
        };
        let ends_here = until.filter(|(range, _)| *range == self.range).map(|(_, key)| &**key);
        // The whole of it is read with the later ones.
        let is_whole = self.after == After::Nothing && ends_here.is_none();
        let is_ours = match self.range {
            Range::Unstamped => true,
            Range::Partition(partition) => owned.contains(&partition) && !is_whole,
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
        let Range::Partition(from) = self.range else { return segments };
        if ends_here.is_some() {
            return segments;
        }
        let last = until.and_then(|(range, key)| match range {
            Range::Partition(partition) => Some((*partition, &**key)),
            Range::Unstamped => None,
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

/// What sorts behind what has no key, or the text that sorts behind a key; up to another key.
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

/// Everything but the text that sorts behind a key.
fn up_to(key: &str) -> Document {
    doc! { "$not": { "$gt": key } }
}

/// What the key of a record is, in the order in which an index has them.
pub(crate) enum KeyKind<'a> {
    Absent,
    Number,
    Text(&'a str),
    Other,
}

impl<'a> KeyKind<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        match record.raw.get(KEY).ok().flatten() {
            // (What sorts before it is read again: nobody has that.)
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

    fn place(partition: u8, key: &str) -> Place {
        (Range::Partition(partition), key.into())
    }

    fn reads(
        from: &Position,
        owned: &[u8],
        until: Option<&Place>,
    ) -> Vec<(Bson, Option<Document>)> {
        let segments = from.segments(owned, until).into_iter();
        segments.map(|segment| (segment.partitions, segment.key)).collect()
    }

    fn several(partitions: &[i32]) -> Bson {
        Bson::Document(doc! { "$in": partitions })
    }

    #[test]
    fn records_without_a_partition_are_one_range_and_then_come_the_owned_partitions() {
        let start = Position::start();

        assert_eq!(reads(&start, &[3, 7], None), [(Bson::Null, None)]);
        let stamped = start.next_side().unwrap();
        assert_eq!(reads(&stamped, &[3, 7], None), [(several(&[3, 7]), None)]);
        assert_eq!(stamped.next_side(), None);
    }

    #[test]
    fn a_read_that_begins_behind_a_key_goes_on_through_the_later_partitions() {
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
    fn a_read_ends_with_the_key_that_it_is_bounded_by() {
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
