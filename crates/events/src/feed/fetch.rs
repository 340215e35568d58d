//! Reads the documents of a page, as many as fit into it.
//!
//! MongoDB answers with the documents that are small, and with the sizes of the others. Of those the ones
//! that fit are read by a second command. So neither an answer nor a page can be large, whatever is stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::raw::RawDocumentBuf;
use bson::{Document, doc};
use postrider_store::StoreError;

use crate::feed::filter::FeedFilter;
use crate::feed::union::{INTEGERS, StreamReads, number, parts};
use crate::names::AggregateName;
use crate::stream::fields::{ID, POSITION};

/// The documents of one answer take about this much at most.
const ANSWER_BYTES: usize = 2 << 20;

/// The most documents of one read.
const MAX_DOCUMENTS: usize = 2_000;

/// The size of a document, before the first one was read.
const USUAL_BYTES: usize = 1 << 10;

/// A field of the answer in place of a document that is not small, which has no `_id`.
const BYTES: &str = "bytes";
const NAME: &str = "name";

/// How large documents are, as far as this process has read. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct UsualSize(Arc<AtomicUsize>);

impl UsualSize {
    pub(super) fn new() -> Self {
        Self(Arc::new(USUAL_BYTES.into()))
    }

    /// How many documents to read for a page that has room for this many, and for these bytes.
    pub(super) fn documents(&self, limit: usize, room: usize) -> usize {
        let usual = self.0.load(Ordering::Relaxed);
        // Documents up to twice the usual size are small.
        let fitting = (ANSWER_BYTES / (2 * usual)).min(room / usual + 1);
        limit.min(MAX_DOCUMENTS).min(fitting).max(1)
    }

    /// The next read is of fewer documents.
    fn fail(&self) {
        let usual = self.0.load(Ordering::Relaxed).saturating_mul(4);
        self.0.store(usual.min(ANSWER_BYTES), Ordering::Relaxed);
    }

    fn note(&self, bytes: usize, documents: usize) {
        if let Some(mean) = bytes.checked_div(documents) {
            let usual = (3 * self.0.load(Ordering::Relaxed) + mean) / 4;
            self.0.store(usual.max(1), Ordering::Relaxed);
        }
    }
}

/// Which documents to read.
pub(super) struct Wanted<'a> {
    /// Behind this position.
    pub(super) after: i64,
    /// Up to this one, which is the end of an append.
    pub(super) to: i64,
    pub(super) names: &'a [&'a AggregateName],
    pub(super) filter: &'a FeedFilter,
    /// The most documents.
    pub(super) limit: usize,
    /// The most bytes.
    pub(super) room: usize,
    /// Whether to read a document that is larger than the room.
    pub(super) is_first: bool,
}

/// Documents with events, ascending by position.
pub(super) struct FoundDocuments {
    pub(super) documents: Vec<(i64, RawDocumentBuf)>,
    /// Up to which position they are all.
    pub(super) next: i64,
    /// Whether the next one does not fit.
    pub(super) is_full: bool,
}

/// A document of an answer.
enum Answered {
    Document(RawDocumentBuf),
    Size { bytes: usize, name: usize },
}

impl Answered {
    fn bytes(&self) -> usize {
        match self {
            Self::Document(document) => document.as_bytes().len(),
            Self::Size { bytes, .. } => *bytes,
        }
    }
}

/// Reads documents in the order of their positions, as many as fit, and at least one if it is the first.
pub(super) async fn fetch(
    wanted: &Wanted<'_>,
    reads: &StreamReads,
    usual: &UsualSize,
) -> Result<FoundDocuments, StoreError> {
    let answer = sizes(wanted, reads).await;
    // MongoDB may not read this many large documents in time.
    let (mut answered, mut next) = answer.inspect_err(|_| usual.fail())?;
    let bytes = answered.iter().map(|(_, answered)| answered.bytes());
    usual.note(bytes.sum(), answered.len());
    let mut bytes = 0;
    let fitting = answered.iter().take_while(|(_, answered)| {
        bytes += answered.bytes();
        bytes <= wanted.room
    });
    let fitting = fitting.count().max(usize::from(wanted.is_first)).min(answered.len());
    let is_full = fitting < answered.len();
    if is_full {
        answered.truncate(fitting);
        next = answered.last().map_or(wanted.after, |(position, _)| *position);
    }
    let mut large = large(wanted, &answered, reads).await?;
    let documents = answered.into_iter().filter_map(|(position, answered)| match answered {
        Answered::Document(document) => Some((position, document)),
        Answered::Size { .. } => Some((position, large.get_mut(&position)?.pop_front()?)),
    });
    Ok(FoundDocuments { documents: documents.collect(), next, is_full })
}

