//! The cost of a phase: CPU of processes, commands to MongoDB.

use std::fs;

use bson::doc;
use postrider::outbox::collections::Collections;

/// Microseconds of CPU that a process has used.
pub fn cpu_micros(pid: &str) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name in parentheses; utime and stime are fields 14 and 15, in 1/100 s.
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks * 10_000
}

/// Resident memory of a process, in MB.
pub fn resident_mb(pid: &str) -> u64 {
    status_mb(pid, "VmRSS:")
}

/// Lets the peak of a process begin with its present memory.
pub fn forget_peak(pid: &str) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

/// Peak resident memory of a process, in MB.
pub fn peak_mb(pid: &str) -> u64 {
    status_mb(pid, "VmHWM:")
}

fn status_mb(pid: &str, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The process whose command line has this word.
pub fn pid_of(word: &str) -> Option<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut pids = processes.filter_map(|process| process.file_name().into_string().ok());
    pids.find(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !word.is_empty() && line.split('\0').any(|part| part == word || part.ends_with(word))
    })
}

/// The pid of the mongod and what it has counted so far.
pub struct MongoCost {
    pub pid: String,
    pub commands: i64,
    pub finds: i64,
    /// Bytes on the network, both ways.
    pub bytes: i64,
}

pub async fn mongo(collections: &Collections) -> MongoCost {
    let status = collections.database().run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let number = |value: Option<&bson::Bson>| match value {
        Some(bson::Bson::Int32(n)) => i64::from(*n),
        Some(bson::Bson::Int64(n)) => *n,
        _ => 0,
    };
    let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
    let count = |name: &str| number(commands.get_document(name).ok().and_then(|c| c.get("total")));
    let total = ["find", "update", "getMore", "aggregate", "delete"].into_iter().map(count).sum();
    let finds = count("find");
    let network = status.get_document("network").unwrap();
    let bytes = ["bytesIn", "bytesOut"].iter().map(|way| number(network.get(way))).sum();
    MongoCost { pid: number(status.get("pid")).to_string(), commands: total, finds, bytes }
}
