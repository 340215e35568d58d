//! The processes of a history, each behind proxies of its own, with a clock of its own.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::commands::Settles;
use crate::plan::{LinkFault, Peer, SINK_PROBE_INTERVAL_MAX, Setup};
use crate::privileges::Withdrawals;
use crate::support::child_guard::watched;
use crate::support::clock::faketime;
use crate::support::fault_proxy::{Direction, FaultProxy};
use crate::support::process::{Postrider, Signal, run_with};
use crate::support::replica_set::ReplicaSet;
use crate::support::roles::PASSWORD;

/// The relays' user and its role, in the history's database.
pub const USER: &str = "postrider";

/// The limit for a clean stop: longer than `relay.shutdown_timeout` here.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How long two processes of one name may continue: while MongoDB is unreachable.
const NAME_CONFLICT_LIMIT: Duration = Duration::from_secs(60);

/// One instance, which is one process after the other.
pub struct Instance {
    number: usize,
    folder: PathBuf,
    settings: Vec<String>,
    /// To each member of the replica set.
    to_mongodb: Vec<FaultProxy>,
    /// To each broker.
    to_brokers: Vec<Arc<FaultProxy>>,
    /// The delay of all bytes to the broker without a fault.
    distance: Duration,
    process: Mutex<Option<Running>>,
    withdrawals: Arc<Withdrawals>,
    /// The address of the process's API, by its id.
    api: Mutex<Option<(u32, SocketAddr)>>,
    /// How its processes ended that were ordered to stop, and what went wrong.
    pub oddities: Mutex<Vec<String>>,
    /// What their audits found: records that the change stream should have delivered.
    pub unbrought: std::sync::Mutex<Vec<String>>,
}

/// A process that was started.
struct Running {
    process: Postrider,
    since: Instant,
}

impl Instance {
    /// An instance without a process as yet. Its logs go to `folder`.
    pub async fn new(
        number: usize,
        set: &ReplicaSet,
        to_brokers: Vec<Arc<FaultProxy>>,
        settles: &Arc<Settles>,
        withdrawals: &Arc<Withdrawals>,
        folder: &Path,
    ) -> Self {
        let to_mongodb = proxies(set, settles).await;
        std::fs::write(folder.join(format!("clock-{number}")), "+0\n").unwrap();
        Self {
            number,
            folder: folder.to_owned(),
            settings: Vec::new(),
            to_mongodb,
            to_brokers,
            distance: Duration::ZERO,
            process: Mutex::default(),
            withdrawals: withdrawals.clone(),
            api: Mutex::default(),
            oddities: Mutex::default(),
            unbrought: std::sync::Mutex::default(),
        }
    }

    /// Sets the configuration of its processes: the database and its user, the plan's, the sinks.
    pub fn configure(&mut self, database: &str, setup: &Setup, sinks: Vec<String>) {
        let hosts: Vec<String> =
            self.to_mongodb.iter().map(|proxy| proxy.address().to_string()).collect();
        let (user, hosts) = (format!("{USER}:{PASSWORD}"), hosts.join(","));
        // The driver notices within seconds that the set has lost a member.
        let options = format!(
            "replicaSet=failover&authSource={database}&heartbeatFrequencyMS=1000&connectTimeoutMS=2000"
        );
        let uri = format!("mongodb://{user}@{hosts}/{database}?{options}");
        self.distance = setup.distance;
        let own = vec![format!("mongo.uri={uri}"), format!("instance.name=place-{}", self.number)];
        self.settings = [own, setup.settings(), sinks].concat();
    }

    /// The address of its process's API.
    pub async fn api(&self) -> Option<SocketAddr> {
        let running = self.process.lock().await;
        let process = &running.as_ref()?.process;
        let mut known = self.api.lock().await;
        if known.is_none_or(|(id, _)| id != process.id()) {
            let log = process.stderr();
            let line = log.lines().find(|line| line.contains("serving the HTTP API"))?;
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            *known = Some((process.id(), line["address"].as_str()?.parse().ok()?));
        }
        known.map(|(_, address)| address)
    }

    /// Waits until its process is ready.
    pub async fn until_ready(&self) {
        if let Some(running) = &*self.process.lock().await {
            running.process.until_ready().await;
        }
    }

    /// Starts a process, unless there is one.
    pub async fn start(&self) {
        let mut process = self.process.lock().await;
        if process.is_none() {
            *process = Some(self.spawn());
        }
    }

