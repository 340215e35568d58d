//! A destination that falls silent, heals and falls silent again, and dead letters to a silent one.
//!
//! Two keys of one destination, the first with two records. The destination may refuse messages, so
//! that records die; their copies go to another sink, to another destination of the same sink, or
//! to the very destination of the records. Where it is another sink, either sink may be down. The
//! copy of one record may be lost while others are confirmed, or break its connection. A circuit is
//! that of `relay::destination_circuits`, its silence included; what waits for it is in
//! `relay::key_table`; a record that is dying is in `relay::pending_deaths`. One process delivers.
//!
//! Time is nondeterministic: whatever has a time to end may end at any moment. Where the code
//! compares the times at which messages were published, the model keeps marks on the messages in
//! flight. The relay remembers a dying record for some time after each try of its dead letter: for
//! longer than the pause before the next try, and not for as long as a record may wait for a
//! destination or a sink.
//!
//! Left out: connections that are lost or left behind while their sink is up, except that of the
//! odd dead letter; room; circuits that nothing waits for; a relay that reads nothing for longer
//! than it remembers; and records that are changed while they wait. Rechecks, which make the relay
//! forget such a record, are modelled where dead letters go to the destination of the records.

mod check;
mod finish;

pub const KEYS: usize = 2;

/// The records of each key.
const OF_KEY: [std::ops::Range<usize>; KEYS] = [0..2, 2..3];

const RECORDS: usize = 3;

/// Counted attempts until a record dies.
const MAX_ATTEMPTS: u8 = 2;

/// How often a dead letter is tried that is at fault itself.
const ROUNDS: u8 = 2;

/// The record whose dead letter may be lost while others are confirmed, or break its connection.
const ODD: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// A confirm of a message that was published after the latest failure closes the circuit.
    ConfirmCloses,
    /// A refusal of the record that probes closes it, too.
    RefusalCloses,
    /// A circuit that closes frees the keys that wait for it.
    CloseFrees,
    /// The end of a silence frees them, too.
    SilenceFrees,
    /// A key that starts to wait is free if its destination accepts records by then.
    LookAgain,
    /// An open circuit calls a key that waits.
    Called,
    /// The right to probe ends with the lane.
    RightReturns,
    /// The right belongs to the circuit for which it was given, and to no later one.
    RightOfCircuit,
    /// A missing confirm is counted only where the destination has confirmed a later message.
    ConfirmedLater,
    /// What was in flight while the circuit was open is not counted.
    ClosedSince,
    /// A record that waits for its destination ends its lane.
    PauseEndsLane,
    /// A record that waits for its dead letter ends it, too.
    LetterEndsLane,
    /// The copy is answered before the record dies.
    CopyFirst,
    /// A dead letter at fault is tried a number of times, and the record dies without it.
    RoundsBounded,
    /// An unconfirmed dead letter is at fault only where a later one was confirmed.
    LetterConfirmedLater,
    /// A sink that is down does not count as a try.
    DownUncounted,
    /// A dying record is not delivered.
    DyingKept,
    /// It does not wait for its own sink and destination.
    DyingPasses,
    /// It is remembered for longer than the pause before its next try.
    DyingRemembered,
    /// A dead letter does not wait for a circuit.
    LetterPassesCircuit,
    /// A read of the head of a key does not end its wait for a dead letter.
    PauseKept,
    /// A recheck that finds a record leased, or that was cut before it, does not take it for
    /// changed.
    OnlyChanged,
}

/// The destination of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letters {
    OtherSink,
    SameSink,
    SameDestination,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    #[default]
    Pending,
    Done,
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    pub status: Status,
    attempts: u8,
    /// It will be dead once its dead letter is sent: how many tries count.
    pub dying: Option<u8>,
    /// Whether its dead letter was tried, whatever the relay remembers.
    is_tried: bool,
    /// How many tries broke the connection, or were not confirmed while a later one was, whatever
    /// the relay counts.
    pub faults: u8,
}

