//! The files of a TLS connection, under the same keys for MongoDB and every sink.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::Rules;

/// TLS to a server. Its presence requires TLS; an empty table verifies against the system's authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The authorities that sign the server's certificate, in PEM. Without it: the system's.
    #[schemars(example = &"/etc/postrider/ca.pem")]
    pub ca_file: Option<PathBuf>,
    /// This client's certificate chain in PEM, where the server requires one.
    #[schemars(example = &"/etc/postrider/client.pem")]
    pub cert_file: Option<PathBuf>,
    /// The private key of the certificate, in PEM.
    #[schemars(example = &"/etc/postrider/client.key")]
    pub key_file: Option<PathBuf>,
}

impl TlsConfig {
    /// Checks that certificate and key are set together, and that every file can be read.
    pub fn validate(&self, rules: &mut Rules) {
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => {
                rules.wrong("key_file", "is not set; set it, or leave out cert_file")
            }
            (None, Some(_)) => {
                rules.wrong("cert_file", "is not set; set it, or leave out key_file")
            }
            _ => {}
        }
        for (key, file) in [
            ("ca_file", &self.ca_file),
            ("cert_file", &self.cert_file),
            ("key_file", &self.key_file),
        ] {
            let Some(file) = file else { continue };
            if let Err(error) = std::fs::File::open(file) {
                rules.wrong(key, format!("cannot read the file: {error}"));
            }
        }
    }
}
