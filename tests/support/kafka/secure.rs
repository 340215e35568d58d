//! A broker with TLS, logins, and rights.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tempfile::TempDir;
use tokio::sync::Mutex;

use super::acl::{Acl, Operation, Permission, Resource};
use super::node::Node;
use super::options::{Listener, Options};
use super::topic::Topic;
use crate::support::authority::{Authority, Certified};

/// TLS, for any client.
pub const TLS: &str = "TLS";

/// TLS, for clients with a certificate of the same authority.
pub const MUTUAL: &str = "MUTUAL";

/// TLS and a login, by PLAIN or SCRAM-SHA-256.
pub const LOGIN: &str = "LOGIN";

/// A login without TLS.
pub const OPEN_LOGIN: &str = "OPENLOGIN";

/// All users. A test that denies more than its own topic denies it to a user of its own.
pub const USERS: [&str; 7] = ["alice", "bob", "carol", "dave", "erin", "frank", "grace"];

/// The password of all users: no error and no `Debug` may show it.
pub const PASSWORD: &str = "password-of-the-test";

/// A node on which every user may do everything that is not denied.
///
/// On its listener without a login, the test itself is a super user.
pub struct Secure {
    pub node: Node,
    dir: TempDir,
}

/// The node, for as long as a test of the binary uses it: a start takes seconds.
static SHARED: Mutex<Weak<Secure>> = Mutex::const_new(Weak::new());

impl Secure {
    /// The node that the tests of one binary share, and that none of them breaks.
    pub async fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().await;
        if let Some(secure) = shared.upgrade() {
            return secure;
        }
        let secure = Arc::new(Self::start().await);
        *shared = Arc::downgrade(&secure);
        secure
    }

    /// A node for one test.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificates(dir.path());
        let secure = Self { node: Node::with(options(dir.path())).await, dir };
        for resource in [Resource::Topic("*"), Resource::Cluster] {
            let permission = Permission::Allow;
            let acl = Acl { permission, user: "*", operation: Operation::All, resource };
            acl.create(&secure.node.brokers()).await;
        }
        secure
    }

    /// `bootstrap.servers` of a listener.
    pub fn brokers(&self, listener: &str) -> String {
        self.node.address(listener).to_string()
    }

    /// A topic, made and read on the listener without a login. It ends with the broker.
    pub async fn topic(&self, partitions: i32) -> Topic {
        Topic::on(&self.node.brokers(), partitions, &[]).await
    }

    /// Denies a user a right, until [`Acl::delete`].
    pub async fn deny<'a>(
        &self,
        user: &'a str,
        operation: Operation,
        resource: Resource<'a>,
    ) -> Acl<'a> {
        let acl = Acl { permission: Permission::Deny, user, operation, resource };
        acl.create(&self.node.brokers()).await;
        acl
    }

    /// The certificate of the authority that has signed the others.
    pub fn authority(&self) -> PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// The certificate of an authority that has signed nothing.
    pub fn stranger(&self) -> PathBuf {
        self.dir.path().join("stranger.pem")
    }

    /// A client's certificate and its key.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.dir.path().join("client.pem"), self.dir.path().join("client.key"))
    }
}

fn certificates(dir: &Path) {
    let authority = Authority::new("the broker's");
    let Certified { certificate, key } = authority.certify(&["localhost", "127.0.0.1"]);
    let client = authority.certify(&["client"]);
    for (name, text) in [
        ("authority.pem", authority.pem()),
        ("stranger.pem", Authority::new("a stranger's").pem()),
        ("broker.pem", key + &certificate),
        ("client.pem", client.certificate),
        ("client.key", client.key),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

fn options(dir: &Path) -> Options {
    let modules = "org.apache.kafka.common.security";
    let passwords: String =
        USERS.iter().map(|user| format!(" user_{user}=\"{PASSWORD}\"")).collect();
    let plain = format!("{modules}.plain.PlainLoginModule required{passwords};");
    let scram = format!("{modules}.scram.ScramLoginModule required;");
    // The broker accepts tokens without a signature.
    let token = format!("{modules}.oauthbearer.OAuthBearerLoginModule required;");
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let mut options = Options::default()
        .listener(Listener::new(TLS, "SSL"))
        .listener(Listener::new(MUTUAL, "SSL"))
        .listener(Listener::new(LOGIN, "SASL_SSL"))
        .listener(Listener::new(OPEN_LOGIN, "SASL_PLAINTEXT"))
        .property("ssl.keystore.type", "PEM")
        .property("ssl.keystore.location", &file("broker.pem"))
        .property("ssl.truststore.type", "PEM")
        .property("ssl.truststore.location", &file("authority.pem"))
        .property("listener.name.mutual.ssl.client.auth", "required")
        .property(
            "authorizer.class.name",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        )
        // Clients without a login: the broker itself, and the test.
        .property("super.users", "User:ANONYMOUS");
    for listener in [LOGIN, OPEN_LOGIN] {
        let name = format!("listener.name.{}", listener.to_lowercase());
        options = options
            .property(&format!("{name}.sasl.enabled.mechanisms"), "PLAIN,SCRAM-SHA-256,OAUTHBEARER")
            .property(&format!("{name}.plain.sasl.jaas.config"), &plain)
            .property(&format!("{name}.scram-sha-256.sasl.jaas.config"), &scram)
            .property(&format!("{name}.oauthbearer.sasl.jaas.config"), &token);
    }
    USERS.iter().fold(options, |options, user| options.scram_user(user, PASSWORD))
}
