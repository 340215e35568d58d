//! Circuits: which destinations of a sink do not confirm.
//!
//! A circuit opens when a publish to its destination ends without a confirm on a sound connection,
//! or takes its own connection down. While it is open, no record goes to the destination on the
//! sink's main connection. One record at a time probes it on the isolated connection; a confirm
//! closes the circuit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::ids::SinkName;
use crate::sink::Address;

/// The pause before the first probe.
const FIRST_PROBE: Duration = Duration::from_millis(500);

/// How long a closed circuit is remembered: a record that was not confirmed is tried again within
/// this time, and what its destination confirms meanwhile shows that the failure is its own.
const REMEMBERED: Duration = Duration::from_secs(300);

/// An open circuit that no record probes for so long after the probe was due has none that waits.
const UNUSED: Duration = Duration::from_secs(10);

/// Circuits of one sink at most; records of further destinations wait one by one.
const MOST: usize = 10_000;

/// The circuits of one sink.
#[derive(Debug)]
pub struct Circuits {
    sink: SinkName,
    longest_pause: Duration,
    /// Circuits in the book, and those of them that are open: so that a healthy sink costs no lock.
    count: AtomicUsize,
    open: AtomicUsize,
    book: Mutex<HashMap<Address, Circuit>>,
}

#[derive(Debug, Default)]
struct Circuit {
    open: Option<Open>,
    closed_at: Option<Instant>,
    /// When the latest message that was confirmed was handed over.
    confirmed: Option<Instant>,
    /// When the latest message that was not confirmed was handed over.
    failed: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    cause: String,
    /// Whether a record of this destination took its connection down.
    breaks: bool,
    pause: Duration,
    next_probe: Instant,
    probing: bool,
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

/// Whose fault a missing confirm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The record's own: the destination has confirmed what was handed over later.
    Record,
    /// The destination's, as far as known: the record waits until then.
    Destination(Instant),
}

/// One record's right to probe a destination.
#[derive(Debug)]
pub(crate) struct Probe<'a> {
    circuits: &'a Circuits,
    destination: Address,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let mut book = self.circuits.book();
        if let Some(open) = book.get_mut(&self.destination).and_then(|known| known.open.as_mut()) {
            open.probing = false;
        }
    }
}

impl Circuit {
    fn open(&mut self, cause: &str, now: Instant, longest_pause: Duration) -> (&mut Open, bool) {
        let is_new = self.open.is_none();
        let pause = FIRST_PROBE.min(longest_pause);
        let open = self.open.get_or_insert_with(|| Open {
            since: now,
            cause: String::new(),
            breaks: false,
            pause,
            next_probe: now + pause,
            probing: false,
        });
        cause.clone_into(&mut open.cause);
        if open.probing {
            open.pause = (open.pause * 2).min(longest_pause);
            open.next_probe = now + open.pause;
        }
        (open, is_new)
    }

    /// Whether nothing is known of it any more.
    fn is_over(&self, now: Instant) -> bool {
        let latest = self.failed.max(self.closed_at);
        self.open.is_none() && latest.is_none_or(|latest| now > latest + REMEMBERED)
    }
}

impl Open {
    /// How long the record whose probe failed waits: longer than the others, so that another one
    /// probes next.
    fn failed_until(&self) -> Instant {
        self.next_probe + if self.probing { self.pause } else { Duration::ZERO }
    }
}

