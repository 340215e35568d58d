//! The real binary as a process: started, asked over HTTP, signalled, waited for.
//!
//! ```ignore
//! let outbox = TestOutbox::new().await;
//! let queue = Queue::declare().await;                      // support::queue
//! let mut postrider = Postrider::start(&queue.settings(&outbox));
//! postrider.until_ready().await;                            // its port is its own choice
//! postrider.signal(Signal::TERM);
//! let ended = postrider.until_ended(Duration::from_secs(20)).await;
//! assert_eq!(ended.code, Some(0), "{ended}");
//! ```
//!
//! Nothing of this process's `POSTRIDER_CONFIG` and `POSTRIDER__…` reaches it; its HTTP API listens on
//! a port of its own choice. Whatever a test leaves running is killed when the value is dropped.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use serde_json::Value;

use super::child_guard::dismiss;
use super::outbox::eventually;

/// The limit for a command other than `run`.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// The binary with these arguments and a clean environment; for what the other functions here do
/// not do.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    for (name, _) in std::env::vars_os() {
        if let Some(name) = name.to_str()
            && (name.starts_with("POSTRIDER__") || name == "POSTRIDER_CONFIG")
        {
            command.env_remove(name);
        }
    }
    if matches!(arguments, ["run" | "check", ..]) {
        // For the API where it is enabled: parallel tests cannot all use the default port.
        command.env("POSTRIDER__API__LISTEN", "127.0.0.1:0");
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub async fn call(arguments: &[&str]) -> Ended {
    finish(command(arguments)).await
}

/// The same with settings, as `--set` takes them.
pub async fn call_with(settings: &[String], arguments: &[&str]) -> Ended {
    finish(command_with(settings, arguments)).await
}

/// A [`command`] with settings, as `--set` takes them.
pub fn command_with(settings: &[String], arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

/// Runs a command that the caller built, such as with an environment of its own.
pub async fn finish(command: Command) -> Ended {
    Process::spawn(command).until_ended(COMMAND_TIMEOUT).await
}

/// How a process ended, and all that it printed.
#[derive(Clone, Debug)]
pub struct Ended {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// The same, after asserting that it ended with this code.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// Whether both of its outputs are free of this text.
    pub fn is_free_of(&self, text: &str) -> bool {
        !self.stdout.contains(text) && !self.stderr.contains(text)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, stdout, stderr } = self;
        write!(f, "exit code {code:?}\n-- stdout:\n{stdout}\n-- stderr:\n{stderr}")
    }
}

/// A child whose output is read as it comes, so that it never waits for its reader. It ends with
/// this value.
pub struct Process {
    child: Child,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts a command whose standard error is piped, and its standard output unless the caller
    /// has it.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = <(Arc<Mutex<String>>, Arc<Mutex<String>>)>::default();
        let mut readers = vec![collect(child.stderr.take().unwrap(), stderr.clone())];
        // Unless the caller has it.
        readers.extend(child.stdout.take().map(|output| collect(output, stdout.clone())));
        Self { child, stdout, stderr, readers }
    }

    /// Waits until it has ended, by itself or by a signal.
    pub async fn until_ended(&mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.readers.drain(..).for_each(|reader| reader.join().unwrap());
                let (stdout, stderr) = (self.stdout(), self.stderr());
                return Ended { code: status.code(), stdout, stderr };
            }
            let late = Instant::now() > deadline;
            assert!(!late, "still running after {limit:?}; it said:\n{}", self.stderr());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether it has ended by itself or by a signal.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits for a condition; fails with the process's output.
    pub async fn eventually<F, Fut>(&self, what: &str, condition: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        let waiting = Box::pin(eventually(what, condition));
        let patience = tokio::time::timeout(Duration::from_secs(50), waiting).await;
        assert!(patience.is_ok(), "waited in vain for {what}; it said:\n{}", self.stderr());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        dismiss(&mut self.child);
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static, to: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            let mut to = to.lock().unwrap();
            to.push_str(&line);
            to.push('\n');
        }
    })
}

