//! A replica set for one test, whose members it may kill, freeze and cut off.
//!
//! Every method that changes something waits until the change is visible.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Client;
use mongodb::error::Result as DriverResult;
use tempfile::TempDir;

use super::child_guard::{dismiss, watched};
use super::environment::variable;
use super::ports::free_port;
use super::stopped::until_stopped;

/// The variable with the path of the mongod to start.
const MONGOD: &str = "POSTRIDER_TEST_MONGOD";

/// The name of every set here; they share no port.
const NAME: &str = "failover";

/// The limit for one command to one member.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The administrator of a set with access control.
const ADMIN: (&str, &str) = ("admin", "the-admins-own");

/// The file in a member's folder by which members of a set with access control know each other.
const KEY_FILE: &str = "key";

/// Servers that end with this value, and their data with them.
pub struct ReplicaSet {
    members: Vec<Member>,
    is_secured: bool,
}

struct Member {
    port: u16,
    dir: TempDir,
    /// `None` while it is killed.
    process: Option<Child>,
    frozen: bool,
    direct: Client,
}

impl ReplicaSet {
    /// Three members, one of them the primary and two caught up.
    pub async fn start() -> Self {
        Self::of(3).await
    }

    /// A set of `count` members; the first is the primary in the beginning.
    pub async fn of(count: usize) -> Self {
        Self::made(count, false).await
    }

    /// Three members that accept only users with a password.
    pub async fn with_access_control() -> Self {
        let mut set = Self::made(3, true).await;
        let (name, password) = ADMIN;
        let user = doc! { "createUser": name, "pwd": password, "roles": ["root", "__system"] };
        let primary = set.primary().await;
        // A client on the same host may create the first user.
        set.members[primary].run(user).await.unwrap();
        for member in &mut set.members {
            member.direct = direct(&format!("{name}:{password}@"), member.port).await;
            // The user is replicated.
            until("a member to know its administrator", async || {
                let status = doc! { "replSetGetStatus": 1 };
                member.run(status).await.ok()
            })
            .await;
        }
        set
    }

    async fn made(count: usize, is_secured: bool) -> Self {
        let mongod = mongod();
        let mut members: Vec<Member> = Vec::new();
        while members.len() < count {
            members.push(Member::start(&mongod, is_secured).await);
        }
        let hosts: Vec<Document> = members
            .iter()
            .enumerate()
            .map(|(id, member)| doc! { "_id": i32::try_from(id).unwrap(), "host": member.host() })
            .collect();
        let config = doc! {
            "_id": NAME,
            "members": hosts,
            // A lost primary is replaced within seconds, instead of the usual ten.
            "settings": { "electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500 },
        };
        members[0].run(doc! { "replSetInitiate": config }).await.unwrap();
        let set = Self { members, is_secured };
        set.secondaries().await;
        set
    }

    /// The URI of the whole set, for its administrator where it has access control.
    pub fn uri(&self) -> String {
        let hosts = self.hosts().join(",");
        if self.is_secured {
            let (name, password) = ADMIN;
            return format!(
                "mongodb://{name}:{password}@{hosts}/?replicaSet={NAME}&authSource=admin"
            );
        }
        format!("mongodb://{hosts}/?replicaSet={NAME}")
    }

    /// How a driver names a member.
    pub fn host(&self, member: usize) -> String {
        self.members[member].host()
    }

    /// How a driver names each member.
    pub fn hosts(&self) -> Vec<String> {
        self.members.iter().map(Member::host).collect()
    }

    /// A client of this member alone, whatever its state.
    pub fn direct(&self, member: usize) -> &Client {
        &self.members[member].direct
    }

    /// Waits for a primary; of two members that claim to be primary, the one that was elected last.
    pub async fn primary(&self) -> usize {
        until("a primary", async || self.current_primary().await).await
    }

    /// Waits until all living members but the primary are secondaries, and returns them.
    pub async fn secondaries(&self) -> Vec<usize> {
        let what = "every member but the primary to be a secondary";
        until(what, async || {
            let primary = self.current_primary().await?;
            let mut found = Vec::new();
            for (index, member) in self.answering().filter(|(index, _)| *index != primary) {
                let hello = member.hello().await.ok()?;
                found.push(is(&hello, "secondary").then_some(index)?);
            }
            Some(found)
        })
        .await
    }

    async fn current_primary(&self) -> Option<usize> {
        let mut primaries = Vec::new();
        for (index, member) in self.answering() {
            let Ok(hello) = member.hello().await else { continue };
            if is(&hello, "isWritablePrimary") {
                primaries.push((hello.get_object_id("electionId").ok()?, index));
            }
        }
        primaries.into_iter().max().map(|(_, index)| index)
    }

    /// Whether this member believes that it is the primary.
    pub async fn is_primary(&self, member: usize) -> bool {
        let hello = self.members[member].hello().await;
        hello.is_ok_and(|hello| is(&hello, "isWritablePrimary"))
    }

    /// Makes the primary step down, waits for another one, and returns it.
    pub async fn step_down(&self) -> usize {
        let old = self.primary().await;
        until("the primary to step down", async || {
            // Refused while no secondary has caught up.
            let step_down = doc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5 };
            let answer = self.members[old].run(step_down).await;
            (answer.is_ok() || !self.is_primary(old).await).then_some(())
        })
        .await;
        self.primary_other_than(old).await
    }