/// A message that was published and is not concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flight {
    record: usize,
    /// On the isolated connection, with the right to probe.
    pub probes: bool,
    /// It waits for longer than usual.
    in_doubt: bool,
    /// The destination was silent at some moment: it may never be confirmed.
    pub is_lost: bool,
    /// The destination was healthy at some moment.
    was_well: bool,
    /// A circuit was open at some moment.
    while_open: bool,
    /// The destination has confirmed a later message.
    confirmed_later: bool,
    /// It has not confirmed a later message.
    failed_later: bool,
    /// Its circuit was closed meanwhile.
    closed_since: bool,
}

/// The state of a key in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Key {
    #[default]
    Free,
    /// A scan found its first record fit to go. (The record, for the end of the lane.)
    Claimed(usize),
    /// A scan found its destination paused, and the key is not registered yet.
    Met,
    /// It waits for its destination: until that is freed, or at most for some time.
    Waits {
        ends: bool,
    },
    /// It waits for its sink.
    Paused,
    /// It waits for some time: for a backoff, or to try a dead letter again.
    Later(Seen),
    /// It waits for its turn to probe.
    Candidate,
    Flies(Flight),
    /// The copy of its record is in flight.
    SendsCopy {
        record: usize,
        /// Its lane has the right to probe.
        probes: bool,
        /// The destination was silent at some moment: it may never be confirmed.
        is_lost: bool,
        /// The destination has confirmed a later copy.
        is_overtaken: bool,
    },
}

/// A wait that has just begun, after a write.
const LATER: Key = Key::Later(Seen::Unread);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Circuit {
    /// It may be probed.
    is_due: bool,
    is_probing: bool,
}

/// What is known of a waiting record (`relay::blocker`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Nothing: it was written since it was read.
    #[default]
    Unread,
    Free,
    Leased,
    /// The read had no room for it.
    Cut,
}

