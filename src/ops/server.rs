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
use crate::ops::health::{Health, Status};
use crate::ops::origin::{Foreign, check_host, check_origin};

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
    /// [`BindError`], which names the key.
    pub async fn bind(address: &str) -> Result<Self, BindError> {
        let (listener, address) = bind::bind("ops.listen", address).await?;
        Ok(Self { listener, address })
    }

    /// The address that it is bound to.
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
            .layer(middleware::from_fn(guard))
            .with_state(context);
        axum::serve(self.listener, routes).await
    }
}

/// Refuses what a page of another site asks for.
///
/// `Host` decides nothing for GET and HEAD: Prometheus and the kubelet name a pod by its address, and
/// scrapers by the name of a service. Neither sends an `Origin`.
const BLOCKED_KEYS: &str = "/blocked-keys";

async fn guard(request: Request, next: Next) -> Result<Response, Foreign> {
    let (parts, body) = request.into_parts();
    check_origin(&parts)?;
    // What shows keys is for who is on this host, by its name: no page that was pointed here.
    let shows_keys = parts.uri.path() == BLOCKED_KEYS;
    if shows_keys || !matches!(parts.method, Method::GET | Method::HEAD) {
        check_host(&parts)?;
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Answering at all is what is asked: a restart would mend nothing else.
async fn livez() -> impl IntoResponse {
    Json(serde_json::json!({ "status": "ok" }))
}

async fn readyz(State(context): State<Context>) -> impl IntoResponse {
    let report = context.health.report();
    let code = match report.status {
        Status::Ok | Status::Degraded => StatusCode::OK,
        Status::Down => StatusCode::SERVICE_UNAVAILABLE,
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
    // Histograms are drained as they are rendered, or by `upkeep` where nobody scrapes.
    let page = crate::telemetry::metrics::page(&context.metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}
