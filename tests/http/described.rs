//! The OpenAPI description, checked by a validator, by schemathesis, and by a client that is generated from it.

use std::path::Path;
use std::process::Command;

use crate::api::Api;
use crate::support::outbox::TestOutbox;

/// The variable with the path of a Python with schemathesis and openapi-spec-validator.
const PYTHON: &str = "POSTRIDER_TEST_SCHEMATHESIS";

/// The variable with the folder of the generator's packages.
const GENERATOR: &str = "POSTRIDER_TEST_OPENAPI";

/// The variable with the folder of node.
const NODE: &str = "POSTRIDER_TEST_NODE";

/// The description in the repository, which is the served one.
const DESCRIPTION: &str = "schema/openapi.json";

fn required(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests by `make test`"))
}

/// Runs a command that must succeed.
async fn succeed(mut command: Command) {
    let running = tokio::task::spawn_blocking(move || (command.output().unwrap(), command));
    let (done, command) = running.await.unwrap();
    let said =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(4_000).collect::<String>();
    let (out, err) = (said(&done.stdout), said(&done.stderr));
    assert!(done.status.success(), "{command:?}:\n{out}\n{err}");
}

#[fixture::test(long)]
async fn description_is_valid_openapi() {
    let mut validator = Command::new(required(PYTHON));
    validator.current_dir(env!("CARGO_MANIFEST_DIR"));
    validator.args(["-m", "openapi_spec_validator", DESCRIPTION]);

    succeed(validator).await;
}

#[fixture::test(long)]
async fn client_that_is_generated_from_the_description_compiles_and_works() {
    let (node, packages) = (required(NODE), required(GENERATOR));
    let (source, packages) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(&packages));
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.tokens=[\"t\"]"]).await;
    let dir = tempfile::tempdir().unwrap();
    let symlink = std::os::unix::fs::symlink;
    symlink(packages.join("node_modules"), dir.path().join("node_modules")).unwrap();
    std::fs::copy(packages.join("package.json"), dir.path().join("package.json")).unwrap();
    for file in ["client.ts", "openapi-ts.config.mjs", "tsconfig.json"] {
        std::fs::copy(source.join("tests/http/client").join(file), dir.path().join(file)).unwrap();
    }
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(Path::new(&node).join("node"));
        command.current_dir(dir.path()).env("DESCRIPTION", source.join(DESCRIPTION));
        command.arg(program).args(arguments);
        succeed(command)
    };

    run("node_modules/@hey-api/openapi-ts/bin/run.js", &["--silent"]).await;
    run("node_modules/typescript/bin/tsc", &[]).await;
    run("client.js", &[&format!("http://{}", api.address)]).await;

    api.stop().await;
}

#[fixture::test]
async fn served_description_equals_the_repositorys() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.tokens=[\"t\"]", "api.wow_routes=true"]).await;

    let served = api.get("/openapi.json").await;

    assert_eq!(served.text, include_str!("../../schema/openapi.json"));
    assert_eq!(served.body["openapi"], "3.1.0");
    api.stop().await;
}

#[fixture::test(long)]
async fn schemathesis_finds_no_deviation() {
    let python = required(PYTHON);
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
