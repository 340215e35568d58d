//! TLS and logins, as an operator configures them: the real process with its file.

use std::path::Path;

use super::poison::to;
use crate::support::kafka::secure::{LOGIN, MUTUAL, PASSWORD, Secure, TLS};
use crate::support::outbox::{TestOutbox, mongodb_uri};
use crate::support::process::Postrider;

/// Delivers one record by a process with these properties, and checks that it does not print the
/// password.
async fn delivers(secure: &Secure, listener: &str, properties: &str) {
    let (topic, outbox) = (secure.topic(1).await, TestOutbox::new().await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("postrider.toml");
    let text = format!(
        "[mongo]\nuri = '{}'\ndatabase = '{}'\n\n[sinks.secure]\nkind = 'kafka'\nbrokers = '{}'\n\n\
         [sinks.secure.properties]\n{properties}",
        mongodb_uri(),
        outbox.database,
        secure.brokers(listener),
    );
    std::fs::write(&file, text).unwrap();
    outbox.insert([to(&topic, "m", "k")]).await;

    let mut postrider = Postrider::start_with_file(&file);
    postrider.until_ready().await;
    topic.until(1).await;

    assert_eq!(topic.read_ids().await, ["m"], "{properties}");
    let ended = postrider.stop().await;
    assert!(ended.is_free_of(PASSWORD), "{ended}");
}

fn file(path: &Path) -> String {
    format!("'{}'", path.display())
}

#[fixture::test]
async fn a_process_delivers_by_tls_with_a_configured_authority() {
    let secure = Secure::shared().await;
    let authority = file(&secure.authority());

    let properties = format!("security.protocol = 'ssl'\nssl.ca.location = {authority}\n");

    delivers(&secure, TLS, &properties).await;
}

#[fixture::test]
async fn a_process_delivers_by_mutual_tls() {
    let secure = Secure::shared().await;
    let authority = file(&secure.authority());
    let (certificate, key) = secure.client();

    // Both notations of a dotted name.
    let properties = format!(
        "'security.protocol' = 'ssl'\n[sinks.secure.properties.ssl]\nca.location = {authority}\n\
         certificate.location = {}\nkey.location = {}\n",
        file(&certificate),
        file(&key)
    );

    delivers(&secure, MUTUAL, &properties).await;
}

#[fixture::test]
async fn a_process_delivers_by_tls_with_a_login() {
    let secure = Secure::shared().await;
    let authority = file(&secure.authority());
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let properties = format!(
            "security.protocol = 'sasl_ssl'\nssl.ca.location = {authority}\n\
             sasl.mechanism = '{mechanism}'\nsasl.username = 'alice'\nsasl.password = '{PASSWORD}'\n"
        );

        delivers(&secure, LOGIN, &properties).await;
    }
}
