//! The HTTP server behind `ops.listen`.

use std::io;
use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::ops::bind::{self, BindError};
use crate::ops::blocked::{BlockedKeys, NoAnswer};
use crate::ops::health::{Health, HealthStatus};
use crate::ops::origin::{ForeignRequest, check_host, check_origin};

/// A server that is bound and not yet serving.
#[derive(Debug)]
pub struct OpsServer {
    listener: TcpListener,
    address: SocketAddr,
}

#[derive(Clone)]
struct Context {
    health: Health,
    metrics: PrometheusHandle,
    blocked: BlockedKeys,
}

impl OpsServer {
    /// Binds `host:port`.
    ///
    /// # Errors
    ///
    /// [`BindError`], with the key.
    pub async fn bind(address: &str) -> Result<Self, BindError> {
        let (listener, address) = bind::bind("ops.listen", address).await?;
        Ok(Self { listener, address })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    ///
    /// The listener failed: the process should end with it.
    pub async fn serve(
        self,
        health: Health,
        metrics: PrometheusHandle,
        blocked: BlockedKeys,
    ) -> io::Result<()> {
        let context = Context { health, metrics, blocked };
        let routes = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(page))
            .route(BLOCKED_KEYS, get(blocked_keys))
            .layer(middleware::from_fn(refuse_foreign))
            .with_state(context);
        axum::serve(self.listener, routes).await
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
    // Keys are for clients on this host only; a rebound page has another `Host`.
    let shows_keys = parts.uri.path() == BLOCKED_KEYS;
    if shows_keys || !matches!(parts.method, Method::GET | Method::HEAD) {
        check_host(&parts)?;
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// An answer is enough: a restart would help in no other case.
async fn livez() -> impl IntoResponse {
    Json(serde_json::json!({ "status": "ok" }))
}

async fn readyz(State(context): State<Context>) -> impl IntoResponse {
    let report = context.health.report();
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

async fn page(State(context): State<Context>) -> impl IntoResponse {
    // Rendering drains the histograms; `upkeep` does without scrapes.
    let page = crate::telemetry::metrics::page(&context.metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}
