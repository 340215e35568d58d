//! The bridge from another outbox (`postrider-adopt`), while primaries change.
//!
//! One owner copies documents of one key, which have a status: first a scan, then the changes in batches, each of which
//! it reads again by its ids. A document is its place in the oplog. A primary shows a reader what is before its commit
//! point; that of a new primary may be behind what the old one has shown, although it has those documents. The bridge
//! may fail or crash between any two steps; it continues from what is stored.
//!
//! A copy is one step: it is a transaction with the mark and the token, and its commit waits for a majority.

use stateright::{Model, Property};

use crate::walk::{Walk, walk};

/// The documents that are inserted, each behind the one before it.
const DOCUMENTS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// The read of a batch waits until its primary shows the last change of the batch.
    BatchTime,
    /// The scan waits until its primary shows what its snapshot time covers.
    ScanTime,
    /// Nothing is stored behind a batch that could not be read.
    FailedRead,
    /// The change stream begins right behind the time of the scan.
    StreamStart,
    /// The scan leaves what was inserted since its time to the change stream.
    ChangedSince,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Step {
    #[default]
    Stopped,
    /// It has the time of a snapshot, and scans.
    Scanning { at: u8 },
    /// It waits for changes behind this place.
    Watching { behind: u8 },
    /// It has received the changes up to this place, and reads them again.
    Received { behind: u8, last: u8 },
    /// It has read the documents: those behind `behind` and up to `read` were found.
    Read { behind: u8, read: u8, last: u8 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    /// The documents that the primary has.
    written: u8,
    /// Those that a majority has: no failover loses one of them.
    committed: u8,
    /// Those that the primary shows.
    shown: u8,
    step: Step,
    /// The stored resume token.
    token: Option<u8>,
    copied: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Insert,
    /// The primary hears that a majority has the next one.
    Commit,
    /// Another member is elected, whose commit point is here.
    Failover {
        shown: u8,
    },
    Start,
    /// The scan reads all at once, of what is shown.
    Scan,
    Receive {
        last: u8,
    },
    Read,
    Copy,
    /// The read of a batch or a scan gets no answer in time.
    TimeOut,
    Crash,
}

#[derive(Clone, Debug)]
struct Bridge {
    without: Option<Without>,
}

impl Bridge {
    fn has(&self, guard: Without) -> bool {
        self.without != Some(guard)
    }

    fn copy(state: &mut State, documents: std::ops::RangeInclusive<u8>) {
        for document in documents {
            // (Its status says whether it was copied.)
            if !state.copied.contains(&document) {
                state.copied.push(document);
            }
        }
    }
}

impl Model for Bridge {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.written < DOCUMENTS {
            actions.push(Action::Insert);
        }
        if state.shown < state.written {
            actions.push(Action::Commit);
        }
        actions.extend((0..=state.committed).map(|shown| Action::Failover { shown }));
        match state.step {
            Step::Stopped => actions.push(Action::Start),
            Step::Scanning { at } if state.shown >= at || !self.has(Without::ScanTime) => {
                actions.push(Action::Scan);
            }
            // (MongoDB does not resume a stream until a majority has the place of the token.)
            Step::Watching { behind } => {
                actions.extend((behind + 1..=state.shown).map(|last| Action::Receive { last }));
            }
            Step::Received { last, .. } if state.shown >= last || !self.has(Without::BatchTime) => {
                actions.push(Action::Read);
            }
            Step::Read { .. } => actions.push(Action::Copy),
            Step::Scanning { .. } | Step::Received { .. } => {}
        }
        if let Step::Scanning { .. } | Step::Received { .. } = state.step {
            actions.push(Action::TimeOut);
        }
        if state.step != Step::Stopped {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match (action, state.step) {
            (Action::Insert, _) => next.written += 1,
            (Action::Commit, _) => {
                next.shown += 1;
                next.committed = next.committed.max(next.shown);
            }
            (Action::Failover { shown }, _) => {
                next.written = state.committed;
                next.shown = shown;
            }
            (Action::Start, _) => {
                next.step = match state.token {
                    Some(behind) => Step::Watching { behind },
                    None => Step::Scanning { at: state.shown },
                };
            }
            (Action::Scan, Step::Scanning { at }) => {
                Self::copy(&mut next, 1..=at.min(state.shown));
                if !self.has(Without::ChangedSince) && state.shown > at {
                    // Of those that were inserted while it read, it may meet the last one alone.
                    Self::copy(&mut next, state.shown..=state.shown);
                }
                let behind = if self.has(Without::StreamStart) { at } else { state.shown };
                next.token = Some(behind);
                next.step = Step::Watching { behind };
            }
            (Action::Receive { last }, Step::Watching { behind }) => {
                next.step = Step::Received { behind, last };
            }
            (Action::Read, Step::Received { behind, last }) => {
                next.step = Step::Read { behind, read: last.min(state.shown), last };
            }
            (Action::Copy, Step::Read { behind, read, last }) => {
                Self::copy(&mut next, behind + 1..=read);
                next.token = Some(last);
                next.step = Step::Watching { behind: last };
            }
            (Action::TimeOut, Step::Received { last, .. }) if !self.has(Without::FailedRead) => {
                next.token = Some(last);
                next.step = Step::Stopped;
            }
            (Action::TimeOut | Action::Crash, _) => next.step = Step::Stopped,
            _ => return None,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State| {
                (1..).zip(&state.copied).all(|(place, document)| place == *document)
            }),
            Property::always(LOSS, |_, state: &State| {
                let copied = u8::try_from(state.copied.len()).unwrap();
                let passed = match state.step {
                    Step::Watching { behind } => behind,
                    _ => state.token.unwrap_or(0),
                };
                copied >= passed.max(state.token.unwrap_or(0))
            }),
            Property::always(COMMITTED, |_, state: &State| {
                state.copied.iter().all(|document| *document <= state.committed)
            }),
            // From each state, alone and without faults, the bridge copies what is left.
            Property::always(FINISH, |bridge: &Self, state: &State| {
                let mut state = State { shown: state.written, ..state.clone() };
                state.committed = state.committed.max(state.shown);
                for _ in 0..8 {
                    let mut actions = Vec::new();
                    bridge.actions(&state, &mut actions);
                    let step = actions.into_iter().rev().find(|action| {
                        matches!(
                            action,
                            Action::Start
                                | Action::Scan
                                | Action::Receive { .. }
                                | Action::Read
                                | Action::Copy
                        )
                    });
                    let Some(next) = step.and_then(|step| bridge.next_state(&state, step)) else {
                        break;
                    };
                    state = next;
                }
                state.copied.len() == usize::from(state.written)
            }),
            Property::sometimes(
                "a batch is received that the new primary does not show",
                |_, state: &State| matches!(state.step, Step::Received { last, .. } if last > state.shown),
            ),
            Property::sometimes(
                "a scan covers what the new primary does not show",
                |_, state: &State| matches!(state.step, Step::Scanning { at } if at > state.shown),
            ),
            Property::sometimes("a primary shows less than was copied", |_, state: &State| {
                state.copied.len() > usize::from(state.shown)
            }),
        ]
    }
}

