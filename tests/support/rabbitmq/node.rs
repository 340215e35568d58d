//! A RabbitMQ node that tests stop, freeze and put into alarm.

use super::super::environment::variable;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::{Arc, Weak};

use tempfile::TempDir;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::support::authority::Authority;
use crate::support::child_guard::{afterwards, dismiss};
use crate::support::ports::free_port;

/// The variable with the path of the script that runs nodes.
const NODE: &str = "POSTRIDER_TEST_RABBITMQ_NODE";

/// A running node with listeners for `amqp` and `amqps`. It is killed when dropped.
pub struct Node {
    dir: TempDir,
    port: u16,
    tls_port: u16,
    watcher: Child,
}

/// Exclusive use of the node that the tests of one binary share.
pub type Turn = OwnedMutexGuard<Node>;

/// The node, for as long as a test waits for it: a start takes seconds.
static SHARED: Mutex<Weak<Mutex<Node>>> = Mutex::const_new(Weak::new());

/// Keeps the node alive until the test's end.
pub struct Lease {
    pub node: Turn,
    _alive: Arc<Mutex<Node>>,
}

/// Waits for exclusive use of a healthy node.
pub async fn turn() -> Lease {
    let alive = {
        let mut shared = SHARED.lock().await;
        match shared.upgrade() {
            Some(node) => node,
            None => {
                let node = Arc::new(Mutex::new(Node::start_new().await));
                *shared = Arc::downgrade(&node);
                node
            }
        }
    };
    let node = alive.clone().lock_owned().await;
    // A test that failed before may have left it frozen, stopped or in alarm.
    node.script(&["thaw"]).await;
    node.start().await;
    Lease { node, _alive: alive }
}

impl Node {
    /// A cluster of three nodes. The first one must be dropped last.
    pub async fn cluster() -> [Self; 3] {
        let first = Self::start_new().await;
        let second = Self::joined(&first).await;
        let third = Self::joined(&first).await;
        [third, second, first]
    }

    async fn joined(first: &Self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, tls_port) = (free_port(), free_port());
        let node = Self { watcher: watcher(dir.path()), dir, port, tls_port };
        let first = first.dir.path().to_str().unwrap();
        node.script(&["join", &port.to_string(), first]).await;
        node
    }

    async fn start_new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, tls_port) = (free_port(), free_port());
        certificates(dir.path());
        let tls = format!(
            "listeners.ssl.1 = 127.0.0.1:{tls_port}\n\
             ssl_options.certfile = {0}/server.pem\n\
             ssl_options.keyfile = {0}/server.key\n",
            dir.path().display()
        );
        std::fs::write(dir.path().join("extra.conf"), tls).unwrap();
        let node = Self { watcher: watcher(dir.path()), dir, port, tls_port };
        node.start().await;
        node
    }

    pub fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    pub fn tls_uri(&self) -> String {
        format!("amqps://guest:guest@localhost:{}/%2f", self.tls_port)
    }

    /// The certificate of the authority that signed the node's.
    pub fn authority(&self) -> std::path::PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// The certificate of another authority.
    pub fn stranger(&self) -> std::path::PathBuf {
        self.dir.path().join("stranger.pem")
    }

    pub async fn start(&self) {
        let port = self.port.to_string();
        self.script(&["start", &port]).await;
    }

    pub async fn stop(&self) {
        self.script(&["stop"]).await;
    }

    /// As in a power failure; what the broker had confirmed is on disk.
    pub async fn kill(&self) {
        self.script(&["kill"]).await;
    }

    pub async fn freeze(&self) {
        self.script(&["freeze"]).await;
    }

    pub async fn thaw(&self) {
        self.script(&["thaw"]).await;
    }

    pub async fn ctl(&self, arguments: &[&str]) {
        self.script(&[&["ctl"], arguments].concat()).await;
    }

    /// Suspends the process of a queue: it takes and confirms nothing, and no other queue is
    /// affected. A restart of the node ends that.
    pub async fn suspend_queue(&self, name: &str) {
        self.ctl(&["eval", &queue_order("suspend", "/", name)]).await;
    }

    /// Resumes it.
    pub async fn resume_queue(&self, name: &str) {
        self.ctl(&["eval", &queue_order("resume", "/", name)]).await;
    }

    async fn script(&self, arguments: &[&str]) {
        let output = run(self.dir.path(), arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // If this fails, `scripts/services.sh stop` ends it.
        let _ = command(self.dir.path(), &["kill"]).output();
        dismiss(&mut self.watcher);
        let _ = self.watcher.wait();
    }
}

/// Kills the node of this folder when this process ends without a message.
fn watcher(dir: &Path) -> Child {
    let script = variable(NODE);
    let kill: [&OsStr; 3] = [script.as_ref(), "kill".as_ref(), dir.as_ref()];
    afterwards(&kill, dir)
}

async fn run(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = command(dir, arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(variable(NODE));
    command.arg(arguments[0]).arg(dir).args(&arguments[1..]);
    command
}

/// An authority, a server's certificate by it, and an authority that has signed nothing.
fn certificates(dir: &Path) {
    let authority = Authority::new("the node's");
    let server = authority.certify(&["localhost"]);
    for (name, text) in [
        ("authority.pem", authority.pem()),
        ("stranger.pem", Authority::new("a stranger's").pem()),
        ("server.pem", server.certificate),
        ("server.key", server.key),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

/// The argument of `rabbitmqctl eval` that stops the process of a classic queue (`suspend`), or lets
/// it continue (`resume`).
pub fn queue_order(order: &str, vhost: &str, queue: &str) -> String {
    let name = format!("rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"{queue}\">>)");
    format!("{{ok, Queue}} = rabbit_amqqueue:lookup({name}), sys:{order}(amqqueue:get_pid(Queue)).")
}
