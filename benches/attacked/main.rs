//! Deliveries while clients attack both ports, kind after kind: their latency against that next to a
//! process that burns as much CPU as the attackers did, what is lost or swapped, memory, descriptors,
//! and how soon both ports answer others.
//!
//! `cargo bench --bench attacked [-- ATTACK…]` makes those of [`attacks::ATTACKS`]; each for
//! `POSTRIDER_BENCH_SECONDS`, and then the burner for a third of that.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod attacker;
mod attacks;
mod burner;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use attacks::ATTACKS;
use support::cost;
use support::flow::{Flow, Sent, waited};
use world::World;

/// Records a second, one by one.
const RATE: u32 = 500;

/// How long the memory and the descriptors of an attack are given to return.
const AFTER: Duration = Duration::from_secs(20);

/// Attackers and burner are another process of this binary: its arguments begin with one of these.
const ATTACKER: &str = "attacker";
const BURNER: &str = "burner";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match arguments.first().map(String::as_str) {
        Some(ATTACKER) => runtime.block_on(attacker::run(&arguments[1..])),
        Some(BURNER) => burner::run(&arguments[1..]),
        _ => runtime.block_on(measure()),
    }
}

async fn measure() {
    let each = Duration::from_secs(support::seconds_or(180) as u64);
    let world = World::start().await;
    let mut arrivals = Vec::new();
    let flow = Flow::start(&world.collections, RATE);
    // The first seconds have the cost of new connections.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let names = ATTACKS.map(|attack| attack.name);
    for attack in ATTACKS.iter().filter(|attack| support::is_chosen(&names, attack.name)) {
        arrivals.push((attack.name, Turn::of(&world, attack.name, each).await));
    }
    let sent = flow.stop().await;
    world.until_arrived(sent.len()).await;

    let arrived = world.arrivals.first();
    let lost = sent.iter().filter(|sent| !arrived.contains_key(&sent.id)).count();
    assert!(lost == 0, "{lost} of {} records are lost", sent.len());
    let (mut attacked, mut burnt) = (Vec::new(), Vec::new());
    for (name, turn) in &arrivals {
        let (under_attack, next_to_burner) =
            (turn.attack.took(&sent, &arrived), turn.burner.took(&sent, &arrived));
        println!("attacked  {name:<11} {}", turn.report(&under_attack, &next_to_burner));
        attacked.extend(under_attack);
        burnt.extend(next_to_burner);
    }
    attacked.sort_by(f64::total_cmp);
    burnt.sort_by(f64::total_cmp);
    let (p99, burner) = (support::at(&attacked, 0.99), support::at(&burnt, 0.99));
    println!(
        "attacked  all         p50 {:.1} ms, p99 {p99:.1} ms; next to the burner {:.1} and {burner:.1}: {:.2} x; {} sent, none \
         lost, {} repeated, {} swapped; peak memory {} MB",
        support::at(&attacked, 0.5),
        support::at(&burnt, 0.5),
        p99 / burner,
        sent.len(),
        world.arrivals.repeated(),
        swapped(&sent, &arrived),
        arrivals.iter().map(|(_, turn)| turn.peak).max().unwrap(),
    );
    world.stop().await;
}

/// How many records arrived before an earlier one of their key.
fn swapped(sent: &[Sent], arrived: &HashMap<String, Instant>) -> usize {
    let mut latest: HashMap<usize, Instant> = HashMap::new();
    let mut swapped = 0;
    for (n, sent) in sent.iter().enumerate() {
        let at = arrived[&sent.id];
        let before = latest.entry(n % support::flow::KEYS).or_insert(at);
        swapped += usize::from(at < *before);
        *before = at.max(*before);
    }
    swapped
}

/// A time in which records were inserted.
struct Window(Instant, Instant);

impl Window {
    /// Milliseconds that its records took, sorted.
    fn took(&self, sent: &[Sent], arrived: &HashMap<String, Instant>) -> Vec<f64> {
        waited(sent, arrived, (self.0, self.1))
            .iter()
            .map(|waited| waited.seconds * 1_000.0)
            .collect()
    }
}

/// One kind of attack, and then the burner.
struct Turn {
    attack: Window,
    burner: Window,
    /// Percent of a core, of the attackers.
    cpu: f64,
    /// Percent of a core, of the daemon and of mongod, during the attack.
    spent: [f64; 2],
    answers: String,
    slowest: BTreeMap<&'static str, Duration>,
    /// MB at most, and when the attackers are gone.
    peak: u64,
    after: u64,
    descriptors: [usize; 2],
}

