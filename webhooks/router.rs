//! Paths to handlers. Binds no port.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{StatusCode, header};
use tracing::{debug, info};

use crate::desk::Desk;
use crate::known::Known;
use crate::review::{self, RefusalReason, ReviewError, Verdict};
use crate::tally::{Answer, Tally};
use crate::{backup, configmap, garden, mover, pod};

/// An UPDATE carries two objects, and the API server takes objects of up to 1.5 MiB.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

pub const ENQUEUE_PATH: &str = "/mutate/backups";
pub const VALIDATE_PATH: &str = "/validate/backups";
pub const PLACE_PATH: &str = "/mutate/pods";
pub const GATE_PATH: &str = "/validate/movers";
pub const CONFIGURATION_PATH: &str = "/validate/configmaps";
pub const GARDEN_PATH: &str = "/validate/garden";

pub fn router<K: Known>(desk: Arc<Desk<K>>) -> Router {
    Router::new()
        .route(ENQUEUE_PATH, post(enqueue::<K>))
        .route(VALIDATE_PATH, post(validate::<K>))
        .route(PLACE_PATH, post(place::<K>))
        .route(GATE_PATH, post(gate::<K>))
        .route(CONFIGURATION_PATH, post(configuration::<K>))
        .route(GARDEN_PATH, post(shared_buckets::<K>))
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
    answer("enqueue", &desk, &body, async |question| backup::enqueue(&desk, question, desk.now())).await
}

async fn validate<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    answer("validate", &desk, &body, async |question| backup::validate(&desk, question).await).await
}

async fn place<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    answer("place", &desk, &body, async |question| pod::place(&desk, question).await).await
}

async fn gate<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    answer("gate", &desk, &body, async |question| mover::validate(&desk, question)).await
}

async fn configuration<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    answer("configuration", &desk, &body, async |question| configmap::validate(&desk, question)).await
}

async fn shared_buckets<K: Known>(State(desk): State<Arc<Desk<K>>>, body: Bytes) -> Response {
    answer("garden", &desk, &body, async |question| garden::validate(&desk, question).await).await
}

/// Asks one rule about one body, and counts its answer.
async fn answer<K: Known>(
    name: &'static str,
    desk: &Desk<K>,
    body: &[u8],
    rule: impl AsyncFnOnce(&review::Question<'_>) -> Result<Verdict, ReviewError>,
) -> Response {
    let at_work = Rule { name, tally: desk.tally(), begun: Instant::now() };
    match review::parse(body) {
        Ok(question) => {
            let verdict = rule(&question).await;
            at_work.answer(&question, verdict)
        }
        Err(error) => at_work.refuse_body(&error),
    }
}

/// A rule at work on one body.
struct Rule<'a> {
    name: &'static str,
    tally: &'a Tally,
    begun: Instant,
}

impl Rule<'_> {
    fn answer(self, question: &review::Question<'_>, verdict: Result<Verdict, ReviewError>) -> Response {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => return self.refuse_body(&error),
        };
        let (rule, ns, name, dry_run) =
            (self.name, &question.namespace, &question.name, question.is_dry_run());
        let counted = match &verdict.refused {
            Some(refused) => {
                let (reason, user) = (refused.reason, &question.user_info.username);
                info!(rule, %ns, %name, %user, dry_run, ?reason, violations = %refused.violations, "refused");
                match reason {
                    RefusalReason::Invalid => Answer::Invalid,
                    RefusalReason::Conflict => Answer::Conflict,
                    RefusalReason::Forbidden => Answer::Forbidden,
                }
            }
            None => {
                debug!(rule, %ns, %name, dry_run, warnings = ?verdict.warnings, "allowed");
                Answer::Allowed
            }
        };
        let answer = match verdict.answer(&question.uid) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        };
        self.tally.answered(rule, counted, self.begun.elapsed());
        answer
    }

    /// What the API server's failurePolicy decides on: there is no verdict.
    fn refuse_body(self, error: &ReviewError) -> Response {
        info!(%error, "no verdict");
        self.tally.answered(self.name, Answer::Unreadable, self.begun.elapsed());
        (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
    }
}

#[cfg(test)]
mod tests;
