//! The daemon itself over a backlog.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::outbox::collections::Collections;
use rustix::process::{Pid, Signal, kill_process};

use super::cost;

/// The result of a daemon over a backlog.
pub struct Relayed {
    /// Records per second, from its start on.
    pub rate: f64,
    /// Microseconds of its CPU per record.
    pub cpu: f64,
    pub peak_mb: u64,
}

/// Runs the daemon with its defaults and these settings over a backlog of `count` records, until
/// `arrived` finds all of them and `settled` finds them settled.
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
    let cpu = cost::cpu_micros(&daemon.pid()) as f64 / count as f64;
    Relayed { rate, cpu, peak_mb: cost::peak_mb(&daemon.pid()) }
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    process: Child,
    /// The port of its metrics.
    ops: u16,
}

impl Daemon {
    /// Starts it with its defaults and these settings.
    pub fn start(collections: &Collections, settings: &[String]) -> Self {
        let ops = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut daemon = command(collections, &["run"]);
        daemon.args(["--set", &format!("ops.listen=127.0.0.1:{ops}")]);
        for setting in settings {
            daemon.args(["--set", setting]);
        }
        Self { process: daemon.spawn().unwrap(), ops }
    }

    pub fn pid(&self) -> String {
        self.process.id().to_string()
    }

    /// The address of its operations port.
    pub fn ops(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ops).into()
    }

    /// The value of a series of its metrics, 0 where it is absent.
    pub async fn metric(&self, series: &str) -> f64 {
        let page = reqwest::get(format!("http://127.0.0.1:{}/metrics", self.ops)).await;
        let Ok(page) = page else { return 0.0 };
        let page = page.text().await.unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Records that this sink has confirmed.
    pub async fn done(&self, sink: &str) -> f64 {
        let labels = format!("{{sink=\"{sink}\",outcome=\"done\"}}");
        self.metric(&format!("postrider_deliveries_total{labels}")).await
    }

    /// The pause between two polls, so that polling does not load the servers.
    pub async fn pause(&mut self) {
        assert!(self.process.try_wait().unwrap().is_none(), "the daemon has ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Kills it (SIGKILL).
    pub fn kill(mut self) {
        self.process.kill().unwrap();
    }

    /// Stops it (SIGTERM), and waits for its end.
    pub async fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        loop {
            if let Some(ended) = self.process.try_wait().unwrap() {
                assert!(ended.success(), "{ended}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Waits until each of them has an equal share of the partitions.
pub async fn until_divided(daemons: &mut [Daemon]) {
    let count = daemons.len();
    let fair = [256 / count, 256_usize.div_ceil(count)].map(|owned| owned as f64);
    loop {
        let mut owned = Vec::new();
        for daemon in daemons.iter_mut() {
            owned.push(daemon.metric("postrider_partitions_owned").await);
            daemon.pause().await;
        }
        if owned.iter().sum::<f64>() == 256.0 && owned.iter().all(|owned| fair.contains(owned)) {
            return;
        }
    }
}

/// The binary on this outbox, without output.
pub fn command(collections: &Collections, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).env_clear().stdout(Stdio::null()).stderr(Stdio::null());
    command.args(["--set", &format!("mongo.uri={}", super::mongodb_uri())]);
    command.args(["--set", &format!("mongo.database={}", collections.database().name())]);
    command
}
