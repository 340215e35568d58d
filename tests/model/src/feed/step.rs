//! The possible actions, and their effects.

use super::planner::{early, may_plan};
use super::store::{Batch, Document, Place, Store, Stream, places};
use super::{
    AGGREGATES, Action, Bounds, FEEDS, KEPT, Known, SEEN, SEQUENCERS, Sequencer, State, Without,
};

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigned {
    All,
    StateChanged,
    StreamsChanged,
    /// What precedes one of the appends has no position.
    TooEarly,
}

/// All possible actions.
pub fn enabled(state: &State, bounds: &Bounds, actions: &mut Vec<Action>) {
    if state.breach.is_some() {
        return;
    }
    actions.extend(places().filter(|place| may_append(state, *place, bounds)).map(Action::Append));
    if bounds.deletes && state.deleted.is_none() {
        // All of a stream, or its last document.
        let is_first_or_last = |place: &Place| {
            let (aggregate, version) = *place;
            let is_last = || {
                let after = (aggregate, version + 1);
                version >= bounds.versions[aggregate] || !state.now.has(after)
            };
            state.majority.has(*place) && (version == 1 || is_last())
        };
        actions.extend(places().filter(is_first_or_last).map(Action::Delete));
    }
    if bounds.failovers {
        actions.extend([Action::Replicate, Action::Failover]);
    }
    actions.extend([Action::LeaseEnds, Action::Read]);
    if !bounds.has(Without::OneSnapshot) {
        actions.push(Action::ReadStreams);
    }
    if bounds.restores && state.feeds < FEEDS {
        match state.backup {
            None => actions.push(Action::Backup),
            Some(_) => actions.extend([Action::Restore, Action::RestoreDocument]),
        }
    }
    if bounds.loses && state.feeds < FEEDS {
        actions.push(Action::LoseDocument);
    }
    for at in 0..SEQUENCERS {
        let Sequencer { known, committed, half, late, .. } = state.sequencers[at];
        if late.is_some() {
            actions.push(Action::LateCommit(at));
        }
        let Some(known) = known else {
            actions.push(Action::Own(at));
            continue;
        };
        actions.push(Action::Restart(at));
        if half.is_some() {
            actions.push(Action::AssignRest(at));
        } else if committed.is_none() {
            steps(state, at, &known, bounds, actions);
        }
    }
}

/// Whether an append may be committed: the version before is, but for the one that may be missing.
fn may_append(state: &State, place: Place, bounds: &Bounds) -> bool {
    let (aggregate, version) = place;
    let before = (aggregate, version - 1);
    let is_next = version == 1 || state.now.has(before) || bounds.gap == Some(before);
    version <= bounds.versions[aggregate] && is_next && !state.now.has(place)
}

/// The actions of a sequencer that awaits nothing.
fn steps(state: &State, at: usize, known: &Known, bounds: &Bounds, actions: &mut Vec<Action>) {
    let memory = &state.sequencers[at].memory;
    actions.extend([Action::Renew(at), Action::AddNames(at)]);
    let may_use = |place: &Place| known.names[place.0] || !bounds.has(Without::NamesFirst);
    let reported: Vec<Place> =
        places().filter(|place| state.majority.has(*place) && may_use(place)).collect();
    for first in &reported {
        for second in reported.iter().copied().map(Some).chain([None]) {
            let batch = [Some(*first), second];
            if may_plan(&batch, memory, bounds) {
                actions.push(Action::Assign(at, batch));
                // (The sequencers are alike.)
                if bounds.late_commits && at == 0 {
                    actions.push(Action::GiveUp(at, batch));
                }
            }
        }
    }
}

