//! Histories one after the other, from a list of seeds, and their verdicts in a file.

use std::fs::File;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::cost;
use crate::history::{History, Servers};
use crate::plan::{Kind, Plan};
use crate::verdict::Verdict;

/// How long healed instances may finish no record: much more than a lease and all other waits.
const MAX_IDLE: Duration = Duration::from_secs(45);

/// Runs the history of each line of this file: `SEED KIND SECONDS`, in which the kind is `mixed` or
/// `single`. Adds each verdict to the file of results, if there is one.
pub async fn run_all(list: &Path) -> Vec<String> {
    let mut servers = Servers::default();
    let mut broken = Vec::new();
    let text = std::fs::read_to_string(list).unwrap();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (plan, kind) = plan(line);
        let (seed, seconds, faults) = (plan.seed, plan.duration.as_secs(), plan.faults.len());
        println!("seed {seed}: {kind}, {} processes, {faults} faults", plan.setup.instances);
        let (start, used) = (Instant::now(), cost::cpu());
        let verdict = run(plan, &mut servers).await;
        let word = match &verdict {
            Ok(verdict) => verdict.word(),
            Err(broken) => broken.word.clone(),
        };
        let (took, used) = (start.elapsed().as_secs(), cost::cpu().saturating_sub(used).as_secs());
        match verdict {
            Ok(verdict) => println!("seed {seed}: kept; {verdict}; {took} s, {used} s of CPU"),
            Err(why) => {
                println!("seed {seed}: {word}\n{}", why.text);
                broken.push(format!("{seed} {word}"));
            }
        }
        note(&format!("{seed} {kind} {seconds} {word} {} {took}s {used}s", commit()));
    }
    broken
}

fn plan(line: &str) -> (Plan, &str) {
    let mut words = line.split_whitespace();
    let (seed, kind, seconds) = (words.next(), words.next(), words.next());
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
    let (Some(seed), Some(kind @ ("mixed" | "single")), Some(seconds)) =
        (number(seed), kind, number(seconds))
    else {
        panic!("{line:?} is not: SEED mixed|single SECONDS");
    };
    (Plan::of(seed, Duration::from_secs(seconds), kind == "mixed"), kind)
}

/// Commit and date, as the script sets them.
fn commit() -> String {
    std::env::var("CHAOS_COMMIT").unwrap_or_else(|_| "-".to_owned())
}

/// Adds a line to the file of results, in one write: several processes may do so.
fn note(line: &str) {
    let Some(path) = std::env::var_os("CHAOS_RESULTS") else { return };
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Runs the history of a plan from its beginning to its end, and keeps the servers where it
/// succeeded. The error of one that breaks the promise says how to repeat it, and where its logs
/// are.
pub async fn run(plan: Plan, servers: &mut Servers) -> Result<Verdict, Broken> {
    let text = plan.to_string();
    let folder = folder(&plan);
    let (seed, seconds) = (plan.seed, plan.duration.as_secs());
    let kind = if plan.setup.kind == Kind::Mixed { "mixed" } else { "single" };
    let taken = std::mem::take(servers);
    let running = async move {
        let history = History::begin(plan, taken).await;
        let acknowledged = history.happen().await;
        let verdict = history.end(&acknowledged, MAX_IDLE).await;
        let servers = if verdict.is_good() { history.clear().await } else { Servers::default() };
        (verdict, servers)
    };
    let (word, verdict) = match AssertUnwindSafe(running).catch_unwind().await {
        Ok((verdict, left)) if verdict.is_good() => {
            *servers = left;
            let _ = std::fs::remove_dir_all(folder);
            return Ok(verdict);
        }
        Ok((verdict, _)) => (verdict.word(), verdict.to_string()),
        Err(_) => {
            ("unfinished".to_owned(), "the history did not come to its end: see above".to_owned())
        }
    };
    let again = format!("make chaos SEED={seed} KIND={kind} DURATION={seconds}");
    let logs = folder.display();
    let text = format!("{verdict}\nwith this plan:\n{text}\nlogs: {logs}\nagain: {again}");
    Err(Broken { word, text })
}

/// A history that broke the promise, or did not end.
#[derive(Debug)]
pub struct Broken {
    /// For a file of results.
    pub word: String,
    pub text: String,
}

/// The folder of a history's plan and logs.
pub fn folder(plan: &Plan) -> PathBuf {
    let above = std::env::var_os("CHAOS_LOGS").map_or_else(std::env::temp_dir, PathBuf::from);
    let id = std::process::id();
    let folder: &Path = &above.join(format!("postrider-chaos-{}-{id}", plan.seed));
    std::fs::create_dir_all(folder).unwrap();
    folder.to_owned()
}
