//! `postrider run`.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::partition::names::WantedName;
use crate::telemetry;

/// How long after the first signal another one belongs to the same stop: `timeout` and some init systems send two at
/// once, to the process and to its group.
const SAME_STOP_PERIOD: Duration = Duration::from_millis(500);

pub(super) fn run(global: &GlobalArgs) -> Result<(), Failure> {
    let (loaded, plan) = global.resolve()?;
    let log = &loaded.config.log;
    telemetry::init(log.format.as_json(), &log.level)
        .map_err(|detail| Failure::Usage(vec![format!("log.level: {detail}")]))?;
    let metrics = telemetry::metrics::install().context("cannot start the metrics")?;
    block_on(async {
        let stop = CancellationToken::new();
        let signals = Signals::listen().context("cannot listen for signals")?;
        tokio::spawn(signals.watch(stop.clone()));
        let name = match &plan.instance_name {
            Some(name) => WantedName::Explicit(name.clone()),
            None => WantedName::of_process(global.config.as_deref()),
        };
        let ended = crate::run::run(plan, name, metrics, stop).await;
        ended.map_err(|error| Failure::Failed(error.into()))
    })
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        // Without a handler, which stays, a write beyond the limit of file sizes (ulimit -f) ends the process. With
        // one it is an error of the sink.
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The first signal stops gracefully, the second at once. One within [`SAME_STOP_PERIOD`] of the first is part
    /// of it.
    pub(super) async fn watch(mut self, stop: CancellationToken) {
        self.next().await;
        let begun = Instant::now();
        info!("stopping; a second signal ends the process at once");
        stop.cancel();
        self.next().await;
        while begun.elapsed() < SAME_STOP_PERIOD {
            self.next().await;
        }
        warn!(
            "received a second signal: ending at once; records in flight stay leased until their lease expires"
        );
        std::process::exit(1);
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
