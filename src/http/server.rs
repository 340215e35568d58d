//! The server of the API: its address, its certificate, its limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::http::auth::Tokens;
use crate::http::config::ApiConfig;
use crate::http::routes;
use crate::http::state::{Api, ApiState};
use crate::http::tls::{Certificate, TlsError};
use crate::listener::{Drained, Limits, Listener, Unread};
use crate::ops::bind::{self, BindError};
use crate::ops::{Health, HealthPart};

/// The longest time for a request's header, and for a handshake.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The shortest time until a client that takes nothing of an answer is disconnected: the buffer of a slow one accepts
/// nothing for some seconds, although it reads.
const MIN_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The key of the address.
const KEY: &str = "api.listen";

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address that cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A certificate that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The API, bound and not yet serving.
pub struct ApiServer {
    listener: Listener,
    address: SocketAddr,
    tls: Option<Arc<Certificate>>,
    state: Api,
}

impl ApiServer {
    /// Binds the address and reads the certificate. Accepts nothing after `stop`; at most `max_readers`
    /// clients wait for events of the feed at a time.
    ///
    /// # Errors
    ///
    /// [`StartError`], with the key.
    pub async fn bind(
        config: &ApiConfig,
        tokens: Tokens,
        max_readers: usize,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let tls = match &config.tls_files() {
            Some(files) => Some(Arc::new(Certificate::read(files).await?)),
            None => None,
        };
        let (socket, address) = bind::bind(KEY, &config.listen).await?;
        let limits = Limits {
            connections: config.max_connections,
            header_timeout: HEADER_TIMEOUT.min(config.timeout),
            stall_timeout: config.timeout.max(MIN_STALL_TIMEOUT),
            unread: Unread::Kept,
        };
        Ok(Self {
            listener: Listener::new(KEY, socket, limits),
            address,
            tls,
            state: Arc::new(ApiState::new(config, tokens, max_readers, stop)),
        })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it requires TLS.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// The state of the handlers; opened when MongoDB has been reached.
    pub fn state(&self) -> Api {
        self.state.clone()
    }

    /// Serves until it is stopped, then waits up to `grace` for requests in flight.
    pub async fn serve(self, health: &Health, grace: Duration) -> Drained {
        self.watch(health);
        let _reloading = self.tls.clone().map(|certificate| {
            AbortOnDropHandle::new(tokio::spawn(async move { certificate.watch().await }))
        });
        let certificate = self.tls.clone();
        let tls = move || certificate.as_ref().map(|tls| TlsAcceptor::from(tls.current()));
        let stop = self.state.stop.clone();
        self.listener.serve(routes(self.state.clone()), tls, stop, grace).await
    }

    fn watch(&self, health: &Health) {
        let (stop, tls) = (self.state.stop.clone(), self.tls.clone());
        health.watch("api", move || {
            if stop.is_cancelled() {
                return HealthPart::down("shutting down; finishing requests in flight");
            }
            match tls.as_ref().and_then(|certificate| certificate.trouble()) {
                Some(trouble) => HealthPart::degraded(trouble),
                None => HealthPart::ok(),
            }
        });
    }
}
