//! The HTTP/1.1 listener of both ports: the API and the pages for operators.
//!
//! | module | contents |
//! |---|---|
//! | `places` | who has a place, and who loses it to a new connection |
//! | `connection` | what hyper reads and writes of one connection, from which its state follows |
//!
//! It runs hyper directly. `axum::serve` has neither limits nor TLS. `axum-server` (0.8) has TLS and a
//! drain, but its accept loop does not see a shutdown while it waits for a permit.

mod connection;
mod places;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{debug, warn};

use crate::listener::connection::{Limited, MAX_HEADER_BYTES, Watched, until_unread};
use crate::listener::places::{Place, Places};
use crate::telemetry::chain;

pub(crate) use places::Unread;

/// The pause after a failed accept if no connection can be closed for it.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The connections that may wait in the kernel's queue, as far as the system permits: a crowd of clients
/// that connect again and again must not make the kernel drop the connection of another one, which would
/// try again a second later.
const BACKLOG: i32 = 4096;

/// The send buffer of a connection: a page of metrics fits. The system would let it grow to megabytes, so that a
/// client that reads slowly would take nothing for minutes, and many that do not read would take much memory.
pub(crate) const SEND_BUFFER_BYTES: usize = 128 << 10;

/// How long a stop waits for a client that takes nothing of its answer.
const UNREAD_AT_STOP: Duration = Duration::from_secs(2);

/// How often a full listener, or a failing one, is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// How a listener ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every request was answered.
    Whole,
    /// This many connections were cut: their requests took too long.
    Cut(usize),
}

/// What a listener grants its clients.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The most connections at a time.
    pub(crate) connections: usize,
    /// The longest time for a request's header, for the pause before it, and for a handshake.
    pub(crate) header_timeout: Duration,
    /// How long a client may take nothing of what was sent to it.
    pub(crate) stall_timeout: Duration,
    /// What a full listener does with clients that leave answers unread.
    pub(crate) unread: Unread,
}

/// A listener that is bound and not yet serving.
#[derive(Debug)]
pub(crate) struct Listener {
    key: &'static str,
    socket: TcpListener,
    limits: Limits,
}

impl Listener {
    /// Creates the listener of a bound socket. `key` names it in the log.
    pub(crate) fn new(key: &'static str, socket: TcpListener, limits: Limits) -> Self {
        // Otherwise it stays what it was when the socket was bound.
        let _ = rustix::net::listen(&socket, BACKLOG);
        Self { key, socket, limits }
    }

    /// Serves until `stop`, then waits up to `grace` for requests in flight, and less for clients that do not read
    /// their answers. `tls` returns what a new
    /// connection needs for its handshake, if it needs one.
    ///
    /// A full listener closes the oldest connection without a complete request in favour of a new one.
    /// Without such a connection, new ones wait.
    pub(crate) async fn serve(
        self,
        routes: Router,
        tls: impl Fn() -> Option<TlsAcceptor> + Send + Sync + 'static,
        stop: CancellationToken,
        grace: Duration,
    ) -> Drained {
        let open = TaskTracker::new();
        // A task of its own: a crowd of clients must not delay what the caller does next to this, nor wait
        // for it.
        let accepting = self.accept(routes, tls, stop.clone(), open.clone());
        let mut accepting = AbortOnDropHandle::new(tokio::spawn(accepting));
        tokio::select! {
            () = stop.cancelled() => {}
            Err(error) = &mut accepting => {
                if error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
        // Connections are refused once it has ended.
        accepting.abort();
        let _ = accepting.await;
        open.close();
        match tokio::time::timeout(grace, open.wait()).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut(open.len()),
        }
    }

    async fn accept(
        self,
        routes: Router,
        tls: impl Fn() -> Option<TlsAcceptor>,
        stop: CancellationToken,
        open: TaskTracker,
    ) {
        let places = Places::new(self.limits.connections, self.limits.unread);
        let (mut full, mut failed) = (Report::default(), Report::default());
        loop {
            let (stream, peer) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(times) = failed.count() {
                        let error = chain(&error);
                        warn!(listener = self.key, error, times, "failed to accept connections");
                    }
                    places.make_room(is_short_of_descriptors(&error), ACCEPT_RETRY_PAUSE).await;
                    continue;
                }
            };
            let (place, closed) = places.take().await;
            if closed && let Some(times) = full.count() {
                warn!(
                    listener = self.key,
                    limit = self.limits.connections,
                    times,
                    "the listener is full; closed the oldest connections without a request for \
                     new ones"
                );
            }
            let (limits, tls) = (self.limits.clone(), tls());
            let routes = Limited::new(routes.clone(), peer, place.clone());
            open.spawn(handle(stream, tls, place, routes, limits, stop.clone()));
        }
    }
}

/// Handles one connection, from its handshake to its end, or until it loses its place.
async fn handle(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    place: Arc<Place>,
    routes: Limited,
    limits: Limits,
    stop: CancellationToken,
) {
    let serving = async {
        // A client that stops reading is reset by TCP_USER_TIMEOUT, so that it cannot hold its place.
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
        let millis = u32::try_from(limits.stall_timeout.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, millis);
        let header_timeout = limits.header_timeout;
        match tls {
            None => serve_connection(stream, &place, routes, header_timeout, stop).await,
            Some(tls) => match tokio::time::timeout(header_timeout, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    serve_connection(stream, &place, routes, header_timeout, stop).await;
                }
                Ok(Err(error)) => debug!(error = chain(&error), "a TLS handshake failed"),
                Err(_) => debug!("a TLS handshake timed out"),
            },
        }
    };
    tokio::select! {
        biased;
        () = place.lost() => debug!("closed a connection without a request for a new one"),
        () = serving => {}
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    place: &Arc<Place>,
    routes: Limited,
    header_timeout: Duration,
    stop: CancellationToken,
) {
    let (stream, blocked) = Watched::new(stream, place.clone());
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        // The size of a buffer; `Limited` has the exact limit.
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), routes);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            // An idle connection ends at once, another one after its answer.
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                ended = &mut serving => ended,
                () = until_unread(blocked, UNREAD_AT_STOP) => {
                    debug!("closed a connection at the stop; its client did not read the answer");
                    return;
                }
            }
        }
    };
    if let Err(error) = ended {
        debug!(error = chain(&error), "a connection ended early");
    }
}

fn is_short_of_descriptors(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| short.contains(&code))
}

/// Counts what may happen often, and reports it at most once per [`REPORT_INTERVAL`].
#[derive(Default)]
struct Report {
    last: Option<Instant>,
    times: u64,
}

impl Report {
    /// Counts another one. Returns how often since the last report, if another one is due.
    fn count(&mut self) -> Option<u64> {
        self.times += 1;
        if self.last.is_some_and(|last| last.elapsed() < REPORT_INTERVAL) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}