impl Turn {
    async fn of(world: &World, name: &'static str, each: Duration) -> Self {
        let pid = world.daemon.pid();
        let before = descriptors(&pid);
        cost::forget_peak(&pid);
        let probes = Probes::start(world);
        let mongod = cost::mongo(&world.collections).await.pid;
        let usage = || [cost::cpu_micros(&pid), cost::cpu_micros(&mongod)];
        let (from, used) = (Instant::now(), usage());
        let seconds = each.as_secs().to_string();
        let answers =
            child(&[ATTACKER, name, &world.ops.to_string(), &world.api.to_string(), &seconds])
                .await;
        let (to, used_then) = (Instant::now(), usage());
        let percent =
            |n: usize| (used_then[n] - used[n]) as f64 / (to - from).as_secs_f64() / 10_000.0;
        let spent = [percent(0), percent(1)];
        let (cpu, answers) = answers.split_once(' ').unwrap();
        let cpu: f64 = cpu.parse().unwrap();
        let slowest = probes.stop().await;
        let peak = cost::peak_mb(&pid);
        tokio::time::sleep(AFTER).await;
        let (after, descriptors) = (cost::resident_mb(&pid), [before, descriptors(&pid)]);
        let began = Instant::now();
        child(&[BURNER, &cpu.to_string(), &(each / 3).as_secs().to_string()]).await;
        Self {
            attack: Window(from, to),
            burner: Window(began, Instant::now()),
            cpu,
            spent,
            answers: answers.trim().to_owned(),
            slowest,
            peak,
            after,
            descriptors,
        }
    }

    fn report(&self, attacked: &[f64], burnt: &[f64]) -> String {
        let (p99, burner) = (support::at(attacked, 0.99), support::at(burnt, 0.99));
        let slowest: Vec<String> =
            self.slowest.iter().map(|(port, took)| format!("{port} {took:.2?}")).collect();
        format!(
            "p50 {:.1} ms, p99 {p99:.1} ms; next to the burner {:.1} and {burner:.1}: {:.2} x; attackers {:.0} % of a core, daemon \
             {:.0} %, mongod {:.0} %; slowest probe: {}; peak {} MB, then {}; descriptors {} -> {}; answers: {}",
            support::at(attacked, 0.5),
            support::at(burnt, 0.5),
            p99 / burner,
            self.cpu,
            self.spent[0],
            self.spent[1],
            slowest.join(", "),
            self.peak,
            self.after,
            self.descriptors[0],
            self.descriptors[1],
            self.answers,
        )
    }
}

fn descriptors(pid: &str) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Runs this binary with the lowest priority, and returns what it prints.
async fn child(arguments: &[&str]) -> String {
    let mut command = tokio::process::Command::new("nice");
    command.args(["-n", "19"]).arg(std::env::current_exe().unwrap()).args(arguments);
    let output = command.stderr(Stdio::inherit()).kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// What another client sees of the ports: a request a second to each.
struct Probes {
    tasks: Vec<(&'static str, JoinHandle<Duration>)>,
    ended: tokio_util::sync::CancellationToken,
}

impl Probes {
    fn start(world: &World) -> Self {
        let ended = tokio_util::sync::CancellationToken::new();
        let ports = [("ops", world.ops, "/livez"), ("api", world.api, "/openapi.json")];
        let tasks = ports.map(|(port, address, path)| {
            let ended = ended.clone();
            (
                port,
                tokio::spawn(async move {
                    let mut slowest = Duration::ZERO;
                    while !ended.is_cancelled() {
                        let began = Instant::now();
                        let probe =
                            tokio::time::timeout(Duration::from_secs(30), probe(address, path))
                                .await;
                        if !matches!(probe, Ok(Ok(()))) {
                            eprintln!("{port}: no answer to {path}: {probe:?}");
                        }
                        slowest = slowest.max(began.elapsed());
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    slowest
                }),
            )
        });
        Self { tasks: tasks.into(), ended }
    }

    /// The longest time until an answer began, by port.
    async fn stop(self) -> BTreeMap<&'static str, Duration> {
        self.ended.cancel();
        let mut slowest = BTreeMap::new();
        for (port, task) in self.tasks {
            slowest.insert(port, task.await.unwrap());
        }
        slowest
    }
}

async fn probe(address: SocketAddr, path: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.read_exact(&mut [0; 12]).await?;
    Ok(())
}
