//! Whether an event stream has ended.

use bson::Document;
use bson::raw::RawDocument;
use postrider_outbox::erase::PendingRecords;

use crate::stream::fields::{ENDED, ERASED, ERASURE};

/// The state of a stream, by its newest document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// It takes appends.
    #[default]
    Open,
    /// It takes no appends.
    Ended,
    /// It takes no appends, and its content is erased.
    Erased,
}

/// What a reserved append does to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// Ends it.
    End,
    /// Ends it, and erases its content.
    Erase(PendingRecords),
}

impl StreamState {
    /// The state after a stored document.
    pub(crate) fn of(newest: &Document) -> Self {
        if newest.contains_key(ERASURE) {
            Self::Erased
        } else if newest.get_bool(ENDED).unwrap_or(false) {
            Self::Ended
        } else {
            Self::Open
        }
    }

    /// The state after an append.
    pub(crate) fn after(ending: Option<EndKind>) -> Self {
        match ending {
            None => Self::Open,
            Some(EndKind::End) => Self::Ended,
            Some(EndKind::Erase(_)) => Self::Erased,
        }
    }

    /// Whether the stream takes an append of this kind. An ended stream can be erased.
    pub(crate) fn permits(self, ending: Option<EndKind>) -> bool {
        match self {
            Self::Open => true,
            Self::Ended => matches!(ending, Some(EndKind::Erase(_))),
            Self::Erased => false,
        }
    }
}

/// Whether a stored document ends its stream, or has lost its content: no read returns it.
pub(crate) fn is_unreadable(stored: &RawDocument) -> bool {
    let is_set = |field| matches!(stored.get_bool(field), Ok(true));
    is_set(ENDED) || is_set(ERASED)
}

/// Whether a stored document is the append of this kind.
pub(crate) fn is_of_kind(stored: &Document, ending: Option<EndKind>) -> bool {
    let found = StreamState::of(stored);
    found == StreamState::after(ending)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn ended_stream_permits_an_erasure_only() {
        let erase = Some(EndKind::Erase(PendingRecords::Deliver));
        for (state, permitted) in [
            (StreamState::Open, [true, true, true]),
            (StreamState::Ended, [false, false, true]),
            (StreamState::Erased, [false, false, false]),
        ] {
            let kinds = [None, Some(EndKind::End), erase];
            assert_eq!(kinds.map(|kind| state.permits(kind)), permitted, "{state:?}");
        }
    }

    #[test]
    fn state_is_that_of_the_markers() {
        for (stored, state) in [
            (doc! {}, StreamState::Open),
            (doc! { "erased": true }, StreamState::Open),
            (doc! { "ended": false }, StreamState::Open),
            (doc! { "ended": true, "erased": true }, StreamState::Ended),
            (doc! { "ended": true, "erasure": {} }, StreamState::Erased),
        ] {
            assert_eq!(StreamState::of(&stored), state, "{stored}");
        }
    }
}