/// Reads small documents and the sizes of others, and up to which position they are all.
async fn sizes(
    wanted: &Wanted<'_>,
    reads: &StreamReads,
) -> Result<(Vec<(i64, Answered)>, i64), StoreError> {
    let Wanted { after, to, names, filter, limit, .. } = *wanted;
    let parts = parts(names);
    // Without a filter all parts together have not many more.
    let limit = if filter.is_all() { limit } else { limit.div_ceil(parts.len().max(1)) };
    let small = ANSWER_BYTES / (limit * if filter.is_all() { 1 } else { parts.len().max(1) });
    let limit_documents = i64::try_from(limit).unwrap_or(i64::MAX);
    let first: [Document; 2] =
        [doc! { "$sort": { POSITION: 1 } }, doc! { "$limit": limit_documents }];
    let indexes: BTreeMap<&AggregateName, i64> = names.iter().copied().zip(0..).collect();
    let conditions = filter.conditions();
    let of_name = |name: &AggregateName| {
        let size = doc! { "$bsonSize": "$$ROOT" };
        let is_small = doc! { "$lte": [&size, i64::try_from(small).unwrap_or(i64::MAX)] };
        let instead = doc! {
            POSITION: format!("${POSITION}"),
            BYTES: size,
            NAME: { "$literal": indexes.get(name) },
        };
        let mut pipeline = vec![
            doc! { "$match": {
                POSITION: { "$gt": after, "$lte": to, "$type": INTEGERS.to_vec() },
                // An append without events shares its position with the one before it.
                "body.0": { "$exists": true },
            } },
            first[0].clone(),
        ];
        if !conditions.is_empty() {
            // MongoDB cannot take an index of another field, whose documents it would have to sort.
            pipeline.push(doc! { "$limit": i64::MAX });
            pipeline.push(doc! { "$match": &conditions });
        }
        pipeline.push(first[1].clone());
        pipeline.push(doc! { "$replaceRoot": {
            "newRoot": { "$cond": [is_small, "$$ROOT", instead] },
        } });
        pipeline
    };
    let found = reads.union(&parts, of_name, &first).await?;
    // What one part was not read to its end limits all.
    let cut = |part: &Vec<RawDocumentBuf>| {
        let last = part.last().filter(|_| part.len() >= limit)?;
        number(last, POSITION)
    };
    let next = found.iter().filter_map(cut).min().unwrap_or(to);
    let mut answered: Vec<(i64, Answered)> = found.into_iter().flatten().filter_map(read).collect();
    answered.sort_by_key(|(position, _)| *position);
    answered.retain(|(position, _)| *position <= next);
    Ok((answered, next))
}

fn read(found: RawDocumentBuf) -> Option<(i64, Answered)> {
    let position = number(&found, POSITION)?;
    let field = |field| usize::try_from(number(&found, field)?).ok();
    let answered = match (found.get(ID), field(BYTES), field(NAME)) {
        (Ok(None), Some(bytes), Some(name)) => Answered::Size { bytes, name },
        _ => Answered::Document(found),
    };
    Some((position, answered))
}

/// Reads the documents of which the answer has the sizes.
async fn large(
    wanted: &Wanted<'_>,
    answered: &[(i64, Answered)],
    reads: &StreamReads,
) -> Result<BTreeMap<i64, VecDeque<RawDocumentBuf>>, StoreError> {
    let mut positions: BTreeMap<&AggregateName, Vec<i64>> = BTreeMap::new();
    for (position, answered) in answered {
        if let Answered::Size { name, .. } = answered
            && let Some(name) = wanted.names.get(*name)
        {
            positions.entry(name).or_default().push(*position);
        }
    }
    let names: Vec<&AggregateName> = positions.keys().copied().collect();
    let conditions = wanted.filter.conditions();
    let of_name = |name: &AggregateName| {
        let positions = positions.get(name).cloned().unwrap_or_default();
        let mut wanted = doc! {
            POSITION: { "$in": positions, "$type": INTEGERS.to_vec() },
            "body.0": { "$exists": true },
        };
        wanted.extend(conditions.clone());
        vec![doc! { "$match": wanted }]
    };
    let found = reads.union(&parts(&names), of_name, &[]).await?;
    let mut documents: BTreeMap<i64, VecDeque<RawDocumentBuf>> = BTreeMap::new();
    for document in found.into_iter().flatten() {
        if let Some(position) = number(&document, POSITION) {
            documents.entry(position).or_default().push_back(document);
        }
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_documents_are_read_where_they_are_large_or_late() {
        let usual = UsualSize::new();
        let room = 1 << 20;
        assert_eq!(usual.documents(100, room), 100);
        assert_eq!(usual.documents(10_000, room), 1_024);
        assert_eq!(usual.documents(10_000, 0), 1);
        for _ in 0..50 {
            usual.note(100 * 100, 100);
        }
        assert_eq!(usual.documents(10_000, room), MAX_DOCUMENTS);
        for _ in 0..50 {
            usual.note(16 << 20, 1);
        }
        assert_eq!(usual.documents(10_000, room), 1);
        usual.note(0, 0);

        let late = UsualSize::new();
        let read = |_| {
            late.fail();
            late.documents(10_000, room)
        };
        assert_eq!((0..7).map(read).collect::<Vec<_>>(), [256, 64, 16, 4, 1, 1, 1]);
    }
}
