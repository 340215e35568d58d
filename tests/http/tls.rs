//! TLS and changing certificates.

use std::path::Path;
use std::sync::Arc;

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::api::{Api, with};
use crate::support::authority::{Authority, Certified};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

fn put(dir: &Path, certified: &Certified) {
    std::fs::write(dir.join("key.pem"), &certified.key).unwrap();
    std::fs::write(dir.join("cert.pem"), &certified.certificate).unwrap();
}

fn settings(outbox: &TestOutbox, dir: &Path) -> Vec<String> {
    let file = |name| dir.join(name).display().to_string();
    let certificate = format!("api.tls.cert_file={}", file("cert.pem"));
    let key = format!("api.tls.key_file={}", file("key.pem"));
    let more: [&str; 4] = [&certificate, &key, "api.tokens=[\"t\"]", "api.enabled=true"];
    with(mongo_settings(&outbox.database), &more)
}

/// Connects as a client that trusts this authority.
async fn connect(api: &Api, authority: &Authority) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(api.address).await?;
    let name = "localhost".try_into().unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The status of one call on an open connection.
async fn status(stream: &mut TlsStream<TcpStream>) -> String {
    let request = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer t\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
    }
    String::from_utf8(answer).unwrap()[..12].to_owned()
}

#[fixture::test]
async fn new_certificate_is_used_for_new_connections() {
    let (outbox, dir) = (TestOutbox::new().await, tempfile::tempdir().unwrap());
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    put(dir.path(), &old.certify(&["localhost"]));
    let api = Api::begin(&settings(&outbox, dir.path()), "").await;
    let mut standing = connect(&api, &old).await.unwrap();
    assert_eq!(status(&mut standing).await, "HTTP/1.1 404");
    assert!(connect(&api, &new).await.is_err());
    let plain = api.request(Method::GET, "/nowhere").send().await;
    assert!(plain.is_err(), "{plain:?}");

    put(dir.path(), &new.certify(&["localhost"]));
    eventually("the new one", || async { connect(&api, &new).await.is_ok() }).await;
    assert!(connect(&api, &old).await.is_err());
    assert_eq!(status(&mut standing).await, "HTTP/1.1 404");

    // With a key that does not match the old certificate stays.
    std::fs::write(dir.path().join("key.pem"), &old.certify(&["localhost"]).key).unwrap();
    api.postrider.until_logged("keeping the old one").await;
    let is_reported = |report: &serde_json::Value| {
        report["parts"]["api"]["detail"].as_str().unwrap_or_default().contains("api.tls")
    };
    api.postrider.until_report("the trouble", is_reported).await;
    assert_eq!(status(&mut connect(&api, &new).await.unwrap()).await, "HTTP/1.1 404");
    put(dir.path(), &old.certify(&["localhost"]));
    eventually("the third one", || async { connect(&api, &old).await.is_ok() }).await;
    api.stop().await;
}

#[fixture::test]
async fn start_fails_on_an_invalid_certificate() {
    let (outbox, dir) = (TestOutbox::new().await, tempfile::tempdir().unwrap());
    let authority = Authority::new("any");
    let settings = with(settings(&outbox, dir.path()), &["relay.enabled=false"]);
    let (one, other) = (authority.certify(&["localhost"]), authority.certify(&["localhost"]));
    for (certificate, key, part) in [
        (None, Some(&one.key), "api.tls.cert_file"),
        (Some(&one.certificate), None, "api.tls.key_file"),
        (Some(&one.key), Some(&one.key), "api.tls.cert_file"),
        (Some(&one.certificate), Some(&one.certificate), "api.tls.key_file"),
        (Some(&one.certificate), Some(&other.key), "api.tls"),
    ] {
        for (name, text) in [("cert.pem", certificate), ("key.pem", key)] {
            let file = dir.path().join(name);
            match text {
                Some(text) => std::fs::write(file, text).unwrap(),
                None => drop(std::fs::remove_file(file)),
            }
        }

        let mut postrider = Postrider::start(&settings);
        let ended = postrider.until_ended(std::time::Duration::from_secs(20)).await.with_code(1);

        assert!(ended.stderr.contains(&format!("\"error\":\"{part}")), "{part}: {ended}");
    }
}
