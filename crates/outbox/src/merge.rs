//! Merges records of one key from two reads: without a partition, and with one.

use bson::Timestamp;

use crate::record::Record;

/// Result of one of the two reads.
#[derive(Debug, Default)]
pub(crate) struct PartialRead {
    /// Ordered by `seq`.
    pub records: Vec<Record>,
    /// Whether the read ended at a limit, so that more may follow.
    pub is_cut: bool,
}

impl PartialRead {
    /// Returns the `seq` up to which this read is complete; `None` if it is complete.
    fn end(&self) -> Option<Option<Timestamp>> {
        let last = self.records.last().filter(|_| self.is_cut)?;
        Some(last.seq)
    }
}

/// Merges the leading records of a key by `seq`, without a gap: the result ends where either read
/// was cut. A record without a usable `seq` precedes all others.
pub(crate) fn merged(one: PartialRead, other: PartialRead) -> Vec<Record> {
    let ends = [one.end(), other.end()];
    let is_known = |record: &Record| ends.iter().flatten().all(|end| record.seq <= *end);
    let (mut one, mut other) =
        (one.records.into_iter().peekable(), other.records.into_iter().peekable());
    let mut all = Vec::new();
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(first), Some(second)) if second.seq < first.seq => other.next(),
            (Some(_), _) => one.next(),
            (None, _) => other.next(),
        };
        let Some(next) = next else { return all };
        if is_known(&next) {
            all.push(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bson::raw::RawDocumentBuf;

    use super::*;
    use crate::ids::RecordId;

    /// Creates records with these increments as `seq` and `_id`; zero means no `seq`.
    fn part(increments: &[u32], is_cut: bool) -> PartialRead {
        let record = |increment: &u32| {
            let seq = Timestamp { time: 0, increment: *increment };
            let document = doc! { "_id": *increment, "key": "k", "seq": seq };
            Record::read(&RawDocumentBuf::try_from(&document).unwrap())
        };
        PartialRead { records: increments.iter().map(record).collect(), is_cut }
    }

    fn ids(records: &[Record]) -> Vec<i64> {
        let number = |record: &Record| match record.id {
            RecordId::Int(number) => number,
            ref other => panic!("{other:?}"),
        };
        records.iter().map(number).collect()
    }

    #[test]
    fn merged_orders_records_of_both_reads_by_seq() {
        for (one, other, expected) in [
            (&[1, 4, 5][..], &[2, 3, 6][..], &[1, 2, 3, 4, 5, 6][..]),
            (&[], &[1, 2], &[1, 2]),
            (&[1, 2], &[], &[1, 2]),
            (&[3], &[0, 4], &[0, 3, 4]),
        ] {
            assert_eq!(ids(&merged(part(one, false), part(other, false))), expected);
        }
    }

    #[test]
    fn merged_ends_where_either_read_was_cut() {
        for (one, other, expected) in [
            (part(&[1, 4], true), part(&[2, 3, 5], false), &[1, 2, 3, 4][..]),
            (part(&[1, 6], false), part(&[2, 3], true), &[1, 2, 3]),
            (part(&[1, 4], true), part(&[2, 9], true), &[1, 2, 4]),
            (part(&[], true), part(&[2], false), &[2]),
            // What follows a record without a `seq` is unknown.
            (part(&[0], true), part(&[2], false), &[0]),
        ] {
            assert_eq!(ids(&merged(one, other)), expected);
        }
    }
}
