//! Other implementations, run by a Python that `scripts/services.sh` installs.

use super::environment::variable;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The variable with that Python.
const PYTHON: &str = "POSTRIDER_TEST_PYTHON";

/// Runs `tests/oracle/<script>`, which reads JSON and answers with JSON.
pub async fn ask(script: &str, arguments: &[&str], question: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(script);
    let mut command = Command::new(python());
    command.arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let question = question.to_string();
    let asking = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        // The script reads everything before it answers.
        child.stdin.take().unwrap().write_all(question.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let ended = asking.await.unwrap();
    assert!(ended.status.success(), "its own words are on standard error");
    serde_json::from_slice(&ended.stdout).unwrap()
}

/// That Python.
pub fn python() -> String {
    variable(PYTHON)
}
