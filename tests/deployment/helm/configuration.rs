//! The rendered configuration: the same as the values, and valid for Postrider.

use serde_json::{Map, Value, json};

use super::chart::{Chart, Pod, Rendered, values, values_files, yaml};
use super::container::Files;
use super::valid::matrix;
use crate::support::process::finish;

/// The content of a Secret's file, by the key of the configuration that names it.
fn secret(path: &str) -> String {
    let text = match path {
        "mongo.uri" => "mongodb://relay:pa%20ss@mongo/shop?replicaSet=rs0",
        "api.tokens" => r#"[{ name = "shop", token = "t0ken-of-the-shop", scopes = ["append"] }]"#,
        // Kafka's client reads it at once.
        "files/ca.crt" => return certificate(),
        _ if path.ends_with(".uri") => "amqps://relay:pass@rabbitmq:5671/shop",
        _ => "s3cret-of-16-chars",
    };
    format!("{text}\n")
}

fn certificate() -> String {
    rcgen::generate_simple_self_signed(["kafka".to_owned()]).unwrap().cert.pem()
}

/// Runs `check --offline` as each container of Postrider would; the schema Job's prints the schema.
async fn accepted(name: &str, rendered: &Rendered) -> usize {
    let mut seen = 0;
    for pod in rendered.pods() {
        for container in pod.ours() {
            let pod_name = pod_name(&pod);
            let files = Files::of(rendered, &pod, container, secret);
            let arguments: &[&str] = match pod.kind() {
                "Job" => &["schema", "print"],
                _ => &["check", "--offline"],
            };
            let ended = finish(files.command(container, &pod_name, arguments)).await;
            assert_eq!(ended.code, Some(0), "{name}, {}: {ended}\n{}", pod.kind(), rendered.text);
            seen += 1;
        }
    }
    seen
}

fn pod_name(pod: &Pod) -> String {
    format!("{}-0", pod.of["metadata"]["name"].as_str().unwrap())
}

#[fixture::test(long)]
async fn postrider_accepts_every_rendered_configuration() {
    for (name, chart) in matrix() {
        // They name what is missing, and are not a configuration yet.
        if name != "defaults" {
            assert!(accepted(&name, &chart.render()).await > 0, "{name}: no container");
        }
    }
}

#[fixture::test(long)]
async fn a_misspelt_property_is_refused_by_postrider() {
    let rendered = Chart::running().with_text("extraArgs: [--set, relay.bach_size=1]").render();
    let pod = rendered.relay();
    let files = Files::of(&rendered, &pod, pod.ours()[0], secret);

    let ended = finish(files.command(pod.ours()[0], "shop-0", &["check", "--offline"])).await;

    assert!(ended.with_code(2).stderr.contains("relay.bach_size"));
}

#[fixture::test(long)]
async fn the_images_environment_does_not_take_precedence() {
    let rendered = Chart::running().set(&["config.ops.listen=0.0.0.0:9500"]).render();
    let pod = rendered.relay();
    let container = pod.ours()[0];
    let files = Files::of(&rendered, &pod, container, secret);

    let printed = finish(files.command(container, "shop-0", &["config", "print"])).await;

    assert!(printed.clone().with_code(0).stdout.contains("listen = \"0.0.0.0:9500\""), "{printed}");
    assert_eq!(container["ports"][0]["containerPort"], json!(9500));
}

/// The configuration of the release, as TOML reads it.
fn toml_of(rendered: &Rendered, name: &str) -> Value {
    let text = rendered.named("ConfigMap", name)["data"]["postrider.toml"].as_str().unwrap();
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}:\n{text}"));
    serde_json::to_value(table).unwrap()
}

/// The same without empty values, which TOML leaves out.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(table) => {
            let kept = table.iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// Adds all of `more`, table by table.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                merge(into.entry(name.clone()).or_insert(json!({})), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

#[test]
#[ignore = "long: make test-all"]
fn the_rendered_toml_equals_the_values() {
    for file in values_files() {
        let given = yaml(&std::fs::read_to_string(&file).unwrap());
        let given = without_nulls(&given["config"]);
        let rendered = Chart::new().with(&file).render();
        let name = rendered.all("ConfigMap").find_map(|map| {
            let is_it = map["metadata"]["annotations"].is_null();
            map["data"].get("postrider.toml").filter(|_| is_it)?;
            map["metadata"]["name"].as_str()
        });

        let made = toml_of(&rendered, name.unwrap());

        let mut both = made.clone();
        merge(&mut both, &given);
        assert_eq!(both, made, "{}: something of config is missing or altered", file.display());
    }
}