    /// Starts another process, as a supervisor would, where one has ended because privileges were
    /// withdrawn. A process that ended otherwise is left, and reported when it is signalled next.
    pub async fn supervise(&self) {
        let mut process = self.process.lock().await;
        if let Some(running) = &mut *process
            && running.process.has_ended()
            && self.was_refused(running).await
        {
            self.keep_log(&running.process);
            *running = self.spawn();
        }
    }

    /// Whether withdrawn privileges explain that a process has ended by itself.
    async fn was_refused(&self, running: &mut Running) -> bool {
        let ended = running.process.until_ended(STOP_LIMIT).await;
        self.withdrawals.explain(&ended, running.since, Instant::now())
    }

    fn spawn(&self) -> Running {
        let mut command = run_with(&self.settings);
        command
            .env("LD_PRELOAD", faketime())
            .env("FAKETIME_TIMESTAMP_FILE", self.clock())
            // libfaketime reads the file again after this many seconds.
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let mut command = watched(&command, None);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        Running { process: Postrider::of(command), since: Instant::now() }
    }

    fn clock(&self) -> PathBuf {
        self.folder.join(format!("clock-{}", self.number))
    }

    /// Shifts the clock of its host, for this process and later ones.
    pub fn set_clock(&self, minutes: i64) {
        std::fs::write(self.clock(), format!("{:+}\n", minutes * 60)).unwrap();
    }

    /// Kills the process (SIGKILL).
    pub async fn kill(&self) {
        let mut process = self.process.lock().await;
        if let Some(mut running) = process.take() {
            self.signal_or_note(&mut running, Signal::KILL).await;
            running.process.until_ended(STOP_LIMIT).await;
            self.keep_log(&running.process);
        }
    }

    /// Sends SIGSTOP or SIGCONT.
    pub async fn signal(&self, signal: Signal) {
        if let Some(running) = &mut *self.process.lock().await {
            self.signal_or_note(running, signal).await;
        }
    }

    /// Sends SIGSTOP, starts another process of the same name while the first one is stopped, and
    /// sends SIGCONT. Then one of them must end: the first one if it was replaced, the second one
    /// if the first one answers (MongoDB may have been unreachable until then).
    pub async fn replace(&self, lasts: Duration) {
        let mut process = self.process.lock().await;
        let Some(mut first) = process.take() else { return };
        self.signal_or_note(&mut first, Signal::STOP).await;
        let mut second = self.spawn();
        tokio::time::sleep(lasts).await;
        self.signal_or_note(&mut first, Signal::CONT).await;
        let until = Instant::now() + NAME_CONFLICT_LIMIT;
        while !first.process.has_ended() && !second.process.has_ended() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (mut ended, left) =
            if second.process.has_ended() { (second, first) } else { (first, second) };
        if ended.process.has_ended() {
            let log = ended.process.until_ended(STOP_LIMIT).await;
            let is_explained = log.stderr.contains("instance.name =")
                || self.withdrawals.explain(&log, ended.since, Instant::now());
            if !is_explained {
                self.note_oddity("ended by itself, and not for its name").await;
            }
        } else {
            self.note_oddity("two of one name go on").await;
            ended.process.signal(Signal::KILL);
            ended.process.until_ended(STOP_LIMIT).await;
        }
        self.keep_log(&ended.process);
        *process = Some(left);
    }

    /// Signals a process, or notes that it has ended and should not have.
    async fn signal_or_note(&self, running: &mut Running, signal: Signal) {
        if !running.process.has_ended() {
            running.process.signal(signal);
        } else if !self.was_refused(running).await {
            self.note_oddity("ended by itself").await;
        }
    }

    /// Sends SIGTERM; returns the exit code.
    pub async fn leave(&self) -> Option<i32> {
        let mut running = self.process.lock().await.take()?;
        self.signal_or_note(&mut running, Signal::TERM).await;
        let ended = running.process.until_ended(STOP_LIMIT).await;
        self.keep_log(&running.process);
        // It does not finish in time where its links are faulty.
        if !matches!(ended.code, Some(0 | 1)) {
            self.note_oddity(&format!("a stop ended with {:?}", ended.code)).await;
        }
        ended.code
    }

    async fn note_oddity(&self, what: &str) {
        self.oddities.lock().await.push(format!("process {}: {what}", self.number));
    }

