//! A mongod for one test, alone: standalone, with access control, or on a given port.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use bson::{Document, doc};
use mongodb::Client;
use tempfile::TempDir;

use super::environment::variable;
use super::outbox::eventually;
use super::ports::free_port;

/// The variable with the path of the mongod to start.
const MONGOD: &str = "POSTRIDER_TEST_MONGOD";

/// The administrator of a server with access control.
pub const ADMIN: (&str, &str) = ("admin", "the-admins-own");

/// A server that ends with this value, together with its data.
pub struct Mongod {
    pub port: u16,
    process: Child,
    _dir: TempDir,
}

impl Mongod {
    /// No replica set, no access control.
    pub async fn standalone() -> Self {
        Self::start(free_port(), &[]).await
    }

    /// A replica set of one member, with access control. Only [`ADMIN`] may log in, and create
    /// users.
    pub async fn with_access_control() -> Self {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "c2hhcmVkIGJ5IHRoZSBtZW1iZXJz").unwrap();
        let key = key.path().to_str().unwrap();
        let arguments = ["--replSet", "rs0", "--auth", "--keyFile", key];
        let server = Self::start(free_port(), &arguments).await;
        // A client on the same host may do these two before there is a user.
        server.initiate().await;
        let stranger = server.client("").await;
        let (name, password) = ADMIN;
        let user = doc! { "createUser": name, "pwd": password, "roles": ["root"] };
        stranger.run_command(user).await.unwrap();
        server
    }

    /// A member of a replica set that has no primary, before [`initiate`](Self::initiate).
    pub async fn without_primary() -> Self {
        Self::start(free_port(), &["--replSet", "rs0"]).await
    }

    /// A server whose commands can be made to fail or to wait (`failCommand`).
    pub async fn with_fail_points() -> Self {
        Self::start(free_port(), &["--setParameter", "enableTestCommands=1"]).await
    }

    /// A server that also speaks TLS, with the certificate and key in this file, to clients with a
    /// certificate of this authority.
    pub async fn with_tls(certificate_and_key: &Path, authority: &Path) -> Self {
        let certificate_and_key = certificate_and_key.to_str().unwrap();
        let authority = authority.to_str().unwrap();
        let own = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", certificate_and_key];
        let arguments = [own, ["--replSet", "rs0", "--tlsCAFile", authority]].concat();
        let server = Self::start(free_port(), &arguments).await;
        server.initiate().await;
        server
    }

    /// Makes it the primary of a replica set of its own.
    pub async fn initiate(&self) {
        let stranger = self.client("").await;
        let host = format!("127.0.0.1:{}", self.port);
        let config = doc! { "_id": "rs0", "members": [{ "_id": 0, "host": host }] };
        stranger.run_command(doc! { "replSetInitiate": config }).await.unwrap();
        eventually("the primary", || async {
            let hello = stranger.run_command(doc! { "hello": 1 }).await.unwrap();
            hello.get_bool("isWritablePrimary").unwrap()
        })
        .await;
    }

    /// Starts it with these arguments and waits until it answers.
    async fn start(port: u16, arguments: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let mut command = Command::new(variable(MONGOD));
        command.args(["--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25"]);
        command.arg("--port").arg(port.to_string()).arg("--dbpath").arg(dir.path());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { port, process: command.spawn().unwrap(), _dir: dir };
        let stranger = server.client("").await;
        eventually("mongod's answer", || async {
            stranger.run_command(doc! { "hello": 1 }).await.is_ok()
        })
        .await;
        server
    }

    /// The URI of a database, for these credentials (`user:password@`, or none).
    pub fn uri(&self, credentials: &str, database: &str) -> String {
        let source = if credentials.is_empty() { "" } else { "&authSource=admin" };
        format!(
            "mongodb://{credentials}127.0.0.1:{}/{database}?directConnection=true{source}",
            self.port
        )
    }

    /// Its database `admin`.
    pub async fn client(&self, credentials: &str) -> mongodb::Database {
        let client = Client::with_uri_str(self.uri(credentials, "")).await.unwrap();
        client.database("admin")
    }

    /// Runs a command as its administrator.
    pub async fn as_admin(&self, command: Document) {
        let (name, password) = ADMIN;
        let admin = self.client(&format!("{name}:{password}@")).await;
        admin.run_command(command).await.unwrap();
    }
}

impl Drop for Mongod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
