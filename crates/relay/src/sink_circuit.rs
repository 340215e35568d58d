//! The circuit of one sink: closed while the broker answers, open while it is down.

use std::time::{Duration, Instant};

use postrider_outbox::ids::SinkName;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::sink::{Sink, SinkDown};

/// The first pause between two probes of a sink that is down.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(500);

/// A circuit that opens within this time after it closed was closed briefly.
const BRIEF_PERIOD: Duration = Duration::from_millis(500);

/// Brief closings in a row after which the next probe waits, longer each time: a record that breaks its
/// connection does so twice before it is quarantined.
const BRIEF_CLOSINGS: u32 = 3;

/// Keeps publishes away from a sink that is down.
#[derive(Debug)]
pub struct SinkCircuit {
    name: SinkName,
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
enum State {
    /// Not yet probed.
    New,
    Closed,
    Open {
        why: SinkDown,
        since: Instant,
        /// Whether lanes may wait for it to close.
        waits: bool,
    },
}

impl SinkCircuit {
    /// Creates a circuit that is open until the first probe succeeds.
    pub fn new(name: SinkName) -> Self {
        let (state, _) = watch::channel(State::New);
        Self { name, state }
    }

    /// Returns the sink's name.
    pub fn name(&self) -> &SinkName {
        &self.name
    }

    /// Returns whether the sink is up, as far as known.
    pub fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), State::Closed)
    }

    /// Returns why the sink is down; `None` while it is up.
    pub fn trouble(&self) -> Option<SinkDown> {
        match &*self.state.borrow() {
            State::New => Some(SinkDown::new("not connected yet")),
            State::Open { why, .. } => Some(why.clone()),
            State::Closed => None,
        }
    }

    /// Returns whether the circuit is closed, or closes within `grace` after it opened.
    pub async fn closes_within(&self, grace: Duration) -> bool {
        if self.is_closed() {
            return true;
        }
        let mut state = self.state.subscribe();
        loop {
            let until = match &*state.borrow_and_update() {
                State::Closed => return true,
                State::Open { since, waits: true, .. } => *since + grace,
                State::New | State::Open { .. } => return false,
            };
            match tokio::time::timeout_at(until.into(), state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return self.is_closed(),
            }
        }
    }

    /// Ends the waits for a circuit that has been open for this long, until it closes again.
    pub fn stop_waiting(&self, after: Duration) {
        self.state.send_if_modified(|state| match state {
            State::Open { waits, since, .. } if since.elapsed() >= after => {
                std::mem::replace(waits, false)
            }
            State::New | State::Closed | State::Open { .. } => false,
        });
    }

    /// Opens the circuit: the sink is down.
    pub fn open(&self, down: SinkDown) {
        self.state.send_if_modified(|state| match state {
            State::Open { why, .. } => {
                *why = down;
                false
            }
            State::New | State::Closed => {
                warn!(sink = %self.name, cause = %down, "sink is down; its records wait, and no \
                                                         attempts are counted");
                *state = State::Open { why: down, since: Instant::now(), waits: true };
                true
            }
        });
    }

    fn close(&self, down_since: Instant) {
        self.state.send_if_modified(|state| {
            let was_closed = matches!(state, State::Closed);
            match state {
                State::New => info!(sink = %self.name, "sink is up"),
                State::Open { .. } => {
                    let down_for = down_since.elapsed();
                    info!(sink = %self.name, ?down_for, "sink is up; resumed deliveries");
                }
                State::Closed => {}
            }
            *state = State::Closed;
            !was_closed
        });
    }

    /// Probes the sink until it is up, watches it until it is down, and so on until `stop`.
    /// Calls `on_up` each time the circuit closes, and `on_down` each time that it is found open.
    pub async fn run<S: Sink>(
        &self,
        sink: &S,
        sink_probe_interval_max: Duration,
        stop: &CancellationToken,
        on_up: impl Fn(),
        on_down: impl Fn(),
    ) {
        let work = async {
            let mut brief = 0_u32;
            loop {
                on_down();
                if let Some(excess) = brief.checked_sub(BRIEF_CLOSINGS) {
                    let pause = FIRST_PROBE_PAUSE.saturating_mul(2_u32.saturating_pow(excess));
                    tokio::time::sleep(pause.min(sink_probe_interval_max)).await;
                }
                self.probe_until_up(sink, sink_probe_interval_max).await;
                on_up();
                let closed_since = tokio::time::Instant::now();
                let mut state = self.state.subscribe();
                tokio::select! {
                    down = sink.lost() => self.open(down),
                    _ = state.wait_for(|state| matches!(state, State::Open { .. })) => {}
                }
                brief = if closed_since.elapsed() < BRIEF_PERIOD { brief + 1 } else { 0 };
            }
        };
        tokio::select! {
            // Otherwise the end of its own connection would be logged as the sink's.
            biased;
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    async fn probe_until_up<S: Sink>(&self, sink: &S, sink_probe_interval_max: Duration) {
        let since = Instant::now();
        let shortest = FIRST_PROBE_PAUSE.min(sink_probe_interval_max);
        let mut interval = shortest;
        loop {
            let begun = tokio::time::Instant::now();
            match sink.probe().await {
                Ok(()) => return self.close(since),
                Err(down) => self.open(down),
            }
            // A probe that took long was the pause.
            tokio::time::sleep(interval.saturating_sub(begun.elapsed()).max(shortest)).await;
            interval = (interval * 2).min(sink_probe_interval_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::sink::{Message, PublishError};

    const LONGEST_PAUSE: Duration = Duration::from_secs(600);

    /// A sink that is up whenever it is probed, and lost at once.
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
    async fn flapping_sink_is_probed_after_growing_pauses() {
        let (circuit, sink) = (SinkCircuit::new("s".into()), Flapping(AtomicUsize::new(0)));
        let began = tokio::time::Instant::now();
        let stop = CancellationToken::new();
        let on_up = || {
            if sink.0.load(Ordering::Relaxed) == 6 {
                stop.cancel();
            }
        };

        circuit.run(&sink, LONGEST_PAUSE, &stop, on_up, || ()).await;

        let pauses = (1 + 2 + 4) * FIRST_PROBE_PAUSE;
        assert!(began.elapsed() >= pauses, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn wait_for_open_circuit_is_limited_to_the_grace_period() {
        let circuit = SinkCircuit::new("s".into());
        assert!(
            !circuit.closes_within(LONGEST_PAUSE).await,
            "a sink that was never reached is not waited for"
        );
        circuit.close(Instant::now());
        assert!(circuit.closes_within(Duration::ZERO).await);
        circuit.open(SinkDown::new("x"));

        assert!(!circuit.closes_within(Duration::from_millis(1)).await);
        let (closed, ()) = tokio::join!(circuit.closes_within(LONGEST_PAUSE), async {
            tokio::task::yield_now().await;
            circuit.stop_waiting(LONGEST_PAUSE);
            tokio::task::yield_now().await;
            circuit.close(Instant::now());
        });
        assert!(closed);

        circuit.open(SinkDown::new("x"));
        let (closed, ()) = tokio::join!(circuit.closes_within(LONGEST_PAUSE), async {
            tokio::task::yield_now().await;
            circuit.stop_waiting(Duration::ZERO);
        });
        assert!(!closed);
    }
}
