//! Alerts and dashboard, as the chart renders them.

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::chart::{Chart, at_root, yaml};
use crate::support::prometheus::promtool;

fn rules(settings: &[&str]) -> Value {
    let chart = Chart::running().set(&["prometheusRule.enabled=true"]).set(settings);
    chart.render().only("PrometheusRule")["spec"].clone()
}

fn file() -> Value {
    yaml(&std::fs::read_to_string(at_root("helm/postrider/files/alerts.yaml")).unwrap())
}

#[test]
#[ignore = "long: make test-all"]
fn the_alerts_are_rendered_unchanged() {
    assert_eq!(rules(&[]), file());
}

#[test]
#[ignore = "long: make test-all"]
fn alerts_can_be_disabled_and_labelled() {
    let all = file();
    let first = all["groups"][0]["rules"][0]["alert"].as_str().unwrap();

    let made = rules(&[
        &format!("prometheusRule.disabled={{{first}}}"),
        "prometheusRule.ruleLabels.team=shop",
    ]);

    let names = |rules: &Value| -> Vec<Value> {
        let groups = rules["groups"].as_array().unwrap();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
    };
    let (before, after) = (names(&all), names(&made));
    assert!(after.iter().all(|rule| rule["alert"] != json!(first)));
    assert_eq!(
        after.len(),
        before.len() - before.iter().filter(|rule| rule["alert"] == json!(first)).count()
    );
    assert!(
        after
            .iter()
            .filter(|rule| rule["alert"].is_string())
            .all(|rule| rule["labels"]["team"] == "shop")
    );

    let unknown = ["prometheusRule.enabled=true", "prometheusRule.disabled={Nothing}"];
    let said = Chart::running().set(&unknown).refused();
    assert!(said.contains("\"Nothing\"") && said.contains(first), "{said}");
}

#[test]
#[ignore = "long: make test-all"]
fn runbook_links_of_alerts_and_dashboard_start_with_the_value() {
    let page = "https://docs.example/postrider/monitoring.html";
    let settings =
        ["prometheusRule.enabled=true", "dashboard.enabled=true", &format!("runbookUrl={page}")];
    let rendered = Chart::running().set(&settings).render();

    let groups = rendered.only("PrometheusRule")["spec"]["groups"].clone();
    for rule in groups.as_array().unwrap().iter().flat_map(|it| it["rules"].as_array().unwrap()) {
        let anchor = rule["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(rule["annotations"]["runbook_url"], json!(format!("{page}#{anchor}")));
    }
    let dashboard = rendered.named("ConfigMap", "shop-postrider-dashboard");
    let dashboard = dashboard["data"]["shop-postrider.json"].as_str().unwrap();
    assert!(dashboard.contains(&format!("\"{page}#runbook\"")), "{dashboard}");
    assert!(!dashboard.contains("github.com/postrider"), "{dashboard}");
}

#[test]
#[ignore = "long: make test-all"]
fn promtool_accepts_the_labelled_rules() {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules(&["prometheusRule.ruleLabels.team=shop"]).to_string())
        .unwrap();

    let (content, said) = promtool(&["check", "rules", file.path().to_str().unwrap()], "");

    assert!(content, "{said}");
}

#[test]
#[ignore = "long: make test-all"]
fn the_dashboard_is_rendered_unchanged() {
    let rendered = Chart::running().set(&["dashboard.enabled=true"]).render();
    let map = rendered.named("ConfigMap", "shop-postrider-dashboard");
    let file = std::fs::read_to_string(at_root("helm/postrider/files/dashboard.json")).unwrap();

    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], json!("1"));
    let given = map["data"]["shop-postrider.json"].as_str().unwrap();
    assert_eq!(given.trim_end(), file.trim_end());
}
