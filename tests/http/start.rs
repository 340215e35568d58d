//! Starts with the settings of the API.

use std::time::Duration;

use crate::api::with;
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

#[fixture::test]
async fn start_fails_on_a_taken_address_and_names_the_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("api.listen={}", taken.local_addr().unwrap());
    let settings =
        with(mongo_settings("unused"), &["relay.enabled=false", "api.enabled=true", &listen]);

    let ended = Postrider::start(&settings).until_ended(Duration::from_secs(20)).await;

    let ended = ended.with_code(1);
    assert!(
        ended.stderr.contains("cannot listen: address already in use; stop the process"),
        "{ended}"
    );
}

#[fixture::test]
async fn start_fails_beyond_loopback_without_tokens() {
    let open = ["relay.enabled=false", "api.enabled=true", "api.listen=0.0.0.0:0"];
    let tls = ["api.tls.cert_file=/cert.pem", "api.tls.key_file=/key.pem"];
    for more in [&open[..], &[&open[..], &tls].concat()] {
        let settings = with(mongo_settings("unused"), more);

        let ended = Postrider::start(&settings).until_ended(Duration::from_secs(20)).await;

        let ended = ended.with_code(2);
        for part in [
            "api.listen",
            "accepts remote connections without authentication",
            "api.allow_unauthenticated",
        ] {
            assert!(ended.stderr.contains(part), "no {part}: {ended}");
        }
    }
}

#[fixture::test]
async fn api_is_off_by_default() {
    let outbox = TestOutbox::new().await;
    let settings = with(mongo_settings(&outbox.database), &["relay.enabled=false"]);
    let mut postrider = Postrider::start(&settings);

    postrider.until_ready().await;

    assert!(!postrider.stderr().contains("HTTP API"), "{}", postrider.stderr());
    assert!(postrider.readyz().await.1["parts"]["api"].is_null());
    postrider.stop().await;
}
