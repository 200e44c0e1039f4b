//! `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use surehook_outbox::store::{retention, upkeep};
use surehook_outbox::{Database, DatabaseError, Loops};

use super::Engine;
use super::loops::NEEDED;
use crate::store::alerts;
use crate::telemetry::metrics::{BUSY_TABLES, CONTENT_TYPE, Metrics, Retention};

/// A scrape or a question must not hang where the database does.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Health {
    database: Database,
    metrics: Metrics,
    loops: Loops,
    ready: Arc<AtomicBool>,
}

pub(super) fn router(database: &Database, engine: &Engine) -> Router {
    let state = Health {
        database: database.clone(),
        metrics: engine.metrics.clone(),
        loops: engine.keeper.loops.clone(),
        ready: Arc::clone(&engine.ready),
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(state)
}

/// Ready: not stopping, no loop down without which nothing is delivered or told, and the database answers. Other loops that are
/// down are named.
async fn ready(State(health): State<Health>) -> Response {
    if !health.ready.load(Ordering::SeqCst) {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    let down = health.loops.down();
    let named = |(name, fault): &(&str, String)| format!("{name} is down and begun again: {fault}\n");
    if down.iter().any(|(name, _)| NEEDED.contains(name)) {
        return (StatusCode::SERVICE_UNAVAILABLE, down.iter().map(named).collect::<String>()).into_response();
    }
    match ask(async || upkeep::ping(&health.database.session().await?).await).await {
        Ok(()) => format!("ready\n{}", down.iter().map(named).collect::<String>()).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    let read = async || {
        let session = health.database.session().await?;
        let held = retention::held_weeks(&session).await?;
        let lag_s = retention::standing(&session).await?.lag_s;
        let (gauges, bloat) = (upkeep::gauges(&session).await?, upkeep::bloat(&session, &BUSY_TABLES).await?);
        Ok((gauges, bloat, alerts::count_open(&session).await?, Retention { lag_s, held }))
    };
    let text = match ask(read).await {
        Ok((gauges, bloat, alerts, retention)) => {
            health.metrics.render(&gauges, &bloat, &alerts, &retention).map_err(|error| error.to_string())
        }
        Err(reason) => Err(reason),
    };
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// Asks the database; the error is a line for whoever asked us.
async fn ask<T>(question: impl AsyncFnOnce() -> Result<T, DatabaseError>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER_WITHIN, question()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(away(&error)),
        Err(_) => Err(format!("the database did not answer within {ANSWER_WITHIN:?}")),
    }
}

fn away(error: &DatabaseError) -> String {
    tracing::debug!(error = error as &dyn std::error::Error, "the database could not be asked");
    "the database is away".into()
}