const ORDER: &str = "copies follow the order of the commits";
const LOSS: &str = "nothing before the resume token is left";
const COMMITTED: &str = "only what a majority has is copied";
const FINISH: &str = "work can finish";

fn check(without: Option<Without>) -> Walk {
    walk(Bridge { without })
}

fn breaks(name: &str, without: Without, promise: &str) {
    check(Some(without)).assert_breaks(name, promise);
}

#[test]
fn bridge_copies_each_document_whichever_primary_it_reads() {
    check(None).assert_holds("`bridge`: four documents, any number of failovers", "test");
}

#[test]
fn batch_is_read_from_a_primary_that_shows_its_last_change() {
    breaks("`bridge`: a batch is read at the time of its last change", Without::BatchTime, LOSS);
}

#[test]
fn scan_reads_a_primary_that_shows_what_its_time_covers() {
    breaks("`bridge`: a scan is read at its snapshot time", Without::ScanTime, LOSS);
}

#[test]
fn no_token_is_stored_behind_a_batch_that_was_not_read() {
    breaks("`bridge`: a read that fails stores no token", Without::FailedRead, LOSS);
}

#[test]
fn stream_begins_right_behind_the_time_of_the_scan() {
    breaks("`bridge`: the stream begins behind the time of the scan", Without::StreamStart, LOSS);
}

#[test]
fn scan_leaves_what_was_inserted_since_its_time_to_the_stream() {
    let name = "`bridge`: a scan leaves what is newer to the stream";
    breaks(name, Without::ChangedSince, ORDER);
}
