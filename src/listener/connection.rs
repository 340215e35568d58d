//! What hyper reads and writes of one connection: from it follows whether the connection keeps its place.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use futures_util::future::BoxFuture;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::Service;
use hyper::{Request, Response, StatusCode};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::listener::places::{Answering, Place};

/// The largest header of a request: its first line and its fields.
pub(super) const MAX_HEADER_BYTES: usize = 32 << 10;

/// The routes for one connection: they get no request with too large a header, and none of a connection
/// that has lost its place.
pub(super) struct Limited {
    routes: TowerToHyperService<Router>,
    peer: SocketAddr,
    place: Arc<Place>,
}

impl Limited {
    pub(super) fn new(routes: Router, peer: SocketAddr, place: Arc<Place>) -> Self {
        Self { routes: TowerToHyperService::new(routes), peer, place }
    }
}

impl Service<Request<Incoming>> for Limited {
    type Response = Response<Kept>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let Some(answering) = self.place.begin_answer() else {
            // The connection is closed before this is polled again.
            return Box::pin(std::future::pending());
        };
        if header_bytes(&request) > MAX_HEADER_BYTES {
            return Box::pin(async move {
                Ok(too_large().map(|body| Kept { body, _answering: answering }))
            });
        }
        // The log names the peer, and some answers depend on it.
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let answer = self.routes.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Kept { body, _answering: answering })) })
    }
}

/// The size of a header as it was sent, apart from spaces that mean nothing.
fn header_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let site = uri.authority().map_or(0, |authority| "http://".len() + authority.as_str().len());
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let line = request.method().as_str().len() + site + path + "  HTTP/1.1\r\n".len();
    let field = |(name, value): (&hyper::header::HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    line + request.headers().iter().map(field).sum::<usize>() + "\r\n".len()
}

/// As hyper answers when its buffer is full.
fn too_large() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The body of an answer, whose connection keeps its place until the body has ended.
pub(super) struct Kept {
    body: Body,
    _answering: Answering,
}

impl hyper::body::Body for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that reports whether its client reads, and when everything was sent: hyper flushes it when it has
/// written all that it has.
pub(super) struct Watched<S> {
    stream: S,
    place: Arc<Place>,
    blocked: watch::Sender<Option<Instant>>,
}

/// Since when a connection has accepted nothing of what is written to it; `None` if it accepts more.
pub(super) type Blocked = watch::Receiver<Option<Instant>>;

impl<S> Watched<S> {
    pub(super) fn new(stream: S, place: Arc<Place>) -> (Self, Blocked) {
        let (blocked, since) = watch::channel(None);
        (Self { stream, place, blocked }, since)
    }

    fn note<T>(&self, written: &Poll<T>) {
        let accepts = written.is_ready();
        self.blocked.send_if_modified(|since| {
            let is_news = since.is_none() != accepts;
            if is_news {
                *since = (!accepts).then(Instant::now);
            }
            is_news
        });
    }
}

/// Resolves when a connection has accepted nothing of an answer for this long, from now on.
pub(super) async fn until_unread(mut blocked: Blocked, limit: Duration) {
    let now = Instant::now();
    loop {
        let since = *blocked.borrow_and_update();
        let changed = blocked.changed();
        let changed = match since {
            None => changed.await,
            Some(since) => match tokio::time::timeout_at(since.max(now) + limit, changed).await {
                Ok(changed) => changed,
                Err(_) => return,
            },
        };
        if changed.is_err() {
            // The connection has ended.
            std::future::pending().await
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.place.reads(written.is_ready());
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.place.reads(written.is_ready());
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note(&flushed);
        ready!(flushed)?;
        self.place.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.note(&closed);
        closed
    }
}
