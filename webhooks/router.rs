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

use crate::desk::Desk;
use crate::intake::TurnedAway;
use crate::known::Known;
use crate::review::{self, Question, RefusalReason, ReviewError, Verdict};
use crate::tally::{Answer, Tally};
use crate::{backup, configmap, garden, mover, pod};

/// How long the API server waits for an answer that does not say so.
const TIMEOUT: Duration = Duration::from_secs(2);
/// What it says may not be more: it comes from whoever asks.
const LONGEST: Duration = Duration::from_secs(30);
/// What is not decided by then hangs: the replica is to be started anew.
const HANGS: Duration = Duration::from_secs(60);
/// Bodies of more bytes are judged a few at a time.
const LARGE: usize = 128 * 1024;

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
        .with_state(desk)
}

async fn ready<K: Known>(State(desk): State<Arc<Desk<K>>>) -> Response {
    if desk.known().ready() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n").into_response()
    }
}

type Here<K> = State<Arc<Desk<K>>>;

async fn validate<K: Known>(State(desk): Here<K>, request: Request) -> Response {
    answer("validate", &desk, request, async |question| backup::validate(&desk, question).await).await
}

async fn place<K: Known>(State(desk): Here<K>, request: Request) -> Response {
    answer("place", &desk, request, async |question| pod::place(&desk, question).await).await
}

async fn gate<K: Known>(State(desk): Here<K>, request: Request) -> Response {
    answer("gate", &desk, request, async |question| mover::validate(&desk, question)).await
}

async fn configuration<K: Known>(State(desk): Here<K>, request: Request) -> Response {
    answer("configuration", &desk, request, async |question| configmap::validate(&desk, question)).await
}

async fn shared_buckets<K: Known>(State(desk): Here<K>, request: Request) -> Response {
    answer("garden", &desk, request, async |question| garden::validate(&desk, question).await).await
}

/// Comparing with all that is met in the queue may take its time, and keeps nobody from being answered meanwhile.
async fn enqueue<K: Known>(State(desk): Here<K>, request: Request) -> Response {
    let name = "enqueue";
    let deadline = deadline(&request);
    let by = tokio::time::Instant::now() + deadline;
    let body = match desk.intake().read(request, deadline).await {
        Ok(body) => Arc::new(body),
        Err(why) => return Rule::begin(name, desk.tally()).turn_away(why),
    };
    let deciding = async {
        let turn = desk.intake().turn(&body, deadline).await.ok()?;
        let (desk, body) = (Arc::clone(&desk), Arc::clone(&body));
        let decide = move || {
            let _turn = turn;
            let _alive = desk.known().within(HANGS);
            let decide = |question: &Question<'_>| backup::enqueue(&desk, question, desk.now());
            Rule::begin(name, desk.tally()).answer_with(&body.bytes, decide)
        };
        tokio::task::spawn_blocking(decide).await.ok()
    };
    match tokio::time::timeout_at(by, deciding).await {
        Ok(Some(answer)) => answer,
        Ok(None) | Err(_) if body.bytes.len() > LARGE => {
            Rule::begin(name, desk.tally()).turn_away(TurnedAway::Late)
        }
        Ok(None) | Err(_) => {
            desk.tally().turned_away(name, TurnedAway::Late);
            Rule::begin(name, desk.tally()).answer_with(&body.bytes, backup::enqueue_later)
        }
    }
}

/// How long an answer may take, so that whoever waits gets one: three quarters of what the API server says in
/// `?timeout=2s`.
fn deadline(request: &Request) -> Duration {
    let said = request.uri().query().and_then(|query| {
        let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeout="))?.strip_suffix('s')?;
        seconds.parse().ok().map(Duration::from_secs)
    });
    said.unwrap_or(TIMEOUT).clamp(Duration::from_secs(1), LONGEST) * 3 / 4
}

/// Asks one rule about one body, and counts its answer.
async fn answer<K: Known>(
    name: &'static str,
    desk: &Desk<K>,
    request: Request,
    rule: impl AsyncFnOnce(&Question<'_>) -> Result<Verdict, ReviewError>,
) -> Response {
    let deadline = deadline(&request);
    let by = tokio::time::Instant::now() + deadline;
    let body = match desk.intake().read(request, deadline).await {
        Ok(body) => body,
        Err(why) => return Rule::begin(name, desk.tally()).turn_away(why),
    };
    let at_work = Rule::begin(name, desk.tally());
    let answering = async {
        let is_large = body.bytes.len() > LARGE;
        let _turn = if is_large { Some(desk.intake().turn(&body, deadline).await?) } else { None };
        Ok(match review::parse(&body.bytes) {
            Ok(question) => {
                let verdict = rule(&question).await;
                at_work.answer(&question, verdict)
            }
            Err(error) => at_work.refuse_body(&error),
        })
    };
    match tokio::time::timeout_at(by, answering).await.unwrap_or(Err(TurnedAway::Late)) {
        Ok(answer) => answer,
        Err(why) => at_work.turn_away(why),
    }
}

/// A rule at work on one body.
#[derive(Clone, Copy)]
struct Rule<'a> {
    name: &'static str,
    tally: &'a Tally,
    begun: Instant,
}

impl<'a> Rule<'a> {
    fn begin(name: &'static str, tally: &'a Tally) -> Self {
        Self { name, tally, begun: Instant::now() }
    }

    fn answer_with(
        self,
        body: &[u8],
        decide: impl FnOnce(&Question<'_>) -> Result<Verdict, ReviewError>,
    ) -> Response {
        match review::parse(body) {
            Ok(question) => {
                let verdict = decide(&question);
                self.answer(&question, verdict)
            }
            Err(error) => self.refuse_body(&error),
        }
    }

    fn answer(self, question: &Question<'_>, verdict: Result<Verdict, ReviewError>) -> Response {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => return self.refuse_body(&error),
        };
        // Nobody knows who sent this: it is told in one line, whatever is in it.
        let (rule, dry_run) = (self.name, question.is_dry_run());
        let [ns, name] = [&question.namespace, &question.name].map(|text| tellable(text));
        let counted = match &verdict.refused {
            Some(refused) => {
                let (reason, user) = (refused.reason, tellable(&question.user_info.username));
                if self.tally.may_tell(Instant::now()) {
                    info!(rule, %ns, %name, %user, dry_run, ?reason, violations = %refused.violations, "refused");
                }
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
        let error = error.to_string();
        let error = tellable(&error);
        if self.tally.may_tell(Instant::now()) {
            info!(rule = self.name, %error, "no verdict");
        }
        self.tally.answered(self.name, Answer::Unreadable, self.begun.elapsed());
        (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
    }

    /// The failurePolicy decides here, too.
    fn turn_away(self, why: TurnedAway) -> Response {
        if self.tally.may_tell(Instant::now()) {
            info!(rule = self.name, %why, "turned away");
        }
        self.tally.turned_away(self.name, why);
        (why.status(), format!("{why}\n")).into_response()
    }
}

#[cfg(test)]
mod tests;
