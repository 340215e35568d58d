//! A process with few file descriptors, and clients that take as many as they can.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bson::doc;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, command_with, finish, run_with};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of, stdout_settings};
use crate::util::with;

/// A request that never ends.
const HALF_REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ";

/// A probe of the kubelet waits for 1 s by default. This machine may be ten times as busy.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// The same command in a process with these limits, as `ulimit` takes them.
fn limited(command: &Command, limits: &str) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit {limits} && exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

/// Sets how many descriptors a running process may have; returns the limit before.
fn limit(postrider: &Postrider, limit: Rlimit) -> Rlimit {
    let id = Pid::from_raw(i32::try_from(postrider.id()).unwrap());
    prlimit(id, Resource::Nofile, limit).unwrap()
}

/// Clients that send half a request, and connect again whenever they are disconnected.
async fn crowd(address: SocketAddr, clients: usize) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    for _ in 0..clients {
        crowd.spawn(async move {
            loop {
                if let Ok(mut stream) = TcpStream::connect(address).await
                    && stream.write_all(HALF_REQUEST).await.is_ok()
                {
                    let _ = stream.read(&mut [0]).await;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    crowd
}

async fn api_of(postrider: &Postrider) -> SocketAddr {
    postrider.until_logged("serving the HTTP API").await;
    let lines = postrider.lines();
    let line = lines.iter().find(|line| line["message"] == "serving the HTTP API").unwrap();
    line["address"].as_str().unwrap().parse().unwrap()
}

/// The first line of the answer on a connection of its own, and how long it took.
async fn probe(address: SocketAddr, path: &str) -> (String, Duration) {
    let begun = Instant::now();
    let asking = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    };
    let asked = tokio::time::timeout(PROBE_LIMIT, asking).await;
    (asked.unwrap_or_else(|_| "no answer".to_owned()), begun.elapsed())
}

/// Each took all descriptors: then neither a probe came through nor a connection to the broker.
#[fixture::test]
async fn crowd_of_half_requests_stops_no_probe_and_no_delivery() {
    postrider::descriptors::raise();
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let proxy = FaultProxy::to(&host_of(&amqp_uri())).await;
    let settings = queue.settings_at(&outbox, &amqp_uri_at(&proxy.address().to_string()));
    let settings = with(settings, &["api.enabled=true", "relay.sink_probe_interval_max=1s"]);
    let mut postrider = Postrider::of(limited(&run_with(&settings), "-n 600"));
    postrider.until_ready().await;
    let (ops, api) = (postrider.address().await, api_of(&postrider).await);
    let _crowds = [crowd(ops, 2_000).await, crowd(api, 600).await];
    postrider.until_logged("\"listener\":\"ops.listen\"").await;
    postrider.until_logged("\"listener\":\"api.listen\"").await;

    let mut times = Vec::new();
    for _ in 0..5 {
        for (address, path) in [(ops, "/livez"), (api, "/openapi.json")] {
            let (answer, time) = probe(address, path).await;
            assert_eq!(answer, "HTTP/1.1 200 OK", "{path} after {time:?}: {}", postrider.stderr());
            times.push(time);
        }
    }
    proxy.cut();
    outbox.insert([record("after", "k")]).await;
    assert_eq!(queue.ids(1).await, ["after"]);
    outbox.until_count(doc! { "status": "done" }, 1).await;

    times.sort();
    assert!(times[times.len() / 2] < Duration::from_secs(1), "{times:?}");
    let log = postrider.stderr();
    assert!(!log.contains("panicked") && !log.contains("failed to accept"), "{log}");
    postrider.stop().await;
}

/// A thread of `lapin` panicked at the end of the connection, and at each later one.
#[fixture::test]
async fn broker_is_reached_again_after_a_lack_of_descriptors() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let proxy = FaultProxy::to(&host_of(&amqp_uri())).await;
    let settings = queue.settings_at(&outbox, &amqp_uri_at(&proxy.address().to_string()));
    let settings = with(settings, &["relay.sink_probe_interval_max=500ms"]);
    let mut postrider = Postrider::start(&settings);
    outbox.insert([record("first", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    // It keeps what it has, and gets no more.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let before = limit(&postrider, Rlimit { current: Some(3), maximum });

    proxy.cut();
    postrider.until_logged("sink is down").await;
    eventually("the end of its thread", async || postrider.threads("lapin") == 0).await;
    limit(&postrider, before);
    outbox.insert([record("second", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 2).await;
    proxy.cut();
    outbox.insert([record("third", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 3).await;

    queue.ids(3).await;
    let log = postrider.stderr();
    assert!(!log.contains("panicked") && !log.contains("poisoned"), "{log}");
    postrider.stop().await;
}

#[fixture::test]
async fn too_few_descriptors_lower_the_limits_of_listeners() {
    let outbox = TestOutbox::new().await;
    let settings = with(stdout_settings(&outbox), &["api.enabled=true"]);
    let detail = "256 are permitted; ops.listen gets";

    let ports = ["ops.listen=127.0.0.1:0", "api.listen=127.0.0.1:0"];
    let checking = command_with(&with(settings.clone(), &ports), &["check", "--output", "json"]);
    let found = finish(limited(&checking, "-n 256")).await.with_code(1).json();
    let finding = found.as_array().unwrap().iter().find(|it| it["name"] == "descriptors").unwrap();
    assert_eq!(finding["ok"], false, "{finding:#}");
    assert!(finding["detail"].as_str().unwrap().contains(detail), "{finding:#}");
    assert!(finding["remedy"].as_str().unwrap().contains("LimitNOFILE="), "{finding:#}");

    let mut postrider = Postrider::of(limited(&run_with(&settings), "-n 256"));
    postrider.until_ready().await;
    postrider.until_logged(detail).await;
    postrider.stop().await;
}

#[fixture::test]
async fn limit_of_descriptors_is_raised_at_the_start() {
    let outbox = TestOutbox::new().await;
    let command = run_with(&stdout_settings(&outbox));
    let mut postrider = Postrider::of(limited(&command, "-S -n 128"));
    postrider.until_ready().await;

    let limits = std::fs::read_to_string(format!("/proc/{}/limits", postrider.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let [soft, hard] = [3, 4].map(|at| line.split_whitespace().nth(at).unwrap().parse().unwrap());
    assert_eq!(soft, u64::min(hard, 1 << 20), "{line}");
    postrider.stop().await;
}
