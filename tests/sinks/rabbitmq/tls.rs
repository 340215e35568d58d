//! `amqps`. The trusted authorities belong to the whole process, so each check is a process.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::outbox::mongodb_uri;
use crate::support::rabbitmq::node::{Node, turn};

/// The result of `postrider check` for a sink at the node, with trust in this authority.
async fn check(node: &Node, authority: &Path) -> Value {
    check_uri(&node.tls_uri(), authority).await
}

async fn check_uri(uri: &str, authority: &Path) -> Value {
    check_with(uri, "", Some(authority)).await
}

async fn check_with(uri: &str, keys: &str, trusted: Option<&Path>) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("postrider.toml");
    let text = format!(
        "[mongo]\nuri = '{}'\ndatabase = 'app'\n\n[sinks.secure]\nkind = 'rabbitmq'\nuri = '{}'\n{keys}",
        mongodb_uri(),
        uri
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(["check", "--output", "json", "--config"]).arg(&config);
    command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    command.envs(trusted.map(|authority| ("SSL_CERT_FILE", authority)));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let findings = findings.as_array().unwrap();
    findings.iter().find(|finding| finding["name"] == "sink secure").unwrap().clone()
}

#[fixture::test]
async fn amqps_is_verified_against_ssl_cert_file() {
    let turn = turn().await;

    let trusted = check(&turn.node, &turn.node.authority()).await;
    let unknown = check(&turn.node, &turn.node.stranger()).await;
    let in_clear = turn.node.tls_uri().replace("amqps:", "amqp:");
    let in_clear = check_uri(&in_clear, &turn.node.authority()).await;

    assert_eq!(trusted["ok"], true, "{trusted}");
    assert_eq!(unknown["ok"], false, "{unknown}");
    assert!(unknown["detail"].as_str().unwrap().contains("certificate"), "{unknown}");
    assert!(unknown["remedy"].as_str().unwrap().contains("SSL_CERT_FILE"), "{unknown}");
    assert!(in_clear["remedy"].as_str().unwrap().contains("amqps for TLS"), "{in_clear}");
}

#[fixture::test]
async fn login_and_authority_may_be_keys_of_the_sink() {
    let turn = turn().await;
    let (scheme, rest) =
        turn.node.tls_uri().split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let (user, host) = rest.split_once('@').unwrap_or(("guest:guest", &rest));
    let (name, password) = user.split_once(':').unwrap();
    let dir = tempfile::tempdir().unwrap();
    let keys = |password: &str, authority: &Path| {
        let file = dir.path().join("password");
        std::fs::write(&file, format!("{password}\n")).unwrap();
        format!(
            "username = '{name}'\npassword_file = '{}'\ntls.ca_file = '{}'\n",
            file.display(),
            authority.display()
        )
    };
    let uri = format!("{scheme}://{host}");

    let known = check_with(&uri, &keys(password, &turn.node.authority()), None).await;
    let wary = check_with(&uri, &keys(password, &turn.node.stranger()), None).await;
    let guessed = check_with(&uri, &keys("guessed", &turn.node.authority()), None).await;

    assert_eq!(known["ok"], true, "{known}");
    assert!(wary["detail"].as_str().unwrap().contains("certificate"), "{wary}");
    assert_eq!(guessed["ok"], false, "{guessed}");
    assert!(!guessed.to_string().contains("guessed"), "{guessed}");
}
