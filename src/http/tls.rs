//! The server's certificate, read anew when its files change.
//!
//! Connections keep what they began with. New files that can't be used change nothing: the old
//! certificate goes on, and the log and `/readyz` say why.

use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tracing::{info, warn};

use crate::config::resolve::TlsFiles;
use crate::telemetry::chain;

/// How often the files are looked at. They are small, and a look is cheaper than any mistake that
/// can be made about links, mounts and times of files.
const LOOK: Duration = Duration::from_secs(1);

/// A certificate or key that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that can't be read.
    #[error("{key}: cannot read {path}")]
    File {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file that holds something else.
    #[error("{key}: {path} holds no {wanted} in PEM")]
    Pem {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// The two don't fit together, or can't be used for TLS.
    #[error("api.tls: certificate and private key cannot be used")]
    Pair(#[source] rustls::Error),
}

/// A certificate with its key, as new connections get it.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    seen: Mutex<(Vec<u8>, Vec<u8>)>,
    config: RwLock<Arc<ServerConfig>>,
    trouble: RwLock<Option<String>>,
}

impl Certificate {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which names key and file.
    pub async fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let pair = contents(files).await?;
        let config = RwLock::new(Arc::new(config(files, &pair)?));
        let seen = Mutex::new(pair);
        Ok(Self { files: files.clone(), seen, config, trouble: RwLock::default() })
    }

    /// What a new connection gets.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Why files that changed were not taken, if so.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Looks at the files, for ever.
    pub async fn keep(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let trouble = self.look().await.err().map(|error| chain(&error));
            if let Some(trouble) = &trouble
                && self.trouble().as_ref() != Some(trouble)
            {
                warn!(error = trouble, "the old certificate goes on");
            }
            *self.trouble.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = trouble;
        }
    }

    async fn look(&self) -> Result<(), TlsError> {
        let pair = contents(&self.files).await?;
        let is_new = *self.seen() != pair;
        // Of new ones that were not taken the trouble is told until they change again.
        if is_new {
            let config = Arc::new(config(&self.files, &pair)?);
            *self.config.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = config;
            *self.seen() = pair;
            info!("a new certificate is in use");
        }
        Ok(())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, (Vec<u8>, Vec<u8>)> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

async fn contents(files: &TlsFiles) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
    let read = async |key, path: &Path| {
        let wrong = |source| TlsError::File { key, path: path.display().to_string(), source };
        tokio::fs::read(path).await.map_err(wrong)
    };
    let certificate = read("api.tls.cert_file", &files.certificate).await?;
    Ok((certificate, read("api.tls.key_file", &files.key).await?))
}

fn config(files: &TlsFiles, pair: &(Vec<u8>, Vec<u8>)) -> Result<ServerConfig, TlsError> {
    let wrong =
        |key, path: &Path, wanted| TlsError::Pem { key, path: path.display().to_string(), wanted };
    let no_chain = || wrong("api.tls.cert_file", &files.certificate, "certificate");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pair.0).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(no_chain)?;
    let key = PrivateKeyDer::from_pem_slice(&pair.1)
        .map_err(|_| wrong("api.tls.key_file", &files.key, "private key"))?;
    let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
