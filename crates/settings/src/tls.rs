//! The files of a TLS connection, under the same keys for MongoDB and every sink.

use std::path::PathBuf;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::files::read_regular;
use crate::rules::Rules;
use crate::secret::unreadable;

/// TLS to a server. Its presence requires TLS, also of an empty table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The authorities that sign the server's certificate, in PEM. Which ones are trusted by default: docs/security.md.
    #[schemars(example = &"/etc/postrider/ca.pem")]
    pub ca_file: Option<PathBuf>,
    /// This client's certificate chain in PEM, if the server requires one.
    #[schemars(example = &"/etc/postrider/client.pem")]
    pub cert_file: Option<PathBuf>,
    /// The private key of the certificate, in PEM.
    #[schemars(example = &"/etc/postrider/client.key")]
    pub key_file: Option<PathBuf>,
}

impl TlsConfig {
    /// Checks that certificate and key are set together, and that every file holds what it should.
    pub fn validate(&self, rules: &mut Rules) {
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => rules.wrong("key_file", "is not set; set it, or remove cert_file"),
            (None, Some(_)) => rules.wrong("cert_file", "is not set; set it, or remove key_file"),
            _ => {}
        }
        for (key, file, holds, wanted) in [
            ("ca_file", &self.ca_file, holds_certificates as fn(&[u8]) -> bool, "certificate"),
            ("cert_file", &self.cert_file, holds_certificates, "certificate"),
            ("key_file", &self.key_file, holds_key, "private key"),
        ] {
            let Some(file) = file else { continue };
            match read_regular(file) {
                Err(error) => rules.wrong(key, unreadable(file, &error)),
                Ok(pem) => rules.require(holds(&pem), key, format!("contains no {wanted} in PEM")),
            }
        }
    }
}

fn holds_certificates(pem: &[u8]) -> bool {
    let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.is_ok_and(|all| !all.is_empty())
}

/// A key that is encrypted holds for Kafka, and is not parsed here.
fn holds_key(pem: &[u8]) -> bool {
    String::from_utf8_lossy(pem).contains("PRIVATE KEY-----")
}
