//! A container as Kubernetes would start it: its files in a folder, its environment, its arguments.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::chart::{Pod, Rendered, list};
use crate::support::process::command;

/// The folder in which the chart mounts everything.
const ROOT: &str = "/etc/postrider";

/// The files of one pod, each as its container sees it below [`ROOT`].
pub struct Files {
    folder: TempDir,
}

impl Files {
    /// Mounts the files of a container of ours. `secret` returns the content of a key of a Secret;
    /// the rest is in the manifests.
    pub fn of(
        rendered: &Rendered,
        pod: &Pod,
        container: &Value,
        secret: impl Fn(&str) -> String,
    ) -> Self {
        let files = Self { folder: TempDir::new().unwrap() };
        let volumes: BTreeMap<&str, &Value> = list(&pod.spec["volumes"])
            .map(|volume| (volume["name"].as_str().unwrap(), volume))
            .collect();
        for mount in list(&container["volumeMounts"]) {
            let Some(below) = mount["mountPath"].as_str().unwrap().strip_prefix(ROOT) else {
                continue;
            };
            let name = mount["name"].as_str().unwrap();
            let volume = volumes.get(name).unwrap_or_else(|| panic!("no volume {name}"));
            for (path, content) in contents(rendered, volume, &secret) {
                files.write(&format!("{}/{path}", below.trim_start_matches('/')), &content);
            }
        }
        files
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Where the configuration names a mounted file, it must be found here.
        std::fs::write(path, self.moved(content)).unwrap();
    }

    fn moved(&self, text: &str) -> String {
        text.replace(ROOT, self.folder.path().to_str().unwrap())
    }

    /// The container's process; `arguments` replace its own command, before its options.
    pub fn command(&self, container: &Value, pod_name: &str, arguments: &[&str]) -> Command {
        let given: Vec<&str> =
            list(&container["args"]).map(|argument| argument.as_str().unwrap()).collect();
        let options = given.iter().position(|argument| argument.starts_with('-'));
        let from = options.unwrap_or(given.len());
        let all = arguments.iter().chain(&given[from..]).map(|argument| self.moved(argument));
        let mut command = command(&[]);
        command.args(all);
        // The image's own environment (Dockerfile).
        command.env("POSTRIDER__OPS__LISTEN", "0.0.0.0:9464");
        for variable in list(&container["env"]) {
            let value = match variable["value"].as_str() {
                Some(value) => value.replace("$(POD_NAME)", pod_name),
                None => pod_name.to_owned(),
            };
            command.env(variable["name"].as_str().unwrap(), self.moved(&value));
        }
        command
    }
}

/// Path and content of each file of a volume.
fn contents(
    rendered: &Rendered,
    volume: &Value,
    secret: &impl Fn(&str) -> String,
) -> Vec<(String, String)> {
    if let Some(name) = volume["configMap"]["name"].as_str() {
        let data = rendered.named("ConfigMap", name)["data"].as_object().unwrap();
        return data
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
            .collect();
    }
    let projected = list(&volume["projected"]["sources"]).map(|source| &source["secret"]);
    let plain = volume.get("secret").into_iter();
    let items = projected.chain(plain).flat_map(|secret| list(&secret["items"]));
    items
        .map(|item| {
            let path = item["path"].as_str().unwrap().to_owned();
            (path.clone(), secret(&path))
        })
        .collect()
}
