//! Producers: one change of an order after the other, each with its record in one transaction.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use mongodb::Database;

use crate::history::example::{example, uri_of};
use crate::support::outbox::TestOutbox;

#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/producer.rs"]
mod in_rust;

/// A producer in one of the languages.
pub enum Producer {
    /// In this process.
    Rust(Database),
    Program(Program),
}

/// A running program. It ends with this value.
pub struct Program {
    language: &'static str,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Producer {
    /// Starts the producer of this language.
    pub fn start(language: &'static str, outbox: &TestOutbox) -> Self {
        if language == "rust" {
            return Self::Rust(outbox.client.database(&outbox.database));
        }
        let mut command = example(language, "producer");
        command.env("MONGODB_URI", uri_of(&outbox.database));
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self::Program(Program { language, child, input, output })
    }

    /// Changes an order, and returns the message id after the commit.
    pub async fn change(&mut self, key: &str, n: usize) -> String {
        match self {
            Self::Rust(database) => {
                let n = i64::try_from(n).unwrap();
                in_rust::change_order(database, key, n).await.unwrap().to_string()
            }
            Self::Program(program) => tokio::task::block_in_place(|| program.change(key, n)),
        }
    }
}

impl Program {
    fn change(&mut self, key: &str, n: usize) -> String {
        writeln!(self.input, "{key} {n}").unwrap();
        let id = self.output.next();
        id.unwrap_or_else(|| panic!("the producer in {} has ended", self.language)).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
