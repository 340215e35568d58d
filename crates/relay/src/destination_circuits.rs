//! Circuits of the destinations of a sink: open while a destination does not confirm.
//!
//! A circuit opens when a publish to its destination ends without a confirm on a sound connection,
//! or breaks its isolated connection. While it is open, no record of the destination is published
//! on the sink's main connection. One record at a time probes the destination on an isolated
//! connection; a confirm closes the circuit.
//!
//! A circuit also opens when a publish waits on a connection that the sink has replaced, and when a
//! publish was in flight at two losses of the main connection. Whether the destination caused that
//! is not known yet, so it is probed at once.
//!
//! A probe shows that the destination confirms, and not that the main connection reaches it. If the main one
//! confirms nothing after a confirmed probe, the sink [renews](crate::sink::Sink::renew) it.
//!
//! A publish without a confirm ends only at its timeout. Until then the records of that destination
//! would fill the memory. So a destination that has confirmed nothing for a short while, although a
//! publish waits, is *silent*: nothing more is published to it until it confirms or its circuit
//! opens, and its records in flight take no room from others.

mod circuit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use postrider_outbox::ids::SinkName;
use tracing::{info, warn};

use crate::destination_circuits::circuit::Circuit;
use crate::sink::Address;

pub(crate) use circuit::Fault;

/// Concurrent probes of one sink: each may take as long as a publish.
const MAX_PROBES: usize = 64;

/// Open circuits of a sink beyond which no further destination is suspected of a connection loss:
/// each would be probed exclusively, one after the other.
const MAX_SUSPECTED: usize = 8;

/// Circuits of one sink at most; records of further destinations wait one by one.
const MAX_CIRCUITS: usize = 10_000;

/// The circuits of one sink.
#[derive(Debug)]
pub struct DestinationCircuits {
    sink: SinkName,
    max_pause: Duration,
    /// Circuits, and how many are open. A healthy sink takes no lock.
    count: AtomicUsize,
    open: AtomicUsize,
    silent: AtomicUsize,
    probing: AtomicUsize,
    circuits: Mutex<HashMap<Address, Circuit>>,
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
    /// The sink's description of the latest failure.
    pub cause: String,
}

/// The right of one record to probe a destination.
#[derive(Debug)]
pub(crate) struct Probe<'a> {
    circuits: &'a DestinationCircuits,
    destination: Address,
    /// When the circuit opened: it may have closed and opened again since.
    since: Instant,
}

/// A publish that waits unusually long for its confirm.
#[derive(Debug)]
pub(crate) struct UnconfirmedPublish<'a> {
    circuits: &'a DestinationCircuits,
    destination: Address,
    is_over: bool,
}

impl UnconfirmedPublish<'_> {
    /// Returns whether the destination has answered nothing for this long. If so, nothing more is
    /// published to it.
    pub(crate) fn is_silent(&self, since: Duration) -> bool {
        let mut circuits = self.circuits.circuits.lock();
        let silence = circuits.get_mut(&self.destination).and_then(|known| known.silence.as_mut());
        let Some(silence) = silence else { return false };
        let (is_silent, is_new) = silence.lasts(since, Instant::now());
        self.circuits.silent.fetch_add(usize::from(is_new), Ordering::Relaxed);
        is_silent
    }

    /// Ends the publish. Returns whether the destination was silent and takes records again.
    pub(crate) fn end(mut self) -> bool {
        self.forget()
    }

    fn forget(&mut self) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return false;
        }
        let mut circuits = self.circuits.circuits.lock();
        let Some(circuit) = circuits.get_mut(&self.destination) else { return false };
        let Some(silence) = circuit.silence.as_mut() else { return false };
        silence.waiting = silence.waiting.saturating_sub(1);
        if silence.waiting > 0 {
            return false;
        }
        let was_silent = self.circuits.end_silence(circuit);
        circuit.silence = None;
        was_silent
    }
}