    /// Applies a fault to a link, or ends it.
    pub fn hurt(&self, to: Peer, how: LinkFault, is_hurt: bool) {
        let (proxies, usual): (Vec<&FaultProxy>, _) = match to {
            Peer::MongoDb => (self.to_mongodb.iter().collect(), Duration::ZERO),
            Peer::Broker => (vec![&*self.to_brokers[0]], self.distance),
            Peer::Stream => (vec![&*self.to_brokers[1]], self.distance),
        };
        for proxy in proxies {
            match how {
                LinkFault::Cut => {
                    proxy.refuse(is_hurt);
                    proxy.cut();
                }
                LinkFault::Frozen if is_hurt => proxy.freeze(),
                LinkFault::Frozen => proxy.thaw(),
                LinkFault::Swallowed => {
                    if is_hurt {
                        proxy.freeze();
                    } else {
                        proxy.cut();
                        proxy.thaw();
                    }
                }
                LinkFault::Deaf => proxy.hold_answers(is_hurt),
                LinkFault::Slow(by) => proxy.delay(if is_hurt { by } else { usual }),
            }
        }
    }

    fn keep_log(&self, process: &Postrider) {
        let file = self.folder.join(format!("postrider-{}.log", self.number));
        let mut text = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = writeln!(text, "---- process {}", process.id());
        let log = process.stderr();
        let found = log.lines().filter(|line| line.contains("the change stream missed a record"));
        self.unbrought.lock().unwrap().extend(found.map(str::to_owned));
        text.push_str(&log);
        std::fs::write(file, text).unwrap();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Where the history ended early.
        if let Some(running) = self.process.get_mut().take() {
            self.keep_log(&running.process);
        }
    }
}

impl Setup {
    fn settings(&self) -> Vec<String> {
        let millis = |duration: Duration| format!("{}ms", duration.as_millis());
        let on_dead = if self.blocks { "block" } else { "skip" };
        vec![
            format!("relay.batch_size={}", self.batch_size),
            format!("relay.poll_interval={}", millis(self.poll)),
            format!("relay.change_stream={}", self.change_stream),
            format!("relay.lease={}", millis(self.lease)),
            format!("relay.max_attempts={}", self.max_attempts),
            format!("relay.on_dead={on_dead}"),
            format!("partitions.heartbeat={}", millis(self.stale_after / 4)),
            format!("partitions.stale_after={}", millis(self.stale_after)),
            format!("partitions.rebalance={}", millis(self.stale_after / 4)),
            format!("api.enabled={}", self.mixed_options.appenders > 0),
            "api.listen=127.0.0.1:0".to_owned(),
            "events.enabled=true".to_owned(),
            format!("feed.enabled={}", self.mixed_options.feed),
            "feed.audit_interval=5s".to_owned(),
            "relay.shutdown_timeout=10s".to_owned(),
            format!("relay.sink_probe_interval_max={}", millis(SINK_PROBE_INTERVAL_MAX)),
            // Each takes half a minute more: only the longer histories have some.
            "relay.audit_interval=5s".to_owned(),
            "relay.backoff.initial=200ms".to_owned(),
            "relay.backoff.max=2s".to_owned(),
        ]
    }
}

/// A proxy to each member. In the set's descriptions of itself each member's address is replaced by
/// that of its proxy, so that the driver uses no other.
async fn proxies(set: &ReplicaSet, settles: &Arc<Settles>) -> Vec<FaultProxy> {
    let mut listeners = Vec::new();
    for member in set.hosts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listeners.push((member, listener));
    }
    let names: Vec<(String, String)> = listeners
        .iter()
        .map(|(member, listener)| (member.clone(), listener.local_addr().unwrap().to_string()))
        .collect();
    let proxy = |(member, listener): (String, TcpListener)| {
        let (names, settles) = (names.clone(), settles.clone());
        let through = move |direction, message: &mut Vec<u8>| match direction {
            Direction::Request => settles.observe(message),
            Direction::Answer => names.iter().for_each(|(from, to)| replace(message, from, to)),
        };
        FaultProxy::to_member(listener, member.parse().unwrap(), Box::new(through))
    };
    listeners.into_iter().map(proxy).collect()
}

/// Both have the same length: ports of tests have five digits.
fn replace(message: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len(), "{from} and {to}");
    let mut at = 0;
    while let Some(found) =
        message[at..].windows(from.len()).position(|window| window == from.as_bytes())
    {
        at += found;
        message[at..at + from.len()].copy_from_slice(to.as_bytes());
    }
}
