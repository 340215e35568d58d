//! `username`, `password_file` and `tls` in place of librdkafka's properties.

use std::path::PathBuf;

use postrider::sink::Sink;
use postrider::sink::kafka::{Kafka, KafkaConfig, KafkaSettings};
use postrider_settings::TlsConfig;

use crate::support::kafka::secure::{LOGIN, MUTUAL, OPEN_LOGIN, PASSWORD, Secure, TLS};

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
