//! Programs that stand in the documentation, run as they stand there.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::page::Block;
use crate::support::oracle::python;
use crate::support::schema::MONGOSH;

/// What a page writes where a reader puts his own.
const ITS_MONGODB: &str = "mongodb://127.0.0.1:27017/app?replicaSet=rs0";

/// A program in a file of its own, ready to be started.
pub struct Program {
    pub command: Command,
    _folder: tempfile::TempDir,
}

impl Program {
    /// This block with MongoDB at `uri`, which it has as `MONGODB_URI`, or has written out.
    pub fn of(block: &Block, uri: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let code = block.code.replace(ITS_MONGODB, uri);
        let mut command = match block.language.as_str() {
            "python" => {
                let mut command = Command::new(python());
                // Unbuffered: what it says is there at once.
                command.arg("-u").arg(put(&folder, "program.py", &code));
                command
            }
            "js" => {
                let mongosh = std::env::var(MONGOSH);
                let mongosh = mongosh.unwrap_or_else(|_| {
                    panic!("{MONGOSH} is not set: run the tests by `make test`")
                });
                let mut command = Command::new(mongosh);
                command.args(["--quiet", "--norc", uri]).arg(put(&folder, "program.js", &code));
                command.env("HOME", folder.path());
                command
            }
            other => panic!("{}: nothing runs a block of {other:?}", block.place),
        };
        command.env("MONGODB_URI", uri);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, _folder: folder }
    }

    /// Runs it to its end, which must be a good one.
    pub async fn run(mut self) -> Result<(), String> {
        let ended = tokio::task::spawn_blocking(move || {
            let output = self.command.output();
            drop(self);
            output
        });
        let output = ended.await.unwrap().map_err(|error| format!("does not start: {error}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "ends with {}:\n{}{}",
                output.status,
                said(&output.stdout),
                said(&output.stderr)
            )),
        }
    }
}

fn put(folder: &tempfile::TempDir, name: &str, code: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, code).unwrap();
    path
}
