//! Paths to handlers. Binds no port.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use berth_core::violation::tellable;
use http::{StatusCode, header};
use tracing::{debug, info};

use crate::intake::TurnedAway;
use crate::listers::Listers;
use crate::metrics::{AdmissionMetrics, ReviewOutcome};
use crate::review::{self, AdmissionRequest, RefusalReason, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;
use crate::{backup, configmap, garden, mover, pod, schedule};

/// How long the API server is assumed to wait when a request has no `timeout` parameter.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Cap of the `timeout` parameter, because any client can set it.
const LONGEST: Duration = Duration::from_secs(30);
/// A decision that takes longer hangs: the liveness probe fails, and the kubelet restarts the
/// replica.
const HANGS: Duration = Duration::from_secs(60);
/// Bodies of more bytes wait for a turn: only a few of them are judged at the same time.
const LARGE: usize = 128 * 1024;

pub const ENQUEUE_PATH: &str = "/mutate/backups";
pub const VALIDATE_PATH: &str = "/validate/backups";
pub const PLACE_PATH: &str = "/mutate/pods";
pub const GATE_PATH: &str = "/validate/movers";
pub const CONFIGURATION_PATH: &str = "/validate/configmaps";
pub const GARDEN_PATH: &str = "/validate/garden";
pub const SCHEDULE_PATH: &str = "/validate/schedules";

pub fn router<K: Listers>(state: Arc<AdmissionState<K>>) -> Router {
    Router::new()
        .route(ENQUEUE_PATH, post(enqueue::<K>))
        .route(VALIDATE_PATH, post(validate::<K>))
        .route(PLACE_PATH, post(place::<K>))
        .route(GATE_PATH, post(gate::<K>))
        .route(CONFIGURATION_PATH, post(configuration::<K>))
        .route(GARDEN_PATH, post(shared_buckets::<K>))
        .route(SCHEDULE_PATH, post(schedules::<K>))
        .route("/readyz", get(ready::<K>))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(state)
}

async fn ready<K: Listers>(State(state): State<Arc<AdmissionState<K>>>) -> Response {
    if state.listers().ready() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n").into_response()
    }
}

type RouterState<K> = State<Arc<AdmissionState<K>>>;

async fn validate<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    answer("validate", &state, http_request, async |request| backup::validate(&state, request).await).await
}

async fn place<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    answer("place", &state, http_request, async |request| pod::place(&state, request).await).await
}

async fn gate<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    answer("gate", &state, http_request, async |request| mover::validate(&state, request)).await
}

async fn configuration<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    answer("configuration", &state, http_request, async |request| configmap::validate(&state, request)).await
}

async fn shared_buckets<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    answer("garden", &state, http_request, async |request| garden::validate(&state, request).await).await
}

async fn schedules<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    answer("schedule", &state, http_request, async |request| schedule::validate(&state, request).await).await
}

/// Decides on a thread of its own, because comparing with the whole queue may take long and must
/// not delay other answers.
async fn enqueue<K: Listers>(State(state): RouterState<K>, http_request: Request) -> Response {
    let name = "enqueue";
    let deadline = deadline(&http_request);
    let by = tokio::time::Instant::now() + deadline;
    let body = match state.intake().read(http_request, deadline).await {
        Ok(body) => Arc::new(body),
        Err(why) => return ReviewedRule::begin(name, state.metrics()).turn_away(why),
    };
    let deciding = async {
        let turn = state.intake().turn(&body, deadline).await.ok()?;
        let (state, body) = (Arc::clone(&state), Arc::clone(&body));
        let decide = move || {
            let _turn = turn;
            let _alive = state.listers().within(HANGS);
            let decide = |request: &AdmissionRequest<'_>| backup::enqueue(&state, request, state.now());
            ReviewedRule::begin(name, state.metrics()).answer_with(&body.bytes, decide)
        };
        tokio::task::spawn_blocking(decide).await.ok()
    };
    match tokio::time::timeout_at(by, deciding).await {
        Ok(Some(answer)) => answer,
        Ok(None) | Err(_) if body.bytes.len() > LARGE => {
            ReviewedRule::begin(name, state.metrics()).turn_away(TurnedAway::Late)
        }
        Ok(None) | Err(_) => {
            state.metrics().turned_away(name, TurnedAway::Late);
            ReviewedRule::begin(name, state.metrics())
                .answer_with(&body.bytes, |request| backup::enqueue_later(&state, request))
        }
    }
}

