//! A Kafka broker for tests that stop, kill, freeze or configure it.

use super::super::environment::variable;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::options::{DIRECT, Listener, Options};
use crate::support::child_guard::{dismiss, watched};
use crate::support::stopped::until_stopped;

/// The variable with the folder of the broker's jars.
const HOME: &str = "POSTRIDER_TEST_KAFKA_HOME";

/// Any 16 bytes in base64; nodes meet only in a cluster that a test starts.
const CLUSTER: &str = "MkU3OEVBNTcwNTJENDM2Qg";

/// The limit for a start or a stop, on a busy machine.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(90);

/// One process, a broker, and the controller unless it joins another. It is killed when dropped,
/// and its data is removed.
///
/// It also ends with the test process, however that ends: so it may be kept in a static.
pub struct Node {
    dir: TempDir,
    direct: Listener,
    controller: Listener,
    listeners: Vec<Listener>,
    /// `None` while it is stopped.
    process: Option<Jvm>,
}

impl Node {
    /// A broker with [`DIRECT`] alone.
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    /// A broker that accepts requests. Its number is 1.
    pub async fn with(options: Options) -> Self {
        Self::launch(options, Listener::new("CONTROLLER", "PLAINTEXT"), true).await
    }

    /// The second broker of a cluster, with [`DIRECT`] alone. Its number is 2.
    pub async fn joining(first: &Self) -> Self {
        Self::launch(Options::default(), first.controller.clone(), false).await
    }

    async fn launch(options: Options, controller: Listener, controls: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("postrider-kafka-").tempdir().unwrap();
        let direct = Listener::new(DIRECT, "PLAINTEXT");
        let data = dir.path().join("data");
        let data = data.to_str().unwrap();
        let properties = options.server_properties(data, &direct, &controller, controls);
        std::fs::write(dir.path().join("server.properties"), properties).unwrap();
        let mut node =
            Self { dir, direct, controller, listeners: options.listeners, process: None };
        node.format(&options.scram).await;
        node.start_again().await;
        node
    }

    /// `bootstrap.servers` of the listener [`DIRECT`].
    pub fn brokers(&self) -> String {
        self.direct.address().to_string()
    }

    /// The address that a listener gives its clients.
    pub fn address(&self, listener: &str) -> SocketAddr {
        let found = self.listeners.iter().find(|one| one.name == listener);
        found.unwrap_or_else(|| panic!("no listener {listener}")).advertised()
    }

    /// Starts it on the same ports, with all that it had stored, and waits until it accepts
    /// requests.
    pub async fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs");
        let log = self.dir.path().join("log");
        // The log line that is awaited below must be of this start.
        let _ = std::fs::rename(&log, self.dir.path().join("log.before"));
        let mut jvm = self.jvm(&log, &["kafka.Kafka", &self.file("server.properties")]);
        let started = async || {
            if jvm.has_ended() {
                return Some(false);
            }
            self.log().contains("Kafka Server started").then_some(true)
        };
        let started = until("a broker to start", started).await;
        assert!(started, "the broker ended by itself; its log:\n{}", self.log_tail());
        self.process = Some(jvm);
    }

    /// Stops it cleanly (SIGTERM).
    pub async fn stop(&mut self) {
        let mut jvm = self.process.take().expect("it runs");
        jvm.signal(Signal::TERM);
        until("a broker to stop", async || jvm.has_ended().then_some(())).await;
    }

    /// Kills it (SIGKILL); its data stays.
    pub fn kill(&mut self) {
        drop(self.process.take().expect("it runs"));
    }

    /// Freezes it (SIGSTOP): connections hang, and do not close.
    pub fn freeze(&self) {
        self.running().signal(Signal::STOP);
        until_stopped(self.running().child.id());
    }

    /// Continues it (SIGCONT).
    pub fn thaw(&self) {
        self.running().signal(Signal::CONT);
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    fn running(&self) -> &Jvm {
        self.process.as_ref().expect("it runs")
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    async fn format(&self, scram: &[(String, String)]) {
        let properties = self.file("server.properties");
        let mut arguments = vec!["kafka.tools.StorageTool", "format", "-t", CLUSTER];
        arguments.extend(["-c", &properties]);
        let users: Vec<String> = scram
            .iter()
            .map(|(name, password)| format!("SCRAM-SHA-256=[name={name},password={password}]"))
            .collect();
        arguments.extend(users.iter().flat_map(|user| ["--add-scram", user]));
        let log = self.dir.path().join("format.log");
        let mut jvm = self.jvm(&log, &arguments);
        until("the storage to be formatted", async || jvm.has_ended().then_some(())).await;
        let formatted = self.dir.path().join("data/meta.properties").exists();
        assert!(formatted, "not formatted: {}", std::fs::read_to_string(log).unwrap());
    }

    fn jvm(&self, log: &Path, arguments: &[&str]) -> Jvm {
        Jvm::launch(self.dir.path(), log, arguments)
    }
}

/// A Java process, killed when dropped.
struct Jvm {
    child: Child,
}

impl Jvm {
    fn launch(dir: &Path, log: &Path, arguments: &[&str]) -> Self {
        let settings = Path::new(env!("CARGO_MANIFEST_DIR"));
        let settings = settings.join("scripts/services/kafka/log4j2.properties");
        let log = File::create(log).unwrap();
        let mut command = Command::new("java");
        command.current_dir(dir);
        // Little memory and a compiler that finishes soon: the machine is shared.
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        command.arg(format!("-Dlog4j2.configurationFile={}", settings.display()));
        command.arg("-cp").arg(home().join("*")).args(arguments);
        let mut command = watched(&command, Some(dir));
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: command.spawn().unwrap() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        dismiss(&mut self.child);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn home() -> PathBuf {
    let path = PathBuf::from(variable(HOME));
    let path_is = path.display();
    assert!(
        path.is_dir(),
        "{HOME}={path_is}: `scripts/services.sh install kafka` fetches the jars"
    );
    path
}

/// Waits until `probe` returns a value.
async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + OPERATION_TIMEOUT;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
