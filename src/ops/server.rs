//! The HTTP server behind `ops.listen`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::boot_instant::BootInstant;
use crate::listener::{Limits, Listener, Unread};
use crate::ops::bind::{self, BindError};
use crate::ops::blocked::{BlockedKeys, NoAnswer};
use crate::ops::health::{Health, HealthStatus};
use crate::ops::origin::{ForeignRequest, check_host, check_origin};

/// The most connections at a time: enough for the kubelet, several scrapers and an operator.
pub const MAX_CONNECTIONS: usize = 64;

/// The longest time for a request's header, for a pause between two requests, and for a client that reads
/// nothing.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a page of metrics is sent again: a page costs milliseconds, and any client may request it.
const PAGE_LIFETIME: Duration = Duration::from_secs(1);

/// The key of the address.
const KEY: &str = "ops.listen";

/// A server that is bound and not yet serving.
#[derive(Debug)]
pub struct OpsServer {
    socket: TcpListener,
    address: SocketAddr,
}

#[derive(Clone)]
struct Context {
    health: Health,
    page: Arc<MetricsPage>,
    blocked: BlockedKeys,
}

impl OpsServer {
    /// Binds `host:port`.
    ///
    /// # Errors
    ///
    /// [`BindError`], with the key.
    pub async fn bind(address: &str) -> Result<Self, BindError> {
        let (socket, address) = bind::bind(KEY, address).await?;
        Ok(Self { socket, address })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process ends, at most this many connections at a time.
    pub async fn serve(
        self,
        connections: usize,
        health: Health,
        metrics: PrometheusHandle,
        blocked: BlockedKeys,
    ) {
        let page = Arc::new(MetricsPage { metrics, latest: Mutex::default() });
        let context = Context { health, page, blocked };
        let routes = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics_page))
            .route(BLOCKED_KEYS, get(blocked_keys))
            .layer(middleware::from_fn(refuse_foreign))
            .with_state(context);
        let limits = Limits {
            connections,
            header_timeout: CLIENT_TIMEOUT,
            stall_timeout: CLIENT_TIMEOUT,
            unread: Unread::Closed,
        };
        let listener = Listener::new(KEY, self.socket, limits);
        // It answers as long as the process drains, too.
        listener.serve(routes, || None, CancellationToken::new(), Duration::ZERO).await;
    }
}

const BLOCKED_KEYS: &str = "/blocked-keys";

/// Refuses requests of web pages of another site.
///
/// `Host` is not checked for GET and HEAD: Prometheus and the kubelet address a pod by IP, scrapers by the
/// name of a service. Neither sends an `Origin` or `Sec-Fetch-Site`.
async fn refuse_foreign(request: Request, next: Next) -> Result<Response, ForeignRequest> {
    let (parts, body) = request.into_parts();
    check_origin(&parts)?;
    // Keys are for clients on this host only.
    if parts.uri.path() == BLOCKED_KEYS {
        check_local(&parts)?;
    } else if !matches!(parts.method, Method::GET | Method::HEAD) {
        check_host(&parts)?;
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Refuses a request that is not from this host, or to another name than loopback's, as a page sends it
/// after DNS rebinding.
fn check_local(request: &Parts) -> Result<(), ForeignRequest> {
    let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
    let is_local = peer.is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback());
    if is_local { check_host(request) } else { Err(ForeignRequest::Peer) }
}

/// An answer is enough: a restart would help in no other case.
async fn livez() -> impl IntoResponse {
    Json(serde_json::json!({ "status": "ok" }))
}

async fn readyz(State(context): State<Context>, request: Parts) -> impl IntoResponse {
    let mut report = context.health.report();
    if check_local(&request).is_err() {
        report = report.without_details();
    }
    let code = match report.status {
        HealthStatus::Ok | HealthStatus::Degraded => StatusCode::OK,
        HealthStatus::Down => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(report))
}

async fn blocked_keys(State(context): State<Context>, uri: Uri) -> impl IntoResponse {
    match context.blocked.answer(uri.query().unwrap_or_default()) {
        Ok(answer) => (StatusCode::OK, Json(answer)),
        Err(NoAnswer::Invalid(detail)) => {
            (StatusCode::BAD_REQUEST, Json(serde_json::json!({ "error": detail })))
        }
        Err(NoAnswer::NoRelay) => {
            let detail = "no relay runs in this process, or none has started yet";
            (StatusCode::SERVICE_UNAVAILABLE, Json(serde_json::json!({ "error": detail })))
        }
    }
}

async fn metrics_page(State(context): State<Context>) -> impl IntoResponse {
    let page = context.page.get().await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}

/// The page of metrics, which is made at most once per [`PAGE_LIFETIME`].
struct MetricsPage {
    metrics: PrometheusHandle,
    /// When it was made: a suspended process makes another one.
    latest: Mutex<Option<(BootInstant, Bytes)>>,
}

impl MetricsPage {
    async fn get(&self) -> Bytes {
        let mut latest = self.latest.lock().await;
        if let Some((made, page)) = &*latest
            && BootInstant::now().since(*made) < PAGE_LIFETIME
        {
            return page.clone();
        }
        // Rendering drains the histograms; `upkeep` does without scrapes.
        let page = Bytes::from(crate::telemetry::metrics::page(&self.metrics));
        *latest = Some((BootInstant::now(), page.clone()));
        page
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn request_is_local_by_its_peer_and_its_host() {
        for (peer, host, expected) in [
            (Some("127.0.0.1:1"), "localhost:9464", Ok(())),
            (Some("[::1]:1"), "127.0.0.1", Ok(())),
            (Some("[::ffff:127.0.0.1]:1"), "[::1]:9464", Ok(())),
            (Some("10.0.0.7:1"), "localhost", Err(ForeignRequest::Peer)),
            (Some("[::ffff:10.0.0.7]:1"), "localhost", Err(ForeignRequest::Peer)),
            (None, "localhost", Err(ForeignRequest::Peer)),
            (Some("127.0.0.1:1"), "postrider.shop", Err(ForeignRequest::Host)),
        ] {
            let mut request = Request::builder().header("host", host).body(()).unwrap();
            if let Some(peer) = peer {
                let peer: SocketAddr = peer.parse().unwrap();
                request.extensions_mut().insert(ConnectInfo(peer));
            }

            assert_eq!(check_local(&request.into_parts().0), expected, "{peer:?} {host}");
        }
    }

    #[tokio::test]
    async fn metrics_page_is_made_once_a_second() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let page = MetricsPage { metrics: recorder.handle(), latest: Mutex::default() };
        metrics::with_local_recorder(&recorder, || metrics::gauge!("first").set(1.0));
        let first = page.get().await;
        metrics::with_local_recorder(&recorder, || metrics::gauge!("second").set(1.0));

        let again = page.get().await;
        let (made, _) = page.latest.lock().await.clone().unwrap();
        assert!(again == first || BootInstant::now().since(made) < PAGE_LIFETIME);

        tokio::time::sleep(PAGE_LIFETIME).await;
        assert!(String::from_utf8_lossy(&page.get().await).contains("\nsecond 1"));
    }
}
