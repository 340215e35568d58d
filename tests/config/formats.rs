//! TOML, YAML and JSON files, variables in them, and what is wrong with sinks, each by file, line, key and
//! value, at `check` and at the start.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::support::command_line::{PLANTED, says, with_environment};
use crate::support::process::{Ended, call};

const TOML: &str = r#"[mongo]
uri = "mongodb://u:${PASSWORD}@h:1/app"
[relay]
batch_size = "${SIZE:-7}"
[sinks.out]
kind = "stdout"
[[routes]]
type = "${PREFIX}*"
headers = { price = "$${{amount}" }
"#;

const YAML: &str = r#"mongo:
  uri: mongodb://u:${PASSWORD}@h:1/app
instance:
relay: {batch_size: "${SIZE:-7}"}
sinks:
  out:
    kind: stdout
routes:
  - type: ${PREFIX}*
    headers: {price: "$${{amount}"}
"#;

const JSON: &str = r#"{
  "mongo": {"uri": "mongodb://u:${PASSWORD}@h:1/app"},
  "relay": {"batch_size": "${SIZE:-7}"},
	"sinks": {"out": {"kind": "stdout"}},
  "routes": [
    {"type": "${PREFIX}*", "headers": {"price": "$${{amount}"}}
  ]
}
"#;

