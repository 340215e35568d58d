//! Which aggregate names have events at which positions.
//!
//! A page reads only the names that have events in it, however many names the feed has. Of the last
//! positions the document of the feed says so (`recent`). Of others the index of positions does: it is
//! read for many positions at a time, and kept for a moment, because behind the head only operators
//! change it, who rename, remove or restore collections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::raw::{RawBsonRef, RawDocumentBuf};
use bson::{Document, doc};
use parking_lot::Mutex;
use postrider_store::StoreError;

use crate::feed::state::FeedState;
use crate::feed::stretch::Stretch;
use crate::feed::union::{INTEGERS, StreamReads, number, parts};
use crate::names::AggregateName;
use crate::stream::fields::{ID, POSITION};

/// The positions of which the index is read at a time.
const MAX_POSITIONS: i64 = 10_000;

/// The most stretches that are kept: 160 KB each where every position is of another name.
const MAX_STRETCHES: usize = 16;

/// How long a stretch is kept.
const KEPT_FOR: Duration = Duration::from_secs(60);

const POSITIONS: &str = "positions";

/// What readers of this process know. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    known: Arc<Mutex<Known>>,
    /// Held while the index is read: many readers often need the same positions.
    reading: Arc<tokio::sync::Mutex<()>>,
}

/// The stretches of a feed and its names, the last ones that were read, in the order of the reads.
#[derive(Debug, Default)]
struct Known {
    feed: String,
    names: Vec<AggregateName>,
    stretches: VecDeque<(Instant, Arc<Stretch>)>,
}

impl Places {
    /// The stretch that has the positions behind this one.
    pub(super) async fn behind(
        &self,
        position: i64,
        state: &FeedState,
        reads: &StreamReads,
    ) -> Result<Arc<Stretch>, StoreError> {
        if let Some(known) = self.find(position, state) {
            return Ok(known);
        }
        let _alone = self.reading.lock().await;
        if let Some(known) = self.find(position, state) {
            return Ok(known);
        }
        let stretch = Arc::new(read(position, state, reads).await?);
        self.keep(state, stretch.clone());
        Ok(stretch)
    }

    fn find(&self, position: i64, state: &FeedState) -> Option<Arc<Stretch>> {
        let known = self.known.lock();
        if known.feed != state.feed || known.names != state.names {
            return None;
        }
        let is_found = |(read_at, stretch): &&(Instant, Arc<Stretch>)| {
            stretch.is_behind(position) && read_at.elapsed() < KEPT_FOR
        };
        known.stretches.iter().rev().find(is_found).map(|(_, stretch)| stretch.clone())
    }

    fn keep(&self, state: &FeedState, stretch: Arc<Stretch>) {
        let mut known = self.known.lock();
        if known.feed != state.feed || known.names != state.names {
            let (feed, names) = (state.feed.clone(), state.names.clone());
            *known = Known { feed, names, stretches: VecDeque::new() };
        }
        known.stretches.retain(|(read_at, _)| read_at.elapsed() < KEPT_FOR);
        if known.stretches.len() == MAX_STRETCHES {
            known.stretches.pop_front();
        }
        known.stretches.push_back((Instant::now(), stretch));
    }
}

/// Reads the index of all names behind this position.
async fn read(after: i64, state: &FeedState, reads: &StreamReads) -> Result<Stretch, StoreError> {
    let names: Vec<&AggregateName> = state.names.iter().collect();
    let end = state.head.min(after.saturating_add(MAX_POSITIONS));
    let indexes: BTreeMap<&AggregateName, i64> = names.iter().copied().zip(0..).collect();
    // (Without the type: MongoDB would read the documents.)
    let of_name = |name: &AggregateName| {
        vec![
            doc! { "$match": { POSITION: { "$gt": after, "$lte": end } } },
            doc! { "$group": {
                ID: { "$literal": indexes.get(name) },
                POSITIONS: { "$push": format!("${POSITION}") },
            } },
        ]
    };
    let found = reads.union(&parts(&names), of_name, &[]).await?;
    let mut ends: Vec<(i64, usize)> = found.iter().flatten().flat_map(ends_of).collect();
    ends.sort_unstable();
    let to = match ends.last() {
        _ if end == state.head => state.head,
        // The append behind it may begin before `end`.
        Some((last, _)) => *last,
        // A single append, or a part of the feed that was deleted, is larger.
        None => match first_behind(after, &names, reads).await? {
            Some(first) => return Ok(Stretch::of_all(after, first, &names)),
            None => state.head,
        },
    };
    Ok(Stretch::new((after, to), state.names.clone(), ends))
}

/// The positions of one name, and its index.
fn ends_of(found: &RawDocumentBuf) -> Vec<(i64, usize)> {
    let name = number(found, ID).and_then(|name| usize::try_from(name).ok());
    let (Some(name), Ok(positions)) = (name, found.get_array(POSITIONS)) else { return Vec::new() };
    let positions = positions.into_iter().flatten().filter_map(|position| match position {
        RawBsonRef::Int32(position) => Some(position.into()),
        RawBsonRef::Int64(position) => Some(position),
        _ => None,
    });
    positions.map(|position| (position, name)).collect()
}

/// The first end of an append of these names behind a position.
pub(super) async fn first_behind(
    position: i64,
    names: &[&AggregateName],
    reads: &StreamReads,
) -> Result<Option<i64>, StoreError> {
    let of_name = |_: &AggregateName| -> Vec<Document> {
        vec![
            doc! { "$match": { POSITION: { "$gt": position, "$type": INTEGERS.to_vec() } } },
            doc! { "$sort": { POSITION: 1 } },
            doc! { "$limit": 1 },
            doc! { "$project": { POSITION: 1, ID: 0 } },
        ]
    };
    let found = reads.union(&parts(names), of_name, &[]).await?;
    Ok(found.iter().flatten().filter_map(|first| number(first, POSITION)).min())
}
