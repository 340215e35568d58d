//! What readers of this process have met that cannot be decoded.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use metrics::{Counter, counter};
use parking_lot::Mutex;
use tracing::warn;

use crate::feed::metrics::INVALID;
use crate::stream::EventStream;

/// The most documents that are known. Later ones are neither logged nor counted.
const MAX_KNOWN: usize = 1_000;

/// The invalid documents that were read, by the positions of their last events. Clones share them.
#[derive(Clone)]
pub(super) struct InvalidStreams {
    known: Arc<Mutex<BTreeSet<i64>>>,
    count: Counter,
}

impl InvalidStreams {
    pub(super) fn new() -> Self {
        Self { known: Arc::default(), count: counter!(INVALID) }
    }

    /// Logs and counts an invalid document when it is read for the first time.
    pub(super) fn note(&self, position: i64, stream: &EventStream) {
        if stream.invalid.is_empty() {
            return;
        }
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN || !known.insert(position) {
            return;
        }
        self.count.increment(1);
        warn!(
            position,
            stream = stream.aggregate_name,
            aggregate = stream.aggregate_id,
            version = stream.version,
            id = stream.id,
            fields = stream.invalid.join("; "),
            "read an invalid document of an event stream; its events are marked, and what is invalid in them is \
             replaced or left out"
        );
    }
}

// `Counter` has none.
impl fmt::Debug for InvalidStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidStreams").finish_non_exhaustive()
    }
}