/// How long an answer may take: three quarters of the API server's `?timeout=2s`, so that the
/// answer arrives before the API server gives up.
fn deadline(http_request: &Request) -> Duration {
    let said = http_request.uri().query().and_then(|query| {
        let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeout="))?.strip_suffix('s')?;
        seconds.parse().ok().map(Duration::from_secs)
    });
    said.unwrap_or(TIMEOUT).clamp(Duration::from_secs(1), LONGEST) * 3 / 4
}

/// Answers one review by one rule, and counts the answer.
async fn answer<K: Listers>(
    name: &'static str,
    state: &AdmissionState<K>,
    http_request: Request,
    rule: impl AsyncFnOnce(&AdmissionRequest<'_>) -> Result<ReviewVerdict, ReviewError>,
) -> Response {
    let deadline = deadline(&http_request);
    let by = tokio::time::Instant::now() + deadline;
    let body = match state.intake().read(http_request, deadline).await {
        Ok(body) => body,
        Err(why) => return ReviewedRule::begin(name, state.metrics()).turn_away(why),
    };
    let at_work = ReviewedRule::begin(name, state.metrics());
    let answering = async {
        let is_large = body.bytes.len() > LARGE;
        let _turn = if is_large { Some(state.intake().turn(&body, deadline).await?) } else { None };
        Ok(match review::parse(&body.bytes) {
            Ok(request) => {
                let verdict = rule(&request).await;
                at_work.answer(&request, verdict)
            }
            Err(error) => at_work.refuse_body(&error),
        })
    };
    match tokio::time::timeout_at(by, answering).await.unwrap_or(Err(TurnedAway::Late)) {
        Ok(answer) => answer,
        Err(why) => at_work.turn_away(why),
    }
}

/// One review under one rule, for logs and metrics.
#[derive(Clone, Copy)]
struct ReviewedRule<'a> {
    name: &'static str,
    metrics: &'a AdmissionMetrics,
    begun: Instant,
}

impl<'a> ReviewedRule<'a> {
    fn begin(name: &'static str, metrics: &'a AdmissionMetrics) -> Self {
        Self { name, metrics, begun: Instant::now() }
    }

    fn answer_with(
        self,
        body: &[u8],
        decide: impl FnOnce(&AdmissionRequest<'_>) -> Result<ReviewVerdict, ReviewError>,
    ) -> Response {
        match review::parse(body) {
            Ok(request) => {
                let verdict = decide(&request);
                self.answer(&request, verdict)
            }
            Err(error) => self.refuse_body(&error),
        }
    }

    fn answer(self, request: &AdmissionRequest<'_>, verdict: Result<ReviewVerdict, ReviewError>) -> Response {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => return self.refuse_body(&error),
        };
        // Texts of the request are shortened to one line, because any client can send them.
        let (rule, dry_run) = (self.name, request.is_dry_run());
        let [ns, name] = [&request.namespace, &request.name].map(|text| tellable(text));
        let counted = match &verdict.refused {
            Some(refused) => {
                let (reason, user) = (refused.reason, tellable(&request.user_info.username));
                if self.metrics.may_log(Instant::now()) {
                    info!(rule, %ns, %name, %user, dry_run, ?reason, violations = %refused.violations, "refused");
                }
                match reason {
                    RefusalReason::Invalid => ReviewOutcome::Invalid,
                    RefusalReason::Conflict => ReviewOutcome::Conflict,
                    RefusalReason::Forbidden => ReviewOutcome::Forbidden,
                }
            }
            None => {
                debug!(rule, %ns, %name, dry_run, warnings = ?verdict.warnings, "allowed");
                ReviewOutcome::Allowed
            }
        };
        let answer = match verdict.answer(&request.uid) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        };
        self.metrics.answered(rule, counted, self.begun.elapsed());
        answer
    }

    /// Answers without a verdict: the API server then follows the failurePolicy.
    fn refuse_body(self, error: &ReviewError) -> Response {
        let error = error.to_string();
        let error = tellable(&error);
        if self.metrics.may_log(Instant::now()) {
            info!(rule = self.name, %error, "no verdict");
        }
        self.metrics.answered(self.name, ReviewOutcome::Unreadable, self.begun.elapsed());
        (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
    }

    /// Answers without a verdict, because a limit is reached: the failurePolicy applies here, too.
    fn turn_away(self, why: TurnedAway) -> Response {
        if self.metrics.may_log(Instant::now()) {
            info!(rule = self.name, %why, "refused a review");
        }
        self.metrics.turned_away(self.name, why);
        (why.status(), format!("{why}\n")).into_response()
    }
}

#[cfg(test)]
mod tests;
