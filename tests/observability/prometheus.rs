//! A Prometheus for one test, which scrapes each second and has the alert rules.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;
use url::Url;

use crate::support::child_guard::{dismiss, watched};
use crate::support::environment::variable;
use crate::support::outbox::eventually;
use crate::support::ports::free_port;
use crate::support::process::Postrider;
use crate::support::prometheus::list_target;

/// A server that ends with this value, together with its data.
pub struct Prometheus {
    process: Child,
    base: Url,
    http: reqwest::Client,
    folder: TempDir,
    since: SystemTime,
}

impl Prometheus {
    /// Starts it, without targets.
    pub async fn start(rules: &Path) -> Self {
        let binary = variable("POSTRIDER_TEST_PROMETHEUS");
        let (folder, port) = (TempDir::new().unwrap(), free_port());
        let targets = folder.path().join("targets");
        std::fs::create_dir(&targets).unwrap();
        let config = json!({
            "global": {
                "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
            },
            "rule_files": [rules],
            "scrape_configs": [{
                "job_name": "unnamed",
                "file_sd_configs": [{ "files": [targets.join("*.json")], "refresh_interval": "1s" }],
            }],
        });
        // JSON is YAML.
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(binary);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("tsdb").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.arg("--log.level=error");
        let mut command = watched(&command, Some(folder.path()));
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let base = Url::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
        let (http, since) = (reqwest::Client::new(), SystemTime::now());
        let prometheus = Self { process, base, http, folder, since };
        eventually("Prometheus", || async {
            let url = prometheus.base.join("-/ready").unwrap();
            prometheus.http.get(url).send().await.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        prometheus
    }

    /// Scrapes a process from now on, under these labels.
    pub async fn scrape(&self, postrider: &Postrider, labels: &[(&str, &str)]) {
        let folder = self.folder.path();
        let file = folder.join(format!("targets/{}.json", postrider.id()));
        list_target(postrider, labels, &file, folder).await;
    }

    /// How many rules it has; asserts that none has failed.
    pub async fn rules(&self) -> usize {
        let data = self.ask("api/v1/rules", &[]).await;
        let groups = data["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        rules.inspect(|rule| assert_ne!(rule["health"], "err", "{rule}")).count()
    }

    /// The labels of a query's result at this moment.
    pub async fn now(&self, query: &str) -> Vec<Value> {
        let data = self.ask("api/v1/query", &[("query", query)]).await;
        let found = data["result"].as_array().unwrap().iter();
        found.map(|series| json!([series["metric"], series["value"][1]])).collect()
    }

    /// Every value of a query at any second since the start, except NaN.
    pub async fn ever(&self, query: &str) -> Vec<f64> {
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string()
        };
        let (start, end) = (seconds(self.since), seconds(SystemTime::now()));
        let range = [("query", query), ("start", &start), ("end", &end), ("step", "1")];
        let data = self.ask("api/v1/query_range", &range).await;
        let series = data["result"].as_array().unwrap().iter();
        let samples = series.flat_map(|series| series["values"].as_array().unwrap());
        let values = samples.map(|sample| sample[1].as_str().unwrap().parse::<f64>().unwrap());
        values.filter(|value| !value.is_nan()).collect()
    }

    /// The values of a label among the series that match.
    pub async fn label_values(&self, series: &str, label: &str) -> Vec<String> {
        let data = self.ask(&format!("api/v1/label/{label}/values"), &[("match[]", series)]).await;
        let values = data.as_array().unwrap().iter();
        values.map(|value| value.as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a query has a result.
    pub async fn until(&self, query: &str) {
        let limit = Duration::from_secs(40);
        let waiting = eventually(query, || async { !self.now(query).await.is_empty() });
        let waited = tokio::time::timeout(limit, Box::pin(waiting)).await;
        assert!(waited.is_ok(), "not within {limit:?}: {query}");
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let url = Url::parse_with_params(self.base.join(path).unwrap().as_str(), parameters);
        let answer = self.http.get(url.unwrap()).send().await.unwrap();
        let mut answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        answer["data"].take()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        dismiss(&mut self.process);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
