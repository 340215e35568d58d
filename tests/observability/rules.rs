//! The alert rules: valid for promtool, each with its cases and its part of the runbook.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::prometheus::promtool;
use crate::{described, named, string, text};

pub const RULES: &str = "helm/postrider/files/alerts.yaml";
const CASES: &str = "tests/observability/alerts_test.yaml";
const PAGE: &str = "docs/monitoring.md";

/// The base URL of the documentation, which a mirror must replace.
const BASE: &str = "https://github.com/postrider/postrider/blob/main/";

/// An alert rule.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    pub severity: String,
    pub query: String,
    runbook: String,
    has_texts: bool,
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The rules, in the order of their file.
pub fn rules() -> Vec<Rule> {
    let file = yaml(RULES);
    let rule = |rule: &Value| {
        let annotation = |name: &str| string(&rule["annotations"][name]);
        Rule {
            name: string(&rule["alert"]),
            severity: string(&rule["labels"]["severity"]),
            query: string(&rule["expr"]),
            runbook: annotation("runbook_url"),
            has_texts: ["summary", "description"].iter().all(|it| !annotation(it).is_empty()),
        }
    };
    list(&file["groups"]).flat_map(|group| list(&group["rules"])).map(rule).collect()
}

#[test]
fn promtool_accepts_the_rules_and_every_case() {
    for arguments in [["check", "rules", RULES], ["test", "rules", CASES]] {
        let (content, said) = promtool(&arguments, "");
        assert!(content, "{said}");
    }
}

/// The expectation of the cases about one alert at one time: the severities that fire, none where
/// it is silent.
fn cases() -> BTreeMap<String, Vec<BTreeSet<String>>> {
    let file = yaml(CASES);
    let mut cases: BTreeMap<String, Vec<BTreeSet<String>>> = BTreeMap::new();
    for case in list(&file["tests"]).flat_map(|test| list(&test["alert_rule_test"])) {
        let fires = list(&case["exp_alerts"]).map(|it| string(&it["exp_labels"]["severity"]));
        cases.entry(string(&case["alertname"])).or_default().push(fires.collect());
    }
    cases
}

#[test]
fn each_alert_has_a_firing_and_a_silent_case() {
    let cases = cases();
    let rules = rules();

    for Rule { name, severity, .. } in &rules {
        let cases = cases.get(name).map_or(&[][..], Vec::as_slice);
        assert!(cases.iter().any(|fires| fires.contains(severity)), "{name} {severity} fires");
        assert!(cases.iter().any(|fires| !fires.contains(severity)), "{name} {severity} is silent");
    }
    let names: BTreeSet<&String> = rules.iter().map(|rule| &rule.name).collect();
    assert_eq!(names, cases.keys().collect());
}

#[test]
fn each_alert_has_texts_a_severity_and_a_runbook_section() {
    let page = text(PAGE);
    let (_, runbook) = page.split_once("\n## Runbook\n").unwrap();
    let sections = runbook.lines().filter_map(|line| line.strip_prefix("### "));
    let rules = rules();

    for Rule { name, severity, runbook, has_texts, .. } in &rules {
        assert!(has_texts, "{name}: summary and description");
        assert!(["critical", "warning"].contains(&&**severity), "{name}: {severity}");
        let anchor = name.to_lowercase();
        assert_eq!(*runbook, format!("{BASE}{PAGE}#{anchor}"), "{name}");
    }
    let names: BTreeSet<&str> = rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, sections.collect(), "a section for each, and no other");
    assert!(text("helm/postrider/files/dashboard.json").contains(BASE));
}

#[test]
fn alerts_use_existing_metrics() {
    let described = described();

    for Rule { name, query, .. } in rules() {
        let named = named(&query);
        assert!(!named.is_empty() && named.is_subset(&described), "{name}: {named:?}");
    }
}
