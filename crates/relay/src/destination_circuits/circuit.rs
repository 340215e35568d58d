//! The circuit of one destination. The order of confirms and failures decides whether it is open,
//! and whether the record or the destination is at fault.

use std::time::{Duration, Instant};

/// The pause before the first probe.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(500);

/// How long a closed circuit is remembered. A record that was not confirmed is retried within this
/// time, and later confirms show whether the failure was its own.
const RETENTION: Duration = Duration::from_secs(300);

/// Time without a probe, after a record was asked, after which no record waits for an open
/// circuit.
const UNUSED_AGE: Duration = Duration::from_secs(10);

/// Pause before another record is asked to probe.
const REQUEST_PAUSE: Duration = Duration::from_secs(1);

/// The state of one destination.
#[derive(Debug, Default)]
pub(super) struct Circuit {
    pub(super) open: Option<Open>,
    pub(super) silence: Option<Silence>,
    closed_at: Option<Instant>,
    /// When the latest confirmed message was sent.
    confirmed: Option<Instant>,
    /// When the latest message that was not confirmed was sent.
    failed: Option<Instant>,
    /// When the probe was sent that an isolated connection confirmed, unless the main one has confirmed a message
    /// since.
    bypassed: Option<Instant>,
}

/// Publishes that wait unusually long for a confirm.
#[derive(Debug)]
pub(super) struct Silence {
    /// The number of these publishes.
    pub(super) waiting: usize,
    /// When the destination last answered anything, or the first of them began to wait.
    last_answer: Instant,
    /// Whether the destination is silent: nothing more is published to it.
    is_silent: bool,
}

/// An open circuit.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) since: Instant,
    pub(super) cause: String,
    /// Whether a record of this destination broke its connection.
    pub(super) breaks_connections: bool,
    /// Whether it opened on a guess: a publish waits on a replaced connection, or was in flight at
    /// each loss of the main one.
    is_guess: bool,
    /// Whether the opening is logged.
    pub(super) is_logged: bool,
    pause: Duration,
    next_probe: Instant,
    /// When a record was asked to probe, first and last, if none has begun since.
    probe_requested: Option<(Instant, Instant)>,
    pub(super) probing: bool,
}

/// What is at fault for a missing confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The record: the destination has confirmed later messages.
    Record,
    /// The destination, as far as known: the record waits until then.
    Destination(Instant),
}

impl Circuit {
    /// Returns until when records wait; `None` if the circuit is closed.
    pub(super) fn open_until(&self, now: Instant, max_pause: Duration) -> Option<Instant> {
        match &self.open {
            Some(open) if open.probing => Some(now + open.pause),
            Some(open) => Some(open.next_probe),
            // Until the destination answers; then all are unblocked.
            None if self.silence.as_ref()?.is_silent => Some(now + max_pause),
            None => None,
        }
    }

    /// Notes that a publish waits unusually long for its confirm.
    pub(super) fn begin_slow_publish(&mut self, now: Instant) {
        let silence = || Silence { waiting: 0, last_answer: now, is_silent: false };
        self.silence.get_or_insert_with(silence).waiting += 1;
    }

    /// Notes an answer. Returns whether that ends a silence.
    pub(super) fn end_silence(&mut self, now: Instant) -> bool {
        let Some(silence) = &mut self.silence else { return false };
        silence.last_answer = now;
        std::mem::replace(&mut silence.is_silent, false)
    }

    /// Notes the confirm of a message that was sent at this time, `isolated` or on the main connection.
    pub(super) fn confirmed(&mut self, handed_over: Instant, isolated: bool) {
        self.confirmed = self.confirmed.max(Some(handed_over));
        if !isolated {
            self.bypassed = None;
        } else if self.open.is_some() {
            self.bypassed = Some(handed_over);
        }
    }

    /// Returns whether an isolated connection has confirmed a message while the circuit was open, and the main
    /// one none since then. This message was sent on the main one at this time, and not confirmed.
    pub(super) fn is_bypassed(&self, handed_over: Instant) -> bool {
        self.bypassed.is_some_and(|probe| probe < handed_over)
    }

    /// Closes the circuit, unless a message that was sent later has failed. Returns what was open.
    pub(super) fn close(&mut self, handed_over: Instant, now: Instant) -> Option<Open> {
        if self.failed > Some(handed_over) {
            return None;
        }
        let open = self.open.take()?;
        self.closed_at = Some(now);
        Some(open)
    }

    /// Closes the circuit if it opened on a guess. Returns whether it was open.
    pub(super) fn close_guess(&mut self, now: Instant) -> bool {
        let is_guess = self.open.as_ref().is_some_and(|open| open.is_guess);
        if is_guess {
            self.open = None;
            self.closed_at = Some(now);
        }
        is_guess
    }

    /// Notes that a message that was sent at this time was not confirmed on a sound connection,
    /// `isolated` or the main one.
    pub(super) fn unconfirmed(
        &mut self,
        handed_over: Instant,
        cause: &str,
        isolated: bool,
        now: Instant,
        max_pause: Duration,
    ) -> Fault {
        let is_later = self.confirmed > Some(handed_over);
        self.failed = self.failed.max(Some(handed_over));
        if is_later && self.open.is_none() {
            // Messages under way when the circuit opened may have been lost with it.
            let was_closed = self.closed_at < Some(handed_over);
            return if was_closed {
                Fault::Record
            } else {
                Fault::Destination(now + FIRST_PROBE_PAUSE)
            };
        }
        let open = self.open(cause, now, max_pause);
        // The isolated connection survived the record.
        open.breaks_connections &= !isolated;
        Fault::Destination(open.failed_until())
    }

