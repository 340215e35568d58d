//! The circuit of one destination: what was confirmed and what was not, and when, decides whether it
//! is open, and whose fault a missing confirm is.

use std::time::{Duration, Instant};

/// The pause before the first probe.
const FIRST_PROBE: Duration = Duration::from_millis(500);

/// How long a closed circuit is remembered: a record that was not confirmed is tried again within
/// this time, and what its destination confirms meanwhile shows that the failure is its own.
const REMEMBERED: Duration = Duration::from_secs(300);

/// An open circuit that no record probes for so long after one was called has none that waits.
const UNUSED: Duration = Duration::from_secs(10);

/// How long until a record is called again to probe.
const CALL_AGAIN: Duration = Duration::from_secs(1);

/// What is known of one destination.
#[derive(Debug, Default)]
pub(super) struct Circuit {
    pub(super) open: Option<Open>,
    pub(super) silence: Option<Silence>,
    closed_at: Option<Instant>,
    /// When the latest message that was confirmed was handed over.
    confirmed: Option<Instant>,
    /// When the latest message that was not confirmed was handed over.
    failed: Option<Instant>,
}

/// That something waits for a confirm for longer than usual.
#[derive(Debug)]
pub(super) struct Silence {
    /// Publishes that do.
    pub(super) waiting: usize,
    /// When anything to this destination was answered last, or the first of them began to wait.
    heard: Instant,
    /// Whether nothing more is given to it.
    is_told: bool,
}

/// That the destination does not confirm, as far as known.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) since: Instant,
    pub(super) cause: String,
    /// Whether a record of this destination took its connection down.
    pub(super) breaks: bool,
    /// Whether nothing is known but that something waits on a connection that was left behind, or was
    /// in flight whenever the main one was lost.
    is_guess: bool,
    /// Whether the log has said so.
    pub(super) is_told: bool,
    pause: Duration,
    next_probe: Instant,
    /// When a record was called to probe, first and last, if none has begun to since.
    called: Option<(Instant, Instant)>,
    pub(super) probing: bool,
}

/// Whose fault a missing confirm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The record's own: the destination has confirmed what was handed over later.
    Record,
    /// The destination's, as far as known: the record waits until then.
    Destination(Instant),
}

impl Circuit {
    /// Until when records wait; `None` if it is closed.
    pub(super) fn waits(&self, now: Instant, longest_pause: Duration) -> Option<Instant> {
        match &self.open {
            Some(open) if open.probing => Some(now + open.pause),
            Some(open) => Some(open.next_probe),
            // Until it is heard from; all are freed then.
            None if self.silence.as_ref()?.is_told => Some(now + longest_pause),
            None => None,
        }
    }

    /// A publish waits for its confirm for longer than usual.
    pub(super) fn doubt(&mut self, now: Instant) {
        let silence = || Silence { waiting: 0, heard: now, is_told: false };
        self.silence.get_or_insert_with(silence).waiting += 1;
    }

    /// Something was answered. Breaks the silence, if there is one; returns whether the destination
    /// was given nothing.
    pub(super) fn hear(&mut self, now: Instant) -> bool {
        let Some(silence) = &mut self.silence else { return false };
        silence.heard = now;
        std::mem::replace(&mut silence.is_told, false)
    }

    /// A message that was handed over at this time is confirmed.
    pub(super) fn confirmed(&mut self, handed_over: Instant) {
        self.confirmed = self.confirmed.max(Some(handed_over));
    }

    /// Closes it, unless what was handed over later than this has failed; what was open, if it did.
    pub(super) fn close(&mut self, handed_over: Instant, now: Instant) -> Option<Open> {
        if self.failed > Some(handed_over) {
            return None;
        }
        let open = self.open.take()?;
        self.closed_at = Some(now);
        Some(open)
    }

    /// Closes it if nothing is known; returns whether it was open.
    pub(super) fn close_guess(&mut self, now: Instant) -> bool {
        let is_guess = self.open.as_ref().is_some_and(|open| open.is_guess);
        if is_guess {
            self.open = None;
            self.closed_at = Some(now);
        }
        is_guess
    }

    /// A message that was handed over at this time was not confirmed, on a sound connection:
    /// `isolated` or the main one.
    pub(super) fn unconfirmed(
        &mut self,
        handed_over: Instant,
        cause: &str,
        isolated: bool,
        now: Instant,
        longest_pause: Duration,
    ) -> Fault {
        let is_later = self.confirmed > Some(handed_over);
        self.failed = self.failed.max(Some(handed_over));
        if is_later && self.open.is_none() {
            // What was under way when the circuit opened may have been lost with it.
            let was_closed = self.closed_at < Some(handed_over);
            return match was_closed {
                true => Fault::Record,
                false => Fault::Destination(now + FIRST_PROBE),
            };
        }
        let open = self.open(cause, now, longest_pause);
        // The isolated connection has outlived it.
        open.breaks &= !isolated;
        Fault::Destination(open.failed_until())
    }

