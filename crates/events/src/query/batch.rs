//! The sizes of batches, in bytes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::Document;
use parking_lot::Mutex;

/// About the bytes of a batch: MongoDB and this process hold one per list that is being read.
const BATCH_BYTES: usize = 1 << 20;

/// The most documents of a batch.
const MAX_DOCUMENTS: usize = 500;

/// The documents of a batch while their size is unknown.
const FIRST_DOCUMENTS: usize = 20;

/// A document that is larger than the next ones counts less with each of them: it is forgotten after some
/// hundreds.
const DECAY: usize = 64;

/// The sizes that are remembered at most.
const MAX_KNOWN: usize = 1_000;

/// How large the documents of queries were, by collection and projection. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchSizes {
    known: Arc<Mutex<HashMap<u64, BatchSize>>>,
}

/// How large documents were; 0 if that is unknown. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchSize {
    bytes: Arc<AtomicUsize>,
}

impl BatchSizes {
    /// The size of batches from a collection.
    pub(super) fn of(&self, collection: &str, projection: &Document) -> BatchSize {
        let mut hasher = DefaultHasher::new();
        collection.hash(&mut hasher);
        projection.to_vec().unwrap_or_default().hash(&mut hasher);
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.entry(hasher.finish()).or_default().clone()
    }
}

impl BatchSize {
    /// The documents of the next batch.
    pub(super) fn documents(&self) -> u32 {
        let documents = match self.bytes.load(Ordering::Relaxed) {
            0 => FIRST_DOCUMENTS,
            bytes => (BATCH_BYTES / bytes).clamp(1, MAX_DOCUMENTS),
        };
        u32::try_from(documents).unwrap_or(u32::MAX)
    }

    /// Remembers the size of a document.
    pub(super) fn saw(&self, bytes: usize) {
        let before = self.bytes.load(Ordering::Relaxed);
        // (A size that another list remembers at the same moment may be lost: it sees more.)
        self.bytes.store(bytes.max(before - before.div_ceil(DECAY).min(before)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn batches_begin_small_and_follow_the_size_of_documents() {
        let sizes = BatchSizes::default();
        let all = sizes.of("order_snapshot", &doc! {});

        assert_eq!(all.documents(), 20);
        all.saw(100);
        assert_eq!(all.documents(), 500);
        all.saw(100 << 10);
        assert_eq!(sizes.of("order_snapshot", &doc! {}).documents(), 10);
        all.saw(15 << 20);
        assert_eq!(all.documents(), 1);
        assert_eq!(sizes.of("order_snapshot", &doc! { "version": 1 }).documents(), 20);
        (0..1_000).for_each(|_| all.saw(100));
        assert_eq!(all.documents(), 500);
    }
}
