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
///            ┌───────── due ─────────┐        ┌─ saturated ──┐
///            │                       ▼        │              ▼
///  start → Lost ◀── failed ── Opening ── opened ─▶ Open    Suspended
///            ▲                   ▲                  │        │
///            │                   └─ unsaturated ────┼────────┘
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
        was_suspended: bool,
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
    Suspended {
        /// As in `Lost`.
        tries: u32,
    },
}

/// The events.
#[derive(Debug, PartialEq)]
pub(super) enum FollowerEvent<S> {
    /// The pause is over.
    Due,
    /// A stream was opened.
    Opened(S),
    /// The stream failed, or failed to open.
    Failed,
    /// Batches are full: the relay does not need the stream.
    Saturated,
    /// Batches are no longer full.
    Unsaturated,
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
            Self::Open { .. } | Self::Suspended { .. } | Self::Opening { was_suspended: true, .. }
        )
    }

    /// Returns the next state. An event that is impossible in this state changes nothing.
    pub(super) fn after(self, event: FollowerEvent<S>, now: Instant) -> Self {
        match (self, event) {
            (Self::Lost { tries, .. }, FollowerEvent::Due) => {
                Self::Opening { tries, was_suspended: false }
            }
            (Self::Opening { tries, .. }, FollowerEvent::Opened(stream)) => {
                Self::Open { stream, since: now, tries }
            }
            (Self::Opening { tries, .. }, FollowerEvent::Failed) => Self::lost(tries, now),
            (Self::Open { since, tries, .. }, FollowerEvent::Failed) => {
                Self::lost(left(tries, since, now), now)
            }
            (Self::Open { since, tries, .. }, FollowerEvent::Saturated) => {
                Self::Suspended { tries: left(tries, since, now) }
            }
            (Self::Suspended { tries }, FollowerEvent::Unsaturated) => {
                Self::Opening { tries, was_suspended: true }
            }
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

    const OPENED: FollowerEvent<()> = FollowerEvent::Opened(());

    /// Applies the events, one per second.
    fn after(event: impl IntoIterator<Item = FollowerEvent<()>>) -> (State<()>, Instant) {
        let mut now = Instant::now();
        let mut state = State::start(now);
        for event in event {
            now += Duration::from_secs(1);
            state = state.after(event, now);
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
        use FollowerEvent::{Due, Failed, Saturated, Unsaturated};

        for (event, up) in [
            (vec![], false),
            (vec![Due], false),
            (vec![Due, OPENED], true),
            (vec![Due, OPENED, Saturated], true),
            (vec![Due, OPENED, Saturated, Unsaturated], true),
            (vec![Due, OPENED, Saturated, Unsaturated, OPENED], true),
            (vec![Due, OPENED, Saturated, Unsaturated, Failed], false),
            (vec![Due, OPENED, Failed], false),
            (vec![Due, Failed], false),
        ] {
            let context = format!("{event:?}");
            assert_eq!(after(event).0.is_up(), up, "{context}");
        }
    }

    #[test]
    fn pauses_double_from_half_a_second_to_half_a_minute() {
        let failing = |times: usize| {
            let tries = (0..times).flat_map(|_| [FollowerEvent::Due, FollowerEvent::Failed]);
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
            for suspends in [false, true] {
                let (state, now) =
                    after([FollowerEvent::Due, FollowerEvent::Failed, FollowerEvent::Due, OPENED]);
                let end = now + lasted;
                let state = if suspends {
                    state
                        .after(FollowerEvent::Saturated, end)
                        .after(FollowerEvent::Unsaturated, end)
                } else {
                    state
                };
                let state = state.after(FollowerEvent::Failed, end);

                assert_eq!(pause(&state, end).as_millis(), expected, "{lasted:?} {suspends}");
            }
        }
    }

    #[test]
    fn impossible_event_changes_nothing() {
        let (suspended, now) = after([FollowerEvent::Due, OPENED, FollowerEvent::Saturated]);

        for event in [FollowerEvent::Due, OPENED, FollowerEvent::Failed, FollowerEvent::Saturated] {
            let (same, _) = after([FollowerEvent::Due, OPENED, FollowerEvent::Saturated]);
            assert_eq!(same.after(event, now), suspended);
        }
    }
}