    /// A message that was handed over at this time waits for its confirm, or got none in time, on a
    /// connection in place of which the sink has opened another. Opens it, to be probed at once, unless
    /// the destination has confirmed what was handed over later; until when the record waits, if it
    /// is open.
    pub(super) fn left_behind(
        &mut self,
        handed_over: Instant,
        cause: &str,
        now: Instant,
        longest_pause: Duration,
    ) -> Option<Instant> {
        if let Some(open) = &self.open {
            return Some(open.failed_until());
        }
        if self.confirmed > Some(handed_over) {
            // It is remembered that it confirms.
            self.closed_at = Some(now);
            return None;
        }
        let open = self.open(cause, now, longest_pause);
        open.is_guess = true;
        open.next_probe = now;
        Some(now)
    }

    /// A record that was handed over at this time was in flight at each of several losses of the main
    /// connection. Opens it, to be probed at once by a record that is alone on its connection, unless
    /// the destination has confirmed what was handed over later.
    pub(super) fn suspected(
        &mut self,
        handed_over: Instant,
        cause: &str,
        now: Instant,
        longest_pause: Duration,
    ) {
        if self.open.is_none() && self.confirmed <= Some(handed_over) {
            let open = self.open(cause, now, longest_pause);
            open.is_guess = true;
            open.breaks = true;
            open.next_probe = now;
        }
    }

    /// A record that was handed over at this time lost the isolated connection. It opens, unless
    /// others were confirmed since the latest failure: then the record alone breaks connections.
    pub(super) fn broke(
        &mut self,
        handed_over: Instant,
        cause: &str,
        now: Instant,
        longest_pause: Duration,
    ) -> Fault {
        let is_alone = self.open.is_none() && self.confirmed > self.failed;
        self.failed = self.failed.max(Some(handed_over));
        if is_alone {
            return Fault::Record;
        }
        let open = self.open(cause, now, longest_pause);
        open.breaks = true;
        Fault::Destination(open.failed_until())
    }

    fn open(&mut self, cause: &str, now: Instant, longest_pause: Duration) -> &mut Open {
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
        open
    }

    /// The failure that the log has not told of, if there is one: it counts as told.
    pub(super) fn untold(&mut self) -> Option<String> {
        let open = self.open.as_mut().filter(|open| !open.is_guess && !open.is_told)?;
        open.is_told = true;
        Some(open.cause.clone())
    }

    /// Ends it where nothing waits for it.
    pub(super) fn take_unused(&mut self, now: Instant) -> Option<Open> {
        let is_unused = |open: &mut Open| {
            !open.probing && open.called.is_some_and(|(first, _)| now > first + UNUSED)
        };
        self.open.take_if(is_unused)
    }

    /// Whether nothing is known of it any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let latest = self.failed.max(self.closed_at);
        self.open.is_none()
            && self.silence.is_none()
            && latest.is_none_or(|latest| now > latest + REMEMBERED)
    }
}

impl Silence {
    /// Whether nothing was answered for so long, and whether that is new: nothing more is given to the
    /// destination then.
    pub(super) fn lasts(&mut self, since: Duration, now: Instant) -> (bool, bool) {
        let is_silent = now.duration_since(self.heard) >= since;
        let is_new = is_silent && !std::mem::replace(&mut self.is_told, true);
        (is_silent, is_new)
    }
}

impl Open {
    /// How long the record whose probe failed waits: longer than the others, so that another one
    /// probes next.
    fn failed_until(&self) -> Instant {
        self.next_probe + if self.probing { self.pause } else { Duration::ZERO }
    }

    /// Whether a record that has come may probe. If only others' probes are in its way (there is no
    /// room), it is called again.
    pub(super) fn may_probe(&mut self, has_room: bool, now: Instant) -> bool {
        if self.probing || self.next_probe > now {
            return false;
        }
        if !has_room {
            self.called = None;
        }
        has_room
    }

    /// A record probes; the next one after a pause, also if this one turns out to be a peer's.
    pub(super) fn begin_probe(&mut self, now: Instant) {
        self.probing = true;
        self.called = None;
        self.next_probe = now + self.pause;
    }

    /// Since when a record is wanted to probe; `None` where none is, or one was called a moment ago.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let is_called = self.called.is_some_and(|(_, last)| now < last + CALL_AGAIN);
        let is_due = !self.probing && self.next_probe <= now && !is_called;
        is_due.then(|| self.called.map_or(self.next_probe, |(first, _)| first))
    }

    /// A record is called to probe.
    pub(super) fn call(&mut self, now: Instant) {
        self.called = Some((self.called.map_or(now, |(first, _)| first), now));
    }
}
