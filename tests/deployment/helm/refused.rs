//! Invalid values: refused before anything is installed, by a message that names them.

use super::chart::Chart;

/// Asserts that it is refused, with these words.
fn refuses(settings: &[&str], words: &[&str]) {
    let said = Chart::running().set(settings).refused();
    for word in words {
        assert!(said.contains(word), "{settings:?}: no {word:?} in: {said}");
    }
}

#[test]
#[ignore = "long: make test-all"]
fn values_that_exclude_each_other_are_refused() {
    let keda = ["keda.enabled=true", "keda.serverAddress=http://p:9090"];
    let sts = "workload.kind=StatefulSet";
    for (settings, words) in [
        (
            vec!["autoscaling.enabled=true", keda[0], keda[1]],
            vec!["autoscaling.enabled", "keda.enabled"],
        ),
        (
            vec![sts, "staticPartitions=true", "autoscaling.enabled=true"],
            vec!["staticPartitions", "autoscaling.enabled"],
        ),
        (
            vec![sts, "staticPartitions=true", keda[0], keda[1]],
            vec!["staticPartitions", "keda.enabled"],
        ),
        (vec!["staticPartitions=true"], vec!["staticPartitions", "workload.kind Deployment"]),
        (
            vec![sts, "staticPartitions=true", "replicaCount=257"],
            vec!["staticPartitions", "replicaCount 257"],
        ),
        (vec![sts, "staticPartitions=true", "replicaCount=0"], vec!["replicaCount 0"]),
        (
            vec!["config.partitions.static=0-127"],
            vec!["config.partitions.static", "replicaCount 1"],
        ),
        (
            vec![sts, "staticPartitions=true", "config.partitions.static=0-9"],
            vec!["config.partitions.static"],
        ),
        (
            vec!["workload.kind=None", "autoscaling.enabled=true"],
            vec!["autoscaling.enabled", "None"],
        ),
        (
            vec!["autoscaling.enabled=true", "autoscaling.minReplicas=9"],
            vec!["autoscaling.minReplicas 9"],
        ),
        (vec![keda[0]], vec!["keda.serverAddress"]),
        (vec!["config.instance.name=relay"], vec!["config.instance.name", "leave it out"]),
        (vec!["image.repository="], vec!["image.repository is empty", "registry.example"]),
        (
            vec!["metrics.serviceMonitor.enabled=true", "metrics.service.enabled=false"],
            vec!["metrics.service.enabled"],
        ),
        (vec!["config.ops.listen=127.0.0.1:9464"], vec!["config.ops.listen", "127.0.0.1"]),
        (vec!["config.ops.listen=0.0.0.0:0"], vec!["config.ops.listen"]),
        (vec!["config.api.enabled=true"], vec!["config.api.listen", "api.tokens"]),
        (
            vec!["config.api.enabled=true", "apiTls.existingSecret=tls"],
            vec!["api.tokens", "config.api.allow_unauthenticated = true"],
        ),
        (
            vec!["apiTls.existingSecret=tls", "config.api.tls.cert_file=/a"],
            vec!["apiTls.existingSecret", "config.api.tls"],
        ),
        (vec!["secrets.existingSecret="], vec!["secrets.keys.mongo.uri", "secrets.existingSecret"]),
    ] {
        refuses(&settings, &words);
    }
    // A release with static partitions of its own is valid.
    Chart::running().set(&["replicaCount=1", "config.partitions.static=0-127"]).render();
}

#[test]
#[ignore = "long: make test-all"]
fn unknown_values_are_refused() {
    for (setting, word) in [
        ("replicaCounts=2", "replicaCounts"),
        ("config.relay.batchsize=5", "batchsize"),
        ("config.sinks.orders.url=x", "url"),
        ("config.relay.batch_size=many", "batch_size"),
        ("config.relay.lease=30", "lease"),
        ("config.log.format=xml", "format"),
        ("workload.kind=DaemonSet", "kind"),
        ("image.digest=latest", "digest"),
        ("secrets.keys.mongo_uri=x", "mongo_uri"),
        ("keda.minReplicas=0", "minReplicas"),
        ("config.sinks.a\\.b.kind=stdout", "a.b"),
    ] {
        refuses(&[setting], &[word, "schema"]);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_secret_in_the_configuration_is_refused_and_not_printed() {
    for (key, value) in [
        ("mongo.uri", "mongodb://u:pl4nted@h/db"),
        ("mongo.uri", "mongodb://u:pl4nted/@h/db"),
        ("mongo.uri", "mongodb://h/db?tlsCertificateKeyFilePassword=pl4nted"),
        ("mongo.sources.a.uri", "mongodb://u:pl4nted@h/db"),
        ("connection_strings.mongo", "mongodb://u:pl4nted@h/db"),
        ("sinks.orders.uri", "amqp://u:pl4nted@h"),
        ("sinks.stream.properties.sasl\\.password", "pl4nted"),
        ("sinks.stream.properties.ssl.key.pem", "pl4nted"),
        ("sinks.stream.properties.sasl\\.oauthbearer\\.client\\.secret", "pl4nted"),
        ("api.tokens[0]", "pl4nted"),
        ("api.tokens[0].token", "pl4nted"),
    ] {
        let said = Chart::running().set(&[&format!("config.{key}={value}")]).refused();

        let name = key.split('[').next().unwrap().replace('\\', "");
        assert!(said.contains(&name) && said.contains("Secret"), "{key}: {said}");
        assert!(!said.contains("pl4nted"), "{key}: {said}");
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_uri_without_a_password_is_permitted_in_the_configuration() {
    for (key, value) in [
        ("mongo.uri", "mongodb://h1:27017\\,h2:27017/db?replicaSet=rs0"),
        ("mongo.uri", "mongodb://user@h/db?authMechanism=MONGODB-X509"),
        ("sinks.orders.uri", "amqp://h:5672/%2f"),
        ("sinks.stream.properties.sasl\\.username", "u"),
    ] {
        Chart::running()
            .set(&["config.sinks.stream.kind=kafka", &format!("config.{key}={value}")])
            .render();
    }
}

#[test]
#[ignore = "long: make test-all"]
fn the_notes_name_what_is_missing() {
    let bare = Chart::with_image().notes();
    for words in
        ["secrets.keys[\"mongo.uri\"]", "config.sinks", "/readyz", "metrics.serviceMonitor.enabled"]
    {
        assert!(bare.contains(words), "no {words}: {bare}");
    }
    let without_uri = Chart::with_image().set(&["config.sinks.a.kind=rabbitmq"]).notes();
    assert!(without_uri.contains("secrets.keys[\"sinks.a.uri\"]"), "{without_uri}");

    let running = Chart::running().notes();
    assert!(!running.contains("MISSING"), "{running}");
    assert!(running.contains("deployment/shop-postrider"), "{running}");
}