fn file(suffix: &str, text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(suffix).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Asserts that `check` and `run` report these lines alone, and end with code 2.
async fn reports(suffix: &str, text: &str, lines: &[&str]) {
    let file = file(suffix, text);
    let path = file.path().to_str().unwrap();
    let run = call(&["run", "--config", path]).await.with_code(2);
    let check = call(&["check", "--offline", "--config", path]).await.with_code(2);

    let reported: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(reported.len(), lines.len(), "{run}");
    let is_in =
        |ended: &Ended, line: &str| ended.stderr.contains(line) || ended.stdout.contains(line);
    for line in lines {
        let line = line.replace("FILE", path);
        assert!(reported.contains(&format!("error: {line}").as_str()), "no {line:?} in {run}");
        assert!(is_in(&check, &line), "no {line:?} in {check}");
    }
}

#[fixture::test]
async fn toml_yaml_and_json_are_read_alike() {
    // As some editors on Windows write it.
    let marked = format!("\u{feff}{JSON}");
    let files =
        [(".toml", TOML), (".yaml", YAML), (".yml", YAML), (".json", JSON), (".json", &marked)];
    for (suffix, text) in files {
        let file = file(suffix, text);
        let environment = [("PASSWORD", PLANTED), ("PREFIX", "Order")];
        let arguments = ["config", "print", "--config", file.path().to_str().unwrap()];

        let ended = with_environment(&environment, &arguments).await.with_code(0);

        assert!(ended.is_free_of(PLANTED), "{ended}");
        let printed: toml::Table = ended.stdout.parse().unwrap();
        let printed: Value = serde_json::to_value(printed).unwrap();
        assert_eq!(printed["mongo"]["uri"], "mongodb://u:***@h:1/app", "{suffix}");
        assert_eq!(printed["relay"]["batch_size"], 7, "{suffix}");
        assert_eq!(printed["sinks"]["out"]["kind"], "stdout", "{suffix}");
        assert_eq!(printed["routes"][0]["type"], "Order*", "{suffix}");
        assert_eq!(printed["routes"][0]["headers"]["price"], "$${{amount}", "{suffix}");
    }
}

#[fixture::test]
async fn unset_variable_is_reported_with_its_place() {
    let file = file(".toml", TOML);
    let path = file.path().to_str().unwrap();

    let ended = call(&["run", "--config", path]).await.with_code(2);

    says(
        &ended,
        &[
            &format!(
                "error: {path}:2: mongo.uri: contains ${{PASSWORD}}, but the environment variable PASSWORD is not set; set it, or write ${{PASSWORD:-default}}"
            ),
            &format!(
                "error: {path}:8: routes.0.type = \"${{PREFIX}}*\": contains ${{PREFIX}}, but the environment variable PREFIX is not set"
            ),
        ],
    );
}

#[fixture::test]
async fn unknown_kind_and_key_of_another_kind_are_reported() {
    let kinds = "must be one of `rabbitmq`, `kafka`, `file`, `stdout`";
    let did_you_mean = format!("{kinds}; did you mean rabbitmq?");
    let toml = "[mongo]\nuri = \"mongodb://h/app\"\n[sinks.orders]\nkind = \"rabbit\"\n";
    let unknown = format!("FILE:4: sinks.orders.kind = \"rabbit\": {did_you_mean}");
    reports(".toml", toml, &[&unknown]).await;
    let yaml = "mongo: {uri: mongodb://h/app}\nsinks:\n  orders:\n    kind: kafka\n    brokers: h:1\n    exchange: x\n    declare:\n      queues: [{name: q}]\n";
    let of_rabbitmq = "applies only to sinks of kind \"rabbitmq\", not \"kafka\"; remove it";
    reports(
        ".yaml",
        yaml,
        &[
            &format!("FILE:6: sinks.orders.exchange = \"x\": {of_rabbitmq}"),
            &format!("FILE:8: sinks.orders.declare.queues: {of_rabbitmq}"),
        ],
    )
    .await;
    let json = "{\n \"mongo\": {\"uri\": \"mongodb://h/app\"},\n \"sinks\": {\n  \"f\": {\"kind\": \"file\"}\n }\n}";
    let path = "FILE:4: sinks.f.path: is not set; set it, for example to /folder/name.ndjson";
    reports(".json", json, &[path]).await;
}

#[fixture::test]
async fn invalid_file_is_reported_with_line_and_column() {
    for (suffix, text, place) in [
        (".toml", "[mongo]\nuri = \n", ":2:"),
        (".yaml", "mongo:\n  uri: [1, 2\nrelay: {}\n", ":"),
        (".yaml", "mongo:\n  uri: a\n  uri: b\n", ":3:3: the key uri appears twice"),
        (
            ".json",
            "{\"mongo\": {\"uri\": \"a\",\n\"uri\": \"b\"}}",
            ":2:1: the key uri appears twice",
        ),
        (".toml", "[mongo]\nuri = \"a\"\nuri = \"b\"\n", ":3:1: the key uri appears twice"),
        (".toml", "[mongo]\n[mongo]\n", ":2:2: the key mongo appears twice"),
        (
            ".toml",
            "[mongo]\n\"u i\" = 1\nsource = \"hush\"\n\"u i\" = \"hush\"\n",
            ":4:1: the key \"u i\" appears twice",
        ),
        (
            ".json",
            "{\"ops\": {\"listen\": \"\u{7f}\"}}",
            ":1:21: is JSON that Postrider does not read: a control character",
        ),
        (".yaml", "- a\n", ":1:"),
        (".json", "{\n \"mongo\": {,}\n}\n", ":2:"),
        (".json", "mongo: {}\n", ":1:"),
    ] {
        let file = file(suffix, text);
        let path = file.path().to_str().unwrap();

        let ended = call(&["check", "--offline", "--config", path]).await.with_code(2);

        says(&ended, &[&format!("error: {path}{place}")]);
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

#[fixture::test]
async fn schema_of_a_file_is_for_editors() {
    for (suffix, text) in [
        (".toml", "\"$schema\" = \"config.schema.json\"\n[sinks.out]\nkind = \"stdout\"\n"),
        (".yaml", "$schema: config.schema.json\nsinks: {out: {kind: stdout}}\n"),
        (
            ".json",
            "{\"$schema\": \"config.schema.json\", \"sinks\": {\"out\": {\"kind\": \"stdout\"}}}",
        ),
    ] {
        let file = file(suffix, text);
        let path = file.path().to_str().unwrap();
        let uri = "mongo.uri=mongodb://h/app";

        call(&["check", "--offline", "--config", path, "--set", uri]).await.with_code(0);
        let set = ["check", "--offline", "--config", path, "--set", "\"$schema\"=x"];
        says(&call(&set).await.with_code(2), &["\"$schema\": unknown key"]);
    }
    let schema = include_str!("../../schema/config.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    assert_eq!(schema["properties"]["$schema"]["type"], "string");
}

#[fixture::test]
async fn null_in_a_list_is_refused_where_it_stands() {
    for (suffix, text, place) in [
        (".yaml", "api:\n  tokens:\n  - a\n  -\n", ":4:4: api.tokens.1: is null"),
        (".yaml", "routes: [\n{type: a}, null]\n", ":2:12: routes.1: is null"),
        (".json", "{\"api\": {\"tokens\": [\n  null]}}", ":2:3: api.tokens.0: is null"),
    ] {
        let file = file(suffix, text);
        let path = file.path().to_str().unwrap();

        let ended = call(&["run", "--config", path]).await.with_code(2);

        says(
            &ended,
            &[&format!("error: {path}{place}"), "a list cannot contain; set a value, or remove it"],
        );
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

#[fixture::test]
async fn unknown_keys_of_yaml_are_answered_with_the_nearest() {
    let yaml =
        "mongo: {uri: mongodb://h/app}\nrelay:\n  batchsize: 5\nsinks: {out: {kind: stdout}}\n";
    let unknown = "FILE:3: relay.batchsize: unknown key; did you mean relay.batch_size?";
    let file = file(".yaml", yaml);
    let path = file.path().to_str().unwrap();

    let ended = call(&["run", "--config", path]).await.with_code(2);

    says(&ended, &[&unknown.replace("FILE", path)]);
}