    /// Notes that a message that was sent at this time waits, or timed out, on a connection that
    /// the sink has replaced. Opens the circuit and probes it at once, unless the destination has
    /// confirmed a later message. Returns until when the record waits if it is open.
    pub(super) fn left_behind(
        &mut self,
        handed_over: Instant,
        cause: &str,
        now: Instant,
        max_pause: Duration,
    ) -> Option<Instant> {
        if let Some(open) = &self.open {
            return Some(open.failed_until());
        }
        if self.confirmed > Some(handed_over) {
            // Remember that it confirms.
            self.closed_at = Some(now);
            return None;
        }
        let open = self.open(cause, now, max_pause);
        open.is_guess = true;
        open.next_probe = now;
        Some(now)
    }

    /// Notes that a record was in flight at several losses of the main connection. Opens the
    /// circuit, unless the destination has confirmed a later message; a record that is alone on its
    /// connection probes it at once.
    pub(super) fn suspected(
        &mut self,
        handed_over: Instant,
        cause: &str,
        now: Instant,
        max_pause: Duration,
    ) {
        if self.open.is_none() && self.confirmed <= Some(handed_over) {
            let open = self.open(cause, now, max_pause);
            open.is_guess = true;
            open.breaks_connections = true;
            open.next_probe = now;
        }
    }

    /// Notes that a record broke the isolated connection. The circuit opens, unless others were
    /// confirmed since the latest failure: then this record alone breaks connections.
    pub(super) fn broke(
        &mut self,
        handed_over: Instant,
        cause: &str,
        now: Instant,
        max_pause: Duration,
    ) -> Fault {
        let is_alone = self.open.is_none() && self.confirmed > self.failed;
        self.failed = self.failed.max(Some(handed_over));
        if is_alone {
            return Fault::Record;
        }
        let open = self.open(cause, now, max_pause);
        open.breaks_connections = true;
        Fault::Destination(open.failed_until())
    }

    fn open(&mut self, cause: &str, now: Instant, max_pause: Duration) -> &mut Open {
        let pause = FIRST_PROBE_PAUSE.min(max_pause);
        let open = self.open.get_or_insert_with(|| Open {
            since: now,
            cause: String::new(),
            breaks_connections: false,
            is_guess: false,
            is_logged: false,
            pause,
            next_probe: now + pause,
            probe_requested: None,
            probing: false,
        });
        cause.clone_into(&mut open.cause);
        open.is_guess = false;
        if open.probing {
            open.pause = (open.pause * 2).min(max_pause);
            open.next_probe = now + open.pause;
        }
        open
    }

    /// Returns a failure that is not logged yet, and marks it as logged.
    pub(super) fn take_unlogged(&mut self) -> Option<String> {
        let open = self.open.as_mut().filter(|open| !open.is_guess && !open.is_logged)?;
        open.is_logged = true;
        Some(open.cause.clone())
    }

    /// Takes the open state if no record waits for it.
    pub(super) fn take_unused(&mut self, now: Instant) -> Option<Open> {
        let is_unused = |open: &mut Open| {
            !open.probing && open.probe_requested.is_some_and(|(first, _)| now > first + UNUSED_AGE)
        };
        self.open.take_if(is_unused)
    }

    /// Returns whether the circuit can be forgotten.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let latest = self.failed.max(self.closed_at);
        self.open.is_none()
            && self.silence.is_none()
            && latest.is_none_or(|latest| now > latest + RETENTION)
    }
}

impl Silence {
    /// Returns whether nothing was answered for this long, and whether that is new.
    pub(super) fn lasts(&mut self, since: Duration, now: Instant) -> (bool, bool) {
        let is_silent = now.duration_since(self.last_answer) >= since;
        let is_new = is_silent && !std::mem::replace(&mut self.is_silent, true);
        (is_silent, is_new)
    }
}

impl Open {
    /// Until when the record of a failed probe waits: longer than the others, so that another one
    /// probes next.
    fn failed_until(&self) -> Instant {
        self.next_probe + if self.probing { self.pause } else { Duration::ZERO }
    }

    /// Returns whether a record may probe. If only the limit of probes prevents it, it is asked
    /// again.
    pub(super) fn may_probe(&mut self, has_room: bool, now: Instant) -> bool {
        if self.probing || self.next_probe > now {
            return false;
        }
        if !has_room {
            self.probe_requested = None;
        }
        has_room
    }

    /// Begins a probe. The next one follows after a pause, even if this record turns out to be a
    /// peer's.
    pub(super) fn begin_probe(&mut self, now: Instant) {
        self.probing = true;
        self.probe_requested = None;
        self.next_probe = now + self.pause;
    }

    /// Returns since when a probe is due; `None` if none is, or a record was asked a moment ago.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let is_called = self.probe_requested.is_some_and(|(_, last)| now < last + REQUEST_PAUSE);
        let is_due = !self.probing && self.next_probe <= now && !is_called;
        is_due.then(|| self.probe_requested.map_or(self.next_probe, |(first, _)| first))
    }

    /// Notes that a record was asked to probe.
    pub(super) fn request_probe(&mut self, now: Instant) {
        self.probe_requested = Some((self.probe_requested.map_or(now, |(first, _)| first), now));
    }
}
