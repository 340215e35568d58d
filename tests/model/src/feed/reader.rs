//! A reader, and the pages that it reads (`feed::page`).

use super::store::{Place, Store, Stream, create_time, places};
use super::{AGGREGATES, Bounds, VERSIONS, Without};

/// The positions that a page with a filter covers at most.
const WINDOW: u8 = 2;

/// A reader that keeps a checkpoint, and what it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reader {
    /// The feed that its position is of; it begins without one.
    pub feed: Option<u8>,
    pub after: u8,
    /// The events that it has seen of each append.
    pub seen: [[u8; VERSIONS]; AGGREGATES],
    /// The streams of a page, where they are read before the head.
    pub streams: Option<[[Stream; VERSIONS]; AGGREGATES]>,
}

impl Reader {
    /// Reads a page of this snapshot. `false`: it saw an event again, or behind one that follows it.
    pub fn read(&mut self, snapshot: &Store, bounds: &Bounds) -> bool {
        let Some(feed) = snapshot.feed else { return true };
        if self.feed.is_some_and(|known| known != feed.id) {
            // `wrong_feed`: it begins again.
            *self = Self { feed: Some(feed.id), ..Self::default() };
            return true;
        }
        self.feed = Some(feed.id);
        if self.after > feed.head {
            return true;
        }
        let (items, next) = page(snapshot, self.after, bounds);
        let mut is_next = true;
        for ((aggregate, version), index) in items {
            let seen = &mut self.seen[aggregate][usize::from(version) - 1];
            is_next &= *seen == index;
            *seen += 1;
        }
        self.after = next;
        is_next
    }

    /// The document of a place was deleted: another one there has other events.
    pub fn forget(&mut self, (aggregate, version): Place) {
        self.seen[aggregate][usize::from(version) - 1] = 0;
    }

    /// Whether it has seen every event up to its position, and none behind.
    pub fn is_exact(&self, store: &Store, bounds: &Bounds) -> bool {
        if store.feed.is_none_or(|feed| Some(feed.id) != self.feed) {
            return true;
        }
        places().all(|place| {
            let (aggregate, version) = place;
            let width = bounds.width(place);
            let expected = match store.stream(place).position() {
                Some(position) if bounds.reads(bounds.name(aggregate)) => {
                    (self.after + width).saturating_sub(position).min(width)
                }
                _ => 0,
            };
            self.seen[aggregate][usize::from(version) - 1] == expected
        })
    }
}

/// An append of a page.
type Found = (u8, Place);

/// An event: its append, and its index there.
type Item = (Place, u8);

/// The store as a reader sees it that asks the names of the last positions only, where these are known.
fn asked(snapshot: &Store, after: u8, bounds: &Bounds) -> Store {
    let mut asked = *snapshot;
    if let Some(feed) = &mut asked.feed
        && let Some(last) = feed.last
        && last.after <= after
        && (last.to == feed.head || !bounds.has(Without::RecentAtHead))
    {
        for (name, is_last) in feed.names.iter_mut().zip(last.names) {
            *name &= is_last;
        }
    }
    asked
}

/// The events of a page, and up to which position it has read.
fn page(snapshot: &Store, after: u8, bounds: &Bounds) -> (Vec<Item>, u8) {
    let snapshot = &asked(snapshot, after, bounds);
    let head = snapshot.feed.map_or(0, |feed| feed.head);
    if !bounds.filters {
        let end = head.min(after + bounds.page);
        let (items, next) = between(snapshot, after, end, bounds);
        if next > after || end == head {
            return (items, next);
        }
        return between(snapshot, after, end_of_append(snapshot, end, bounds), bounds);
    }
    let end = after + bounds.page.max(WINDOW);
    let end = if end >= head { head } else { end_of_append(snapshot, end, bounds) };
    between(snapshot, after, end, bounds)
}

/// The end of the append that has an event at this position.
fn end_of_append(snapshot: &Store, position: u8, bounds: &Bounds) -> u8 {
    let ends = (0..AGGREGATES).filter_map(|name| {
        let found = find(snapshot, name, bounds).into_iter();
        found.map(|(end, _)| end).find(|end| *end >= position)
    });
    let head = snapshot.feed.map_or(0, |feed| feed.head);
    ends.min().unwrap_or(head)
}

fn between(snapshot: &Store, after: u8, end: u8, bounds: &Bounds) -> (Vec<Item>, u8) {
    let mut next = end;
    let mut documents: Vec<Found> = Vec::new();
    for name in (0..AGGREGATES).filter(|name| bounds.reads(*name)) {
        let mut found = find(snapshot, name, bounds);
        found.retain(|(position, _)| *position > after && *position <= end);
        found.truncate(usize::from(bounds.page));
        if found.len() == usize::from(bounds.page) {
            // There may be more of this name.
            next = next.min(found.last().map_or(end, |(position, _)| *position));
        }
        documents.extend(found);
    }
    documents.sort_unstable();
    let head = snapshot.feed.map_or(0, |feed| feed.head);
    if !bounds.filters && end < head {
        // The append behind the last one found may begin before `end`.
        next = next.min(documents.last().map_or(after, |(position, _)| *position));
    }
    let mut items = Vec::new();
    for (position, place) in documents.into_iter().filter(|(position, _)| *position <= next) {
        let width = bounds.width(place);
        let events = (0..width).map(|index| (position + index + 1 - width, (place, index)));
        items.extend(events.filter(|(event, _)| *event > after));
    }
    if items.len() > usize::from(bounds.page) {
        items.truncate(usize::from(bounds.page));
        next = items.last().map_or(after, |(event, _)| *event);
    }
    (items.into_iter().map(|(_, item)| item).collect(), next)
}

/// The appends of a name that the document of the feed has, in the order of the index.
fn find(snapshot: &Store, name: usize, bounds: &Bounds) -> Vec<Found> {
    if snapshot.feed.is_none_or(|feed| !feed.names[name]) {
        return Vec::new();
    }
    let of_name = places().filter(|place| bounds.name(place.0) == name);
    let has_events = |place: &Place| bounds.width(*place) > 0 || !bounds.has(Without::EmptyAside);
    let mut found: Vec<Found> = of_name
        .filter(has_events)
        .filter_map(|place| Some((snapshot.stream(place).position()?, place)))
        .collect();
    found.sort_unstable_by_key(|(position, place)| (*position, create_time(*place)));
    found
}
