//! The daemon itself over a backlog.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::outbox::collections::Collections;

use super::cost;

/// Where the daemon serves its metrics.
const OPS: u16 = 9474;

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

/// A running daemon; killed when dropped.
pub struct Daemon(Child);

impl Daemon {
    /// Starts it with its defaults and these settings.
    pub fn start(collections: &Collections, settings: &[String]) -> Self {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_postrider"));
        daemon.arg("run").env_clear().stdout(Stdio::null()).stderr(Stdio::null());
        let outbox = [
            format!("mongo.uri={}", super::mongodb_uri()),
            format!("mongo.database={}", collections.database().name()),
            format!("ops.listen=127.0.0.1:{OPS}"),
        ];
        for setting in outbox.iter().chain(settings) {
            daemon.args(["--set", setting]);
        }
        Self(daemon.spawn().unwrap())
    }

    /// The value of a series of its metrics, 0 where it is absent.
    pub async fn metric(&self, series: &str) -> f64 {
        let page = reqwest::get(format!("http://127.0.0.1:{OPS}/metrics")).await;
        let Ok(page) = page else { return 0.0 };
        let page = page.text().await.unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// The servers should have better to do than to answer us.
    pub async fn pause(&mut self) {
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