/// The effect of an action; `None` if it changes nothing.
pub fn after(last: &State, action: Action, bounds: &Bounds) -> Option<State> {
    let mut state = *last;
    match action {
        Action::Append(place) => {
            state.now.set(place, Stream::Committed);
            state.is_written(bounds);
        }
        Action::Delete((aggregate, from)) => {
            // An operator waits for a majority.
            state.replicate(bounds);
            for place in places().filter(|place| place.0 == aggregate && place.1 >= from) {
                state.now.delete(place, bounds.width(place));
                state.reader.forget(place);
            }
            state.majority = state.now;
            state.deleted = Some((aggregate, from));
        }
        Action::Replicate => state.replicate(bounds),
        Action::Failover => {
            state.now = state.majority;
            for sequencer in &mut state.sequencers {
                // The retry of the commit finds that there is no such transaction.
                sequencer.committed = None;
            }
        }
        Action::LeaseEnds => state.end_lease(),
        Action::Own(at) => {
            if !state.own(at, bounds) {
                return None;
            }
        }
        Action::Renew(at) => state.renew(at, bounds),
        Action::Restart(at) => state.restart(at),
        Action::AddNames(at) => state.add_names(at, bounds),
        Action::Assign(at, batch) => {
            state.assign(at, &batch, bounds);
        }
        Action::AssignRest(at) => {
            let batch = state.sequencers[at].half.take()?;
            let head = state.sequencers[at].known?.head;
            state.write_positions(head, &batch, bounds);
            state.learn(at, &batch, bounds);
        }
        Action::GiveUp(at, batch) => {
            let known = state.sequencers[at].known?;
            state.restart(at);
            state.sequencers[at].late = Some((known, batch));
        }
        Action::LateCommit(at) => {
            let (known, batch) = state.sequencers[at].late.take()?;
            state.commit(at, &known, &batch, bounds);
            state.is_written(bounds);
        }
        Action::Read => read(&mut state, bounds),
        Action::ReadStreams => state.reader.streams = Some(state.majority.streams),
        Action::Backup => state.backup = Some(state.majority),
        Action::Restore => {
            let backup = state.backup?;
            state.restore(backup.feed?, backup, bounds);
        }
        Action::RestoreDocument => {
            let backup = state.backup?;
            state.restore(backup.feed?, state.now, bounds);
        }
        Action::LoseDocument => {
            state.now.feed = None;
            state.majority.feed = None;
        }
    }
    (state != *last).then_some(state)
}

fn read(state: &mut State, bounds: &Bounds) {
    let mut snapshot = if bounds.has(Without::ReaderMajority) { state.majority } else { state.now };
    if !bounds.has(Without::OneSnapshot) {
        let Some(streams) = state.reader.streams.take() else { return };
        snapshot.streams = streams;
    }
    if !state.reader.read(&snapshot, bounds) {
        state.break_promise(SEEN, bounds);
    }
}

impl State {
    fn break_promise(&mut self, promise: &'static str, bounds: &Bounds) {
        if bounds.promise.is_none_or(|asked| asked == promise) {
            self.breach = Some(promise);
        }
    }

    /// Where no failover happens, a majority has everything at once.
    fn is_written(&mut self, bounds: &Bounds) {
        if !bounds.failovers {
            self.majority = self.now;
        }
    }

    /// A majority gets everything: transactions that were committed are acknowledged.
    pub fn replicate(&mut self, bounds: &Bounds) {
        self.majority = self.now;
        for at in 0..SEQUENCERS {
            if let Some(batch) = self.sequencers[at].committed.take() {
                self.learn(at, &batch, bounds);
            }
        }
    }

    pub fn end_lease(&mut self) {
        for feed in [&mut self.now.feed, &mut self.majority.feed].into_iter().flatten() {
            feed.is_leased = false;
        }
    }

    fn restart(&mut self, at: usize) {
        let late = self.sequencers[at].late;
        self.sequencers[at] = Sequencer { late, ..Sequencer::default() };
    }

    /// Takes or renews the lease, and reads the document; creates it if it was lost.
    pub fn own(&mut self, at: usize, bounds: &Bounds) -> bool {
        self.replicate(bounds);
        let mut feed = match self.now.feed {
            Some(feed) => feed,
            None => self.new_feed(&self.now, None, bounds),
        };
        if feed.is_leased && feed.owner != Some(at) {
            return false;
        }
        self.feeds = self.feeds.max(feed.id + 1);
        (feed.owner, feed.is_leased) = (Some(at), true);
        self.now.feed = Some(feed);
        self.majority = self.now;
        let Document { id, head, names, last, .. } = feed;
        self.sequencers[at].known = Some(Known { id, head, names, last });
        true
    }

    pub fn renew(&mut self, at: usize, bounds: &Bounds) {
        if !self.own(at, bounds) {
            self.restart(at);
        }
    }

    /// Names the collections that exist in the document.
    pub fn add_names(&mut self, at: usize, bounds: &Bounds) {
        let Some(mut known) = self.sequencers[at].known else { return };
        let new = |aggregate: &usize| !known.names[*aggregate] && self.now.has_name(*aggregate);
        for aggregate in (0..AGGREGATES).filter(new).collect::<Vec<_>>() {
            known.names[aggregate] = true;
            known.last = None;
            if let Some(feed) = &mut self.now.feed {
                feed.names[aggregate] = true;
                feed.last = None;
            }
            if bounds.has(Without::NamesMajority) {
                self.replicate(bounds);
            }
        }
        self.sequencers[at].known = Some(known);
    }

