//! Which clients a broker accepts, and how a client learns that it is refused.

use std::path::Path;
use std::time::Duration;

use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, Producer};

use crate::kafka::error_recorder::{ReportedError, look};
use crate::kafka::producer::{producer, record, send};
use crate::support::kafka::acl::{Operation, Resource};
use crate::support::kafka::secure::{LOGIN, MUTUAL, OPEN_LOGIN, PASSWORD, Secure, TLS};

const MECHANISMS: [&str; 2] = ["PLAIN", "SCRAM-SHA-256"];

async fn look_up_by_tls(
    secure: &Secure,
    listener: &str,
    files: &[(&str, &Path)],
) -> (KafkaResult<()>, Vec<ReportedError>) {
    let files = files.iter().map(|(name, path)| (*name, path.to_str().unwrap()));
    let settings: Vec<_> = files.chain([("security.protocol", "ssl")]).collect();
    look(&secure.brokers(listener), &settings).await
}

#[track_caller]
fn assert_refused(
    (found, said): &(KafkaResult<()>, Vec<ReportedError>),
    code: RDKafkaErrorCode,
    reason: &str,
) {
    assert!(found.is_err());
    let is_reported =
        said.iter().any(|said| said.code == Some(code) && said.reason.contains(reason));
    assert!(is_reported, "{said:?}");
}

/// A producer of this user, by a login without TLS.
fn of(secure: &Secure, user: &str) -> FutureProducer {
    let settings = [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", user),
        ("sasl.password", PASSWORD),
    ];
    producer(&secure.brokers(OPEN_LOGIN), &settings)
}

#[fixture::test]
async fn tls_accepts_only_clients_that_trust_the_authority() {
    let secure = Secure::shared().await;

    let trusting = look_up_by_tls(&secure, TLS, &[("ssl.ca.location", &secure.authority())]).await;
    let wary = look_up_by_tls(&secure, TLS, &[("ssl.ca.location", &secure.stranger())]).await;

    trusting.0.unwrap();
    assert_refused(&wary, RDKafkaErrorCode::SSL, "certificate verify failed");
}

#[fixture::test]
async fn mutual_tls_accepts_clients_with_a_certificate() {
    let secure = Secure::shared().await;
    let (authority, (certificate, key)) = (secure.authority(), secure.client());
    let trust: (&str, &Path) = ("ssl.ca.location", &authority);

    let known = [trust, ("ssl.certificate.location", &certificate), ("ssl.key.location", &key)];
    let known = look_up_by_tls(&secure, MUTUAL, &known).await;
    let unknown = look_up_by_tls(&secure, MUTUAL, &[trust]).await;

    known.0.unwrap();
    let code = RDKafkaErrorCode::BrokerTransportFailure;
    assert_refused(&unknown, code, "alert bad certificate");
}

#[fixture::test]
async fn a_login_needs_the_password() {
    let secure = Secure::shared().await;
    let authority = secure.authority();
    let listeners = [(LOGIN, "sasl_ssl"), (OPEN_LOGIN, "sasl_plaintext")];
    for (listener, protocol) in listeners {
        for mechanism in MECHANISMS {
            let brokers = secure.brokers(listener);
            let settings = |password| {
                [
                    ("security.protocol", protocol),
                    ("ssl.ca.location", authority.to_str().unwrap()),
                    ("sasl.mechanism", mechanism),
                    ("sasl.username", "alice"),
                    ("sasl.password", password),
                ]
            };

            let known = look(&brokers, &settings(PASSWORD)).await;
            let unknown = look(&brokers, &settings("guessed")).await;

            known.0.unwrap();
            let code = RDKafkaErrorCode::Authentication;
            assert_refused(&unknown, code, "Authentication failed");
        }
    }
}

#[fixture::test]
async fn a_forbidden_topic_is_refused_until_a_look_up_permits_it() {
    let secure = Secure::shared().await;
    let (topic, other) = (secure.topic(1).await, secure.topic(1).await);
    let acl = secure.deny("alice", Operation::Write, Resource::Topic(&topic.name)).await;
    let producer = of(&secure, "alice");
    let refused = Err(RDKafkaErrorCode::TopicAuthorizationFailed);

    let first = send(&producer, record(&topic.name, "x", b"x")).await;
    let second = send(&producer, record(&topic.name, "x", b"x")).await;
    let elsewhere = send(&producer, record(&other.name, "x", b"x")).await;

    assert_eq!((first.outcome, second.outcome), (refused, refused));
    // The second was not even sent.
    assert!(second.took < Duration::from_millis(100), "{second:?}");
    elsewhere.outcome.unwrap();
    acl.delete(&secure.node.brokers()).await;
    producer.client().fetch_metadata(Some(&topic.name), Duration::from_secs(10)).unwrap();
    send(&producer, record(&topic.name, "allowed", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["allowed"]);
}

#[fixture::test]
async fn a_topic_that_may_not_be_described_is_forbidden_too() {
    let secure = Secure::shared().await;
    let topic = secure.topic(1).await;
    secure.deny("bob", Operation::Describe, Resource::Topic(&topic.name)).await;
    let producer = of(&secure, "bob");

    let found = producer.client().fetch_metadata(Some(&topic.name), Duration::from_secs(10));
    let sent = send(&producer, record(&topic.name, "x", b"x")).await;

    let forbidden = RDKafkaErrorCode::TopicAuthorizationFailed;
    let found = found.unwrap();
    let error = found.topics()[0].error().map(RDKafkaErrorCode::from);
    assert_eq!((error, sent.outcome), (Some(forbidden), Err(forbidden)));
}

#[fixture::test]
async fn a_user_with_a_write_right_can_be_idempotent() {
    let secure = Secure::shared().await;
    let topic = secure.topic(1).await;
    secure.deny("carol", Operation::IdempotentWrite, Resource::Cluster).await;

    let sent = send(&of(&secure, "carol"), record(&topic.name, "x", b"x")).await;

    sent.outcome.unwrap();
}

#[fixture::test]
async fn a_user_without_write_rights_has_a_fatal_producer_error() {
    let secure = Secure::shared().await;
    let topic = secure.topic(1).await;
    let on_cluster = secure.deny("dave", Operation::IdempotentWrite, Resource::Cluster).await;
    let on_topics = secure.deny("dave", Operation::Write, Resource::Topic("*")).await;
    let producer = of(&secure, "dave");

    let first = send(&producer, record(&topic.name, "x", b"x")).await;

    assert_eq!(first.outcome, Err(RDKafkaErrorCode::PurgeQueue));
    let (code, _) = producer.client().fatal_error().unwrap();
    assert_eq!(code, RDKafkaErrorCode::ClusterAuthorizationFailed);
    on_cluster.delete(&secure.node.brokers()).await;
    on_topics.delete(&secure.node.brokers()).await;
    let later = send(&producer, record(&topic.name, "x", b"x")).await;
    assert_eq!(later.outcome, Err(RDKafkaErrorCode::Fatal));
    send(&of(&secure, "dave"), record(&topic.name, "anew", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["anew"]);
}
