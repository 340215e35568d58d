//! A RabbitMQ node for one test, which may stop or break it.

use super::environment::variable;
use std::net::TcpListener;
use std::process::Command;

use tempfile::TempDir;

/// The variable with the script that runs such nodes.
const NODE: &str = "POSTRIDER_TEST_RABBITMQ_NODE";

/// A node with a folder of its own; stopped when dropped.
pub struct Broker {
    folder: TempDir,
    port: u16,
}

impl Broker {
    /// Starts a node on a free port.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// The same with more lines in its `rabbitmq.conf`.
    pub async fn start_with(lines: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let broker = Self { folder: TempDir::new().unwrap(), port };
        std::fs::write(broker.folder.path().join("extra.conf"), lines).unwrap();
        broker.begin().await;
        broker
    }

    /// Starts it again, with all that it had stored.
    pub async fn begin(&self) {
        self.run(&["start", &self.folder(), &self.port.to_string()]).await;
    }

    /// Stops it cleanly.
    pub async fn stop(&self) {
        self.run(&["stop", &self.folder()]).await;
    }

    /// The URI of its listener.
    pub fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    fn folder(&self) -> String {
        self.folder.path().to_str().unwrap().to_owned()
    }

    async fn run(&self, arguments: &[&str]) {
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        let work = tokio::task::spawn_blocking(move || call(&arguments));
        work.await.unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        call(&["stop".to_owned(), self.folder()]);
    }
}

fn call(arguments: &[String]) {
    let ended = Command::new(variable(NODE)).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() || std::thread::panicking(), "{arguments:?}: {said}");
}
