//! `username`, `password_file` and `tls` in place of librdkafka's properties.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use postrider::sink::config::SinkConfig;
use postrider::sink::kafka::{Kafka, KafkaConfig, KafkaSettings};
use postrider::sink::{Address, Sink};
use postrider_settings::TlsConfig;
use serde_json::json;

use crate::support::kafka::secure::{LOGIN, MUTUAL, OPEN_LOGIN, PASSWORD, Secure, TLS};
use crate::support::message::message;

#[fixture::test]
async fn common_keys_log_in_on_every_listener() {
    let secure = Secure::shared().await;
    let dir = tempfile::tempdir().unwrap();
    let password_file = dir.path().join("password");
    std::fs::write(&password_file, format!("{PASSWORD}\n")).unwrap();
    let user = |own: KafkaConfig| KafkaConfig {
        username: Some("alice".to_owned()),
        password_file: Some(password_file.clone()),
        ..own
    };
    let tls = |own: KafkaConfig, client: Option<(PathBuf, PathBuf)>| {
        let (cert_file, key_file) = client.unzip();
        let tls = TlsConfig { ca_file: Some(secure.authority()), cert_file, key_file };
        KafkaConfig { tls: Some(tls), ..own }
    };
    let at = |listener| KafkaConfig::at(&secure.brokers(listener));

    for own in [
        user(at(OPEN_LOGIN)),
        user(tls(at(LOGIN), None)),
        tls(at(TLS), None),
        tls(at(MUTUAL), Some(secure.client())),
    ] {
        let sink = Kafka::new(KafkaSettings::new("test", own.clone())).unwrap();

        sink.probe().await.unwrap_or_else(|down| panic!("{own:?}: {down}"));

        assert!(!format!("{sink:?}").contains(PASSWORD));
    }
    let stranger = TlsConfig { ca_file: Some(secure.stranger()), ..TlsConfig::default() };
    let own = KafkaConfig { tls: Some(stranger), ..at(TLS) };
    let refused = Kafka::new(KafkaSettings::new("test", own)).unwrap().probe().await;
    assert!(refused.unwrap_err().detail.contains("certificate verify failed"));
}

/// A token without a signature, which the test's broker accepts.
fn token(lifetime_seconds: i64) -> String {
    let now = bson::DateTime::now().timestamp_millis() / 1_000;
    let claims = json!({ "sub": "alice", "iat": now - 3_600, "exp": now + lifetime_seconds });
    let [header, claims] = [json!({ "alg": "none" }), claims]
        .map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{header}.{claims}.")
}

#[fixture::test]
async fn token_file_logs_in_and_is_read_for_each_connection() {
    let (secure, dir) = (Secure::shared().await, tempfile::tempdir().unwrap());
    let topic = secure.topic(1).await;
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, token(-60)).unwrap();
    let at = KafkaConfig::at(&secure.brokers(OPEN_LOGIN));
    let own = KafkaConfig { token_file: Some(token_file.clone()), ..at.clone() };
    let mut settings = KafkaSettings::new("test", own);
    settings.delivery.timeout = Duration::from_secs(5);
    let sink = Kafka::new(settings).unwrap();

    let down = sink.probe().await.unwrap_err();
    assert!(down.detail.contains("has expired"), "{down}");
    assert!(down.remedy().is_some_and(|remedy| remedy.contains("token_file")), "{down}");
    std::fs::write(&token_file, format!("{}\n", token(600))).unwrap();
    sink.probe().await.unwrap();

    sink.publish(message("a", &topic.name, "k")).await.unwrap();
    let address = Address { destination: topic.name.clone(), key: None };
    KafkaConfig::look_up(&sink, &address).await.unwrap();
    assert_eq!(topic.read_ids().await, ["a"]);
    let properties = [("sasl.mechanism", "OAUTHBEARER"), ("security.protocol", "sasl_plaintext")];
    let without = KafkaConfig { properties: properties.into(), ..at };
    let refused = Kafka::new(KafkaSettings::new("test", without)).unwrap_err().to_string();
    assert!(refused.contains("sasl.mechanism") && refused.contains("token_file"), "{refused}");
}
