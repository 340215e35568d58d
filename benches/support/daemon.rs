//! The daemon itself over a backlog.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::outbox::collections::Collections;

use super::cost;

/// What a daemon made of a backlog.
pub struct Relayed {
    /// Records per second, from its start on.
    pub rate: f64,
    /// Microseconds of its CPU per record.
    pub cpu: f64,
    pub peak_mb: u64,
}

/// Runs the daemon with its defaults and these settings over a backlog of `count`, until
/// `arrived` says that all of it is there and `settled` that the outbox knows.
pub async fn drain(
    collections: &Collections,
    settings: &[String],
    count: usize,
    arrived: impl AsyncFn() -> usize,
    settled: impl AsyncFn() -> bool,
) -> Relayed {
    let started = Instant::now();
    let mut daemon = Daemon::start(collections, settings);
    while arrived().await < count {
        daemon.pause().await;
    }
    while !settled().await {
        daemon.pause().await;
    }
    let rate = count as f64 / started.elapsed().as_secs_f64();
    let pid = daemon.0.id().to_string();
    let cpu = cost::cpu_micros(&pid) as f64 / count as f64;
    Relayed { rate, cpu, peak_mb: cost::peak_mb(&pid) }
}

struct Daemon(Child);

impl Daemon {
    fn start(collections: &Collections, settings: &[String]) -> Self {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_postrider"));
        daemon.arg("run").env_clear().stdout(Stdio::null()).stderr(Stdio::null());
        let outbox = [
            format!("mongo.uri={}", super::mongodb_uri()),
            format!("mongo.database={}", collections.database().name()),
            "ops.listen=127.0.0.1:0".to_owned(),
        ];
        for setting in outbox.iter().chain(settings) {
            daemon.args(["--set", setting]);
        }
        Self(daemon.spawn().unwrap())
    }

    /// The servers should have better to do than to answer us.
    async fn pause(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "the daemon has ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
