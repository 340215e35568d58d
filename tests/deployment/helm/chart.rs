//! Runs Helm as a user does, and reads the rendered chart.

use crate::support::environment::variable;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The folder of helm, kubeconform and the schemas.
pub fn home() -> PathBuf {
    variable("POSTRIDER_TEST_HELM_HOME").into()
}

/// A file of the repository.
pub fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The values files next to the chart, by name.
pub fn values_files() -> Vec<PathBuf> {
    let files = std::fs::read_dir(at_root("helm/postrider/ci")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// One of them.
pub fn values(name: &str) -> PathBuf {
    at_root(&format!("helm/postrider/ci/{name}-values.yaml"))
}

pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// The elements of a list; none where there is no list.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Runs Helm with these arguments, without the user's own configuration.
fn helm(arguments: &[&str]) -> (bool, String) {
    let own = TempDir::new().unwrap();
    let output = Command::new(home().join("helm"))
        .args(arguments)
        .envs(
            ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"]
                .map(|name| (name, own.path())),
        )
        .output()
        .unwrap();
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// A chart with the values to render it with.
#[derive(Default)]
pub struct Chart {
    folder: PathBuf,
    arguments: Vec<String>,
    // Made for this one alone.
    kept: Option<TempDir>,
}

impl Chart {
    /// Postrider's chart with its defaults, as the release `shop` in the namespace `shop`.
    pub fn new() -> Self {
        Self { folder: at_root("helm/postrider"), ..Self::default() }
    }

    /// The same with the one value that has no default.
    pub fn with_image() -> Self {
        Self::new().set(&["image.repository=registry.example/postrider"])
    }

    /// The example of a sidecar, its dependency fetched.
    pub fn sidecar() -> Self {
        let kept = TempDir::new().unwrap();
        for chart in ["postrider", "sidecar-example"] {
            copy(&at_root("helm").join(chart), &kept.path().join(chart));
        }
        let folder = kept.path().join("sidecar-example");
        let (fetched, said) = helm(&["dependency", "update", folder.to_str().unwrap()]);
        assert!(fetched, "{said}");
        Self { folder, kept: Some(kept), ..Self::default() }
    }

    /// The smallest chart that runs.
    pub fn running() -> Self {
        Self::new().with(&values("rabbitmq"))
    }

    /// Adds a values file.
    pub fn with(mut self, values: &Path) -> Self {
        self.arguments.extend(["--values".to_owned(), values.to_str().unwrap().to_owned()]);
        self
    }

    /// Adds a values file with this text.
    pub fn with_text(mut self, text: &str) -> Self {
        let kept = self.kept.take().unwrap_or_else(|| TempDir::new().unwrap());
        let file = kept.path().join(format!("values-{}.yaml", self.arguments.len()));
        std::fs::write(&file, text).unwrap();
        self.kept = Some(kept);
        self.with(&file)
    }

    /// `key=value`, as `--set` takes it.
    pub fn set(mut self, settings: &[&str]) -> Self {
        for setting in settings {
            self.arguments.extend(["--set".to_owned(), (*setting).to_owned()]);
        }
        self
    }

    /// Adds another argument.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    fn call(&self, command: &[&str]) -> (bool, String) {
        let mut arguments = command.to_vec();
        arguments.push(self.folder.to_str().unwrap());
        arguments.extend(self.arguments.iter().map(String::as_str));
        helm(&arguments)
    }

    /// Whether `helm lint --strict` reports nothing; else its report.
    pub fn lint(&self) -> Result<(), String> {
        let (well, said) = self.call(&["lint", "--strict"]);
        // A failing template is only a remark to lint.
        if well && !said.contains("[ERROR]") && !said.contains("[WARNING]") {
            Ok(())
        } else {
            Err(said)
        }
    }

    fn template(&self, further: &[&str]) -> (bool, String) {
        self.call(&[&["template", "shop", "--namespace", "shop"], further].concat())
    }

    /// The manifests.
    #[track_caller]
    pub fn render(&self) -> Rendered {
        self.render_by(&[])
    }

    /// The manifests for a version of Kubernetes.
    #[track_caller]
    pub fn render_for(&self, version: &str) -> Rendered {
        self.render_by(&["--kube-version", version])
    }

    #[track_caller]
    fn render_by(&self, further: &[&str]) -> Rendered {
        let (well, text) = self.template(further);
        assert!(well, "{text}");
        let manifests: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let manifests = manifests.into_iter().filter(|manifest| !manifest.is_null()).collect();
        Rendered { text, manifests }
    }

    /// The error with which it is refused.
    #[track_caller]
    pub fn refused(&self) -> String {
        let (well, said) = self.template(&[]);
        assert!(!well, "it is not refused:\n{said}");
        said
    }

    /// The notes at the end of an installation.
    #[track_caller]
    pub fn notes(&self) -> String {
        let (well, said) =
            self.call(&["install", "shop", "--namespace", "shop", "--dry-run=client"]);
        assert!(well, "{said}");
        said.split_once("\nNOTES:\n").unwrap().1.to_owned()
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// All manifests.
pub struct Rendered {
    pub text: String,
    pub manifests: Vec<Value>,
}

impl Rendered {
    /// The objects of a kind.
    pub fn all<'a>(&'a self, kind: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        let kind = kind.to_owned();
        self.manifests.iter().filter(move |manifest| manifest["kind"] == kind)
    }

    /// The only object of a kind.
    #[track_caller]
    pub fn only(&self, kind: &str) -> &Value {
        let all: Vec<&Value> = self.all(kind).collect();
        assert_eq!(all.len(), 1, "of {kind}:\n{}", self.text);
        all[0]
    }

    /// An object by kind and name.
    #[track_caller]
    pub fn named(&self, kind: &str, name: &str) -> &Value {
        let found = self.all(kind).find(|manifest| manifest["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}:\n{}", self.text))
    }

    /// Every pod, as its name, its metadata and its spec: of workloads, Jobs, and by itself.
    pub fn pods(&self) -> Vec<Pod<'_>> {
        let pods = self.manifests.iter().filter_map(|manifest| {
            let template = match manifest["kind"].as_str()? {
                "Pod" => manifest,
                "Deployment" | "StatefulSet" | "Job" => &manifest["spec"]["template"],
                _ => return None,
            };
            Some(Pod { of: manifest, metadata: &template["metadata"], spec: &template["spec"] })
        });
        pods.collect()
    }

    /// The pods in which a relay runs.
    pub fn relays(&self) -> impl Iterator<Item = Pod<'_>> {
        let workload = |pod: &Pod| ["Deployment", "StatefulSet"].contains(&pod.kind());
        self.pods().into_iter().filter(workload)
    }

    /// The first of them.
    #[track_caller]
    pub fn relay(&self) -> Pod<'_> {
        self.relays().next().expect("no workload")
    }
}

/// A pod as it is rendered.
pub struct Pod<'a> {
    /// The object that creates it.
    pub of: &'a Value,
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

impl<'a> Pod<'a> {
    pub fn kind(&self) -> &'a str {
        self.of["kind"].as_str().unwrap()
    }

    /// All containers, with the init containers.
    pub fn containers(&self) -> Vec<&'a Value> {
        list(&self.spec["initContainers"]).chain(list(&self.spec["containers"])).collect()
    }

    /// Postrider's containers.
    pub fn ours(&self) -> Vec<&'a Value> {
        let is_ours = |container: &&Value| {
            container["image"]
                .as_str()
                .unwrap()
                .split([':', '@'])
                .next()
                .unwrap()
                .ends_with("postrider")
        };
        self.containers().into_iter().filter(is_ours).collect()
    }
}
