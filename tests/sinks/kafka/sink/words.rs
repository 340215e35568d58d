//! The error of a sink that does not connect: soon, clear, and without secrets.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use postrider::sink::Sink;

use super::util::{AMPLE_TIMEOUT, login, sink};
use crate::support::kafka::secure::{LOGIN, MUTUAL, OPEN_LOGIN, PASSWORD, Secure, TLS};

/// Long before the sink's own timeout.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// Asserts that the error of a probe contains all of these words.
async fn assert_fails<const N: usize>(
    brokers: &str,
    properties: [(&str, &str); N],
    wanted: &[&str],
) {
    let sink = sink(brokers, AMPLE_TIMEOUT, properties);
    let begin = Instant::now();

    let down = sink.probe().await.unwrap_err();

    assert!(begin.elapsed() < PROBE_LIMIT, "{:?}: {down}", begin.elapsed());
    for words in [brokers].iter().chain(wanted) {
        assert!(down.detail.contains(words), "without {words:?}: {down}");
    }
    for words in [format!("{down:?}"), format!("{sink:?}")] {
        assert!(!words.contains(PASSWORD) && !words.contains("guessed"), "{words}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[fixture::test]
async fn a_closed_port_points_to_the_address() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();

    assert_fails(&closed.to_string(), [], &["connection refused", "brokers"]).await;
    assert_fails("no-such-host.invalid:9092", [], &["Failed to resolve", "brokers"]).await;
}

#[fixture::test]
async fn a_wrong_password_points_to_the_login() {
    let secure = Secure::shared().await;
    let (brokers, authority) = (secure.brokers(LOGIN), secure.authority());

    assert_fails(
        &secure.brokers(OPEN_LOGIN),
        login("alice", "guessed"),
        &["Authentication failed", "sasl.*"],
    )
    .await;
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let properties = [
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", text(&authority)),
            ("sasl.mechanism", mechanism),
            ("sasl.username", "alice"),
            ("sasl.password", "guessed"),
        ];
        assert_fails(&brokers, properties, &["uthentication failed", "sasl.*"]).await;
    }
}

#[fixture::test]
async fn a_mechanism_that_the_broker_lacks_points_to_the_login() {
    let secure = Secure::shared().await;
    let mut properties = login("alice", PASSWORD);
    properties[1].1 = "SCRAM-SHA-512";

    assert_fails(&secure.brokers(OPEN_LOGIN), properties, &["SCRAM-SHA-512", "sasl.*"]).await;
}

#[fixture::test]
async fn an_unknown_authority_points_to_the_file_of_authorities() {
    let secure = Secure::shared().await;
    let stranger = secure.stranger();
    let properties = [("security.protocol", "ssl"), ("ssl.ca.location", text(&stranger))];

    assert_fails(
        &secure.brokers(TLS),
        properties,
        &["certificate verify failed", "ssl.ca.location"],
    )
    .await;
}

#[fixture::test]
async fn a_missing_client_certificate_points_to_its_file() {
    let secure = Secure::shared().await;
    let authority = secure.authority();
    let properties = [("security.protocol", "ssl"), ("ssl.ca.location", text(&authority))];

    assert_fails(&secure.brokers(MUTUAL), properties, &["certificate", "ssl.certificate.location"])
        .await;
}

#[fixture::test]
async fn the_wrong_protocol_points_to_the_one_property_that_names_it() {
    let secure = Secure::shared().await;
    let authority = secure.authority();
    let tls = [("security.protocol", "ssl"), ("ssl.ca.location", text(&authority))];

    assert_fails(&secure.brokers(TLS), [], &["security.protocol"]).await;
    assert_fails(&secure.node.brokers(), tls, &["security.protocol"]).await;
    assert_fails(&secure.brokers(OPEN_LOGIN), [], &["security.protocol"]).await;
    assert_fails(&secure.node.brokers(), login("alice", PASSWORD), &["security.protocol"]).await;
}
