//! Where the follower stands, and what follows from what happens: pure.

use std::time::{Duration, Instant};

/// Pauses between two tries to open a stream, from and to. The first is what an election takes,
/// the last what an operator who has mended the cause is content to wait.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A stream that was open for so long was no mistake: the pauses start again. As long as the
/// longest pause, so that one which is lost again and again is opened no more often than that.
const LASTED: Duration = PAUSE.1;

/// Where the follower stands; `S` is an open stream.
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
        /// When the next try begins.
        until: Instant,
        /// Tries in a row that came to nothing, or to a stream that did not last.
        tries: u32,
    },
    /// A stream is being opened.
    Opening {
        /// As in `Lost`.
        tries: u32,
        /// Whether it was closed on purpose, and not lost.
        rested: bool,
    },
    /// News come.
    Open {
        /// From it.
        stream: S,
        /// Since when.
        since: Instant,
        /// As in `Lost`.
        tries: u32,
    },
    /// Closed on purpose: the relay is at full speed by itself, and the stream would only cost.
    Resting {
        /// As in `Lost`.
        tries: u32,
    },
}

/// What can happen.
#[derive(Debug, PartialEq)]
pub(super) enum Happened<S> {
    /// The pause is over.
    Due,
    /// A stream was opened.
    Opened(S),
    /// It could not be, or broke.
    Failed,
    /// Batches are full: the relay need not be woken.
    Crowded,
    /// They are so no more.
    Quiet,
}

impl<S> State<S> {
    /// The first state: a try is due.
    pub(super) fn start(now: Instant) -> Self {
        Self::Lost { until: now, tries: 0 }
    }

    /// Whether there is a stream, or could be.
    pub(super) fn is_up(&self) -> bool {
        matches!(
            self,
            Self::Open { .. } | Self::Resting { .. } | Self::Opening { rested: true, .. }
        )
    }

    /// The next state. What can't happen in this one changes nothing.
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

/// What is left of the vain tries when a stream ends that was open since then.
fn left(tries: u32, since: Instant, now: Instant) -> u32 {
    if now.duration_since(since) >= LASTED { 0 } else { tries }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENED: Happened<()> = Happened::Opened(());

    /// What `happened` leads to, each a second after the one before.
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
    fn it_is_up_while_open_or_closed_on_purpose_and_on_the_way_between() {
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
            let told = format!("{happened:?}");
            assert_eq!(after(happened).0.is_up(), up, "{told}");
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
    fn pauses_begin_anew_when_a_stream_has_lasted_and_not_before() {
        for (lasted, expected) in [(LASTED - Duration::from_millis(1), 1_000), (LASTED, 500)] {
            for rests in [false, true] {
                let (state, now) = after([Happened::Due, Happened::Failed, Happened::Due, OPENED]);
                let end = now + lasted;
                let state = match rests {
                    true => state
                        .after(Happened::Crowded, end)
                        .after(Happened::Quiet, end)
                        .after(Happened::Failed, end),
                    false => state.after(Happened::Failed, end),
                };

                assert_eq!(pause(&state, end).as_millis(), expected, "{lasted:?} {rests}");
            }
        }
    }

    #[test]
    fn what_cannot_happen_changes_nothing() {
        let (resting, now) = after([Happened::Due, OPENED, Happened::Crowded]);

        for happened in [Happened::Due, OPENED, Happened::Failed, Happened::Crowded] {
            let (same, _) = after([Happened::Due, OPENED, Happened::Crowded]);
            assert_eq!(same.after(happened, now), resting);
        }
    }
}