#[test]
#[ignore = "long: make test-all"]
fn every_value_reads_back_from_toml() {
    let odd = json!({
        "text": "quotes \" ' and \\ back\\slashes, <&>, \u{0}\u{1b}\u{7f}\u{85}\u{2028}\u{feff}, \r\n\t🙂",
        "looks like toml": "]\n[api]\nenabled = true\n#",
        "braces": "{{ .Values }} {type} {{",
        "": "an empty name",
        "dotted.name": 1, "ключ": 2, "a \"quoted\" one": 3,
        "integers": [0, -1, 500, 1_000_000, 17_825_792, 4_294_967_296_u64, 9_007_199_254_740_991_u64],
        "floats": [0.1, 1.5, -2.25, 1e-7],
        "booleans": [true, false],
        "like a number": ["500", "1e6", "true", "null", "2026-01-01"],
        "empty list": [], "empty table": {}, "empty text": "",
        "lists": [[1, 2], [], ["a"]],
        "tables": [{ "a": { "b": [{ "c": 1 }] } }, {}, { "d.e": "f" }],
        "mixed": [1, "a", { "b": 2 }],
    });
    let queue = json!({ "name": "odd", "arguments": odd });
    let sinks = json!({ "r": { "kind": "rabbitmq", "declare": { "queues": [queue] } } });
    // YAML needs these escaped, and serde_json does not escape them.
    let values = json!({ "config": { "sinks": sinks } }).to_string();
    let values = ['\u{7f}', '\u{85}', '\u{2028}', '\u{feff}']
        .iter()
        .fold(values, |values, odd| values.replace(*odd, &format!("\\u{:04x}", u32::from(*odd))));
    let chart = Chart::with_image().with_text(&values);

    let made = toml_of(&chart.render(), "shop-postrider");

    assert_eq!(made["sinks"], sinks);
}

#[test]
#[ignore = "long: make test-all"]
fn a_null_is_not_a_value() {
    let kafka = "stream: {kind: kafka, properties: {linger.ms: 5, acks: null}}";
    let values = format!("config: {{log: {{format: null}}, sinks: {{{kafka}}}}}");

    let made = toml_of(&Chart::running().with_text(&values).render(), "shop-postrider");

    assert_eq!(made["log"], json!({}));
    assert_eq!(made["sinks"]["stream"]["properties"], json!({ "linger.ms": 5 }));
}

/// The value of a key in the configuration of these settings.
fn value(settings: &[&str], section: &str, key: &str) -> Value {
    toml_of(&Chart::running().set(settings).render(), "shop-postrider")[section][key].clone()
}

#[test]
#[ignore = "long: make test-all"]
fn an_enabled_api_listens_outside_the_pod() {
    let api = ["config.api.enabled=true", "secrets.keys.api\\.tokens=tokens"];

    assert_eq!(value(&[], "api", "enabled"), json!(false));
    assert_eq!(value(&api, "api", "listen"), json!("0.0.0.0:8080"));
}

#[test]
#[ignore = "long: make test-all"]
fn the_relay_creates_no_schema_next_to_a_schema_job() {
    let made = |settings: &[&str]| value(settings, "outbox", "auto_init_schema");

    assert_eq!(made(&[]), Value::Null);
    assert_eq!(made(&["schemaJob.enabled=true"]), json!(false));
    let both = ["schemaJob.enabled=true", "config.outbox.auto_init_schema=true"];
    assert_eq!(made(&both), json!(true));
}

#[test]
#[ignore = "long: make test-all"]
fn only_a_changed_configuration_restarts_the_pods() {
    let checksum = |settings: &[&str]| {
        let rendered = Chart::running().set(settings).render();
        rendered.relay().metadata["annotations"]["checksum/config"].clone()
    };
    let before = checksum(&[]);

    assert_eq!(checksum(&["replicaCount=5", "apiService.port=90"]), before);
    assert_ne!(checksum(&["config.relay.batch_size=100"]), before);
    let static_of = |replicas: &str| {
        let replicas = format!("replicaCount={replicas}");
        checksum(&["workload.kind=StatefulSet", "staticPartitions=true", &replicas])
    };
    assert_ne!(static_of("2"), static_of("3"), "other shares");
}

#[test]
#[ignore = "long: make test-all"]
fn manifests_contain_only_names_of_secrets() {
    let chart = Chart::new().with(&values("kafka-sasl"));
    let rendered = chart.render();
    let relay = rendered.relay();
    let variables: Map<String, Value> = relay.ours()[0]["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| (variable["name"].as_str().unwrap().to_owned(), variable["value"].clone()))
        .collect();

    assert_eq!(
        Value::Object(variables),
        json!({
            "POD_NAME": null,
            "POSTRIDER_CONFIG": "/etc/postrider/config/postrider.toml",
            "POSTRIDER__OPS__LISTEN": "0.0.0.0:9464",
            "POSTRIDER__MONGO__URI_FILE": "/etc/postrider/secrets/mongo.uri",
            "POSTRIDER__SINKS__STREAM__PROPERTIES__SASL_PASSWORD_FILE":
                "/etc/postrider/secrets/sinks.stream.properties.sasl.password",
        })
    );
}
