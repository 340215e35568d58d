//! The schema Job, on a real MongoDB: its containers create the schema that the relay waits for.

use serde_json::json;

use super::chart::Chart;
use super::container::Files;
use crate::support::outbox::TestOutbox;
use crate::support::process::finish;

/// Its own Secret, and other names than the outbox.
const VALUES: &str = "
schemaJob:
  enabled: true
  existingSecret: admin
  key: uri
  aggregates: [order]
  prepare: [email]
  extraEnv: [{name: POSTRIDER__LOG__LEVEL, value: debug}]
extraEnv: [{name: POSTRIDER__SINKS__ORDERS__EXCHANGE, value: orders}]
";

#[fixture::test(long)]
async fn the_job_creates_the_schema_for_the_relay() {
    let outbox = TestOutbox::new().await;
    outbox.client.database(&outbox.database).drop().await.unwrap();
    let database = format!("config.mongo.database={}", outbox.database);
    let rendered = Chart::running().with_text(VALUES).set(&[&database]).render();
    let job = rendered.pods().into_iter().find(|pod| pod.kind() == "Job").unwrap();
    let uri = |_: &str| format!("{}\n", outbox.uri);

    let mut said = Vec::new();
    for container in job.ours() {
        let files = Files::of(&rendered, &job, container, uri);
        let command = ["schema", "apply"];
        assert_eq!(container["args"].as_array().unwrap()[..2], command);
        let apply = files.command(container, "job", &command);
        said.push(finish(apply).await.with_code(0).stdout);
    }

    assert!(said[0].contains("created collection outbox_records"), "{said:?}");
    assert!(
        said[1].contains("order_event_stream") && said[1].contains("prepare_email"),
        "{said:?}"
    );
    let relay = rendered.relay();
    let container = relay.ours()[0];
    let files = Files::of(&rendered, &relay, container, |path| match path {
        "mongo.uri" => outbox.uri.clone(),
        _ => "amqp://nobody".to_owned(),
    });
    let verified = finish(files.command(container, "shop-0", &["schema", "verify"])).await;
    assert_eq!(verified.with_code(0).stdout, "");
}

#[test]
#[ignore = "long: make test-all"]
fn the_job_runs_before_the_release_and_needs_nothing_of_it() {
    let rendered = Chart::running().with_text(VALUES).render();
    let job = rendered.only("Job");
    let annotations =
        |name: &str, kind: &str| rendered.named(kind, name)["metadata"]["annotations"].clone();
    let weight = |annotations: &serde_json::Value| -> i32 {
        annotations["helm.sh/hook-weight"].as_str().unwrap().parse().unwrap()
    };
    let (own, map) = (
        annotations("shop-postrider-schema", "Job"),
        annotations("shop-postrider-schema", "ConfigMap"),
    );

    assert_eq!(own["helm.sh/hook"], json!("pre-install,pre-upgrade"));
    assert_eq!(map["helm.sh/hook"], own["helm.sh/hook"]);
    assert!(weight(&map) < weight(&own), "its ConfigMap is there first");
    let spec = &job["spec"]["template"]["spec"];
    assert_eq!(spec.get("serviceAccountName"), None, "the release's own is not there yet");
    assert_eq!(spec["restartPolicy"], json!("Never"));
    // Only its own variables and Secrets.
    let variables = spec["containers"][0]["env"].as_array().unwrap();
    let names: Vec<&str> =
        variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "POD_NAME",
            "POSTRIDER_CONFIG",
            "POSTRIDER__OPS__LISTEN",
            "POSTRIDER__MONGO__URI_FILE",
            "POSTRIDER__LOG__LEVEL"
        ]
    );
    let sources = spec["volumes"][1]["projected"]["sources"].as_array().unwrap();
    assert_eq!(sources.len(), 1);
    assert_eq!(sources[0]["secret"]["name"], json!("admin"));
}
