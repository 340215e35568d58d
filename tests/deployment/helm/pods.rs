//! Every pod that the chart makes, with Job and test: its limits, and its connections.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::chart::{Chart, Rendered, list, values};
use super::valid::matrix;

/// The rules of "restricted" (Pod Security Standards) that a pod breaks.
fn breaches(spec: &Value, containers: &[&Value]) -> Vec<String> {
    let mut breaches = Vec::new();
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec.get(key).is_some_and(|value| value != &json!(false)) {
            breaches.push(key.to_owned());
        }
    }
    let permitted = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    for volume in list(&spec["volumes"]) {
        let is_other = |kind: &&String| *kind != "name" && !permitted.contains(&kind.as_str());
        breaches.extend(volume.as_object().unwrap().keys().filter(is_other).cloned());
    }
    for container in containers {
        let (own, pods) = (&container["securityContext"], &spec["securityContext"]);
        let either = |path: &str| own.pointer(path).or_else(|| pods.pointer(path)).cloned();
        let mut unless = |right: bool, what: &str| {
            if !right {
                breaches.push(format!("{}: {what}", container["name"]));
            }
        };
        unless(own["privileged"] != json!(true), "privileged");
        unless(own["allowPrivilegeEscalation"] == json!(false), "allowPrivilegeEscalation");
        unless(own["capabilities"] == json!({ "drop": ["ALL"] }), "capabilities");
        unless(either("/runAsNonRoot") == Some(json!(true)), "runAsNonRoot");
        unless(either("/runAsUser") != Some(json!(0)), "runAsUser");
        let seccomp = either("/seccompProfile/type");
        unless(seccomp == Some(json!("RuntimeDefault")), "seccompProfile");
        unless(list(&container["ports"]).all(|port| port.get("hostPort").is_none()), "hostPort");
    }
    breaches
}

#[test]
#[ignore = "long: make test-all"]
fn every_pod_passes_the_restricted_pod_security_standard() {
    let mut kinds = BTreeSet::new();
    for (name, chart) in matrix() {
        for pod in chart.render().pods() {
            kinds.insert(pod.kind().to_owned());
            let found = breaches(pod.spec, &pod.containers());
            assert_eq!(found, Vec::<String>::new(), "{name}, {}", pod.kind());
            let token = &pod.spec["automountServiceAccountToken"];
            assert_eq!(token, &json!(false), "{name}, {}", pod.kind());
        }
    }
    let all = ["Deployment", "Job", "Pod", "StatefulSet"].map(str::to_owned);
    assert_eq!(kinds, BTreeSet::from(all));
}