    /// Waits for a primary other than this member, and returns it.
    pub async fn primary_other_than(&self, old: usize) -> usize {
        let other = async || self.current_primary().await.filter(|primary| *primary != old);
        until("another primary", other).await
    }

    /// Makes a secondary fetch nothing more; it continues to vote and to send heartbeats, so that
    /// the primary stays primary.
    pub async fn stop_replication(&self, member: usize) {
        let point = doc! { "configureFailPoint": "stopReplProducer", "mode": "alwaysOn" };
        let set = self.members[member].run(point).await.unwrap();
        let entered = set.get_i32("count").unwrap();
        // Before that point a batch in progress could still be applied.
        let reached = doc! {
            "waitForFailPoint": "stopReplProducer",
            "timesEntered": i64::from(entered) + 1,
            "maxTimeMS": i64::try_from(ANSWER_TIMEOUT.as_millis()).unwrap(),
        };
        self.members[member].run(reached).await.unwrap();
    }

    /// Ends [`stop_replication`](Self::stop_replication).
    pub async fn restart_replication(&self, member: usize) {
        let point = doc! { "configureFailPoint": "stopReplProducer", "mode": "off" };
        self.members[member].run(point).await.unwrap();
    }

    /// Kills a member (SIGKILL); its data stays.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Starts a killed member again, and waits until it answers.
    pub async fn restart(&mut self, member: usize) {
        let member = &mut self.members[member];
        assert!(member.process.is_none(), "it runs");
        let dir = member.dir.path().to_owned();
        member.process = Some(launch(&mongod(), member.port, &dir));
        member.until_it_answers().await.unwrap();
    }

    /// Freezes a member (SIGSTOP): its connections hang, and do not close.
    pub fn freeze(&mut self, member: usize) {
        self.members[member].signal("STOP");
        let process = self.members[member].process.as_ref().expect("it runs");
        until_stopped(process.id());
        self.members[member].frozen = true;
    }

    /// Continues a frozen member (SIGCONT).
    pub fn thaw(&mut self, member: usize) {
        self.members[member].signal("CONT");
        self.members[member].frozen = false;
    }

    /// Lets transactions of dead clients end soon: by default they do after a minute.
    pub async fn end_transactions_soon(&self) {
        for member in &self.members {
            let soon = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 2 };
            member.direct.database("admin").run_command(soon).await.unwrap();
        }
    }

    /// Loses what the primary writes for this long, and no majority has: among it a document in `database`.
    pub async fn roll_back(&mut self, database: &str, lasts: Duration) {
        let primary = self.primary().await;
        let before = self.rollback_id(primary).await;
        let secondaries = self.secondaries().await;
        for secondary in &secondaries {
            self.stop_replication(*secondary).await;
        }
        let client = Client::with_uri_str(self.uri()).await.unwrap();
        let written = client.database(database).collection::<Document>("lost");
        let alone = mongodb::options::WriteConcern::nodes(1);
        let _ = written.insert_one(doc! {}).write_concern(alone).await;
        tokio::time::sleep(lasts).await;
        self.kill(primary);
        for secondary in secondaries {
            self.restart_replication(secondary).await;
        }
        self.primary_other_than(primary).await;
        self.restart(primary).await;
        until("a rollback", async || (self.rollback_id(primary).await > before).then_some(()))
            .await;
    }

    /// How often a member has rolled back, plus a constant.
    pub async fn rollback_id(&self, member: usize) -> i32 {
        let answer = self.members[member].run(doc! { "replSetGetRBID": 1 }).await.unwrap();
        answer.get_i32("rbid").unwrap()
    }

    /// How many commands of this name a member has received since it started.
    pub async fn commands(&self, member: usize, name: &str) -> i64 {
        let status = doc! { "serverStatus": 1, "repl": 0, "wiredTiger": 0, "locks": 0 };
        let status = self.members[member].run(status).await.unwrap();
        let commands = status.get_document("metrics").and_then(|all| all.get_document("commands"));
        let named = commands.and_then(|commands| commands.get_document(name)).unwrap();
        named.get_i64("total").unwrap()
    }

    fn answering(&self) -> impl Iterator<Item = (usize, &Member)> {
        let all = self.members.iter().enumerate();
        all.filter(|(_, member)| member.process.is_some() && !member.frozen)
    }
}

