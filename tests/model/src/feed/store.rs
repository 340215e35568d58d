//! What MongoDB has: the event streams, and the document of the feed.

use super::{AGGREGATES, Bounds, VERSIONS};

/// An aggregate, and one of its versions, from 1.
pub type Place = (usize, u8);

/// One transaction takes two appends at most.
pub type Batch = [Option<Place>; 2];

/// The document of one append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stream {
    #[default]
    NotCommitted,
    Committed,
    /// It has a position: that of its last event.
    At(u8),
}

pub type Streams = [[Stream; VERSIONS]; AGGREGATES];

/// The document of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Document {
    pub id: u8,
    pub head: u8,
    /// The aggregates of this model have a name each.
    pub names: [bool; AGGREGATES],
    pub owner: Option<usize>,
    /// The owner's lease has not ended.
    pub is_leased: bool,
    /// The last slot of `recent`.
    pub last: Option<Slot>,
}

/// The names that have events at these positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    pub after: u8,
    pub to: u8,
    pub names: [bool; AGGREGATES],
}

impl Slot {
    /// The slot after a transaction, which moves the head: it grows by a name that it has.
    pub fn moved(last: Option<Self>, (from, to): (u8, u8), names: [bool; AGGREGATES]) -> Self {
        match last {
            Some(last) if last.to == from && last.names == names => Self { to, ..last },
            _ => Self { after: from, to, names },
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub streams: Streams,
    /// The positions of events that were deleted, a bit each.
    pub deleted: u64,
    pub feed: Option<Document>,
}

impl Stream {
    pub fn position(self) -> Option<u8> {
        match self {
            Self::At(position) => Some(position),
            _ => None,
        }
    }
}

/// When an append was written: before its commit, which may come later than that of a younger one.
pub fn create_time((aggregate, version): Place) -> usize {
    usize::from(version) * AGGREGATES + aggregate
}

/// All places.
pub fn places() -> impl Iterator<Item = Place> {
    (0..AGGREGATES).flat_map(|aggregate| (1..).take(VERSIONS).map(move |at| (aggregate, at)))
}

impl Store {
    pub fn stream(&self, (aggregate, version): Place) -> Stream {
        match version {
            0 => Stream::NotCommitted,
            version => self.streams[aggregate][usize::from(version) - 1],
        }
    }

    pub fn set(&mut self, (aggregate, version): Place, stream: Stream) {
        self.streams[aggregate][usize::from(version) - 1] = stream;
    }

    /// Deletes the document of a place.
    pub fn delete(&mut self, place: Place, width: u8) {
        if let Some(position) = self.stream(place).position() {
            for event in position - width..position {
                self.deleted |= 1 << event;
            }
        }
        self.set(place, Stream::NotCommitted);
    }

    pub fn has(&self, place: Place) -> bool {
        self.stream(place) != Stream::NotCommitted
    }

    pub fn has_name(&self, aggregate: usize) -> bool {
        self.streams[aggregate].iter().any(|stream| *stream != Stream::NotCommitted)
    }

    pub fn highest_position(&self) -> u8 {
        self.streams.iter().flatten().filter_map(|stream| stream.position()).max().unwrap_or(0)
    }

    /// The names of streams that have positions.
    pub fn positioned_names(&self) -> [bool; AGGREGATES] {
        self.streams.map(|streams| streams.iter().any(|stream| stream.position().is_some()))
    }

    /// Whether the events of all appends have the positions up to the head, each one, but for those that
    /// were deleted.
    pub fn is_complete(&self, bounds: &Bounds) -> bool {
        let Some(feed) = self.feed else { return true };
        let mut taken = self.deleted;
        let mut last = 0;
        for place in places() {
            let Some(position) = self.stream(place).position() else { continue };
            last = last.max(position);
            let width = bounds.width(place);
            let Some(before) = position.checked_sub(width) else { return false };
            for event in before..position {
                let bit = 1 << event;
                if taken & bit != 0 {
                    return false;
                }
                taken |= bit;
            }
        }
        last <= feed.head && taken == (1_u64 << feed.head) - 1
    }

    /// Whether each version with a position is behind its predecessor.
    pub fn is_ordered(&self) -> bool {
        places().all(|(aggregate, version)| {
            let Some(position) = self.stream((aggregate, version)).position() else { return true };
            let before = self.stream((aggregate, version - 1)).position();
            version == 1 || before.is_some_and(|before| before <= position)
        })
    }
}
