//! The OpenAPI description, checked by schemathesis.

use std::path::Path;
use std::process::Command;

use crate::api::Api;
use crate::support::outbox::TestOutbox;

/// The variable with the path of a Python with schemathesis.
const PYTHON: &str = "POSTRIDER_TEST_SCHEMATHESIS";

#[fixture::test]
async fn served_description_equals_the_repositorys() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.tokens=[\"t\"]", "api.wow_routes=true"]).await;

    let served = api.get("/openapi.json").await;

    assert_eq!(served.text, include_str!("../../schema/openapi.json"));
    assert_eq!(served.body["openapi"], "3.1.0");
    api.stop().await;
}

#[fixture::test]
async fn schemathesis_finds_no_deviation() {
    let python = std::env::var(PYTHON)
        .unwrap_or_else(|_| panic!("{PYTHON} is not set: run the tests by `make test`"));
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.tokens=[\"t\"]", "api.wow_routes=true"]).await;
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/schemathesis.toml");
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command.current_dir(dir.path()).args(["-m", "schemathesis.cli"]);
    command.arg("--config-file").arg(settings).arg("run");
    command.arg(format!("http://{}/openapi.json", api.address));
    command.args(["-H", "Authorization: Bearer t", "--checks", "all", "--seed", "1"]);
    command.args(["--max-examples", "10", "--no-color"]);

    let checking = tokio::task::spawn_blocking(move || command.output().unwrap());
    let found = checking.await.unwrap();

    let report = String::from_utf8_lossy(&found.stdout);
    let said = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "{report}\n{said}\n{}", api.postrider.stderr());
    api.stop().await;
}