/// One sample of a page of metrics, by its full name with labels.
fn sample(page: &str, series: &str) -> Option<f64> {
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

/// `run` with these settings, as [`Postrider::start`] starts it.
pub fn run_with(settings: &[String]) -> Command {
    let always = ["ops.listen=127.0.0.1:0".to_owned(), "log.format=json".to_owned()];
    command_with(&[&always, settings].concat(), &["run"])
}

/// A running `postrider run`. Its ops server listens on a port of its own choice, and it logs JSON.
pub struct Postrider {
    process: Process,
    http: reqwest::Client,
    /// When a page of metrics was read: the next one is made a second later.
    scraped: Mutex<Option<Instant>>,
}

/// How long the process sends the same page of metrics again.
const PAGE_LIFETIME: Duration = Duration::from_secs(1);

impl Postrider {
    /// Starts it with these settings (`section.key=value`), which override the two that are always
    /// there: `ops.listen=127.0.0.1:0` and `log.format=json`.
    pub fn start(settings: &[String]) -> Self {
        Self::of(run_with(settings))
    }

    /// Starts it with a configuration file, whose `ops.listen` and `log.format` are overridden.
    pub fn start_with_file(file: &Path) -> Self {
        let mut command = command(&["run", "--config", file.to_str().unwrap()]);
        command.args(["--set", "ops.listen=127.0.0.1:0", "--set", "log.format=json"]);
        Self::of(command)
    }

    /// Starts a command of the caller, which must log JSON where its address is needed.
    pub fn of(command: Command) -> Self {
        // A connection of its own for each request: one that is kept may be closed by the server at the same time.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Self { process: Process::spawn(command), http, scraped: Mutex::default() }
    }

    /// The address of its ops server, once that is bound.
    pub async fn address(&self) -> SocketAddr {
        let address = || {
            let lines = self.lines();
            lines.iter().find_map(|line| line["address"].as_str()?.parse().ok())
        };
        self.eventually("its address", || async { address().is_some() }).await;
        address().unwrap()
    }

    /// Status and body of a page of its ops server.
    pub async fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).await.unwrap_or_else(|error| panic!("{error}\n{}", self.stderr()))
    }

    async fn try_get(&self, path: &str) -> reqwest::Result<(u16, String)> {
        let is_metrics = path == "/metrics";
        let scraped = *self.scraped.lock().unwrap();
        if let Some(scraped) = scraped.filter(|_| is_metrics) {
            tokio::time::sleep_until((scraped + PAGE_LIFETIME).into()).await;
        }
        let url = format!("http://{}{path}", self.address().await);
        let response = self.http.get(url).send().await?;
        let answer = (response.status().as_u16(), response.text().await?);
        if is_metrics {
            *self.scraped.lock().unwrap() = Some(Instant::now());
        }
        Ok(answer)
    }

    /// Status and body of `/readyz`.
    pub async fn readyz(&self) -> (u16, Value) {
        let (status, body) = self.get("/readyz").await;
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    /// Waits until it is ready: `ok` or `degraded`.
    pub async fn until_ready(&self) {
        self.eventually("readiness", || async { self.readyz().await.0 == 200 }).await;
    }

    /// Waits until the body of `/readyz` meets a condition.
    pub async fn until_report(&self, what: &str, condition: impl Fn(&Value) -> bool) {
        self.eventually(what, || async { condition(&self.readyz().await.1) }).await;
    }

    /// Waits until its log contains this text.
    pub async fn until_logged(&self, text: &str) {
        self.eventually(text, || async { self.stderr().contains(text) }).await;
    }

    /// One sample of `/metrics`, by its full name with labels; `None` where it is absent.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        sample(&self.get("/metrics").await.1, series)
    }

    /// How many dead letters were sent to this sink, and how many failed.
    pub async fn dead_letters(&self, sink: &str) -> [f64; 2] {
        let series = |outcome: &str| {
            format!("postrider_dead_letters_total{{sink=\"{sink}\",outcome=\"{outcome}\"}}")
        };
        let [sent, failed] = ["sent", "failed"].map(series);
        let (_, page) = self.get("/metrics").await;
        [sample(&page, &sent).unwrap(), sample(&page, &failed).unwrap()]
    }

    /// Waits until a sample meets a condition.
    pub async fn until_metric(&self, series: &str, condition: impl Fn(f64) -> bool) {
        let fulfilled = || async { self.metric(series).await.is_some_and(&condition) };
        self.eventually(series, fulfilled).await;
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.process.stdout()
    }

    /// What it has logged so far.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// The lines of its log that are JSON.
    pub fn lines(&self) -> Vec<Value> {
        self.stderr().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// How many of its threads have a name that begins like this.
    pub fn threads(&self, name: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        // A thread may end meanwhile.
        let names = threads
            .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|found| found.starts_with(name)).count()
    }

    /// How many files it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Sends it a signal, such as `TERM`, `KILL`, `STOP` or `CONT`.
    pub fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_child(&self.process.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Whether it has ended by itself or by a signal.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Waits until it has ended, by itself or by a signal.
    pub async fn until_ended(&mut self, limit: Duration) -> Ended {
        self.process.until_ended(limit).await
    }

    /// Stops it cleanly: SIGTERM, and the exit code must be 0.
    pub async fn stop(&mut self) -> Ended {
        self.signal(Signal::TERM);
        self.until_ended(Duration::from_secs(40)).await.with_code(0)
    }

    async fn eventually<F, Fut>(&self, what: &str, condition: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        self.process.eventually(what, condition).await;
    }
}