/// A recheck of a waiting record (`relay::recheck`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recheck {
    key: usize,
    record: usize,
    /// What was known when it began.
    knew: Seen,
    /// The result of its read.
    shows: Option<Seen>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Health {
    #[default]
    Well,
    Silent,
    /// Its whole sink is down: known without a message.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    Order,
    SilenceCounted,
    UnderWayCounted,
    ProbedAgain,
    DeadWithoutCopy,
    DeliveredAgain,
    TriedEarly,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub records: [Record; RECORDS],
    pub keys: [Key; KEYS],
    /// The circuit of the destination, if it is open.
    pub circuit: Option<Circuit>,
    /// The destination has answered nothing for a while, and gets no more messages.
    pub is_silent: bool,
    pub destination: Health,
    /// The destination of dead letters, where that is another one.
    pub letters: Health,
    /// How often either has fallen sick.
    pub fallen: [u8; 2],
    /// Of two messages in flight, the key of the one that was published first; and of two copies.
    first: Option<usize>,
    first_copy: Option<usize>,
    /// Since the latest failure the destination has answered a later message: with a confirm, or
    /// the record that probed it with a refusal.
    answers: bool,
    recheck: Option<Recheck>,
    pub breach: Option<Breach>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Look(usize),
    /// The key that the scan met starts to wait.
    Enter(usize),
    Deliver(usize),
    /// Its turn to probe has come.
    Probe(usize),
    Confirm(usize),
    /// The same where nothing of the destination is remembered, so that it is not noted.
    ConfirmUnnoted(usize),
    Refuse(usize),
    /// It times out.
    Unconfirmed(usize),
    /// Its connection is lost: the sink is down.
    Interrupted(usize),
    /// It waits for longer than usual; and nothing was answered for so long.
    Doubt(usize),
    Silence,
    /// The pause between two probes is over; a waiting key is called.
    ProbeDue,
    Call(usize),
    /// The time of a wait is over.
    Due(usize),
    LetterConfirmed(usize),
    LetterRefused(usize),
    LetterUnconfirmed(usize),
    LetterDown(usize),
    LetterBroke(usize),
    /// A read returns the head of a key that waits to try its dead letter again.
    Shown(usize),
    /// The process no longer remembers that a record is dying: that took too long.
    Forget(usize),
    /// A recheck begins, has read the record, and compares.
    Recheck(usize),
    Read(Seen),
    Compare,
    Fall(usize, Health),
    Heal(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Sick {
    pub letters: Letters,
    /// How often the destination may fall sick, and that of dead letters.
    pub falls: [u8; 2],
    /// Whether waiting records are read again.
    pub rechecks: bool,
    pub without: Option<Without>,
}

impl State {
    pub fn head(&self, key: usize) -> Option<usize> {
        OF_KEY[key].clone().find(|record| self.records[*record].status == Status::Pending)
    }

    /// `DestinationCircuits::waits`.
    pub fn waits(&self) -> bool {
        self.circuit.is_some() || self.is_silent
    }

    /// `DestinationCircuits::wants_probe`.
    fn wants_probe(&self) -> bool {
        self.circuit.is_some_and(|circuit| circuit.is_due && !circuit.is_probing)
    }

    /// Whether the pause between two probes is not over.
    fn is_resting(&self) -> bool {
        self.circuit.is_some_and(|circuit| !circuit.is_due && !circuit.is_probing)
    }

    pub fn is_dying(&self, key: usize) -> bool {
        self.head(key).is_some_and(|head| self.records[head].dying.is_some())
    }

    fn flights(&mut self) -> impl Iterator<Item = (usize, &mut Flight)> {
        self.keys.iter_mut().enumerate().filter_map(|(key, state)| match state {
            Key::Flies(flight) => Some((key, flight)),
            _ => None,
        })
    }

    /// The earlier messages that are still in flight.
    fn earlier(&mut self, key: usize) -> impl Iterator<Item = &mut Flight> {
        let first = self.first;
        let others =
            self.flights().filter(move |(other, _)| *other != key && first == Some(*other));
        others.map(|(_, flight)| flight)
    }

    /// Whether the table certainly has an entry of the destination.
    fn is_known(&self) -> bool {
        self.circuit.is_some() || self.is_in_doubt()
    }

    fn is_in_doubt(&self) -> bool {
        self.keys.iter().any(|key| matches!(key, Key::Flies(flight) if flight.in_doubt))
    }

    fn free(&mut self, which: impl Fn(Key) -> bool) {
        self.keys.iter_mut().filter(|key| which(**key)).for_each(|key| *key = Key::Free);
    }
}

impl Sick {
    pub fn has(self, guard: Without) -> bool {
        self.without != Some(guard)
    }

    /// `DestinationCircuits::due`.
    fn calls(self, state: &State) -> bool {
        state.wants_probe() && self.has(Without::Called)
    }

    pub fn health_of_letters(self, state: &State) -> Health {
        match self.letters {
            Letters::SameDestination => state.destination,
            Letters::OtherSink | Letters::SameSink => state.letters,
        }
    }

    pub fn after(self, state: &State, action: Action) -> State {
        let mut state = *state;
        match action {
            Action::Look(key) => self.look(&mut state, key),
            Action::Enter(key) => {
                let is_free = self.has(Without::LookAgain) && !state.waits();
                state.keys[key] = if is_free { Key::Free } else { Key::Waits { ends: false } };
            }
            Action::Deliver(key) => self.deliver(&mut state, key),
            Action::Probe(key) => self.probe(&mut state, key),
            Action::Confirm(key) => {
                state.earlier(key).for_each(|flight| flight.confirmed_later = true);
                self.confirm(&mut state, key);
            }
            Action::ConfirmUnnoted(key) => self.confirm(&mut state, key),
            Action::Refuse(key) => {
                let flight = self.conclude(&mut state, key);
                self.observe(&mut state);
                let mut probes = self.right(flight);
                if flight.probes && !flight.failed_later {
                    state.answers = true;
                    let is_closed = self.close(&mut state, Without::RefusalCloses);
                    probes &= !is_closed || !self.has(Without::RightOfCircuit);
                }
                self.count(&mut state, key, flight.record, probes);
            }
            Action::Unconfirmed(key) => self.unconfirmed(&mut state, key),
            Action::Interrupted(key) => {
                let flight = self.conclude(&mut state, key);
                let next = if flight.probes { Key::Waits { ends: true } } else { Key::Free };
                self.end(&mut state, key, self.right(flight), next);
            }
            Action::Doubt(key) => {
                if let Key::Flies(flight) = &mut state.keys[key] {
                    flight.in_doubt = true;
                }
            }
            Action::Silence => state.is_silent = true,
            Action::ProbeDue => {
                state.circuit = state.circuit.map(|open| Circuit { is_due: true, ..open });
            }
            Action::Call(key) | Action::Due(key) => state.keys[key] = Key::Free,
            Action::LetterConfirmed(key) => {
                let first = state.first_copy.filter(|first| *first != key);
                if let Some(Key::SendsCopy { is_overtaken, .. }) =
                    first.map(|key| &mut state.keys[key])
                {
                    *is_overtaken = true;
                }
                self.die(&mut state, key, true);
            }
            Action::LetterRefused(key) => self.die(&mut state, key, true),
            Action::LetterUnconfirmed(key) | Action::LetterDown(key) | Action::LetterBroke(key) => {
                self.letter_failed(&mut state, key, action);
            }
            Action::Shown(key) => state.keys[key] = Key::Candidate,
            Action::Forget(key) => {
                let head = state.head(key).unwrap();
                state.records[head].dying = None;
            }
            Action::Recheck(key) => {
                if let (Key::Later(knew), Some(record)) = (state.keys[key], state.head(key)) {
                    state.recheck = Some(Recheck { key, record, knew, shows: None });
                }
            }
            Action::Read(seen) => {
                state.recheck = state.recheck.map(|one| Recheck { shows: Some(seen), ..one });
            }
            Action::Compare => self.compare(&mut state),
            Action::Fall(place, health) => self.fall(&mut state, place, health),
            Action::Heal(0) => {
                state.destination = Health::Well;
                state.flights().for_each(|(_, flight)| flight.was_well = true);
                state.free(|key| key == Key::Paused);
            }
            Action::Heal(_) => state.letters = Health::Well,
        }
        state
    }

    /// `recheck::is_freed`.
    fn compare(self, state: &mut State) {
        let Some(Recheck { key, record, knew, shows: Some(shows) }) = state.recheck.take() else {
            return;
        };
        let says_nothing = self.has(Without::OnlyChanged) && shows != Seen::Free;
        let is_changed = shows == Seen::Cut || knew != Seen::Unread && knew != shows;
        let waits = state.keys[key] == Key::Later(knew) && state.head(key) == Some(record);
        if says_nothing {
            return;
        }
        if is_changed {
            state.records[record].dying = None;
        }
        if waits {
            state.keys[key] = if is_changed { Key::Free } else { Key::Later(shows) };
        }
    }

    /// A scan of the key (`relay::plan`).
    fn look(self, state: &mut State, key: usize) {
        let passes = state.is_dying(key) && self.has(Without::DyingPasses);
        state.keys[key] = match state.head(key) {
            None => Key::Free,
            Some(head) if passes => Key::Claimed(head),
            Some(_) if state.destination == Health::Down => Key::Paused,
            Some(head) if !state.waits() => Key::Claimed(head),
            Some(_) if state.wants_probe() => Key::Candidate,
            Some(_) => Key::Met,
        };
    }

    /// `Publisher::admit`, on the main connection.
    fn deliver(self, state: &mut State, key: usize) {
        let Key::Claimed(record) = state.keys[key] else { return };
        let is_dying = state.records[record].dying.is_some();
        if is_dying && self.has(Without::DyingKept) {
            self.start_dying(state, key, record, false);
        } else if state.destination == Health::Down {
            state.keys[key] = Key::Free;
        } else if state.waits() {
            state.keys[key] = Key::Waits { ends: true };
        } else {
            self.hand_over(state, key, record, false);
        }
    }

    /// `Publisher::admit`, on the isolated connection.
    fn probe(self, state: &mut State, key: usize) {
        let Some(head) = state.head(key) else { return };
        if state.is_dying(key) && !self.has(Without::PauseKept) {
            state.breach = Some(Breach::TriedEarly);
            self.start_dying(state, key, head, false);
        } else if state.destination == Health::Down || !state.waits() {
            state.keys[key] = Key::Free;
        } else if state.wants_probe() {
            state.circuit = Some(Circuit { is_due: false, is_probing: true });
            if state.is_dying(key) {
                self.start_dying(state, key, head, true);
            } else {
                self.hand_over(state, key, head, true);
            }
        } else {
            state.keys[key] = Key::Waits { ends: false };
        }
    }

    fn hand_over(self, state: &mut State, key: usize, record: usize, probes: bool) {
        if state.head(key) != Some(record) {
            state.breach = Some(Breach::Order);
        }
        if state.records[record].is_tried {
            state.breach = Some(Breach::DeliveredAgain);
        }
        if probes && state.answers {
            state.breach = Some(Breach::ProbedAgain);
        }
        let was_well = state.destination == Health::Well;
        let first = state.flights().next().map(|(other, _)| other);
        state.first = first;
        state.keys[key] = Key::Flies(Flight {
            record,
            probes,
            in_doubt: false,
            is_lost: !was_well,
            was_well,
            while_open: state.circuit.is_some(),
            confirmed_later: false,
            failed_later: false,
            closed_since: false,
        });
    }

    /// A message is no longer in flight; its doubt has ended (`Doubt::end`).
    fn conclude(self, state: &mut State, key: usize) -> Flight {
        let Key::Flies(flight) = state.keys[key] else { unreachable!("{state:?}") };
        (state.keys[key], state.first) = (Key::Free, None);
        if flight.in_doubt && !state.is_in_doubt() {
            self.observe(state);
        }
        flight
    }

    /// `DestinationCircuits::hear`.
    fn observe(self, state: &mut State) {
        if std::mem::replace(&mut state.is_silent, false) && self.has(Without::SilenceFrees) {
            state.free(|key| matches!(key, Key::Waits { .. }));
        }
    }

    /// Whether the lane of a message has the right to probe.
    fn right(self, flight: Flight) -> bool {
        flight.probes && !(flight.closed_since && self.has(Without::RightOfCircuit))
    }

    /// The lane has ended, and with it its right.
    fn end(self, state: &mut State, key: usize, probes: bool, next: Key) {
        state.keys[key] = next;
        if let Some(circuit) = state.circuit.as_mut().filter(|_| probes) {
            circuit.is_probing &= !self.has(Without::RightReturns);
        }
    }

    /// `DestinationCircuits::confirmed`.
    fn confirm(self, state: &mut State, key: usize) {
        let flight = self.conclude(state, key);
        self.observe(state);
        state.records[flight.record].status = Status::Done;
        state.records[flight.record].dying = None;
        self.end(state, key, self.right(flight), Key::Free);
        if !flight.failed_later {
            state.answers = true;
            self.close(state, Without::ConfirmCloses);
        }
    }

    /// `DestinationCircuits::close`, if this guard is there; returns whether it was open.
    fn close(self, state: &mut State, guard: Without) -> bool {
        if state.circuit.is_none() || !self.has(guard) {
            return false;
        }
        state.circuit = None;
        state.flights().for_each(|(_, flight)| flight.closed_since = true);
        for key in &mut state.keys {
            if let Key::SendsCopy { probes, .. } = key {
                *probes &= !self.has(Without::RightOfCircuit);
            }
        }
        if self.has(Without::CloseFrees) {
            state.free(|key| matches!(key, Key::Waits { .. }));
        }
        true
    }

    /// `DestinationCircuits::unconfirmed`.
    fn unconfirmed(self, state: &mut State, key: usize) {
        state.earlier(key).for_each(|flight| flight.failed_later = true);
        let flight = self.conclude(state, key);
        let is_later = flight.confirmed_later && state.circuit.is_none();
        let is_own = is_later && (!flight.closed_since || !self.has(Without::ClosedSince));
        if is_own || !self.has(Without::ConfirmedLater) {
            if !flight.was_well {
                state.breach = Some(Breach::SilenceCounted);
            } else if flight.while_open {
                state.breach = Some(Breach::UnderWayCounted);
            }
            self.count(state, key, flight.record, self.right(flight));
            return;
        }
        if !is_later {
            state.answers = false;
            state.circuit.get_or_insert_default().is_due = false;
            state.flights().for_each(|(_, flight)| flight.while_open = true);
        }
        // (`takes_again`)
        let is_free = !flight.probes && !state.waits();
        let next = if is_free { Key::Free } else { Key::Waits { ends: true } };
        let next = match self.next(key, flight.record) {
            Some(behind) if !self.has(Without::PauseEndsLane) => Key::Claimed(behind),
            _ => next,
        };
        self.end(state, key, self.right(flight), next);
    }

    fn next(self, key: usize, record: usize) -> Option<usize> {
        Some(record + 1).filter(|next| OF_KEY[key].contains(next))
    }

    fn count(self, state: &mut State, key: usize, number: usize, probes: bool) {
        let record = &mut state.records[number];
        record.attempts = (record.attempts + 1).min(MAX_ATTEMPTS);
        if record.attempts == MAX_ATTEMPTS {
            self.start_dying(state, key, number, probes);
        } else {
            self.end(state, key, probes, LATER);
        }
    }

    /// `LaneWorker::mark_dead`. Nothing asks whether the destination of the copy has a circuit that is open.
    fn start_dying(self, state: &mut State, key: usize, record: usize, probes: bool) {
        let is_own = self.letters == Letters::SameDestination;
        if is_own && state.waits() && !self.has(Without::LetterPassesCircuit) {
            state.records[record].dying.get_or_insert(0);
            self.end(state, key, probes, LATER);
            return;
        }
        state.records[record].is_tried = true;
        let is_lost = self.health_of_letters(state) == Health::Silent;
        let others = state.keys.iter().position(|key| matches!(key, Key::SendsCopy { .. }));
        state.first_copy = others;
        state.keys[key] = Key::SendsCopy { record, probes, is_lost, is_overtaken: false };
    }

    /// `DeadLetterSender::send` and `PendingDeaths::again`.
    fn letter_failed(self, state: &mut State, key: usize, how: Action) {
        let Key::SendsCopy { record: number, probes, is_overtaken, .. } = state.keys[key] else {
            return;
        };
        let is_fault = match how {
            Action::LetterDown(_) => false,
            Action::LetterUnconfirmed(_) => is_overtaken,
            _ => true,
        };
        let is_counted = match how {
            Action::LetterDown(_) => !self.has(Without::DownUncounted),
            Action::LetterUnconfirmed(_) => is_fault || !self.has(Without::LetterConfirmedLater),
            _ => true,
        };
        let record = &mut state.records[number];
        let rounds = record.dying.get_or_insert(0);
        *rounds = (*rounds + u8::from(is_counted)).min(ROUNDS);
        let is_spent = *rounds == ROUNDS && self.has(Without::RoundsBounded);
        record.faults = (record.faults + u8::from(is_fault)).min(ROUNDS);
        if is_spent || !self.has(Without::CopyFirst) {
            self.die(state, key, false);
            return;
        }
        state.first_copy = None;
        let next = match self.next(key, number) {
            Some(behind) if !self.has(Without::LetterEndsLane) => Key::Claimed(behind),
            _ => LATER,
        };
        self.end(state, key, probes, next);
    }

    fn die(self, state: &mut State, key: usize, is_answered: bool) {
        let Key::SendsCopy { record: number, probes, .. } = state.keys[key] else { return };
        let record = &mut state.records[number];
        (record.status, record.dying) = (Status::Dead, None);
        if !is_answered && record.faults < ROUNDS {
            state.breach = Some(Breach::DeadWithoutCopy);
        }
        state.first_copy = None;
        self.end(state, key, probes, Key::Free);
    }

    fn fall(self, state: &mut State, place: usize, health: Health) {
        state.fallen[place] += 1;
        match place {
            0 => {
                state.destination = health;
                state.flights().for_each(|(_, flight)| flight.is_lost = true);
            }
            _ => state.letters = health,
        }
        let is_silent = self.health_of_letters(state) == Health::Silent;
        for key in &mut state.keys {
            if let Key::SendsCopy { is_lost, .. } = key {
                *is_lost |= is_silent;
            }
        }
    }

    pub fn enabled(self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        let is_well = state.destination == Health::Well;
        for (key, place) in state.keys.into_iter().enumerate() {
            let is_remembered = match place {
                Key::Waits { .. } | Key::Paused => false,
                Key::Later(_) => self.has(Without::DyingRemembered),
                _ => true,
            };
            if !is_remembered && state.is_dying(key) {
                actions.push(Action::Forget(key));
            }
            match place {
                Key::Free => actions.extend(state.head(key).map(|_| Action::Look(key))),
                Key::Claimed(_) => actions.push(Action::Deliver(key)),
                Key::Met => actions.push(Action::Enter(key)),
                Key::Later(_) => {
                    actions.push(Action::Due(key));
                    if state.is_dying(key) && self.rechecks && state.recheck.is_none() {
                        actions.push(Action::Recheck(key));
                    }
                    if state.is_dying(key) && !self.has(Without::PauseKept) {
                        actions.push(Action::Shown(key));
                    }
                }
                Key::Paused => {}
                Key::Candidate => actions.push(Action::Probe(key)),
                Key::Waits { ends } => {
                    if ends {
                        actions.push(Action::Due(key));
                    }
                    if self.calls(state) {
                        actions.push(Action::Call(key));
                    }
                }
                Key::Flies(flight) => {
                    if is_well {
                        actions.extend([Action::Confirm(key), Action::Refuse(key)]);
                        if state.first.is_some_and(|first| first != key) && !state.is_known() {
                            actions.push(Action::ConfirmUnnoted(key));
                        }
                    }
                    if state.destination == Health::Down {
                        actions.push(Action::Interrupted(key));
                    } else if flight.is_lost {
                        actions.push(Action::Unconfirmed(key));
                    }
                    if !flight.probes && !flight.in_doubt {
                        actions.push(Action::Doubt(key));
                    }
                }
                Key::SendsCopy { record, is_lost, .. } => {
                    let health = self.health_of_letters(state);
                    if health == Health::Well {
                        actions.extend([Action::LetterConfirmed(key), Action::LetterRefused(key)]);
                    }
                    if health == Health::Down {
                        actions.push(Action::LetterDown(key));
                    }
                    if health != Health::Down && (is_lost || record == ODD) {
                        actions.push(Action::LetterUnconfirmed(key));
                    }
                    if health != Health::Down && record == ODD {
                        actions.push(Action::LetterBroke(key));
                    }
                }
            }
        }
        match state.recheck {
            Some(Recheck { shows: Some(_), .. }) => actions.push(Action::Compare),
            Some(Recheck { key, .. }) => {
                let is_free = matches!(state.keys[key], Key::Free | Key::Later(_));
                let seen = if is_free { Seen::Free } else { Seen::Leased };
                actions.extend([Action::Read(seen), Action::Read(Seen::Cut)]);
            }
            None => {}
        }
        if state.is_in_doubt() && !state.is_silent {
            actions.push(Action::Silence);
        }
        if state.is_resting() {
            actions.push(Action::ProbeDue);
        }
        actions
    }

    pub fn weather(self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        let has_other = self.letters != Letters::SameDestination;
        let are_ended = !state.keys.iter().any(|key| matches!(key, Key::Flies(_)));
        for (place, health) in [state.destination, state.letters].into_iter().enumerate() {
            if health != Health::Well {
                // What was in flight on a lost connection ends first.
                if place != 0 || health != Health::Down || are_ended {
                    actions.push(Action::Heal(place));
                }
            } else if state.fallen[place] < self.falls[place] && (place == 0 || has_other) {
                actions.push(Action::Fall(place, Health::Silent));
                if self.letters == Letters::OtherSink {
                    actions.push(Action::Fall(place, Health::Down));
                }
            }
        }
        actions
    }
}
