//! A MongoDB whose disk is full: mongod 6.0 aborts, and can be started when there is space again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bson::{Binary, doc, spec::BinarySubtype};
use mongodb::Client;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

use crate::mongodb::log::assert_logged;
use crate::support::environment::variable;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::ports::free_port;
use crate::support::process::Postrider;
use crate::support::queue::stdout_sink;

/// More space than a member needs, in MiB.
const PLENTY_MIB: u64 = 1024;

/// The space that is left when it is scarce, in MiB.
const SCARCE_MIB: u64 = 30;

/// A small disk for a mongod's data.
enum Disk {
    /// A tmpfs, in a mount namespace that exists as long as this process: nothing is left of it
    /// when the test ends, however it ends.
    Own(Child),
    /// Where a container may not have namespaces: files that cannot grow. For mongod that is an
    /// error like a full disk, with the same end.
    Limited,
}

impl Disk {
    fn new(dir: &TempDir) -> Self {
        let script =
            format!("mount -t tmpfs -o size={PLENTY_MIB}m tmpfs \"$0\" && echo ready && cat");
        let mut holder = Command::new("unshare");
        holder.args(["-rm", "sh", "-c", &script]).arg(dir.path());
        holder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = holder.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said == "ready\n" {
            return Self::Own(holder);
        }
        let _ = holder.wait();
        eprintln!("no mount namespace to be had: files of a limited length instead of a full disk");
        Self::Limited
    }

    /// A command that uses this disk.
    fn command(&self, program: &str) -> Command {
        match self {
            Self::Own(holder) => {
                let mut command = Command::new("nsenter");
                command.args(["-t", &holder.id().to_string(), "-U", "-m"]);
                command.args(["--preserve-credentials", "--wd=/", program]);
                command
            }
            Self::Limited => {
                // It gets an error, and not a signal.
                let mut command = Command::new("sh");
                command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", program]);
                command
            }
        }
    }

    /// Leaves hardly any space to this mongod.
    fn shrink(&self, dir: &TempDir, mongod: &Child) {
        match self {
            Self::Own(_) => {
                let mut df = self.command("df");
                df.args(["--block-size=1M", "--output=used"]).arg(dir.path());
                let used = String::from_utf8(df.output().unwrap().stdout).unwrap();
                let used: u64 = used.lines().nth(1).unwrap().trim().parse().unwrap();
                self.resize(dir, used + SCARCE_MIB);
            }
            Self::Limited => {
                let limit = Rlimit { current: Some(SCARCE_MIB << 20), maximum: None };
                prlimit(Some(Pid::from_child(mongod)), Resource::Fsize, limit).unwrap();
            }
        }
    }

    /// Gives space again, to processes that start now.
    fn grow(&self, dir: &TempDir) {
        if let Self::Own(_) = self {
            self.resize(dir, PLENTY_MIB);
        }
    }

    fn resize(&self, dir: &TempDir, size: u64) {
        let mut mount = self.command("mount");
        mount.arg("-o").arg(format!("remount,size={size}m")).arg(dir.path());
        assert!(mount.status().unwrap().success(), "{size} MiB");
    }
}

/// A member on such a disk, which ends with this value.
struct Member {
    port: u16,
    disk: Disk,
    dir: TempDir,
    mongod: Child,
}

impl Member {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let (disk, port) = (Disk::new(&dir), free_port());
        let mongod = launch(&disk, &dir, port);
        let member = Self { port, disk, dir, mongod };
        let admin = Client::with_uri_str(member.uri()).await.unwrap().database("admin");
        let host = format!("127.0.0.1:{port}");
        let config = doc! { "_id": "rs0", "members": [{ "_id": 0, "host": host }] };
        eventually("a new member", || async {
            admin.run_command(doc! { "replSetInitiate": &config }).await.is_ok()
        })
        .await;
        eventually("the primary", || async {
            let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
            hello.get_bool("isWritablePrimary").unwrap()
        })
        .await;
        member
    }

    fn uri(&self) -> String {
        format!("mongodb://127.0.0.1:{}/?directConnection=true", self.port)
    }

    fn has_ended(&mut self) -> bool {
        self.mongod.try_wait().unwrap().is_some()
    }

    fn shrink_disk(&self) {
        self.disk.shrink(&self.dir, &self.mongod);
    }

    fn restart(&mut self) {
        self.disk.grow(&self.dir);
        self.mongod = launch(&self.disk, &self.dir, self.port);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = (self.mongod.kill(), self.mongod.wait());
        if let Disk::Own(holder) = &mut self.disk {
            let _ = (holder.kill(), holder.wait());
        }
    }
}

