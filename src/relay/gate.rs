//! The door to one sink: open while the broker answers, shut while it is down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ids::SinkName;
use crate::sink::{Sink, SinkDown};

/// The first pause between two probes of a sink that is down (contract, section 4.4).
const FIRST_PROBE: Duration = Duration::from_millis(500);

/// Room for every publish that the relay can have under way at once. One that goes
/// alone takes all of it.
const CROWD: u32 = 1 << 20;

/// Keeps publishes from a sink that is down, and neighbours from one that goes alone.
#[derive(Debug)]
pub struct Gate {
    name: SinkName,
    state: watch::Sender<State>,
    crowd: Arc<Semaphore>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Not yet probed.
    New,
    Open,
    Shut(SinkDown),
}

/// Leave to publish; give it back when the outcome is known.
#[derive(Debug)]
pub struct Pass {
    _room: OwnedSemaphorePermit,
}

impl Gate {
    /// A gate that is shut until the first probe succeeds.
    pub fn new(name: SinkName) -> Self {
        let (state, _) = watch::channel(State::New);
        Self { name, state, crowd: Arc::new(Semaphore::new(CROWD as usize)) }
    }

    /// Whether publishes may be tried.
    pub fn is_open(&self) -> bool {
        *self.state.borrow() == State::Open
    }

    /// Why it is shut; `None` while it is open.
    pub fn trouble(&self) -> Option<SinkDown> {
        match &*self.state.borrow() {
            State::New => Some(SinkDown::new("not reached yet")),
            State::Shut(down) => Some(down.clone()),
            State::Open => None,
        }
    }

    /// Waits for room, all of it when `alone`; `None` where the gate is shut.
    pub async fn enter(&self, alone: bool) -> Option<Pass> {
        if !self.is_open() {
            return None;
        }
        let room = if alone { CROWD } else { 1 };
        let room = self.crowd.clone().acquire_many_owned(room).await.ok()?;
        // It may have been shut while this one waited behind one that went alone.
        self.is_open().then_some(Pass { _room: room })
    }

    /// Shuts the gate: the sink is down.
    pub fn shut(&self, why: SinkDown) {
        self.state.send_if_modified(|state| {
            let was_shut = matches!(state, State::Shut(_));
            if !was_shut {
                warn!(sink = %self.name, cause = %why, "sink is down: paused, nothing is charged");
            }
            *state = State::Shut(why);
            !was_shut
        });
    }

    fn open(&self, down_since: Instant) {
        self.state.send_if_modified(|state| {
            let was_open = *state == State::Open;
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
            loop {
                shut();
                self.probe_until_up(sink, probe_max).await;
                opened();
                let mut state = self.state.subscribe();
                tokio::select! {
                    down = sink.lost() => self.shut(down),
                    _ = state.wait_for(|state| matches!(state, State::Shut(_))) => {}
                }
            }
        };
        tokio::select! {
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
