//! The alert rules: right by promtool, each with its cases and its part of the runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::prometheus::{Prometheus, Rule};
use crate::{described, file, named, text};

pub const RULES: &str = "helm/postrider/files/alerts.yaml";
const CASES: &str = "tests/watching/alerts_test.yaml";
const PAGE: &str = "docs/monitoring.md";

/// Where the documentation is: what a mirror has to replace.
const BASE: &str = "https://github.com/postrider/postrider/blob/main/";

async fn rules() -> Vec<Rule> {
    Prometheus::start(&file(RULES)).await.rules().await
}

fn promtool(arguments: &[&str]) {
    let binary = std::env::var("POSTRIDER_TEST_PROMTOOL").expect("run it by `make test`");
    let mut command = Command::new(binary);
    let output = command.args(arguments).current_dir(file("")).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
}

#[test]
fn promtool_is_content_with_the_rules_and_with_every_case() {
    promtool(&["check", "rules", RULES]);
    promtool(&["test", "rules", CASES]);
}

/// What the cases expect of one alert at one time: the severities that fire, none where it is silent.
fn cases() -> BTreeMap<String, Vec<BTreeSet<String>>> {
    let page = text(CASES);
    let mut cases: BTreeMap<String, Vec<BTreeSet<String>>> = BTreeMap::new();
    for case in page.split("alertname: ").skip(1) {
        let end = case.find([',', '\n']).unwrap();
        let severities = case.split("severity: ").skip(1);
        let severity = |rest: &str| rest.split([',', ' ']).next().unwrap().to_owned();
        let fires = severities.map(severity).collect();
        cases.entry(case[..end].to_owned()).or_default().push(fires);
    }
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let cases = cases();
    let rules = rules().await;

    for Rule { name, severity, .. } in &rules {
        let cases = cases.get(name).map_or(&[][..], Vec::as_slice);
        assert!(cases.iter().any(|fires| fires.contains(severity)), "{name} {severity} fires");
        assert!(cases.iter().any(|fires| !fires.contains(severity)), "{name} {severity} is silent");
    }
    let names: BTreeSet<&String> = rules.iter().map(|rule| &rule.name).collect();
    assert_eq!(names, cases.keys().collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_has_its_texts_a_severity_and_a_section_of_the_runbook() {
    let page = text(PAGE);
    let (_, runbook) = page.split_once("\n## Runbook\n").unwrap();
    let sections = runbook.lines().filter_map(|line| line.strip_prefix("### "));
    let rules = rules().await;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_go_by_metrics_that_there_are() {
    let described = described();

    for Rule { name, query, .. } in rules().await {
        let named = named(&query);
        assert!(!named.is_empty() && named.is_subset(&described), "{name}: {named:?}");
    }
}
