//! The HTTP/1.1 server: connections, their limits, and a graceful shutdown.
//!
//! It runs hyper directly. `axum::serve` has neither limits nor TLS. `axum-server` (0.8) has TLS and a
//! drain, but its accept loop does not see a shutdown while it waits for a permit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::http::answers::SEND_BUFFER_BYTES;
use crate::http::auth::Tokens;
use crate::http::config::ApiConfig;
use crate::http::state::{Api, ApiState};
use crate::http::tls::{Certificate, TlsError};
use crate::http::{Drained, routes};
use crate::ops::bind::{self, BindError};
use crate::ops::{Health, HealthPart};
use crate::telemetry::chain;

/// The longest time for a request's header, and for a handshake.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest header.
const MAX_HEADER_BYTES: usize = 32 << 10;

/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

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
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Certificate>>,
    connections: Arc<Semaphore>,
    header_timeout: Duration,
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
        let (listener, address) = bind::bind("api.listen", &config.listen).await?;
        Ok(Self {
            listener,
            address,
            tls,
            connections: Arc::new(Semaphore::new(config.max_connections)),
            header_timeout: HEADER_TIMEOUT.min(config.timeout),
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
        let stop = self.state.stop.clone();
        self.watch(health);
        let reloading = self.tls.clone();
        let reloading = async {
            match reloading {
                Some(certificate) => certificate.watch().await,
                None => std::future::pending().await,
            }
        };
        let routes = routes(self.state.clone());
        let open = TaskTracker::new();
        let accepting = async {
            loop {
                // Further connections wait in the kernel's queue.
                let Ok(permit) = self.connections.clone().acquire_owned().await else { return };
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        let connection = self.handle(stream, peer, routes.clone());
                        open.spawn(async move {
                            connection.await;
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        warn!(error = chain(&error), "failed to accept a connection");
                        tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = accepting => {}
            () = reloading => {}
        }
        // Connections are refused from here on.
        drop(self.listener);
        open.close();
        match tokio::time::timeout(grace, open.wait()).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut(open.len()),
        }
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

    /// Handles one connection, from its handshake to its end.
    fn handle(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        routes: Router,
    ) -> impl Future<Output = ()> + 'static {
        let acceptor = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.current()));
        let (header_timeout, timeout) = (self.header_timeout, self.state.timeout);
        let stop = self.state.stop.clone();
        async move {
            // A client that stops reading is reset by TCP_USER_TIMEOUT, so that it cannot hold a permit.
            let _ = stream.set_nodelay(true);
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
            let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, millis);
            match acceptor {
                None => serve_connection(stream, peer, routes, header_timeout, stop).await,
                Some(acceptor) => {
                    match tokio::time::timeout(header_timeout, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            serve_connection(stream, peer, routes, header_timeout, stop).await
                        }
                        Ok(Err(error)) => debug!(error = chain(&error), "a TLS handshake failed"),
                        Err(_) => debug!("a TLS handshake timed out"),
                    }
                }
            }
        }
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: SocketAddr,
    routes: Router,
    header_timeout: Duration,
    stop: CancellationToken,
) {
    let routes = TowerToHyperService::new(routes);
    // The log names the peer.
    let routes = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        routes.call(request)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), routes);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            // An idle connection ends at once, another one after its answer.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(error = chain(&error), "a connection ended early");
    }
}
