//! The dashboard: the queries and texts of its panels.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{described, named, string, text};

const FILE: &str = "helm/postrider/files/dashboard.json";

/// A panel of the dashboard.
#[derive(Debug)]
pub struct Panel {
    pub title: String,
    pub queries: Vec<String>,
    json: Value,
}

/// A variable: its values are those of a label in some series.
#[derive(Debug)]
pub struct Variable {
    pub name: String,
    pub series: String,
    pub label: String,
}

fn dashboard() -> Value {
    serde_json::from_str(&text(FILE)).unwrap()
}

/// The panels, without the rows.
pub fn panels() -> Vec<Panel> {
    let dashboard = dashboard();
    let all = dashboard["panels"].as_array().unwrap().iter();
    let panels = all.filter(|panel| panel["type"] != "row");
    let panel = |panel: &Value| {
        let targets = panel["targets"].as_array().unwrap().iter();
        let queries = targets.map(|target| string(&target["expr"])).collect();
        Panel { title: string(&panel["title"]), queries, json: panel.clone() }
    };
    panels.map(panel).collect()
}

/// The queries that mark alerts on every graph.
pub fn annotations() -> Vec<String> {
    let dashboard = dashboard();
    let list = dashboard["annotations"]["list"].as_array().unwrap().iter();
    list.map(|annotation| string(&annotation["expr"])).collect()
}

/// The variables with a Prometheus query.
pub fn variables() -> Vec<Variable> {
    let dashboard = dashboard();
    let list = dashboard["templating"]["list"].as_array().unwrap().iter();
    let asked = list.filter(|variable| variable["type"] == "query");
    let variable = |variable: &Value| {
        let query = string(&variable["query"]["query"]);
        let inner = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
        let (series, label) = inner.unwrap().rsplit_once(", ").unwrap();
        let (series, label) = (series.to_owned(), label.to_owned());
        Variable { name: string(&variable["name"]), series, label }
    };
    asked.map(variable).collect()
}

/// A query as Grafana sends it, with these values of the variables (`All` elsewhere).
pub fn filled_in(query: &str, chosen: &[(&str, &str)]) -> String {
    let mut query = query.replace("$__rate_interval", "5s");
    for Variable { name, .. } in variables() {
        let value = chosen.iter().find(|(chosen, _)| *chosen == name).map_or(".*", |it| it.1);
        query = query.replace(&format!("${name}"), value);
    }
    assert!(!query.contains('$'), "{query}");
    query
}

#[test]
fn each_panel_has_a_description_and_a_unit() {
    let mut titles = BTreeSet::new();
    for Panel { title, queries, json } in panels() {
        assert!(!title.is_empty() && titles.insert(title.clone()), "a title of its own: {json}");
        assert!(json["description"].as_str().is_some_and(|it| it.len() > 20), "{title}");
        assert!(json["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        assert_eq!(json["datasource"]["uid"], "${datasource}", "{title}");
        assert!(!queries.is_empty(), "{title}");
        for target in json["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let has_legend = !string(&target["legendFormat"]).is_empty() || json["type"] == "table";
            assert!(has_legend, "{title}");
        }
    }
}

/// False claims, of the past or likely ones: a panel's title, with a word that its description must
/// not have.
const FALSE_CLAIMS: [(&str, &str); 4] = [
    // The TTL index is partial on `done`.
    ("Dead", "or retention"),
    ("Dead", "retention removes them"),
    ("Dead", "expire"),
    ("Pending", "retention"),
];

#[test]
fn no_description_repeats_a_known_false_claim() {
    let panels = panels();
    for (title, claim) in FALSE_CLAIMS {
        let panel = panels.iter().find(|panel| panel.title == title);
        let panel = panel.unwrap_or_else(|| panic!("no panel {title}"));
        let description = string(&panel.json["description"]);
        assert!(!description.contains(claim), "{title}: {description}");
    }
}

#[test]
fn every_metric_is_on_the_dashboard_and_no_other() {
    let variables = variables().into_iter().map(|variable| variable.series);
    let of_variables: BTreeSet<String> = variables.flat_map(|series| named(&series)).collect();
    let shown = panels().into_iter().flat_map(|panel| panel.queries);
    let shown: BTreeSet<String> = shown.flat_map(|query| named(&query)).collect();

    assert_eq!(shown, described());
    assert!(of_variables.is_subset(&shown));
}

#[test]
fn every_panel_uses_the_variables_and_has_its_place() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "on top of another: {panel}");
            }
        }
    }
    for Panel { title, queries, .. } in panels() {
        for query in queries {
            let selectors = query.matches('{').count();
            for variable in ["namespace=~\"$namespace\"", "job=~\"$job\""] {
                assert_eq!(query.matches(variable).count(), selectors, "{title}: {query}");
            }
        }
    }
}
