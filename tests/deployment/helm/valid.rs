//! Each values file: `helm lint --strict`, and the schemas of Kubernetes, oldest and newest.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::chart::{Chart, at_root, home, values, values_files, yaml};

/// By name: the defaults, each values file, the sidecar's example.
pub fn matrix() -> Vec<(String, Chart)> {
    let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
    let files = values_files();
    let charts = files.iter().map(|file| (name(file), Chart::new().with(file)));
    let others = [("defaults", Chart::with_image()), ("sidecar-example", Chart::sidecar())];
    charts.chain(others.map(|(name, chart)| (name.to_owned(), chart))).collect()
}

/// The versions of Kubernetes with schemas, as `1.30.0`.
fn versions() -> Vec<String> {
    let folders = std::fs::read_dir(home().join("schemas")).unwrap();
    let name = |folder: std::fs::DirEntry| folder.file_name().into_string().unwrap();
    let mut versions: Vec<String> =
        folders.map(|folder| name(folder.unwrap()).trim_start_matches('v').to_owned()).collect();
    versions.sort();
    versions
}

/// The operators' own kinds as JSON schemas, below a folder as `group/kind_version.json`.
fn operators() -> TempDir {
    let folder = TempDir::new().unwrap();
    for file in std::fs::read_dir(home().join("crds")).unwrap() {
        let crd = yaml(&std::fs::read_to_string(file.unwrap().path()).unwrap());
        let spec = &crd["spec"];
        for version in spec["versions"].as_array().unwrap() {
            let mut schema = version["schema"]["openAPIV3Schema"].clone();
            close(&mut schema);
            // The API server knows this of every object.
            schema["properties"]["metadata"] = json!({ "type": "object" });
            let kind = spec["names"]["kind"].as_str().unwrap().to_lowercase();
            let path = folder
                .path()
                .join(spec["group"].as_str().unwrap())
                .join(format!("{kind}_{}.json", version["name"].as_str().unwrap()));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, schema.to_string()).unwrap();
        }
    }
    folder
}

/// Refuses unknown fields: the API server would drop them silently.
fn close(schema: &mut Value) {
    if let Some(table) = schema.as_object_mut() {
        let keeps = table.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
        if table.contains_key("properties") && !keeps {
            table.entry("additionalProperties").or_insert(json!(false));
        }
        for (_, below) in table {
            close(below);
        }
    } else if let Some(list) = schema.as_array_mut() {
        list.iter_mut().for_each(close);
    }
}

/// The errors of kubeconform for a manifest, and the number of objects that it checked.
fn validate(manifests: &Path, version: &str, operators: &Path) -> (bool, Value) {
    let location = |path: PathBuf| path.to_str().unwrap().to_owned();
    let output = Command::new(home().join("kubeconform"))
        .args(["-strict", "-summary", "-output", "json", "-kubernetes-version", version])
        .arg("-schema-location")
        .arg(location(
            home()
                .join("schemas")
                .join("{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json"),
        ))
        .arg("-schema-location")
        .arg(location(operators.join("{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json")))
        .arg(manifests)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.success(), found)
}

#[test]
#[ignore = "long: make test-all"]
fn every_values_file_passes_a_strict_lint() {
    for (name, chart) in matrix() {
        if let Err(said) = chart.lint() {
            panic!("{name}: {said}");
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn manifests_are_valid_for_oldest_and_newest_kubernetes() {
    let (folder, operators, versions) = (TempDir::new().unwrap(), operators(), versions());
    assert_eq!(versions.len(), 2, "{versions:?}");

    for (name, chart) in matrix() {
        for version in &versions {
            let rendered = chart.render_for(version);
            let file = folder.path().join(format!("{name}-{version}.yaml"));
            std::fs::write(&file, &rendered.text).unwrap();

            let (valid, found) = validate(&file, version, operators.path());

            assert!(valid, "{name} at {version}: {found:#}");
            let seen = &found["summary"];
            assert_eq!(seen["valid"], json!(rendered.manifests.len()), "{name}: {found:#}");
            assert_eq!(seen["skipped"], json!(0), "{name}: {found:#}");
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn the_validation_finds_an_unknown_field() {
    let (folder, operators) = (TempDir::new().unwrap(), operators());
    let version = &versions()[0];
    let rendered = Chart::new().with(&values("everything")).render();
    for (kind, path) in [
        ("Deployment", "/spec/template/spec/containers/0"),
        ("ServiceMonitor", "/spec/endpoints/0"),
        ("PrometheusRule", "/spec/groups/0/rules/0"),
        ("NetworkPolicy", "/spec/egress/0"),
    ] {
        let mut manifest = rendered.all(kind).next().unwrap().clone();
        manifest.pointer_mut(path).unwrap()["preStopp"] = json!(1);
        let file = folder.path().join(format!("{kind}.yaml"));
        std::fs::write(&file, manifest.to_string()).unwrap();

        let (valid, found) = validate(&file, version, operators.path());

        assert!(!valid && found.to_string().contains("preStopp"), "{kind}: {found:#}");
    }
}

#[test]
#[ignore = "long: make test-all"]
fn the_chart_requires_the_oldest_tested_kubernetes() {
    let chart = yaml(&std::fs::read_to_string(at_root("helm/postrider/Chart.yaml")).unwrap());

    assert_eq!(chart["kubeVersion"], json!(format!(">={}-0", versions()[0])));
    let older = Chart::running().argument("--kube-version=1.29.9").refused();
    assert!(older.contains("1.29.9"), "{older}");
}

#[test]
#[ignore = "long: make test-all"]
fn the_chart_has_this_version_of_postrider() {
    let chart = yaml(&std::fs::read_to_string(at_root("helm/postrider/Chart.yaml")).unwrap());

    assert_eq!(chart["appVersion"], json!(env!("CARGO_PKG_VERSION")));
}
