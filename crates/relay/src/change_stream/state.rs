//! The state machine of the follower: pure functions.

use std::time::{Duration, Instant};

/// The shortest and the longest pause between two attempts to open a stream. The shortest is about the
/// time of an election.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How long a stream must be open to reset the pauses. As long as the longest pause: a stream that fails
/// repeatedly is not opened more often than that.
const RESET_AFTER: Duration = PAUSE.1;

/// The state of the follower; `S` is an open stream.
///
/// ```text
///            ┌───────── due ─────────┐        ┌─── crowded ──┐
///            │                       ▼        │              ▼
///  start → Lost ◀── failed ── Opening ── opened ─▶ Open    Resting
///            ▲                   ▲                  │        │
///            │                   └───── quiet ──────┼────────┘
///            └────────────── failed ────────────────┘
/// ```
#[derive(Debug, PartialEq)]
pub(super) enum State<S> {
    /// There is no stream, and the relay polls.
    Lost {
        /// When the next attempt starts.
        until: Instant,
        /// Consecutive attempts that failed, or opened a stream that failed early.
        tries: u32,
    },
    /// A stream is being opened.
    Opening {
        /// As in `Lost`.
        tries: u32,
        /// Whether the previous stream was closed on purpose.
        rested: bool,
    },
    /// A stream is open.
    Open {
        /// The stream.
        stream: S,
        /// When it was opened.
        since: Instant,
        /// As in `Lost`.
        tries: u32,
    },
    /// Closed on purpose: batches are full without it.
    Resting {
        /// As in `Lost`.
        tries: u32,
    },
}

/// The events.
#[derive(Debug, PartialEq)]
pub(super) enum Happened<S> {
    /// The pause is over.
    Due,
    /// A stream was opened.
    Opened(S),
    /// The stream failed, or failed to open.
    Failed,
    /// Batches are full: the relay does not need the stream.
    Crowded,
    /// Batches are no longer full.
    Quiet,
}

impl<S> State<S> {
    /// Returns the first state: an attempt is due.
    pub(super) fn start(now: Instant) -> Self {
        Self::Lost { until: now, tries: 0 }
    }

    /// Returns whether a stream is open, or closed on purpose.
    pub(super) fn is_up(&self) -> bool {
        matches!(
            self,
            Self::Open { .. } | Self::Resting { .. } | Self::Opening { rested: true, .. }
        )
    }

    /// Returns the next state. An event that is impossible in this state changes nothing.
    pub(super) fn after(self, happened: Happened<S>, now: Instant) -> Self {
        match (self, happened) {
            (Self::Lost { tries, .. }, Happened::Due) => Self::Opening { tries, rested: false },
            (Self::Opening { tries, .. }, Happened::Opened(stream)) => {
                Self::Open { stream, since: now, tries }
            }
            (Self::Opening { tries, .. }, Happened::Failed) => Self::lost(tries, now),
            (Self::Open { since, tries, .. }, Happened::Failed) => {
                Self::lost(left(tries, since, now), now)
            }
            (Self::Open { since, tries, .. }, Happened::Crowded) => {
                Self::Resting { tries: left(tries, since, now) }
            }
            (Self::Resting { tries }, Happened::Quiet) => Self::Opening { tries, rested: true },
            (state, _) => state,
        }
    }

    fn lost(tries: u32, now: Instant) -> Self {
        let pause = PAUSE.0.saturating_mul(2_u32.saturating_pow(tries)).min(PAUSE.1);
        Self::Lost { until: now + pause, tries: tries.saturating_add(1) }
    }
}

/// Returns the failed attempts that still count when a stream ends.
fn left(tries: u32, since: Instant, now: Instant) -> u32 {
    if now.duration_since(since) >= RESET_AFTER { 0 } else { tries }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENED: Happened<()> = Happened::Opened(());

    /// Applies the events, one per second.
    fn after(happened: impl IntoIterator<Item = Happened<()>>) -> (State<()>, Instant) {
        let mut now = Instant::now();
        let mut state = State::start(now);
        for happened in happened {
            now += Duration::from_secs(1);
            state = state.after(happened, now);
        }
        (state, now)
    }

    fn pause(state: &State<()>, now: Instant) -> Duration {
        match state {
            State::Lost { until, .. } => until.duration_since(now),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn follower_is_up_while_open_or_closed_on_purpose() {
        use Happened::{Crowded, Due, Failed, Quiet};

        for (happened, up) in [
            (vec![], false),
            (vec![Due], false),
            (vec![Due, OPENED], true),
            (vec![Due, OPENED, Crowded], true),
            (vec![Due, OPENED, Crowded, Quiet], true),
            (vec![Due, OPENED, Crowded, Quiet, OPENED], true),
            (vec![Due, OPENED, Crowded, Quiet, Failed], false),
            (vec![Due, OPENED, Failed], false),
            (vec![Due, Failed], false),
        ] {
            let context = format!("{happened:?}");
            assert_eq!(after(happened).0.is_up(), up, "{context}");
        }
    }

    #[test]
    fn pauses_double_from_half_a_second_to_half_a_minute() {
        let failing = |times: usize| {
            let tries = (0..times).flat_map(|_| [Happened::Due, Happened::Failed]);
            let (state, now) = after(tries);
            pause(&state, now).as_millis()
        };

        let pauses: Vec<u128> = (1..=9).map(failing).collect();

        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(failing(1_000), 30_000);
    }

    #[test]
    fn pauses_reset_only_after_a_long_open_stream() {
        for (lasted, expected) in
            [(RESET_AFTER - Duration::from_millis(1), 1_000), (RESET_AFTER, 500)]
        {
            for rests in [false, true] {
                let (state, now) = after([Happened::Due, Happened::Failed, Happened::Due, OPENED]);
                let end = now + lasted;
                let state = if rests {
                    state.after(Happened::Crowded, end).after(Happened::Quiet, end)
                } else {
                    state
                };
                let state = state.after(Happened::Failed, end);

                assert_eq!(pause(&state, end).as_millis(), expected, "{lasted:?} {rests}");
            }
        }
    }

    #[test]
    fn impossible_event_changes_nothing() {
        let (resting, now) = after([Happened::Due, OPENED, Happened::Crowded]);

        for happened in [Happened::Due, OPENED, Happened::Failed, Happened::Crowded] {
            let (same, _) = after([Happened::Due, OPENED, Happened::Crowded]);
            assert_eq!(same.after(happened, now), resting);
        }
    }
}
