//! The example programs of the client libraries.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::consumers::programs::start_at;
use crate::support::outbox::mongodb_uri;
use crate::support::process::Process;

/// The languages with a client library.
pub const LANGUAGES: [&str; 5] = ["go", "java", "node", "python", "rust"];

/// The command of an example program; its outputs are piped. It is built if need be.
pub fn example(language: &str, name: &str) -> Command {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("clients").join(language);
    let mut command = Command::new(folder.join("example.sh"));
    command.arg(name).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a consumer on the database at `uri`.
pub fn start_consumer(
    language: &str,
    name: &str,
    uri: &str,
    environment: &[(&'static str, String)],
) -> Process {
    if language == "rust" {
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        return start_at(&name.replace('-', "_"), uri, &environment);
    }
    let mut command = example(language, name);
    command.env("MONGODB_URI", uri);
    command.envs(environment.iter().map(|(name, value)| (*name, value)));
    Process::spawn(command)
}

/// The URI of a database, as the programs take it.
pub fn uri_of(database: &str) -> String {
    let uri = mongodb_uri();
    let (server, query) = uri.split_once('?').unwrap_or((&uri, ""));
    format!("{}/{database}?{query}", server.trim_end_matches('/'))
}