    /// A transaction of a sequencer, and what it learns of it.
    pub fn assign(&mut self, at: usize, batch: &Batch, bounds: &Bounds) -> Option<Assigned> {
        let known = self.sequencers[at].known?;
        let assigned = self.commit(at, &known, batch, bounds);
        match assigned {
            Assigned::All if !bounds.has(Without::OneTransaction) => {
                self.sequencers[at].half = Some(*batch);
            }
            Assigned::All if bounds.failovers && bounds.has(Without::AssignMajority) => {
                self.sequencers[at].committed = Some(*batch);
            }
            Assigned::All => self.learn(at, batch, bounds),
            Assigned::StateChanged => {
                if !self.own(at, bounds) {
                    self.restart(at);
                }
            }
            Assigned::StreamsChanged | Assigned::TooEarly => {}
        }
        self.is_written(bounds);
        Some(assigned)
    }

    /// What the sequencer knows after a transaction that was acknowledged.
    fn learn(&mut self, at: usize, batch: &Batch, bounds: &Bounds) {
        let sequencer = &mut self.sequencers[at];
        if let Some(known) = &mut sequencer.known {
            known.last = bounds.moved(known, batch);
            known.head += bounds.events(batch);
        }
        if !bounds.has(Without::ReadPredecessor) {
            for (aggregate, version) in batch.iter().flatten() {
                sequencer.memory[*aggregate] = Some(*version);
            }
        }
    }

    /// The transaction: all, or nothing.
    fn commit(&mut self, at: usize, known: &Known, batch: &Batch, bounds: &Bounds) -> Assigned {
        let store = self.now;
        let Some(feed) = &mut self.now.feed else { return Assigned::StateChanged };
        let is_known = (feed.head == known.head || !bounds.has(Without::CompareHead))
            && (feed.id == known.id || !bounds.has(Without::CompareFeed))
            && (feed.owner == Some(at) || !bounds.has(Without::CompareOwner));
        if !is_known {
            return Assigned::StateChanged;
        }
        let is_asked = bounds.has(Without::Predecessor) && bounds.has(Without::ReadPredecessor);
        if is_asked && early(&store, batch).next().is_some() {
            return Assigned::TooEarly;
        }
        let is_free = |place: &Place| match store.stream(*place) {
            Stream::NotCommitted => false,
            Stream::Committed => true,
            // It stays, since it is less than the new one.
            Stream::At(position) => position > known.head || !bounds.has(Without::Exists),
        };
        if !batch.iter().flatten().all(is_free) {
            return Assigned::StreamsChanged;
        }
        feed.head = known.head + bounds.events(batch);
        feed.last = bounds.moved(known, batch);
        feed.is_leased = true;
        if bounds.has(Without::OneTransaction) {
            self.write_positions(known.head, batch, bounds);
        }
        Assigned::All
    }

    fn write_positions(&mut self, head: u8, batch: &Batch, bounds: &Bounds) {
        let mut position = head;
        for place in batch.iter().flatten() {
            if self.now.stream(*place).position().is_some() {
                self.break_promise(KEPT, bounds);
            }
            position += bounds.width(*place);
            self.now.set(*place, Stream::At(position));
        }
        self.is_written(bounds);
    }

    /// The document of a new feed, which may have had another one.
    fn new_feed(&self, store: &Store, before: Option<Document>, bounds: &Bounds) -> Document {
        let empty = Document {
            id: 0,
            head: 0,
            names: [false; AGGREGATES],
            owner: None,
            is_leased: false,
            last: None,
        };
        // (A restored one keeps `recent`, as an earlier release leaves it.)
        let mut feed = Document { id: self.feeds, ..before.unwrap_or(empty) };
        if bounds.has(Without::HighestHead) {
            feed.head = feed.head.max(store.highest_position());
        }
        if bounds.has(Without::NamesWithHead) {
            let positioned = store.positioned_names();
            for (name, is_positioned) in feed.names.iter_mut().zip(positioned) {
                *name |= is_positioned;
            }
        }
        feed
    }

    fn restore(&mut self, feed: Document, store: Store, bounds: &Bounds) {
        let feed = self.new_feed(&store, Some(feed), bounds);
        self.now = Store { feed: Some(feed), ..store };
        self.majority = self.now;
        self.feeds = feed.id + 1;
        self.backup = None;
    }
}
