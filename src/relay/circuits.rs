//! Circuits: which destinations of a sink do not confirm.
//!
//! A circuit opens when a publish to its destination ends without a confirm on a sound connection,
//! or takes its own connection down. While it is open, no record goes to the destination on the
//! sink's main connection. One record at a time probes it on an isolated connection; a confirm
//! closes the circuit. It opens, too, where a publish waits on a connection in place of which the sink
//! has opened another: whether that is the destination's doing is not known then, and is probed at once.
//!
//! Until a publish ends without a confirm its time has to run out, and meanwhile the records of that
//! destination would take all the room that there is. So a destination that has confirmed nothing
//! for a short while, though something waits for it, is silent: it is given nothing more until it
//! confirms or its circuit opens, and its records in flight take no room from others.

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

/// An open circuit that no record probes for so long after one was called has none that waits.
const UNUSED: Duration = Duration::from_secs(10);

/// How long until a record is called again to probe.
const CALL_AGAIN: Duration = Duration::from_secs(1);

/// Probes of one sink under way at once: each may take as long as a publish may.
const PROBES: usize = 64;

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
    silent: AtomicUsize,
    probing: AtomicUsize,
    book: Mutex<HashMap<Address, Circuit>>,
}

#[derive(Debug, Default)]
struct Circuit {
    open: Option<Open>,
    silence: Option<Silence>,
    closed_at: Option<Instant>,
    /// When the latest message that was confirmed was handed over.
    confirmed: Option<Instant>,
    /// When the latest message that was not confirmed was handed over.
    failed: Option<Instant>,
}

/// That something waits for a confirm for longer than usual.
#[derive(Debug)]
struct Silence {
    /// Publishes that do.
    waiting: usize,
    /// When anything to this destination was answered last, or the first of them began to wait.
    heard: Instant,
    /// Whether nothing more is given to it.
    is_told: bool,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    cause: String,
    /// Whether a record of this destination took its connection down.
    breaks: bool,
    /// Whether nothing is known but that something waits on a connection that was left behind.
    is_guess: bool,
    /// Whether the log has said so.
    is_told: bool,
    pause: Duration,
    next_probe: Instant,
    /// When a record was called to probe, first and last, if none has begun to since.
    called: Option<(Instant, Instant)>,
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
    /// When the circuit was opened: it may have been closed, and opened again, since.
    since: Instant,
}

/// One publish that waits for a confirm for longer than usual.
#[derive(Debug)]
pub(crate) struct Doubt<'a> {
    circuits: &'a Circuits,
    destination: Address,
    is_over: bool,
}

impl Doubt<'_> {
    /// Whether nothing to the destination was answered for so long. It is given nothing more then.
    pub(crate) fn is_silent(&self, since: Duration) -> bool {
        let mut book = self.circuits.book();
        let silence = book.get_mut(&self.destination).and_then(|known| known.silence.as_mut());
        let Some(silence) = silence else { return false };
        let is_silent = silence.heard.elapsed() >= since;
        if is_silent && !std::mem::replace(&mut silence.is_told, true) {
            self.circuits.silent.fetch_add(1, Ordering::Relaxed);
        }
        is_silent
    }

    /// The publish has ended; answers whether the destination may be given records again that was
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

impl Circuit {
    fn open(&mut self, cause: &str, now: Instant, longest_pause: Duration) -> (&mut Open, bool) {
        let is_new = self.open.is_none();
        let pause = FIRST_PROBE.min(longest_pause);
        let open = self.open.get_or_insert_with(|| Open {
            since: now,
            cause: String::new(),
            breaks: false,
            is_guess: false,
            is_told: false,
            pause,
            next_probe: now + pause,
            called: None,
            probing: false,
        });
        cause.clone_into(&mut open.cause);
        open.is_guess = false;
        if open.probing {
            open.pause = (open.pause * 2).min(longest_pause);
            open.next_probe = now + open.pause;
        }
        (open, is_new)
    }

    /// Whether nothing is known of it any more.
    fn is_over(&self, now: Instant) -> bool {
        let latest = self.failed.max(self.closed_at);
        self.open.is_none()
            && self.silence.is_none()
            && latest.is_none_or(|latest| now > latest + REMEMBERED)
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
        let circuit = book.get(destination)?;
        match &circuit.open {
            Some(open) if open.probing => Some(Instant::now() + open.pause),
            Some(open) => Some(open.next_probe),
            // Until it is heard from; all are freed then.
            None if circuit.silence.as_ref()?.is_told => Some(Instant::now() + self.longest_pause),
            None => None,
        }
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
        open.is_some_and(|open| self.may_probe(open, Instant::now()))
    }

