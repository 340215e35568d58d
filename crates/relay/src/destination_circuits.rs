//! Circuits: which destinations of a sink do not confirm.
//!
//! A circuit opens when a publish to its destination ends without a confirm on a sound connection,
//! or takes its own connection down. While it is open, no record goes to the destination on the
//! sink's main connection. One record at a time probes it on an isolated connection; a confirm
//! closes the circuit. It opens, too, where a publish waits on a connection in place of which the sink
//! has opened another, and where one was in flight at two losses of the main connection: whether that is
//! the destination's doing is not known then, and is probed at once.
//!
//! Until a publish ends without a confirm its time has to run out, and meanwhile the records of that
//! destination would take all the room that there is. So a destination that has confirmed nothing
//! for a short while, though something waits for it, is silent: it is given nothing more until it
//! confirms or its circuit opens, and its records in flight take no room from others.

mod circuit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use postrider_outbox::ids::SinkName;
use tracing::{info, warn};

use crate::destination_circuits::circuit::Circuit;
use crate::sink::Address;

pub(crate) use circuit::Fault;

/// Probes of one sink under way at once: each may take as long as a publish may.
const PROBES: usize = 64;

/// Open circuits of a sink, beyond which no further destination is suspected of a connection's loss:
/// each would be probed alone, one after the other.
const SUSPECTED: usize = 8;

/// Circuits of one sink at most; records of further destinations wait one by one.
const MOST: usize = 10_000;

/// The circuits of one sink.
#[derive(Debug)]
pub struct DestinationCircuits {
    sink: SinkName,
    longest_pause: Duration,
    /// Circuits in the key table, and those of them that are open: so that a healthy sink costs no lock.
    count: AtomicUsize,
    open: AtomicUsize,
    silent: AtomicUsize,
    probing: AtomicUsize,
    book: Mutex<HashMap<Address, Circuit>>,
}

/// A destination whose circuit is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDestination {
    /// The sink's name.
    pub sink: String,
    /// Exchange and routing key, or topic.
    pub destination: Address,
    /// How long the circuit has been open.
    pub open_for: Duration,
    /// The sink's words about the latest failure.
    pub cause: String,
}

/// One record's right to probe a destination.
#[derive(Debug)]
pub(crate) struct Probe<'a> {
    circuits: &'a DestinationCircuits,
    destination: Address,
    /// When the circuit was opened: it may have been closed, and opened again, since.
    since: Instant,
}

/// One publish that waits for a confirm for longer than usual.
#[derive(Debug)]
pub(crate) struct Doubt<'a> {
    circuits: &'a DestinationCircuits,
    destination: Address,
    is_over: bool,
}

impl Doubt<'_> {
    /// Whether nothing to the destination was answered for so long. It is given nothing more then.
    pub(crate) fn is_silent(&self, since: Duration) -> bool {
        let mut book = self.circuits.book();
        let silence = book.get_mut(&self.destination).and_then(|known| known.silence.as_mut());
        let Some(silence) = silence else { return false };
        let (is_silent, is_new) = silence.lasts(since, Instant::now());
        self.circuits.silent.fetch_add(usize::from(is_new), Ordering::Relaxed);
        is_silent
    }

    /// The publish has ended; returns whether the destination may be given records again that was
    /// silent until now.
    pub(crate) fn end(mut self) -> bool {
        self.forget()
    }

    fn forget(&mut self) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return false;
        }
        let mut book = self.circuits.book();
        let Some(circuit) = book.get_mut(&self.destination) else { return false };
        let Some(silence) = circuit.silence.as_mut() else { return false };
        silence.waiting = silence.waiting.saturating_sub(1);
        if silence.waiting > 0 {
            return false;
        }
        let was_told = self.circuits.hear(circuit);
        circuit.silence = None;
        was_told
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.circuits.probing.fetch_sub(1, Ordering::Relaxed);
        let mut book = self.circuits.book();
        let open = book.get_mut(&self.destination).and_then(|known| known.open.as_mut());
        if let Some(open) = open.filter(|open| open.since == self.since) {
            open.probing = false;
        }
    }
}

impl DestinationCircuits {
    /// The circuits of a sink of this name, all closed. `longest_pause` limits the pause between
    /// two probes.
    pub fn new(sink: SinkName, longest_pause: Duration) -> Self {
        Self {
            sink,
            longest_pause,
            count: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            silent: AtomicUsize::new(0),
            probing: AtomicUsize::new(0),
            book: Mutex::default(),
        }
    }

    /// The destinations whose circuits are open.
    pub fn open(&self) -> Vec<OpenDestination> {
        let book = self.book();
        let open = book.iter().filter_map(|(destination, circuit)| {
            let open = circuit.open.as_ref()?;
            Some(OpenDestination {
                sink: self.sink.to_string(),
                destination: destination.clone(),
                open_for: open.since.elapsed(),
                cause: open.cause.clone(),
            })
        });
        let mut open: Vec<OpenDestination> = open.collect();
        open.sort_by(|a, b| a.destination.cmp(&b.destination));
        open
    }

