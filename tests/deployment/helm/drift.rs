//! Values, their schema, the configuration's keys and the documentation, compared with each other.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::chart::{Chart, at_root, yaml};
use crate::support::doc_page::{Block, DocPage};

fn read(path: &str) -> String {
    std::fs::read_to_string(at_root(path)).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&read("helm/postrider/values.schema.json")).unwrap()
}

/// The keys of values that the schema names one by one.
fn compare(values: &Value, schema: &Value, path: &str) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let values = values.as_object().unwrap_or_else(|| panic!("{path} is no table"));
    let of = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
    let mut wanted = of(properties.keys().collect());
    if path.is_empty() {
        // Helm's own.
        wanted.remove("global");
        wanted.remove("enabled");
    }
    let given = of(values.keys().collect());
    // A key that is not in `config` has Postrider's own default.
    if path != ".config" {
        assert_eq!(given, wanted, "below {path:?}");
        values.iter().for_each(|(name, value)| {
            compare(value, &properties[name], &format!("{path}.{name}"));
        });
    }
}

#[test]
#[ignore = "long: make test-all"]
fn values_and_their_schema_have_the_same_keys() {
    compare(&yaml(&read("helm/postrider/values.yaml")), &schema(), "");
}

#[test]
#[ignore = "long: make test-all"]
fn the_values_file_of_everything_is_complete() {
    let values = yaml(&read("helm/postrider/values.yaml"));
    let everything = yaml(&read("helm/postrider/ci/everything-values.yaml"));
    // These exclude others; files of their own have them.
    let apart = ["staticPartitions", "autoscaling", "keda", "sidecar", "tests"];
    // Not split: they are tables of Kubernetes.
    let kept = [
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
        "podSecurityContext",
        "securityContext",
    ];

    let missing: Vec<&String> = values
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| everything.get(name).is_none())
        .filter(|name| !apart.contains(&name.as_str()) && !kept.contains(&name.as_str()))
        .collect();

    assert_eq!(missing, Vec::<&String>::new());
}

#[test]
#[ignore = "long: make test-all"]
fn every_value_has_a_comment() {
    let text = read("helm/postrider/values.yaml");
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_key = |line: &str| {
        let line = line.trim_start();
        line.split_once(':').is_some_and(|(name, _)| {
            // A table's name describes its parts.
            !line.ends_with(':')
                && !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        })
    };
    let mut seen = 0;
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_key(line)) {
        // Parts of one table share a comment: above the first, or above the table.
        let mut above = at;
        let has_comment = loop {
            if above == 0 {
                break false;
            }
            above -= 1;
            let earlier = lines[above];
            if earlier.trim_start().starts_with('#') {
                break true;
            }
            if earlier.trim().is_empty() {
                break false;
            }
        };
        assert!(has_comment || indent(line) > 2, "values.yaml:{}: {line}", at + 1);
        seen += 1;
    }
    assert!(seen > 100, "{seen}");
}

#[test]
#[ignore = "long: make test-all"]
fn examples_in_the_documentation_render() {
    let mut examples = DocPage::read(Path::new("docs/kubernetes.md")).blocks();
    examples.retain(|block| block.language == "yaml");
    assert!(examples.len() > 8, "{}", examples.len());

    for Block { place, code, .. } in examples {
        let chart = Chart::running().with_text(&code);
        if let Err(said) = chart.lint() {
            panic!("{place}: {said}");
        }
        chart.render();
    }
}

#[test]
#[ignore = "long: make test-all"]
fn values_in_the_documentation_exist() {
    let page = read("docs/kubernetes.md");
    let schema = schema();
    let mut seen = 0;
    for code in page.split('`').skip(1).step_by(2).filter(|code| !code.contains(['\n', ' '])) {
        let code = code.split('=').next().unwrap();
        let mut parts = code.split('.');
        let top = parts.next().unwrap();
        if code.contains('/') || schema["properties"].get(top).is_none() {
            continue;
        }
        let mut at = &schema["properties"][top];
        for part in parts {
            let Some(properties) = at["properties"].as_object() else { break };
            at = properties
                .get(part)
                .unwrap_or_else(|| panic!("docs/kubernetes.md names {code}, which is no value"));
        }
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}
