//! The gate of one sink: open while the broker answers, shut while it is down.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ids::SinkName;
use crate::sink::{Sink, SinkDown};

/// The first pause between two probes of a sink that is down (contract, section 4.4).
const FIRST_PROBE: Duration = Duration::from_millis(500);

/// A gate that is shut within this time of its opening was open briefly.
const BRIEF: Duration = Duration::from_millis(500);

/// After so many brief openings in succession the next probe waits: a record that takes its
/// connection down does so twice before it goes alone.
const BRIEF_OPENINGS: u32 = 3;

/// Keeps publishes from a sink that is down.
#[derive(Debug)]
pub struct Gate {
    name: SinkName,
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
enum State {
    /// Not yet probed.
    New,
    Open,
    Shut {
        why: SinkDown,
        since: Instant,
        /// Whether lanes may wait at it.
        waits: bool,
    },
}

impl Gate {
    /// A gate that is shut until the first probe succeeds.
    pub fn new(name: SinkName) -> Self {
        let (state, _) = watch::channel(State::New);
        Self { name, state }
    }

    /// The sink's name.
    pub fn name(&self) -> &SinkName {
        &self.name
    }

    /// Whether publishes may be tried.
    pub fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open)
    }

    /// Why it is shut; `None` while it is open.
    pub fn trouble(&self) -> Option<SinkDown> {
        match &*self.state.borrow() {
            State::New => Some(SinkDown::new("not reached yet")),
            State::Shut { why, .. } => Some(why.clone()),
            State::Open => None,
        }
    }

    /// Whether the gate is open, or opens within `grace` of the moment at which it was shut.
    pub async fn opens_within(&self, grace: Duration) -> bool {
        if self.is_open() {
            return true;
        }
        let mut state = self.state.subscribe();
        loop {
            let until = match &*state.borrow_and_update() {
                State::Open => return true,
                State::Shut { since, waits: true, .. } => *since + grace,
                State::New | State::Shut { .. } => return false,
            };
            match tokio::time::timeout_at(until.into(), state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return self.is_open(),
            }
        }
    }

    /// Sends away what waits at a gate that has been shut for so long, until it was open again.
    pub fn give_way(&self, after: Duration) {
        self.state.send_if_modified(|state| match state {
            State::Shut { waits, since, .. } if since.elapsed() >= after => {
                std::mem::replace(waits, false)
            }
            State::New | State::Open | State::Shut { .. } => false,
        });
    }

    /// Shuts the gate: the sink is down.
    pub fn shut(&self, down: SinkDown) {
        self.state.send_if_modified(|state| match state {
            State::Shut { why, .. } => {
                *why = down;
                false
            }
            State::New | State::Open => {
                warn!(sink = %self.name, cause = %down, "sink is down: paused, nothing is charged");
                *state = State::Shut { why: down, since: Instant::now(), waits: true };
                true
            }
        });
    }

    fn open(&self, down_since: Instant) {
        self.state.send_if_modified(|state| {
            let was_open = matches!(state, State::Open);
            if !was_open {
                let paused = down_since.elapsed();
                info!(sink = %self.name, ?paused, "sink is up: deliveries go on");
            }
            *state = State::Open;
            !was_open
        });
    }

    /// Probes the sink until it is up, watches it until it is down, and so on until `stop`.
    /// Calls `opened` each time the gate opens, and `shut` each time that it is found shut.
    pub async fn keep<S: Sink>(
        &self,
        sink: &S,
        probe_max: Duration,
        stop: &CancellationToken,
        opened: impl Fn(),
        shut: impl Fn(),
    ) {
        let work = async {
            let mut brief = 0;
            loop {
                shut();
                if brief >= BRIEF_OPENINGS {
                    tokio::time::sleep(FIRST_PROBE.min(probe_max)).await;
                }
                self.probe_until_up(sink, probe_max).await;
                opened();
                let open_since = tokio::time::Instant::now();
                let mut state = self.state.subscribe();
                tokio::select! {
                    down = sink.lost() => self.shut(down),
                    _ = state.wait_for(|state| matches!(state, State::Shut { .. })) => {}
                }
                brief = if open_since.elapsed() < BRIEF { brief + 1 } else { 0 };
            }
        };
        tokio::select! {
            // Else the end of its own connection were told as that of the sink.
            biased;
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    async fn probe_until_up<S: Sink>(&self, sink: &S, probe_max: Duration) {
        let since = Instant::now();
        let mut pause = FIRST_PROBE.min(probe_max);
        loop {
            match sink.probe().await {
                Ok(()) => return self.open(since),
                Err(down) => self.shut(down),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(probe_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::sink::{Message, PublishError};

    const LONG: Duration = Duration::from_secs(600);

    /// Is up whenever it is asked, and lost at once.
    struct Flapping(AtomicUsize);

    impl Sink for Flapping {
        async fn publish(&self, _: Message) -> Result<(), PublishError> {
            Ok(())
        }

        async fn probe(&self) -> Result<(), SinkDown> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        async fn lost(&self) -> SinkDown {
            tokio::time::sleep(Duration::from_millis(1)).await;
            SinkDown::new("lost again")
        }

        async fn close(&self) {}

        fn isolated(&self) -> Self {
            Self(AtomicUsize::new(0))
        }
    }

    #[tokio::test]
    async fn a_sink_that_is_lost_as_soon_as_it_is_up_is_not_probed_again_at_once_for_ever() {
        let (gate, sink) = (Gate::new("s".into()), Flapping(AtomicUsize::new(0)));
        let began = Instant::now();
        let stop = CancellationToken::new();
        let opened = || {
            if sink.0.load(Ordering::Relaxed) == 5 {
                stop.cancel();
            }
        };

        gate.keep(&sink, LONG, &stop, opened, || ()).await;

        assert!(began.elapsed() >= 2 * FIRST_PROBE, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_lane_waits_at_a_shut_gate_for_the_grace_and_no_longer() {
        let gate = Gate::new("s".into());
        assert!(!gate.opens_within(LONG).await, "a sink that was never reached is not waited for");
        gate.open(Instant::now());
        assert!(gate.opens_within(Duration::ZERO).await);
        gate.shut(SinkDown::new("x"));

        assert!(!gate.opens_within(Duration::from_millis(1)).await);
        let (opened, ()) = tokio::join!(gate.opens_within(LONG), async {
            tokio::task::yield_now().await;
            gate.give_way(LONG);
            tokio::task::yield_now().await;
            gate.open(Instant::now());
        });
        assert!(opened);

        gate.shut(SinkDown::new("x"));
        let (opened, ()) = tokio::join!(gate.opens_within(LONG), async {
            tokio::task::yield_now().await;
            gate.give_way(Duration::ZERO);
        });
        assert!(!opened);
    }
}