    /// Whether no circuit is open, and no destination silent.
    pub(crate) fn all_closed(&self) -> bool {
        self.open.load(Ordering::Relaxed) + self.silent.load(Ordering::Relaxed) == 0
    }

    /// Whether no circuit is open, nor was a short time ago.
    fn is_quiet(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Until when records for this destination wait; `None` if its circuit is closed.
    pub(crate) fn waits(&self, destination: &Address) -> Option<Instant> {
        if self.all_closed() {
            return None;
        }
        let book = self.book();
        book.get(destination)?.waits(Instant::now(), self.longest_pause)
    }

    /// Whether records go to this destination; false where there was no room to note that it does not
    /// confirm.
    pub(crate) fn takes(&self, destination: &Address) -> bool {
        self.count.load(Ordering::Relaxed) < MOST && self.waits(destination).is_none()
    }

    /// Whether the destination may be probed now.
    pub(crate) fn wants_probe(&self, destination: &Address) -> bool {
        let mut book = self.book();
        let open = book.get_mut(destination).and_then(|circuit| circuit.open.as_mut());
        open.is_some_and(|open| open.may_probe(self.probe_room() > 0, Instant::now()))
    }

    /// How many more probes may be under way.
    fn probe_room(&self) -> usize {
        PROBES.saturating_sub(self.probing.load(Ordering::Relaxed))
    }

    /// The destinations that may be probed now, those that have waited the longest first. The driver
    /// must call a record of each.
    pub(crate) fn due(&self) -> Vec<Address> {
        if self.open.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let now = Instant::now();
        let mut book = self.book();
        let open = book.iter_mut().filter_map(|(destination, circuit)| {
            let open = circuit.open.as_mut()?;
            Some((open.due(now)?, destination, open))
        });
        let mut due: Vec<_> = open.collect();
        due.sort_by_key(|(since, ..)| *since);
        let called = due.into_iter().take(self.probe_room()).map(|(_, destination, open)| {
            open.call(now);
            destination.clone()
        });
        called.collect()
    }

    /// A publish to this destination waits for its confirm for longer than usual.
    pub(crate) fn doubt(&self, destination: &Address) -> Doubt<'_> {
        let mut book = self.book();
        // (Beyond [`MOST`] a doubt has no effect.)
        if book.len() < MOST || book.contains_key(destination) {
            book.entry(destination.clone()).or_default().doubt(Instant::now());
            self.count.store(book.len(), Ordering::Relaxed);
        }
        Doubt { circuits: self, destination: destination.clone(), is_over: false }
    }

    /// The destination has answered a publish, if not with a confirm; returns as
    /// [`Doubt::end`] does.
    pub(crate) fn heard(&self, destination: &Address) -> bool {
        if self.is_quiet() {
            return false;
        }
        let mut book = self.book();
        book.get_mut(destination).is_some_and(|circuit| self.hear(circuit))
    }

    fn hear(&self, circuit: &mut Circuit) -> bool {
        let was_told = circuit.hear(Instant::now());
        self.silent.fetch_sub(usize::from(was_told), Ordering::Relaxed);
        was_told
    }

