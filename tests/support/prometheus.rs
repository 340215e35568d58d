//! The metrics of a running process, read through a real Prometheus and promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use url::Url;

use super::environment::{unique, variable};
use super::outbox::eventually;
use super::process::Postrider;

/// Every label that a series may have; none of them contains an id.
pub const LABELS: [&str; 16] = [
    "pool",
    "sink",
    "outcome",
    "status",
    "what",
    "reason",
    "version",
    "revision",
    "le",
    "cause",
    "source",
    "operation",
    "state",
    "method",
    "route",
    "code",
];

/// The Prometheus of this test run. It scrapes one process, until this value is dropped.
pub struct Scraped {
    name: String,
    file: PathBuf,
    http: reqwest::Client,
}

impl Scraped {
    pub async fn new(postrider: &Postrider) -> Self {
        let name = unique("test_");
        let folder = PathBuf::from(variable("POSTRIDER_TEST_PROMETHEUS_TARGETS"));
        let file = folder.join(format!("{name}.json"));
        list_target(postrider, &[("test", &name)], &file, &folder).await;
        let http = reqwest::Client::new();
        let scraped = Self { name, file, http };
        eventually("the first scrape", || async { !scraped.query("up == 1").await.is_empty() })
            .await;
        scraped
    }

    /// All samples of this process, as Prometheus returns them.
    pub async fn everything(&self) -> String {
        let base = format!("{}/api/v1/query", variable("POSTRIDER_TEST_PROMETHEUS_URL"));
        let query = format!("{{test={:?}}}", self.name);
        let url = Url::parse_with_params(&base, [("query", query)]).unwrap();
        self.http.get(url).send().await.unwrap().text().await.unwrap()
    }

    /// The result of an instant query for this process: values by the labels that Postrider set.
    pub async fn query(&self, query: &str) -> BTreeMap<BTreeMap<String, String>, f64> {
        let base = format!("{}/api/v1/query", variable("POSTRIDER_TEST_PROMETHEUS_URL"));
        // `up == 1` → `up{test="…"} == 1`
        let (name, rest) = query.split_once(' ').unwrap_or((query, ""));
        let query = format!("{name}{{test={:?}}} {rest}", self.name);
        let url = Url::parse_with_params(&base, [("query", query)]).unwrap();
        let answer: Value = self.http.get(url).send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "success", "{answer}");
        let found = answer["data"]["result"].as_array().unwrap().iter().map(|series| {
            let labels = series["metric"].as_object().unwrap().iter();
            let ours = labels
                .filter(|(name, _)| !["__name__", "instance", "job", "test"].contains(&&***name))
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
            (ours.collect(), series["value"][1].as_str().unwrap().parse().unwrap())
        });
        found.collect()
    }

    /// Waits until a metric has exactly these series with these values.
    pub async fn until(&self, metric: &str, wanted: &[(&[(&str, &str)], f64)]) {
        let owned = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let wanted: BTreeMap<_, _> =
            wanted.iter().map(|(labels, value)| (owned(labels), *value)).collect();
        let limit = Duration::from_secs(20);
        let waiting = eventually(metric, || async { self.query(metric).await == wanted });
        if tokio::time::timeout(limit, waiting).await.is_err() {
            panic!("{metric}: {:#?} instead of {wanted:#?}", self.query(metric).await);
        }
    }
}

impl Drop for Scraped {
    fn drop(&mut self) {
        // The file may be gone with its folder.
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Makes Prometheus scrape a process under these labels, by a file of targets. The file is drafted
/// in a folder next to it.
pub async fn list_target(
    postrider: &Postrider,
    labels: &[(&str, &str)],
    file: &Path,
    drafts: &Path,
) {
    let address = postrider.address().await.to_string();
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let targets = json!([{ "targets": [address], "labels": labels }]);
    // In one step: Prometheus may read it at any time.
    let draft = tempfile::NamedTempFile::new_in(drafts).unwrap();
    std::fs::write(draft.path(), targets.to_string()).unwrap();
    draft.persist(file).unwrap();
}

/// Runs promtool with this on its standard input; returns its output, and whether it succeeded.
pub fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(variable("POSTRIDER_TEST_PROMTOOL"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// Names of labels, and of the metrics that a page describes.
pub fn labels_and_metrics(page: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut labels = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((_, rest)) = line.split_once('{') else { continue };
        let (inner, _) = rest.rsplit_once('}').unwrap();
        let names = inner.split("\",").map(|label| label.split_once('=').unwrap().0.to_owned());
        labels.extend(names);
    }
    let described = page.lines().filter_map(|line| line.strip_prefix("# HELP "));
    (labels, described.map(|line| line.split(' ').next().unwrap().to_owned()).collect())
}