impl Drop for UnconfirmedPublish<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.circuits.probing.fetch_sub(1, Ordering::Relaxed);
        let mut circuits = self.circuits.circuits.lock();
        let open = circuits.get_mut(&self.destination).and_then(|known| known.open.as_mut());
        if let Some(open) = open.filter(|open| open.since == self.since) {
            open.probing = false;
        }
    }
}

impl DestinationCircuits {
    /// Creates the circuits of a sink, all closed. `max_pause` limits the pause between two
    /// probes.
    pub fn new(sink: SinkName, max_pause: Duration) -> Self {
        Self {
            sink,
            max_pause,
            count: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            silent: AtomicUsize::new(0),
            probing: AtomicUsize::new(0),
            circuits: Mutex::default(),
        }
    }

    /// Returns the destinations whose circuits are open.
    pub fn open(&self) -> Vec<OpenDestination> {
        let circuits = self.circuits.lock();
        let open = circuits.iter().filter_map(|(destination, circuit)| {
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

    /// Returns whether no circuit is open and no destination silent.
    pub(crate) fn all_closed(&self) -> bool {
        self.open.load(Ordering::Relaxed) + self.silent.load(Ordering::Relaxed) == 0
    }

    /// Returns whether no circuit is open or was open a short time ago.
    fn is_quiet(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns until when records of this destination wait; `None` if its circuit is closed.
    pub(crate) fn open_until(&self, destination: &Address) -> Option<Instant> {
        if self.all_closed() {
            return None;
        }
        let circuits = self.circuits.lock();
        circuits.get(destination)?.open_until(Instant::now(), self.max_pause)
    }

    /// Returns whether records are published to this destination; false if there was no room to
    /// record that it does not confirm.
    pub(crate) fn takes_records(&self, destination: &Address) -> bool {
        self.count.load(Ordering::Relaxed) < MAX_CIRCUITS && self.open_until(destination).is_none()
    }

    /// Returns whether the destination may be probed now.
    pub(crate) fn wants_probe(&self, destination: &Address) -> bool {
        let mut circuits = self.circuits.lock();
        let open = circuits.get_mut(destination).and_then(|circuit| circuit.open.as_mut());
        open.is_some_and(|open| open.may_probe(self.probe_room() > 0, Instant::now()))
    }

    /// Returns how many more probes may start.
    fn probe_room(&self) -> usize {
        MAX_PROBES.saturating_sub(self.probing.load(Ordering::Relaxed))
    }

    /// Returns the destinations that may be probed now, longest wait first. The driver must scan a
    /// record of each.
    pub(crate) fn due(&self) -> Vec<Address> {
        if self.open.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let now = Instant::now();
        let mut circuits = self.circuits.lock();
        let open = circuits.iter_mut().filter_map(|(destination, circuit)| {
            let open = circuit.open.as_mut()?;
            Some((open.due(now)?, destination, open))
        });
        let mut due: Vec<_> = open.collect();
        due.sort_by_key(|(since, ..)| *since);
        let probe_requested =
            due.into_iter().take(self.probe_room()).map(|(_, destination, open)| {
                open.request_probe(now);
                destination.clone()
            });
        probe_requested.collect()
    }

    /// Notes that a publish to this destination waits unusually long for its confirm.
    pub(crate) fn begin_slow_publish(&self, destination: &Address) -> UnconfirmedPublish<'_> {
        let mut circuits = self.circuits.lock();
        // (Beyond [`MAX_CIRCUITS`] this has no effect.)
        if circuits.len() < MAX_CIRCUITS || circuits.contains_key(destination) {
            circuits.entry(destination.clone()).or_default().begin_slow_publish(Instant::now());
            self.count.store(circuits.len(), Ordering::Relaxed);
        }
        UnconfirmedPublish { circuits: self, destination: destination.clone(), is_over: false }
    }

    /// Notes an answer of the destination other than a confirm. Returns the same as
    /// [`UnconfirmedPublish::end`].
    pub(crate) fn note_answer(&self, destination: &Address) -> bool {
        if self.is_quiet() {
            return false;
        }
        let mut circuits = self.circuits.lock();
        circuits.get_mut(destination).is_some_and(|circuit| self.end_silence(circuit))
    }

    fn end_silence(&self, circuit: &mut Circuit) -> bool {
        let was_silent = circuit.end_silence(Instant::now());
        self.silent.fetch_sub(usize::from(was_silent), Ordering::Relaxed);
        was_silent
    }

    /// Begins a probe; `None` if the circuit is closed, another record probes, or it is too early.
    pub(crate) fn begin_probe(&self, destination: &Address) -> Option<Probe<'_>> {
        let now = Instant::now();
        let mut circuits = self.circuits.lock();
        let open = circuits.get_mut(destination)?.open.as_mut()?;
        if !open.may_probe(self.probe_room() > 0, now) {
            return None;
        }
        self.probing.fetch_add(1, Ordering::Relaxed);
        open.begin_probe(now);
        Some(Probe { circuits: self, destination: destination.clone(), since: open.since })
    }

    /// Returns whether a quarantined record must have the isolated connection exclusively. It does
    /// not if it only probes a destination that does not confirm.
    pub(crate) fn is_exclusive(&self, destination: &Address) -> bool {
        let circuits = self.circuits.lock();
        let open = circuits.get(destination).and_then(|circuit| circuit.open.as_ref());
        open.is_none_or(|open| open.breaks_connections)
    }

    /// Notes the confirm of a message that was sent at this time, `isolated` or on the main
    /// connection. Returns whether that closes the circuit or ends a silence.
    pub(crate) fn confirmed(
        &self,
        destination: &Address,
        handed_over: Instant,
        isolated: bool,
    ) -> bool {
        if self.is_quiet() {
            return false;
        }
        let mut circuits = self.circuits.lock();
        let Some(circuit) = circuits.get_mut(destination) else { return false };
        let was_silent = self.end_silence(circuit);
        circuit.confirmed(handed_over, isolated);
        self.close(circuit, destination, handed_over, "destination confirms again") || was_silent
    }

    /// Notes an answer other than a confirm to a message that was sent at this time. Returns
    /// whether that closes the circuit.
    pub(crate) fn answered(&self, destination: &Address, handed_over: Instant) -> bool {
        let mut circuits = self.circuits.lock();
        let circuit = circuits.get_mut(destination);
        circuit.is_some_and(|circuit| {
            self.close(circuit, destination, handed_over, "destination responds again")
        })
    }

    /// Closes a circuit, unless a message that was sent later has failed. Returns whether it
    /// closed.
    fn close(
        &self,
        circuit: &mut Circuit,
        destination: &Address,
        handed_over: Instant,
        what: &str,
    ) -> bool {
        let Some(open) = circuit.close(handed_over, Instant::now()) else { return false };
        self.open.fetch_sub(1, Ordering::Relaxed);
        if open.is_logged {
            let paused = open.since.elapsed();
            let Address { destination, key } = destination;
            info!(sink = %self.sink, destination, key, ?paused, "{what}");
        }
        true
    }

    /// Notes that a message that was sent at this time was not confirmed on a sound connection,
    /// `isolated` or the main one.
    pub(crate) fn unconfirmed(
        &self,
        destination: &Address,
        handed_over: Instant,
        cause: &str,
        isolated: bool,
    ) -> Fault {
        let (now, longest) = (Instant::now(), self.max_pause);
        self.note(destination, Fault::Destination(now + longest), |circuit| {
            circuit.unconfirmed(handed_over, cause, isolated, now, longest)
        })
    }

    /// Returns whether only the isolated connection reaches the destination: it has confirmed a probe,
    /// and the main one nothing since, not even the message that it got at this time.
    pub(crate) fn is_bypassed(&self, destination: &Address, handed_over: Instant) -> bool {
        let circuits = self.circuits.lock();
        circuits.get(destination).is_some_and(|circuit| circuit.is_bypassed(handed_over))
    }

    /// Notes that a message that was sent at this time waits, or timed out, on a connection that
    /// the sink has replaced. Opens the circuit and probes it at once, unless the destination has
    /// confirmed a later message. Returns until when the record waits if the circuit is open.
    /// Nothing is logged before a probe has failed.
    pub(crate) fn left_behind(
        &self,
        destination: &Address,
        handed_over: Instant,
        cause: &str,
    ) -> Option<Instant> {
        let (now, longest) = (Instant::now(), self.max_pause);
        self.note(destination, Some(now + longest), |circuit| {
            circuit.left_behind(handed_over, cause, now, longest)
        })
    }

    /// Notes that a record was in flight at several losses of the main connection, which its
    /// destination may have caused. A record that is alone on its connection finds out; until then
    /// no other record goes to the destination. Nothing is logged before.
    pub(crate) fn suspected(&self, destination: &Address, handed_over: Instant, cause: &str) {
        // Many at once are the broker's fault.
        if self.open.load(Ordering::Relaxed) >= MAX_SUSPECTED {
            return;
        }
        let (now, longest) = (Instant::now(), self.max_pause);
        self.note(destination, (), |circuit| {
            circuit.suspected(handed_over, cause, now, longest);
        });
    }

    /// Closes a circuit that opened on a guess. Returns whether it was one.
    pub(crate) fn close_guess(&self, destination: &Address) -> bool {
        let mut circuits = self.circuits.lock();
        let Some(circuit) = circuits.get_mut(destination) else { return false };
        let is_guess = circuit.close_guess(Instant::now());
        if is_guess {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.end_silence(circuit);
        }
        is_guess
    }

    /// Notes that a record of this destination broke the isolated connection. The circuit opens,
    /// unless others were confirmed since the latest failure: then this record alone breaks
    /// connections.
    pub(crate) fn broke(&self, destination: &Address, handed_over: Instant, cause: &str) -> Fault {
        let (now, longest) = (Instant::now(), self.max_pause);
        self.note(destination, Fault::Destination(now + longest), |circuit| {
            circuit.broke(handed_over, cause, now, longest)
        })
    }

    /// Removes closed circuits after some time, and open ones that no record waits for. Returns the
    /// destinations of the latter.
    pub(crate) fn expire(&self) -> Vec<Address> {
        if self.is_quiet() {
            return Vec::new();
        }
        let now = Instant::now();
        let mut circuits = self.circuits.lock();
        let mut unused = Vec::new();
        circuits.retain(|destination, circuit| {
            if let Some(open) = circuit.take_unused(now) {
                unused.push((destination.clone(), open.is_logged));
                // A publish that waits for its confirm may open it again.
                return circuit.silence.is_some();
            }
            !circuit.is_over(now)
        });
        self.count.store(circuits.len(), Ordering::Relaxed);
        self.open.fetch_sub(unused.len(), Ordering::Relaxed);
        drop(circuits);
        for (Address { destination, key }, _) in unused.iter().filter(|(_, is_logged)| *is_logged) {
            info!(sink = %self.sink, destination, key, "destination is no longer paused, since \
                                                        no record waits for it");
        }
        unused.into_iter().map(|(destination, _)| destination).collect()
    }

    /// Changes a circuit, and logs it when it has just opened for a known reason. Returns `beyond`
    /// if there is no room for another circuit.
    fn note<T>(
        &self,
        destination: &Address,
        beyond: T,
        change: impl FnOnce(&mut Circuit) -> T,
    ) -> T {
        let mut circuits = self.circuits.lock();
        if circuits.len() >= MAX_CIRCUITS && !circuits.contains_key(destination) {
            return beyond;
        }
        let circuit = circuits.entry(destination.clone()).or_default();
        let was_open = circuit.open.is_some();
        let noted = change(circuit);
        let is_new = !was_open && circuit.open.is_some();
        let cause = circuit.take_unlogged();
        self.count.store(circuits.len(), Ordering::Relaxed);
        self.open.fetch_add(usize::from(is_new), Ordering::Relaxed);
        drop(circuits);
        if let Some(cause) = cause {
            let Address { destination, key } = destination;
            warn!(
                sink = %self.sink,
                destination, key, cause, "destination does not confirm; paused it, no attempts \
                                          are counted"
            );
        }
        noted
    }
}

#[cfg(test)]
mod tests;
