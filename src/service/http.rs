//! `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::sidecar::identity::Identity;
use crate::store::Store;
use crate::telemetry::Telemetry;

/// What the probes look at; all of it in memory.
#[derive(Clone)]
pub(super) struct Probes {
    pub store: Store,
    pub identity: watch::Receiver<Option<Arc<Identity>>>,
    pub stopping: CancellationToken,
    pub telemetry: Telemetry,
}

/// Serves until `stop`.
pub(super) async fn serve(listener: TcpListener, probes: Probes, stop: CancellationToken) {
    let routes = Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(probes);
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(error = %error, "The HTTP listener ended; probes and metrics are gone.");
    }
}

async fn ready(State(probes): State<Probes>) -> (StatusCode, &'static str) {
    let waits_for = if probes.stopping.is_cancelled() {
        Some("the service is draining\n")
    } else if !probes.store.is_healthy() {
        Some("the store cannot be written\n")
    } else if probes.identity.borrow().is_none() {
        Some("the sidecar has not answered yet\n")
    } else {
        None
    };
    waits_for.map_or((StatusCode::OK, "ready\n"), |why| (StatusCode::SERVICE_UNAVAILABLE, why))
}

async fn metrics(State(probes): State<Probes>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], probes.telemetry.prometheus_text())
}