    /// Whether a record that has come may probe. If only others' probes are in its way, it is called
    /// again.
    fn may_probe(&self, open: &mut Open, now: Instant) -> bool {
        if open.probing || open.next_probe > now {
            return false;
        }
        let has_room = self.probing.load(Ordering::Relaxed) < PROBES;
        if !has_room {
            open.called = None;
        }
        has_room
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
            let is_called = open.called.is_some_and(|(_, last)| now < last + CALL_AGAIN);
            (!open.probing && open.next_probe <= now && !is_called).then_some((destination, open))
        });
        let mut due: Vec<_> = open.collect();
        due.sort_by_key(|(_, open)| open.called.map_or(open.next_probe, |(first, _)| first));
        let room = PROBES.saturating_sub(self.probing.load(Ordering::Relaxed));
        let called = due.into_iter().take(room).map(|(destination, open)| {
            open.called = Some((open.called.map_or(now, |(first, _)| first), now));
            destination.clone()
        });
        called.collect()
    }

    /// A publish to this destination waits for its confirm for longer than usual.
    pub(crate) fn doubt(&self, destination: &Address) -> Doubt<'_> {
        let mut book = self.book();
        // (Beyond [`MOST`] a doubt has no effect.)
        if book.len() < MOST || book.contains_key(destination) {
            let circuit = book.entry(destination.clone()).or_default();
            let silence = circuit.silence.get_or_insert_with(|| Silence {
                waiting: 0,
                heard: Instant::now(),
                is_told: false,
            });
            silence.waiting += 1;
            self.count.store(book.len(), Ordering::Relaxed);
        }
        Doubt { circuits: self, destination: destination.clone(), is_over: false }
    }

    /// The destination has answered a publish, if not with a confirm; answers as
    /// [`Doubt::end`] does.
    pub(crate) fn heard(&self, destination: &Address) -> bool {
        if self.is_quiet() {
            return false;
        }
        let mut book = self.book();
        book.get_mut(destination).is_some_and(|circuit| self.hear(circuit))
    }

    /// Breaks the silence, if there is one; answers whether the destination was given nothing.
    fn hear(&self, circuit: &mut Circuit) -> bool {
        let Some(silence) = &mut circuit.silence else { return false };
        silence.heard = Instant::now();
        let was_told = std::mem::replace(&mut silence.is_told, false);
        self.silent.fetch_sub(usize::from(was_told), Ordering::Relaxed);
        was_told
    }

    /// Begins a probe; `None` if the circuit is closed, another record probes, or it is too early.
    pub(crate) fn begin_probe(&self, destination: &Address) -> Option<Probe<'_>> {
        let now = Instant::now();
        let mut book = self.book();
        let open = book.get_mut(destination)?.open.as_mut()?;
        if !self.may_probe(open, now) {
            return None;
        }
        self.probing.fetch_add(1, Ordering::Relaxed);
        open.probing = true;
        open.called = None;
        // Also if the record turns out to be a peer's.
        open.next_probe = now + open.pause;
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
        circuit.confirmed = circuit.confirmed.max(Some(handed_over));
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

    /// Closes a circuit, unless what was handed over later than this has failed; answers whether it
    /// did.
    fn close(
        &self,
        circuit: &mut Circuit,
        destination: &Address,
        handed_over: Instant,
        what: &str,
    ) -> bool {
        if circuit.failed > Some(handed_over) {
            return false;
        }
        let Some(open) = circuit.open.take() else { return false };
        self.open.fetch_sub(1, Ordering::Relaxed);
        circuit.closed_at = Some(Instant::now());
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
        let now = Instant::now();
        self.note(destination, Fault::Destination(now + self.longest_pause), |circuit| {
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

    /// A message that was handed over at this time waits for its confirm, or got none in time, on a
    /// connection in place of which the sink has opened another. Opens the circuit, to be probed at
    /// once, unless the destination has confirmed what was handed over later; answers until when the
    /// record waits if the circuit is open. The log says nothing of it before a probe has failed.
    pub(crate) fn left_behind(
        &self,
        destination: &Address,
        handed_over: Instant,
        cause: &str,
    ) -> Option<Instant> {
        let now = Instant::now();
        let beyond = Some(now + self.longest_pause);
        self.note(destination, beyond, |circuit| {
            if let Some(open) = &circuit.open {
                return (Some(open.failed_until()), false);
            }
            if circuit.confirmed > Some(handed_over) {
                // It is remembered that it confirms.
                circuit.closed_at = Some(now);
                return (None, false);
            }
            let (open, _) = circuit.open(cause, now, self.longest_pause);
            open.is_guess = true;
            open.next_probe = now;
            (Some(now), true)
        })
    }

    /// Closes a circuit of which nothing is known; answers whether it was one.
    pub(crate) fn close_guess(&self, destination: &Address) -> bool {
        let mut book = self.book();
        let Some(circuit) = book.get_mut(destination) else { return false };
        let is_guess = circuit.open.as_ref().is_some_and(|open| open.is_guess);
        if is_guess {
            circuit.open = None;
            circuit.closed_at = Some(Instant::now());
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.hear(circuit);
        }
        is_guess
    }

    /// A record of this destination lost the isolated connection. The circuit opens, unless others
    /// were confirmed since the latest failure: then the record alone breaks connections.
    pub(crate) fn broke(&self, destination: &Address, handed_over: Instant, cause: &str) -> Fault {
        let now = Instant::now();
        self.note(destination, Fault::Destination(now + self.longest_pause), |circuit| {
            let is_alone = circuit.open.is_none() && circuit.confirmed > circuit.failed;
            circuit.failed = circuit.failed.max(Some(handed_over));
            if is_alone {
                return (Fault::Record, false);
            }
            let (open, is_new) = circuit.open(cause, now, self.longest_pause);
            open.breaks = true;
            (Fault::Destination(open.failed_until()), is_new)
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
            let is_unused = |open: &Open| {
                !open.probing && open.called.is_some_and(|(first, _)| now > first + UNUSED)
            };
            if let Some(open) = circuit.open.take_if(|open| is_unused(open)) {
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
        change: impl FnOnce(&mut Circuit) -> (T, bool),
    ) -> T {
        let mut book = self.book();
        if book.len() >= MOST && !book.contains_key(destination) {
            return beyond;
        }
        let circuit = book.entry(destination.clone()).or_default();
        let (noted, is_new) = change(circuit);
        let untold = circuit.open.as_mut().filter(|open| !open.is_guess && !open.is_told);
        let cause = untold.map(|open| {
            open.is_told = true;
            open.cause.clone()
        });
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

        assert_eq!(circuits.broke(&to("d"), Instant::now(), "lost"), Fault::Record);
        assert_eq!(circuits.waits(&to("d")), None, "its neighbours go on");

        circuits.broke(&to("d"), Instant::now(), "lost");
        assert!(circuits.waits(&to("d")).is_some(), "nothing was confirmed since");
    }

    #[test]
    fn what_is_left_behind_on_a_connection_opens_the_circuit_to_be_probed_at_once() {
        let circuits = circuits();
        let (early, later) = (Instant::now(), Instant::now());

        assert!(circuits.left_behind(&to("d"), early, "x").is_some());
        assert_eq!(circuits.due(), [to("d")]);
        let probed = Instant::now();
        let probe = circuits.begin_probe(&to("d"));
        assert!(circuits.left_behind(&to("d"), later, "x").is_some(), "it is being probed");
        assert!(circuits.confirmed(&to("d"), probed));
        drop(probe);

        assert_eq!(circuits.left_behind(&to("d"), later, "x"), None, "others were confirmed");
        assert!(circuits.all_closed());
        assert!(circuits.left_behind(&to("d"), Instant::now(), "x").is_some());
        assert!(!circuits.is_exclusive(&to("d")));
        assert!(circuits.close_guess(&to("d")) && circuits.all_closed());

        circuits.left_behind(&to("d"), Instant::now(), "x");
        circuits.unconfirmed(&to("d"), Instant::now(), "x", true);
        assert!(!circuits.close_guess(&to("d")), "a probe has failed");
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
    fn a_destination_that_answers_nothing_is_given_nothing_until_it_answers() {
        let circuits = circuits();
        let doubt = circuits.doubt(&to("d"));
        assert!(!doubt.is_silent(Duration::from_secs(60)) && circuits.all_closed());

        assert!(doubt.is_silent(Duration::ZERO));
        assert!(circuits.waits(&to("d")).is_some() && circuits.waits(&to("other")).is_none());
        assert!(!circuits.all_closed() && !circuits.wants_probe(&to("d")), "it is not open");

        assert!(circuits.confirmed(&to("d"), Instant::now()));
        assert!(circuits.waits(&to("d")).is_none() && circuits.all_closed());
        assert!(doubt.is_silent(Duration::ZERO), "silent once more");
        assert!(circuits.heard(&to("d")), "a nack is an answer");
        assert!(!doubt.end());
    }

    #[test]
    fn a_silence_ends_with_the_last_publish_that_waits() {
        let circuits = circuits();
        let (first, last) = (circuits.doubt(&to("d")), circuits.doubt(&to("d")));
        assert!(first.is_silent(Duration::ZERO) && last.is_silent(Duration::ZERO));

        assert!(!first.end() && circuits.waits(&to("d")).is_some());
        drop(last);

        assert!(circuits.all_closed() && circuits.waits(&to("d")).is_none());
        circuits.expire();
        assert!(circuits.is_quiet());
    }

    #[test]
    fn records_are_called_to_probe_one_a_destination_and_no_more_than_may_at_a_time() {
        let circuits = circuits();
        let names: Vec<Address> = (0..PROBES + 5).map(|n| to(&format!("{n:03}"))).collect();
        for name in &names {
            circuits.unconfirmed(name, Instant::now(), "x", false);
        }
        let probe = circuits.begin_probe(&names[0]);

        let due = circuits.due();
        assert_eq!(due.len(), PROBES - 1);
        assert!(!due.contains(&names[0]), "it is being probed");
        assert_eq!(circuits.due().len(), 5, "the others, since those were called a moment ago");

        let probes: Vec<_> = due.iter().map(|name| circuits.begin_probe(name)).collect();
        assert!(probes.iter().all(Option::is_some));
        assert!(circuits.due().is_empty() && !circuits.wants_probe(&names[PROBES + 4]));
        drop((probe, probes));
        assert_eq!(circuits.probing.load(Ordering::Relaxed), 0);
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