impl Member {
    async fn start(mongod: &Path, is_secured: bool) -> Self {
        let port = free_port();
        let dir = tempfile::Builder::new().prefix("postrider-mongod-").tempdir().unwrap();
        if is_secured {
            write_key(&dir.path().join(KEY_FILE));
        }
        let process = Some(launch(mongod, port, dir.path()));
        let direct = direct("", port).await;
        let mut member = Self { port, dir, process, frozen: false, direct };
        if let Err(log) = member.until_it_answers().await {
            panic!("{} ended by itself; its log:\n{log}", mongod.display());
        }
        member
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Runs a command on this very member; one that is frozen counts as an error.
    async fn run(&self, command: Document) -> DriverResult<Document> {
        let name = command.keys().next().cloned().unwrap_or_default();
        let admin = self.direct.database("admin");
        let running = admin.run_command(command).into_future();
        tokio::time::timeout(ANSWER_TIMEOUT * 2, running)
            .await
            .unwrap_or_else(|_| Err(mongodb::error::Error::custom(format!("{name}: no answer"))))
    }

    async fn hello(&self) -> DriverResult<Document> {
        self.run(doc! { "hello": 1 }).await
    }

    /// Fails with the end of the log if the process ends instead.
    async fn until_it_answers(&mut self) -> Result<(), String> {
        until("a mongod to answer", async || {
            if self.process.as_mut()?.try_wait().unwrap().is_some() {
                return Some(Err(self.log()));
            }
            self.run(doc! { "ping": 1 }).await.ok().map(|_| Ok(()))
        })
        .await
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("it runs");
        let mut kill = Command::new("kill");
        let status = kill.arg(format!("-{signal}")).arg(process.id().to_string()).status();
        assert!(status.unwrap().success(), "kill -{signal}");
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            dismiss(&mut process);
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
        self.frozen = false;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn mongod() -> PathBuf {
    let path = PathBuf::from(variable(MONGOD));
    assert!(
        path.is_file(),
        "{MONGOD}={} is no file: `scripts/services.sh install mongodb` fetches one",
        path.display()
    );
    path
}

/// A client of the member on this port, as the user in front of the address.
async fn direct(user: &str, port: u16) -> Client {
    let options = "directConnection=true&serverSelectionTimeoutMS=1000";
    Client::with_uri_str(format!("mongodb://{user}127.0.0.1:{port}/?{options}")).await.unwrap()
}

/// Writes the same key for every member; mongod refuses a file that other users can read.
fn write_key(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, "c2hhcmVkIGJ5IHRoZSBtZW1iZXJz").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn launch(mongod: &Path, port: u16, dir: &Path) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(mongod);
    command
        .args(["--replSet", NAME, "--bind_ip", "127.0.0.1", "--nounixsocket"])
        .args(["--port", &port.to_string()])
        .arg("--dbpath")
        .arg(dir)
        .args(["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "128"]);
    if dir.join(KEY_FILE).exists() {
        command.arg("--auth").arg("--keyFile").arg(dir.join(KEY_FILE));
    }
    for parameter in [
        "enableTestCommands=1",
        "ttlMonitorSleepSecs=1",
        "diagnosticDataCollectionEnabled=false",
        // Flow control would slow the writes that a test makes while there is no majority.
        "enableFlowControl=false",
    ] {
        command.args(["--setParameter", parameter]);
    }
    let mut command = watched(&command, Some(dir));
    command.stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap_or_else(|error| {
        panic!("{} does not start ({error}): see {MONGOD}", mongod.display())
    })
}

/// Waits, up to a minute, until `probe` returns a value.
async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited a minute for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is(hello: &Document, what: &str) -> bool {
    hello.get_bool(what).unwrap_or(false)
}
