//! Paths to handlers. Binds no port.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{StatusCode, header};
use tracing::{debug, info};

use crate::backup;
use crate::desk::Desk;
use crate::known::Known;
use crate::review::{self, ReviewError, Verdict};

/// An UPDATE carries two objects, and the API server takes objects of up to 1.5 MiB.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

pub const ENQUEUE_PATH: &str = "/mutate/backups";
pub const VALIDATE_PATH: &str = "/validate/backups";

pub fn router<K: Known>(desk: Arc<Desk<K>>) -> Router {
    Router::new()
        .route(ENQUEUE_PATH, post(enqueue::<K>))
        .route(VALIDATE_PATH, post(validate::<K>))
        .route("/readyz", get(ready::<K>))
        .route("/healthz", get(|| async { "ok\n" }))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(desk)
}

async fn ready<K: Known>(State(desk): State<Arc<Desk<K>>>) -> Response {
    if desk.known().ready() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n").into_response()
    }
}

async fn enqueue<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    let question = match review::parse(&body) {
        Ok(question) => question,
        Err(error) => return refuse_body(&error),
    };
    let verdict = backup::enqueue(&desk, &question, desk.now());
    answer("enqueue", &question, verdict)
}

async fn validate<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    let question = match review::parse(&body) {
        Ok(question) => question,
        Err(error) => return refuse_body(&error),
    };
    let verdict = backup::validate(&desk, &question).await;
    answer("validate", &question, verdict)
}

fn answer(
    rule: &'static str,
    question: &review::Question<'_>,
    verdict: Result<Verdict, ReviewError>,
) -> Response {
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(error) => return refuse_body(&error),
    };
    let (ns, name, dry_run) = (&question.namespace, &question.name, question.is_dry_run());
    match &verdict.refused {
        Some(refused) => {
            let (reason, user) = (refused.reason, &question.user_info.username);
            info!(rule, %ns, %name, %user, dry_run, ?reason, violations = %refused.violations, "refused");
        }
        None => debug!(rule, %ns, %name, dry_run, warnings = ?verdict.warnings, "allowed"),
    }
    match verdict.answer(&question.uid) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// What the API server's failurePolicy decides on: there is no verdict.
fn refuse_body(error: &ReviewError) -> Response {
    info!(%error, "no verdict");
    (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
}

#[cfg(test)]
mod tests;
