//! TOML, YAML and JSON files, and variables in them.

use serde_json::Value;

use crate::support::command_line::{PLANTED, file_of, says, with_environment};
use crate::support::process::call;

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

#[fixture::test]
async fn toml_yaml_and_json_are_read_alike() {
    // As some editors on Windows write it.
    let marked = format!("\u{feff}{JSON}");
    let files =
        [(".toml", TOML), (".yaml", YAML), (".yml", YAML), (".json", JSON), (".json", &marked)];
    for (suffix, text) in files {
        let file = file_of(suffix, text);
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
async fn schema_of_a_file_is_for_editors() {
    for (suffix, text) in [
        (".toml", "\"$schema\" = \"config.schema.json\"\n[sinks.out]\nkind = \"stdout\"\n"),
        (".yaml", "$schema: config.schema.json\nsinks: {out: {kind: stdout}}\n"),
        (
            ".json",
            "{\"$schema\": \"config.schema.json\", \"sinks\": {\"out\": {\"kind\": \"stdout\"}}}",
        ),
    ] {
        let file = file_of(suffix, text);
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