impl Circuits {
    /// The circuits of a sink of this name, all closed. `longest_pause` limits the pause between
    /// two probes.
    pub fn new(sink: SinkName, longest_pause: Duration) -> Self {
        Self {
            sink,
            longest_pause,
            count: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
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

    /// Whether no circuit is open.
    pub(crate) fn all_closed(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
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
        let open = book.get(destination)?.open.as_ref()?;
        let soon = Instant::now() + open.pause;
        Some(if open.probing { soon } else { open.next_probe })
    }

    /// Whether the destination may be probed now.
    pub(crate) fn wants_probe(&self, destination: &Address) -> bool {
        let book = self.book();
        let open = book.get(destination).and_then(|circuit| circuit.open.as_ref());
        open.is_some_and(|open| !open.probing && open.next_probe <= Instant::now())
    }

    /// Begins a probe; `None` if the circuit is closed, another record probes, or it is too early.
    pub(crate) fn begin_probe(&self, destination: &Address) -> Option<Probe<'_>> {
        let now = Instant::now();
        let mut book = self.book();
        let open = book.get_mut(destination)?.open.as_mut()?;
        if open.probing || open.next_probe > now {
            return None;
        }
        open.probing = true;
        // Also if the record turns out to be a peer's.
        open.next_probe = now + open.pause;
        Some(Probe { circuits: self, destination: destination.clone() })
    }

    /// Whether a record that goes alone must have the isolated connection for itself: unless it
    /// only probes a destination that does not confirm.
    pub(crate) fn is_exclusive(&self, destination: &Address) -> bool {
        let book = self.book();
        let open = book.get(destination).and_then(|circuit| circuit.open.as_ref());
        open.is_none_or(|open| open.breaks)
    }

    /// A message that was handed over at this time is confirmed; true if that closes the circuit.
    pub(crate) fn confirmed(&self, destination: &Address, handed_over: Instant) -> bool {
        if self.is_quiet() {
            return false;
        }
        let mut book = self.book();
        let Some(circuit) = book.get_mut(destination) else { return false };
        circuit.confirmed = circuit.confirmed.max(Some(handed_over));
        if circuit.failed > Some(handed_over) {
            return false;
        }
        let Some(open) = circuit.open.take() else { return false };
        self.open.fetch_sub(1, Ordering::Relaxed);
        circuit.closed_at = Some(Instant::now());
        drop(book);
        let paused = open.since.elapsed();
        let Address { destination, key } = destination;
        info!(sink = %self.sink, destination, key, ?paused, "destination confirms again");
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
        let now = Instant::now();
        self.note(destination, now, |circuit| {
            let is_later = circuit.confirmed > Some(handed_over);
            if is_later && circuit.open.is_none() {
                // What was under way when the circuit opened may have been lost with it.
                let was_closed = circuit.closed_at < Some(handed_over);
                circuit.failed = circuit.failed.max(Some(handed_over));
                return match was_closed {
                    true => (Fault::Record, false),
                    false => (Fault::Destination(now + FIRST_PROBE), false),
                };
            }
            circuit.failed = circuit.failed.max(Some(handed_over));
            let (open, is_new) = circuit.open(cause, now, self.longest_pause);
            // The isolated connection has outlived it.
            open.breaks &= !isolated;
            (Fault::Destination(open.failed_until()), is_new)
        })
    }

    /// A record of this destination lost the isolated connection. Answers until when the record
    /// waits. The circuit opens, unless others were confirmed since the latest failure: then the
    /// record alone breaks connections.
    pub(crate) fn broke(
        &self,
        destination: &Address,
        handed_over: Instant,
        cause: &str,
    ) -> Instant {
        let now = Instant::now();
        let fault = self.note(destination, now, |circuit| {
            let is_alone = circuit.open.is_none() && circuit.confirmed > circuit.failed;
            circuit.failed = circuit.failed.max(Some(handed_over));
            if is_alone {
                return (Fault::Record, false);
            }
            let (open, is_new) = circuit.open(cause, now, self.longest_pause);
            open.breaks = true;
            (Fault::Destination(open.failed_until()), is_new)
        });
        match fault {
            Fault::Destination(until) => until,
            Fault::Record => now,
        }
    }

    /// Forgets what is over: circuits that nothing waits for, and closed ones after some time.
    pub(crate) fn expire(&self) {
        if self.is_quiet() {
            return;
        }
        let now = Instant::now();
        let mut book = self.book();
        let mut unused = Vec::new();
        book.retain(|destination, circuit| {
            let is_unused = |open: &Open| !open.probing && now > open.next_probe + UNUSED;
            if circuit.open.as_ref().is_some_and(is_unused) {
                unused.push(destination.clone());
                return false;
            }
            !circuit.is_over(now)
        });
        self.count.store(book.len(), Ordering::Relaxed);
        self.open.fetch_sub(unused.len(), Ordering::Relaxed);
        drop(book);
        for Address { destination, key } in unused {
            info!(sink = %self.sink, destination, key, "destination is no longer paused: no record waits");
        }
    }

    /// Changes a circuit, and logs it if it is new that it is open.
    fn note(
        &self,
        destination: &Address,
        now: Instant,
        change: impl FnOnce(&mut Circuit) -> (Fault, bool),
    ) -> Fault {
        let mut book = self.book();
        if book.len() >= MOST && !book.contains_key(destination) {
            return Fault::Destination(now + self.longest_pause);
        }
        let circuit = book.entry(destination.clone()).or_default();
        let (fault, is_new) = change(circuit);
        let cause = circuit.open.as_ref().map(|open| open.cause.clone()).unwrap_or_default();
        self.count.store(book.len(), Ordering::Relaxed);
        self.open.fetch_add(usize::from(is_new), Ordering::Relaxed);
        drop(book);
        if is_new {
            let Address { destination, key } = destination;
            warn!(
                sink = %self.sink,
                destination, key, cause, "destination does not confirm: paused, no attempt is counted"
            );
        }
        fault
    }

    fn book(&self) -> MutexGuard<'_, HashMap<Address, Circuit>> {
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuits() -> Circuits {
        Circuits::new("s".into(), Duration::ZERO)
    }

    fn to(name: &str) -> Address {
        Address { destination: name.into(), key: None }
    }

    #[test]
    fn a_circuit_opens_for_its_own_destination_and_closes_at_a_later_confirm() {
        let circuits = circuits();
        let began = Instant::now();

        let fault = circuits.unconfirmed(&to("sick"), began, "no confirm", false);

        assert!(matches!(fault, Fault::Destination(_)));
        assert!(circuits.waits(&to("sick")).is_some());
        assert_eq!(circuits.waits(&to("well")), None);
        assert_eq!(circuits.open()[0].cause, "no confirm");
        assert!(!circuits.confirmed(&to("sick"), began - Duration::from_secs(1)), "an earlier one");
        assert!(circuits.confirmed(&to("sick"), Instant::now()));
        assert_eq!((circuits.waits(&to("sick")), circuits.open()), (None, vec![]));
    }

    #[test]
    fn a_record_is_at_fault_when_its_destination_confirms_later_ones() {
        let circuits = circuits();
        circuits.unconfirmed(&to("d"), Instant::now(), "x", false);
        let under_way = Instant::now();
        assert!(circuits.confirmed(&to("d"), Instant::now()));

        let lost_with_it = circuits.unconfirmed(&to("d"), under_way, "x", false);
        let again = Instant::now();
        circuits.confirmed(&to("d"), Instant::now());
        let own = circuits.unconfirmed(&to("d"), again, "x", false);

        assert!(matches!(lost_with_it, Fault::Destination(_)));
        assert_eq!(own, Fault::Record);
        assert!(circuits.open().is_empty(), "the destination is not paused for it");
    }

    #[test]
    fn a_record_that_breaks_alone_opens_the_circuit_once() {
        let circuits = circuits();
        circuits.broke(&to("d"), Instant::now(), "lost");
        assert!(circuits.waits(&to("d")).is_some());
        assert!(circuits.confirmed(&to("d"), Instant::now()), "another one is confirmed");

        circuits.broke(&to("d"), Instant::now(), "lost");
        assert_eq!(circuits.waits(&to("d")), None, "its neighbours go on");

        circuits.broke(&to("d"), Instant::now(), "lost");
        assert!(circuits.waits(&to("d")).is_some(), "nothing was confirmed since");
    }

    #[test]
    fn one_record_at_a_time_probes() {
        let circuits = circuits();
        assert!(circuits.begin_probe(&to("d")).is_none(), "nothing is open");
        circuits.unconfirmed(&to("d"), Instant::now(), "x", false);

        let probe = circuits.begin_probe(&to("d"));
        assert!(probe.is_some() && circuits.begin_probe(&to("d")).is_none());
        drop(probe);

        assert!(circuits.begin_probe(&to("d")).is_some());
    }

    #[test]
    fn only_a_destination_that_does_not_confirm_shares_the_isolated_connection() {
        let circuits = circuits();
        assert!(circuits.is_exclusive(&to("d")));
        circuits.unconfirmed(&to("d"), Instant::now(), "x", false);
        assert!(!circuits.is_exclusive(&to("d")));

        circuits.broke(&to("d"), Instant::now(), "lost");

        assert!(circuits.is_exclusive(&to("d")));
        circuits.unconfirmed(&to("d"), Instant::now(), "x", true);
        assert!(!circuits.is_exclusive(&to("d")), "this time the connection has outlived it");
    }
}