    /// Begins a probe; `None` if the circuit is closed, another record probes, or it is too early.
    pub(crate) fn begin_probe(&self, destination: &Address) -> Option<Probe<'_>> {
        let now = Instant::now();
        let mut book = self.book();
        let open = book.get_mut(destination)?.open.as_mut()?;
        if !open.may_probe(self.probe_room() > 0, now) {
            return None;
        }
        self.probing.fetch_add(1, Ordering::Relaxed);
        open.begin_probe(now);
        Some(Probe { circuits: self, destination: destination.clone(), since: open.since })
    }

    /// Whether a record that goes alone must have the isolated connection for itself: unless it
    /// only probes a destination that does not confirm.
    pub(crate) fn is_exclusive(&self, destination: &Address) -> bool {
        let book = self.book();
        let open = book.get(destination).and_then(|circuit| circuit.open.as_ref());
        open.is_none_or(|open| open.breaks)
    }

    /// A message that was handed over at this time is confirmed; true if that closes the circuit, or
    /// breaks a silence.
    pub(crate) fn confirmed(&self, destination: &Address, handed_over: Instant) -> bool {
        if self.is_quiet() {
            return false;
        }
        let mut book = self.book();
        let Some(circuit) = book.get_mut(destination) else { return false };
        let was_silent = self.hear(circuit);
        circuit.confirmed(handed_over);
        self.close(circuit, destination, handed_over, "destination confirms again") || was_silent
    }

    /// A message that was handed over at this time was answered, if not with a confirm; true if that
    /// closes the circuit.
    pub(crate) fn answered(&self, destination: &Address, handed_over: Instant) -> bool {
        let mut book = self.book();
        let circuit = book.get_mut(destination);
        circuit.is_some_and(|circuit| {
            self.close(circuit, destination, handed_over, "destination answers again")
        })
    }

    /// Closes a circuit, unless what was handed over later than this has failed; returns whether it
    /// did.
    fn close(
        &self,
        circuit: &mut Circuit,
        destination: &Address,
        handed_over: Instant,
        what: &str,
    ) -> bool {
        let Some(open) = circuit.close(handed_over, Instant::now()) else { return false };
        self.open.fetch_sub(1, Ordering::Relaxed);
        if open.is_told {
            let paused = open.since.elapsed();
            let Address { destination, key } = destination;
            info!(sink = %self.sink, destination, key, ?paused, "{what}");
        }
        true
    }

    /// A message that was handed over at this time was not confirmed, on a sound connection:
    /// `isolated` or the main one.
    pub(crate) fn unconfirmed(
        &self,
        destination: &Address,
        handed_over: Instant,
        cause: &str,
        isolated: bool,
    ) -> Fault {
        let (now, longest) = (Instant::now(), self.longest_pause);
        self.note(destination, Fault::Destination(now + longest), |circuit| {
            circuit.unconfirmed(handed_over, cause, isolated, now, longest)
        })
    }

    /// A message that was handed over at this time waits for its confirm, or got none in time, on a
    /// connection in place of which the sink has opened another. Opens the circuit, to be probed at
    /// once, unless the destination has confirmed what was handed over later; returns until when the
    /// record waits if the circuit is open. The log says nothing of it before a probe has failed.
    pub(crate) fn left_behind(
        &self,
        destination: &Address,
        handed_over: Instant,
        cause: &str,
    ) -> Option<Instant> {
        let (now, longest) = (Instant::now(), self.longest_pause);
        self.note(destination, Some(now + longest), |circuit| {
            circuit.left_behind(handed_over, cause, now, longest)
        })
    }

    /// A record that was handed over at this time was in flight at each of several losses of the main
    /// connection, which may be its destination's doing: a record that is alone on its connection
    /// finds out, and until then no other goes to the destination. The log says nothing of it before.
    pub(crate) fn suspected(&self, destination: &Address, handed_over: Instant, cause: &str) {
        // Of many at once it is the broker's doing.
        if self.open.load(Ordering::Relaxed) >= SUSPECTED {
            return;
        }
        let (now, longest) = (Instant::now(), self.longest_pause);
        self.note(destination, (), |circuit| {
            circuit.suspected(handed_over, cause, now, longest);
        });
    }

    /// Closes a circuit of which nothing is known; returns whether it was one.
    pub(crate) fn close_guess(&self, destination: &Address) -> bool {
        let mut book = self.book();
        let Some(circuit) = book.get_mut(destination) else { return false };
        let is_guess = circuit.close_guess(Instant::now());
        if is_guess {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.hear(circuit);
        }
        is_guess
    }

    /// A record of this destination lost the isolated connection. The circuit opens, unless others
    /// were confirmed since the latest failure: then the record alone breaks connections.
    pub(crate) fn broke(&self, destination: &Address, handed_over: Instant, cause: &str) -> Fault {
        let (now, longest) = (Instant::now(), self.longest_pause);
        self.note(destination, Fault::Destination(now + longest), |circuit| {
            circuit.broke(handed_over, cause, now, longest)
        })
    }

    /// Forgets what is over: closed circuits after some time, and open ones that nothing waits for,
    /// which it answers.
    pub(crate) fn expire(&self) -> Vec<Address> {
        if self.is_quiet() {
            return Vec::new();
        }
        let now = Instant::now();
        let mut book = self.book();
        let mut unused = Vec::new();
        book.retain(|destination, circuit| {
            if let Some(open) = circuit.take_unused(now) {
                unused.push((destination.clone(), open.is_told));
                // What waits for a confirm may open it again.
                return circuit.silence.is_some();
            }
            !circuit.is_over(now)
        });
        self.count.store(book.len(), Ordering::Relaxed);
        self.open.fetch_sub(unused.len(), Ordering::Relaxed);
        drop(book);
        for (Address { destination, key }, _) in unused.iter().filter(|(_, is_told)| *is_told) {
            info!(sink = %self.sink, destination, key, "destination is no longer paused: no record waits");
        }
        unused.into_iter().map(|(destination, _)| destination).collect()
    }

    /// Changes a circuit, and logs it if it is new that it is open, and no guess. `beyond` is the answer where the
    /// book is full.
    fn note<T>(
        &self,
        destination: &Address,
        beyond: T,
        change: impl FnOnce(&mut Circuit) -> T,
    ) -> T {
        let mut book = self.book();
        if book.len() >= MOST && !book.contains_key(destination) {
            return beyond;
        }
        let circuit = book.entry(destination.clone()).or_default();
        let was_open = circuit.open.is_some();
        let noted = change(circuit);
        let is_new = !was_open && circuit.open.is_some();
        let cause = circuit.untold();
        self.count.store(book.len(), Ordering::Relaxed);
        self.open.fetch_add(usize::from(is_new), Ordering::Relaxed);
        drop(book);
        if let Some(cause) = cause {
            let Address { destination, key } = destination;
            warn!(
                sink = %self.sink,
                destination, key, cause, "destination does not confirm: paused, no attempt is counted"
            );
        }
        noted
    }

    fn book(&self) -> MutexGuard<'_, HashMap<Address, Circuit>> {
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests;
