//! The HTTP/1.1 server: connections, their limits, and their end in good order.
//!
//! By hyper itself: `axum::serve` has no limits of time or size, and knows no TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::config::resolve::ApiPlan;
use crate::http::state::{Shared, State};
use crate::http::tls::{Certificate, TlsError};
use crate::http::{Drained, routes};
use crate::ops::bind::{self, BindError};
use crate::ops::{Health, Part};
use crate::telemetry::chain;

/// The longest that a request's header may take, and a handshake.
const HEADER: Duration = Duration::from_secs(10);

/// The largest header.
const HEADER_SIZE: usize = 32 << 10;

/// Pause after a connection could not be accepted: no files are left, say.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Why the API can't be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address that can't be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A certificate that can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The API, bound and not yet serving.
pub struct ApiServer {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Certificate>>,
    connections: Arc<Semaphore>,
    header: Duration,
    state: Shared,
}

impl ApiServer {
    /// Binds its address and reads its certificate. It begins nothing new after `stop`.
    ///
    /// # Errors
    ///
    /// [`StartError`], which names the key.
    pub async fn bind(plan: &ApiPlan, stop: CancellationToken) -> Result<Self, StartError> {
        let tls = match &plan.tls {
            Some(files) => Some(Arc::new(Certificate::read(files).await?)),
            None => None,
        };
        let (listener, address) = bind::bind("api.listen", &plan.listen).await?;
        Ok(Self {
            listener,
            address,
            tls,
            connections: Arc::new(Semaphore::new(plan.max_connections)),
            header: HEADER.min(plan.timeout),
            state: Arc::new(State::new(plan, stop)),
        })
    }

    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it speaks TLS.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// What its handlers share, to be opened once MongoDB is reached.
    pub fn state(&self) -> Shared {
        self.state.clone()
    }

    /// Serves until it is stopped; then what is in flight has so long to end.
    pub async fn serve(self, health: &Health, patience: Duration) -> Drained {
        let stop = self.state.stop.clone();
        self.watch(health);
        let reloading = self.tls.clone();
        let reloading = async {
            match reloading {
                Some(certificate) => certificate.keep().await,
                None => std::future::pending().await,
            }
        };
        let routes = routes(self.state.clone());
        let open = TaskTracker::new();
        let accepting = async {
            loop {
                // More than these wait in the kernel's queue.
                let Ok(place) = self.connections.clone().acquire_owned().await else { return };
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        let connection = self.connection(stream, routes.clone());
                        open.spawn(async move {
                            connection.await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        warn!(error = chain(&error), "a connection was not accepted");
                        tokio::time::sleep(AFTER_FAILURE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = accepting => {}
            () = reloading => {}
        }
        // From here on nobody connects.
        drop(self.listener);
        open.close();
        match tokio::time::timeout(patience, open.wait()).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut(open.len()),
        }
    }

    fn watch(&self, health: &Health) {
        let (stop, tls) = (self.state.stop.clone(), self.tls.clone());
        health.watch("api", move || {
            if stop.is_cancelled() {
                return Part::down("draining: requests in flight are finished");
            }
            match tls.as_ref().and_then(|certificate| certificate.trouble()) {
                Some(trouble) => Part::degraded(trouble),
                None => Part::ok(),
            }
        });
    }

    /// One connection, from its handshake to its end.
    fn connection(&self, stream: TcpStream, routes: Router) -> impl Future<Output = ()> + 'static {
        let acceptor = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.current()));
        let (header, timeout) = (self.header, self.state.timeout);
        let stop = self.state.stop.clone();
        async move {
            // Whoever reads no more of his answer is given up by the kernel, and holds no place.
            let _ = stream.set_nodelay(true);
            let patience = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, patience);
            match acceptor {
                None => talk(stream, routes, header, stop).await,
                Some(acceptor) => {
                    match tokio::time::timeout(header, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => talk(stream, routes, header, stop).await,
                        Ok(Err(error)) => debug!(error = chain(&error), "no handshake"),
                        Err(_) => debug!("a handshake took too long"),
                    }
                }
            }
        }
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    routes: Router,
    header: Duration,
    stop: CancellationToken,
) {
    let talking = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header)
        .max_buf_size(HEADER_SIZE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut talking = std::pin::pin!(talking);
    let ended = tokio::select! {
        ended = &mut talking => ended,
        () = stop.cancelled() => {
            // An idle one ends at once; another with the answer that it waits for.
            talking.as_mut().graceful_shutdown();
            talking.await
        }
    };
    if let Err(error) = ended {
        debug!(error = chain(&error), "a connection ended early");
    }
}