fn launch(disk: &Disk, dir: &TempDir, port: u16) -> Child {
    let mut command = disk.command(&variable("POSTRIDER_TEST_MONGOD"));
    command.args(["--replSet", "rs0", "--bind_ip", "127.0.0.1", "--nounixsocket"]);
    command.arg("--port").arg(port.to_string()).arg("--dbpath").arg(dir.path());
    command.args(["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "50"]);
    command.args(["--setParameter", "diagnosticDataCollectionEnabled=false"]);
    if let Some(services) = std::env::var_os("POSTRIDER_SERVICES_DIR") {
        command.env("POSTRIDER_SERVICE_OF", services);
    }
    let nowhere = || Stdio::from(File::options().write(true).open("/dev/null").unwrap());
    command.stdin(Stdio::null()).stdout(nowhere()).stderr(nowhere()).spawn().unwrap()
}

#[fixture::test(long)]
async fn a_full_disk_is_reported_and_loses_nothing() {
    let mut member = Member::start().await;
    let outbox = TestOutbox::at(&member.uri()).await;
    let settings = [
        format!("mongo.uri={}", member.uri()),
        format!("mongo.database={}", outbox.database),
        // The relay waits until the leases of a crashed one expire.
        "relay.lease=5s".into(),
        "sinks.out.timeout=4s".into(),
    ];
    let mut postrider = Postrider::start(&[stdout_sink(), settings.into()].concat());
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let before = postrider.lines().len();

    member.shrink_disk();
    // Incompressible data, and a record with each piece.
    let others = outbox.client.database(&outbox.database).collection("others");
    let mut acknowledged = Vec::new();
    for n in 0.. {
        let bytes = std::iter::repeat_with(rand::random::<u8>).take(256 << 10).collect();
        let piece = doc! { "bytes": Binary { subtype: BinarySubtype::Generic, bytes } };
        let id = format!("{n:05}");
        let written = async {
            others.insert_one(piece).await?;
            outbox.records().insert_one(record(&id, &format!("k{}", n % 5))).await
        };
        // The test does not wait for a server that is gone.
        match tokio::time::timeout(Duration::from_secs(10), written).await {
            Ok(Ok(_)) => acknowledged.push(id),
            _ => break,
        }
    }
    eventually("mongod's end", || std::future::ready(member.has_ended())).await;
    postrider.until_report("a store that is down", |report| report["status"] == "down").await;
    postrider.until_logged("MongoDB does not respond").await;
    let live = postrider.get("/livez").await.0;

    member.restart();

    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
    assert_eq!(live, 200);
    let done = doc! { "status": "done", "_id": { "$in": &acknowledged } };
    eventually("what was acknowledged", || async {
        let count = outbox.records().count_documents(done.clone()).await;
        count.is_ok_and(|count| count == acknowledged.len() as u64)
    })
    .await;
    let delivered = postrider.stdout();
    for id in &acknowledged {
        assert!(delivered.contains(&format!("\"id\":\"{id}\"")), "{id} was not delivered");
    }
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let messages = [
        "INFO MongoDB responds again; resumed leasing records",
        "INFO opened the change stream of the outbox",
        "INFO heartbeats are acknowledged again; resumed leasing records",
        "WARN MongoDB does not respond; paused leasing records",
        "WARN a heartbeat failed; stopped leasing records",
        "WARN lost the change stream; the relay polls",
    ];
    assert_logged(&postrider, before, &messages);
    postrider.stop().await;
}
