//! Programs in the documentation, run as they are.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::documentation::doc_page::Block;
use crate::support::environment::variable;
use crate::support::oracle::python;
use crate::support::process::Process;
use crate::support::schema::MONGOSH;

/// A program in a file of its own, ready to start.
pub struct Program {
    pub command: Command,
    folder: tempfile::TempDir,
}

/// A running program, with its file.
pub struct Running {
    pub process: Process,
    _folder: tempfile::TempDir,
}

impl Program {
    /// This block with MongoDB and its database at `uri`, in place of its own.
    pub fn of(block: &Block, uri: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let code = with_uri(&block.code, uri);
        let mut command = match block.language.as_str() {
            "python" => {
                let mut command = Command::new(python());
                // Unbuffered: its output is there at once.
                command.arg("-u").arg(put(&folder, "program.py", &code));
                command
            }
            "js" => {
                let mut command = Command::new(variable(MONGOSH));
                command.args(["--quiet", "--norc", uri]).arg(put(&folder, "program.js", &code));
                command.env("HOME", folder.path());
                command
            }
            other => panic!("{}: nothing runs a block of {other:?}", block.place),
        };
        command.env("MONGODB_URI", uri);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, folder }
    }

    /// Starts it; it ends with the returned value.
    pub fn start(self) -> Running {
        Running { process: Process::spawn(self.command), _folder: self.folder }
    }

    /// Runs it to its end, which must be a success.
    pub async fn run(mut self) -> Result<(), String> {
        let ended = tokio::task::spawn_blocking(move || {
            let output = self.command.output();
            drop(self);
            output
        });
        let output = ended.await.unwrap().map_err(|error| format!("does not start: {error}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(format!(
                "ends with {}:\n{}{}",
                output.status,
                said(&output.stdout),
                said(&output.stderr)
            ))
        }
    }
}

/// The code with this address and this database for each that it contains.
fn with_uri(code: &str, uri: &str) -> String {
    let database = uri.split('?').next().and_then(|uri| uri.rsplit('/').next()).unwrap();
    let code = with_text(code, "\"mongodb://", &format!("\"{uri}"));
    with_text(&code, "getDatabase(\"", &format!("getDatabase(\"{database}"))
}

/// The code with `own` for each text that begins so, up to its closing quotation mark.
fn with_text(code: &str, beginning: &str, own: &str) -> String {
    let mut parts = code.split(beginning);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole += own;
        whole += part.find('"').map_or("", |end| &part[end..]);
    }
    whole
}

fn put(folder: &tempfile::TempDir, name: &str, code: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, code).unwrap();
    path
}

#[test]
fn addresses_and_databases_are_the_tests_own() {
    let code = "MongoClient(\"mongodb://h:1/shop?replicaSet=x\"); s.getDatabase(\"shop\").orders";

    let own = with_uri(code, "mongodb://h:2/test?replicaSet=rs0");

    let expected =
        "MongoClient(\"mongodb://h:2/test?replicaSet=rs0\"); s.getDatabase(\"test\").orders";
    assert_eq!(own, expected);
}