#[test]
#[ignore = "long: make test-all"]
fn every_container_has_limits_and_a_read_only_root() {
    for (name, chart) in matrix() {
        for pod in chart.render().pods() {
            assert!(!pod.ours().is_empty(), "{name}, {}", pod.kind());
            for container in pod.ours() {
                let context = &container["securityContext"];
                assert_eq!(context["readOnlyRootFilesystem"], json!(true), "{name}");
                for path in ["/requests/cpu", "/requests/memory", "/limits/memory"] {
                    assert!(container["resources"].pointer(path).is_some(), "{name}: {path}");
                }
            }
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn mounts_and_volumes_match() {
    for (name, chart) in matrix() {
        for pod in chart.render().pods() {
            let volumes: BTreeSet<Option<&str>> =
                list(&pod.spec["volumes"]).map(|volume| volume["name"].as_str()).collect();
            let containers = pod.containers();
            let mounts = containers.iter().flat_map(|container| list(&container["volumeMounts"]));
            let mounted: BTreeSet<Option<&str>> =
                mounts.map(|mount| mount["name"].as_str()).collect();
            assert_eq!(mounted, volumes, "{name}, {}", pod.kind());
        }
    }
}

/// Whether labels match a selector.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().unwrap();
    !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The labels of every pod of the relay, wherever it is.
fn relays(rendered: &Rendered) -> Vec<Value> {
    rendered.relays().map(|pod| pod.metadata["labels"].clone()).collect()
}

#[test]
#[ignore = "long: make test-all"]
fn selectors_match_exactly_the_relays() {
    for (name, chart) in matrix() {
        let rendered = chart.render();
        let relays = relays(&rendered);
        let all = rendered.pods();
        let others: Vec<&Value> = all
            .iter()
            .filter(|pod| ["Job", "Pod"].contains(&pod.kind()))
            .map(|pod| &pod.metadata["labels"])
            .collect();
        let selectors = ["Service", "PodDisruptionBudget", "Deployment", "StatefulSet"]
            .iter()
            .flat_map(|kind| rendered.all(kind))
            .map(|manifest| {
                let selector = &manifest["spec"]["selector"];
                (manifest, selector.get("matchLabels").unwrap_or(selector))
            });
        for (manifest, selector) in selectors {
            let what = format!("{name}, {} {}", manifest["kind"], manifest["metadata"]["name"]);
            assert!(relays.iter().all(|labels| selects(selector, labels)), "{what}");
            assert!(!others.iter().any(|labels| selects(selector, labels)), "{what}: too many");
        }
        for spread in relays_spread(&rendered) {
            assert!(name.contains("everything") || selects(&spread, &relays[0]), "{name}");
        }
    }
}

fn relays_spread(rendered: &Rendered) -> Vec<Value> {
    let pods = rendered.pods();
    let constraints = pods.iter().flat_map(|pod| list(&pod.spec["topologySpreadConstraints"]));
    constraints.map(|constraint| constraint["labelSelector"]["matchLabels"].clone()).collect()
}

#[test]
#[ignore = "long: make test-all"]
fn a_service_monitor_matches_the_metrics_service_alone() {
    for (name, chart) in matrix() {
        let rendered = chart.render();
        for monitor in rendered.all("ServiceMonitor") {
            let selector = &monitor["spec"]["selector"]["matchLabels"];
            let found: Vec<&Value> = rendered
                .all("Service")
                .filter(|service| selects(selector, &service["metadata"]["labels"]))
                .collect();
            assert_eq!(found.len(), 1, "{name}");
            let port = &monitor["spec"]["endpoints"][0]["port"];
            assert_eq!(&found[0]["spec"]["ports"][0]["name"], port, "{name}");
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_scaler_names_the_workload_and_decides_the_replicas() {
    for (file, kind) in [("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")] {
        let rendered = Chart::new().with(&values(file)).render();
        let target = &rendered.only(kind)["spec"]["scaleTargetRef"];
        let workload = rendered.relay().of;

        assert_eq!(target["kind"], workload["kind"], "{file}");
        assert_eq!(target["name"], workload["metadata"]["name"], "{file}");
        assert_eq!(workload["spec"].get("replicas"), None, "{file}: each upgrade would reset it");
    }
}

#[test]
#[ignore = "long: make test-all"]
fn keda_queries_this_releases_age_by_the_monitors_labels() {
    let rendered = Chart::new().with(&values("keda")).render();
    let trigger = &rendered.only("ScaledObject")["spec"]["triggers"][0];
    let service = rendered.only("Service")["metadata"]["name"].as_str().unwrap();

    let query = format!(
        "max(postrider_oldest_pending_age_seconds{{namespace=\"shop\", service=\"{service}\"}})"
    );
    assert_eq!(trigger["metadata"]["query"], json!(query));
    assert_eq!(trigger["metricType"], json!("Value"));
    assert_eq!(trigger["metadata"]["ignoreNullValues"], json!("false"));
    assert!(rendered.all("ServiceMonitor").count() == 1);
}

#[test]
#[ignore = "long: make test-all"]
fn the_api_has_a_service_only_where_it_listens_outside_the_pod() {
    let services = |settings: &[&str]| {
        let rendered = Chart::running().set(settings).render();
        let names = rendered.all("Service").map(|service| service["metadata"]["name"].to_string());
        let port = list(&rendered.relay().ours()[0]["ports"]).any(|port| port["name"] == "api");
        (names.filter(|name| name.contains("-api")).count(), port)
    };

    assert_eq!(services(&[]), (0, false));
    let tokens = "secrets.keys.api\\.tokens=tokens";
    assert_eq!(services(&["config.api.enabled=true", tokens]), (1, true));
    let inside = ["config.api.enabled=true", "config.api.listen=127.0.0.1:8080"];
    assert_eq!(services(&inside), (0, false));
}

#[test]
#[ignore = "long: make test-all"]
fn a_network_policy_permits_dns_mongodb_and_brokers_alone() {
    let rendered =
        Chart::running().set(&["networkPolicy.enabled=true", "schemaJob.enabled=true"]).render();
    for policy in rendered.all("NetworkPolicy") {
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        let ports: Vec<&Value> =
            list(&policy["spec"]["egress"]).flat_map(|rule| list(&rule["ports"])).collect();
        let numbers: Vec<u64> = ports.iter().map(|port| port["port"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [53, 53, 27017, 5671, 5672, 9092, 9093, 9094]);
    }
    let relays = &relays(&rendered)[0];
    let covers = |policy: &Value, labels: &Value| {
        selects(&policy["spec"]["podSelector"]["matchLabels"], labels)
    };
    let own = rendered.named("NetworkPolicy", "shop-postrider");
    let hook = rendered.named("NetworkPolicy", "shop-postrider-schema");
    let job = &rendered.only("Job")["spec"]["template"]["metadata"]["labels"];
    assert!(covers(own, relays) && covers(hook, job) && !covers(hook, relays));
    assert!(hook["metadata"]["annotations"]["helm.sh/hook"].is_string(), "before the Job");
}

#[test]
#[ignore = "long: make test-all"]
fn a_sidecar_starts_before_the_application_and_ends_after_it() {
    let rendered = Chart::sidecar().render();
    let pod = rendered.relay();
    let first = &pod.spec["initContainers"][0];

    assert_eq!(first["restartPolicy"], json!("Always"), "else it would have to end first");
    assert_eq!(first["name"], json!("postrider"));
    // 30 s for the application, 25 s and 5 s for Postrider.
    assert_eq!(pod.spec["terminationGracePeriodSeconds"], json!(60));
    // The pod's group is the application's choice.
    let modes =
        list(&pod.spec["volumes"]).filter_map(|volume| volume["projected"]["defaultMode"].as_u64());
    assert_eq!(modes.collect::<Vec<_>>(), [0o444]);
    let labels = &pod.metadata["labels"];
    assert!(selects(&rendered.only("Service")["spec"]["selector"], labels));
}

#[test]
#[ignore = "long: make test-all"]
fn no_pod_needs_no_dependent_objects() {
    let rendered = Chart::new().with(&values("none")).render();
    let kinds: BTreeSet<&str> =
        rendered.manifests.iter().map(|manifest| manifest["kind"].as_str().unwrap()).collect();

    assert_eq!(kinds, BTreeSet::from(["ConfigMap", "Job", "Service", "ServiceMonitor"]));
}
