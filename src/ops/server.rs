//! The HTTP server behind `ops.listen`.

use std::io;
use std::net::SocketAddr;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::ops::bind::{self, BindError};
use crate::ops::health::{Health, Status};

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
    pub async fn serve(self, health: Health, metrics: PrometheusHandle) -> io::Result<()> {
        let context = Context { health, metrics };
        let routes = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(page))
            .with_state(context);
        axum::serve(self.listener, routes).await
    }
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

async fn page(State(context): State<Context>) -> impl IntoResponse {
    // Histograms are drained as they are rendered, or by `upkeep` where nobody scrapes.
    let page = crate::telemetry::metrics::page(&context.metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}
