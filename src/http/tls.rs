//! The server's certificate, read again when its files change.
//!
//! Connections keep their certificate. When new files are invalid, the old certificate stays, and the
//! log and `/readyz` report why.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use postrider_settings::secret::shown_path;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tracing::{info, warn};

use crate::telemetry::chain;

/// How often the files are read. They are small, and reading them is more reliable than watching links,
/// mounts and file times.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("{key}: cannot read {path}")]
    File {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: String,
        /// Why it cannot be read.
        #[source]
        source: std::io::Error,
    },
    /// A file with other contents.
    #[error("{key}: {path} contains no {wanted} in PEM")]
    Pem {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// The two do not match, or cannot be used for TLS.
    #[error("api.tls: cannot use the certificate and private key")]
    Pair(#[source] rustls::Error),
}

/// The files of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain in PEM, the server's own certificate first.
    pub certificate: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

/// The certificate and its key for new connections.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    read: Mutex<(Vec<u8>, Vec<u8>)>,
    config: RwLock<Arc<ServerConfig>>,
    trouble: RwLock<Option<String>>,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which names key and file.
    pub async fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let pair = contents(files).await?;
        let config = RwLock::new(Arc::new(config(files, &pair)?));
        let read = Mutex::new(pair);
        Ok(Self { files: files.clone(), read, config, trouble: RwLock::default() })
    }

    /// The configuration of a new connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Why changed files cannot be used, if they cannot.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Reads the files periodically, for ever.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let trouble = self.reload().await.err().map(|error| chain(&error));
            if let Some(trouble) = &trouble
                && self.trouble().as_ref() != Some(trouble)
            {
                warn!(error = trouble, "failed to load a new certificate; keeping the old one");
            }
            *self.trouble.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = trouble;
        }
    }

    async fn reload(&self) -> Result<(), TlsError> {
        let pair = contents(&self.files).await?;
        let is_new = *self.last_read() != pair;
        // Invalid files are reported until they change again.
        if is_new {
            let config = Arc::new(config(&self.files, &pair)?);
            *self.config.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = config;
            *self.last_read() = pair;
            info!("loaded a new certificate");
        }
        Ok(())
    }

    fn last_read(&self) -> std::sync::MutexGuard<'_, (Vec<u8>, Vec<u8>)> {
        self.read.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

async fn contents(files: &TlsFiles) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
    let read = async |key, path: &Path| {
        let wrong = |source| TlsError::File { key, path: shown_path(path), source };
        tokio::fs::read(path).await.map_err(wrong)
    };
    let certificate = read("api.tls.cert_file", &files.certificate).await?;
    Ok((certificate, read("api.tls.key_file", &files.key).await?))
}

fn config(files: &TlsFiles, pair: &(Vec<u8>, Vec<u8>)) -> Result<ServerConfig, TlsError> {
    let wrong = |key, path: &Path, wanted| TlsError::Pem { key, path: shown_path(path), wanted };
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
