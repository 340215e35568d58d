//! A connection of `lapin`, from the attempt to open it to its end.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use async_compat::Compat;
use futures_util::future::select_all;
use lapin::runtime::default_runtime;
use lapin::tcp::AsyncTcpStream;
use lapin::uri::AMQPScheme;
use lapin::{Channel, ConnectionProperties};
use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio_util::sync::CancellationToken;

use crate::rabbitmq::config::RabbitMqSettings;

/// How long `lapin` may take to report why a connection ended while it was being opened.
const REASON_GRACE: Duration = Duration::from_millis(500);

/// How long the broker may be silent before another attempt begins next to this one: the address may lead
/// nowhere, and the broker be back, or at another address. A handshake takes some round trips.
const NEXT_ATTEMPT: Duration = Duration::from_secs(2);

/// The most attempts at a time: the first one, for a broker that takes long, and the latest ones.
const MAX_ATTEMPTS: usize = 3;

/// Starts the runtime that streams of `lapin` (4.12) use when they end, on threads of its own. It is started
/// once, and a start that fails makes the end of every later connection panic: so it must not be left to the
/// moment when the first connection ends, when the process may have no descriptor left.
///
/// # Errors
///
/// There are too few descriptors or threads.
pub(super) fn start_runtime_of_streams() -> Result<(), String> {
    // Outside of every other runtime.
    let starting = std::thread::Builder::new().spawn(|| drop(Compat::new(())));
    let started = starting.map_err(|error| error.to_string())?.join();
    started.map_err(|_| "cannot start a runtime; the process has too few file descriptors".into())
}

/// A connection. It ends when this, and each channel on it, is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    inner: lapin::Connection,
    /// Cancelled when the thread that reads and writes has ended.
    ended: CancellationToken,
}

impl Connection {
    /// Connects. The broker lists the connection by `name`. While the broker is silent, further attempts
    /// begin, each at the next address of the host; the first outcome counts.
    ///
    /// # Errors
    ///
    /// The connection ended, or the broker refused it.
    pub(super) async fn open(settings: &RabbitMqSettings, name: &str) -> lapin::Result<Self> {
        let mut attempts = Vec::new();
        let mut number = 0;
        loop {
            attempts.push(Box::pin(Self::attempt(settings, name, number)));
            number += 1;
            if attempts.len() > MAX_ATTEMPTS {
                drop(attempts.remove(1));
            }
            let outcome = tokio::time::timeout(NEXT_ATTEMPT, select_all(&mut attempts)).await;
            if let Ok((outcome, ..)) = outcome {
                return outcome;
            }
        }
    }

    /// Connects, at the address of the host with this number first.
    async fn attempt(
        settings: &RabbitMqSettings,
        name: &str,
        number: usize,
    ) -> lapin::Result<Self> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let uri = settings.own.parsed_uri().map_err(io::Error::other)?;
        let tls = settings.own.tls().map_err(io::Error::other)?;
        let ended = CancellationToken::new();
        let attempt = Attempt::default();
        let (guard, socket) = (ended.clone().drop_guard(), attempt.socket.clone());
        let connecting = lapin::Connection::connector(
            uri,
            default_runtime()?,
            // The thread that reads and writes owns the closure, and drops it at its end.
            async move |uri, runtime| {
                let _guard = &guard;
                let connecting = async {
                    let host = &uri.authority.host;
                    let mut addresses: Vec<_> =
                        lookup_host((host.as_str(), uri.authority.port)).await?.collect();
                    let first = number.checked_rem(addresses.len()).unwrap_or(0);
                    addresses.rotate_left(first);
                    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => stream.into_tls(host, tls.as_ref()).await,
                    }
                };
                let stream = tokio::select! {
                    stream = connecting => stream?,
                    () = socket.abandoned.cancelled() => return Err(aborted().into()),
                };
                let tcp = match &stream {
                    AsyncTcpStream::Plain(stream) => Some(stream.get_ref()),
                    AsyncTcpStream::Rustls(stream) => Some(stream.get_ref().0.get_ref()),
                    _ => None,
                };
                let handle = tcp.map(|tcp| tcp.as_fd().try_clone_to_owned()).transpose()?;
                socket.keep(handle.map(TcpStream::from))?;
                Ok(stream)
            },
            properties,
        );
        let inner = until_ended(&ended, connecting).await?;
        attempt.succeed();
        Ok(Self { inner, ended })
    }

    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// The connection ended, or has no channel left.
    pub(super) async fn open_channel(&self) -> lapin::Result<Channel> {
        until_ended(&self.ended, self.inner.create_channel()).await
    }

    /// Waits for the answer to a request on one of its channels.
    ///
    /// # Errors
    ///
    /// That of the request, or the end of the connection, after which `lapin` may leave a request open.
    pub(super) async fn answer<T>(
        &self,
        request: impl Future<Output = lapin::Result<T>>,
    ) -> lapin::Result<T> {
        until_ended(&self.ended, request).await
    }

    pub(super) fn inner(&self) -> &lapin::Connection {
        &self.inner
    }

    /// Returns how many channels may be open at a time.
    pub(super) fn channel_max(&self) -> u16 {
        self.inner.configuration().channel_max()
    }
}

/// Waits for an answer until the connection has ended: `lapin` (4.12) may leave a step of the handshake, or a
/// request, open.
async fn until_ended<T>(
    ended: &CancellationToken,
    answer: impl Future<Output = lapin::Result<T>>,
) -> lapin::Result<T> {
    let end = async {
        ended.cancelled().await;
        tokio::time::sleep(REASON_GRACE).await;
    };
    tokio::select! {
        answer = answer => answer,
        () = end => Err(aborted().into()),
    }
}

fn aborted() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// An attempt to connect. It ends when this is dropped: `lapin` (4.12) waits without a limit for a peer that
/// accepts the connection and sends nothing, on a thread of its own.
#[derive(Default)]
struct Attempt {
    socket: Arc<Socket>,
}

#[derive(Default)]
struct Socket {
    abandoned: CancellationToken,
    stream: Mutex<Option<TcpStream>>,
}

impl Socket {
    /// Keeps a handle of the socket until the attempt has an outcome.
    fn keep(&self, stream: Option<TcpStream>) -> io::Result<()> {
        let mut kept = self.stream.lock();
        if self.abandoned.is_cancelled() {
            return Err(aborted());
        }
        *kept = stream;
        Ok(())
    }
}

impl Attempt {
    fn succeed(self) {
        self.socket.stream.lock().take();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.socket.abandoned.cancel();
        if let Some(stream) = self.socket.stream.lock().take() {
            // The peer may have ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
