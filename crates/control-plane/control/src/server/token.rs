//! Identifies callers by bearer tokens (RFC 6750), cookies of the page and keys, and admits them to
//! operations. Only the SHA-256 of each is stored.

use std::net::IpAddr;

use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{RequestExt, extract::FromRequestParts};
use strongroom_api::browser::SESSION_COOKIE;
use strongroom_api::{ErrorCode, OPERATIONS, Operation, Problem};

use super::Api;
use super::browser::{Cookie, Foreign, not_for_others, of_own_page};
use super::listen::ConnectionPlace;
use super::problem::Refusal;
use crate::engine::access::{Admitted, PathPart, Rights};
use crate::engine::holders::{Shown, holder};
use crate::engine::{Caller, Control};

/// The caller of an admitted operation.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub admitted: Admitted,
    /// The operation's name.
    pub operation: &'static str,
    /// What it has shown, to see whether that still counts.
    pub shown: Shown,
}

impl Asker {
    /// The rights of the caller now.
    pub fn rights(&self, control: &Control) -> Rights {
        control.rights(self.admitted.caller.principal)
    }

    /// Whether what was shown still counts, for an answer that goes on.
    pub fn still_counts(&self, control: &Control) -> bool {
        still_counts(control, &self.shown)
    }
}

/// Whether what a caller has shown still counts.
pub(super) fn still_counts(control: &Control, shown: &Shown) -> bool {
    let now_unix_seconds = control.now_unix_ms() / 1000;
    holder(&control.inventory.read(), shown, now_unix_seconds).is_some()
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let asker = parts.extensions.get::<Self>().cloned();
        asker.ok_or_else(|| Refusal(Problem::new(ErrorCode::Unauthorized, "nobody asks")))
    }
}

/// What is said to whom nobody knows.
const NOBODY_KNOWN: &str = "no token that is known here came with the request";

/// What a request shows. What is sent on purpose counts before what a browser sends by itself, and
/// a session of the page before the connection's key.
fn shown_by(request: &Request, place: Option<&ConnectionPlace>) -> Option<Shown> {
    let headers = request.headers();
    let authorization = headers.get(AUTHORIZATION);
    let token = authorization.and_then(|value| value.to_str().ok()?.split_once(' '));
    if let Some((_, token)) = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) {
        return Some(Shown::bearer(token.trim()));
    }
    match Cookie::of(headers, SESSION_COOKIE) {
        Cookie::Value(secret) if authorization.is_none() => Some(Shown::cookie(secret)),
        Cookie::Ambiguous => None,
        Cookie::Absent | Cookie::Value(_) => place.and_then(|place| place.key.clone()).map(Shown::Key),
    }
}

/// Whether what was shown counts for this request. A browser sends cookies and keys by itself, also
/// for pages of others.
fn counts_for(request: &Request, shown: &Shown) -> Result<(), Foreign> {
    match shown {
        Shown::Bearer(_) => Ok(()),
        Shown::Cookie(_) => of_own_page(request.method(), request.uri(), request.headers()),
        Shown::Key(_) => not_for_others(request.uri(), request.headers()),
    }
}

/// Whether what a request shows counts for it, which is nothing that is recorded.
pub(super) fn is_signed_in(control: &Control, request: &Request) -> bool {
    let shown = shown_by(request, request.extensions().get::<ConnectionPlace>());
    shown.is_some_and(|shown| counts_for(request, &shown).is_ok() && still_counts(control, &shown))
}

/// Why a request has no caller.
pub(super) enum NoCaller {
    /// What it shows does not count.
    Unknown(Problem),
    /// The page of somebody else made a browser of this caller send it.
    Foreign(Box<Caller>, Problem),
}

impl NoCaller {
    /// The refusal of the request, which is recorded if a browser was made to send it.
    pub async fn refused(self, api: &Api) -> Refusal {
        match self {
            Self::Unknown(problem) => Refusal(problem),
            Self::Foreign(caller, problem) => refuse_foreign(api, *caller, problem).await,
        }
    }
}

/// The caller of a request, by what it shows.
fn caller_of(
    api: &Api,
    request: &Request,
    shown: Option<Shown>,
    operation: Option<&'static str>,
) -> Result<(Caller, Shown), NoCaller> {
    let now_unix_seconds = api.control.now_unix_ms() / 1000;
    let known = shown
        .and_then(|shown| Some((holder(&api.control.inventory.read(), &shown, now_unix_seconds)?, shown)));
    let Some((holder, shown)) = known else {
        let problem = Problem::new(ErrorCode::Unauthorized, NOBODY_KNOWN).next(
            "send `Authorization: Bearer TOKEN`; the first one is in the file control/token of the home. In a browser: \
             sign in",
        );
        return Err(NoCaller::Unknown(problem));
    };
    let place = request.extensions().get::<ConnectionPlace>();
    let (principal, from) = (holder.principal, place.map(|place| place.from));
    let caller = Caller { principal, from, operation, ..Caller::machine(&holder.name) };
    if let Err(foreign) = counts_for(request, &shown) {
        return Err(NoCaller::Foreign(Box::new(caller), foreign.problem(ErrorCode::Unauthorized)));
    }
    if let Some(Err(full)) = place.map(|place| place.place.known_as(&holder.name)) {
        let problem = Problem::new(ErrorCode::TooMany, format!("token {}: {full}", holder.name));
        return Err(NoCaller::Unknown(problem.next("close some of them, and try again")));
    }
    Ok((caller, shown))
}

/// The caller of a request of the page, by the session of its browser alone.
pub(super) fn caller_of_browser(
    api: &Api,
    request: &Request,
    operation: &'static str,
) -> Result<(Caller, Shown), NoCaller> {
    let session = Cookie::of(request.headers(), SESSION_COOKIE).value().map(Shown::cookie);
    caller_of(api, request, session, Some(operation))
}

/// Admits requests with a known token to operations that the caller's roles permit.
pub(super) async fn require(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let shown = shown_by(&request, request.extensions().get::<ConnectionPlace>());
    let on_behalf = operation_of(&request);
    let (caller, shown) = match caller_of(&api, &request, shown, on_behalf.map(|operation| operation.id)) {
        Ok(known) => known,
        Err(none) => return none.refused(&api).await.into_response(),
    };
    let Some(operation) = on_behalf else {
        // The router refuses the method.
        return next.run(request).await;
    };
    let parameters = request.extract_parts::<RawPathParams>().await;
    let first = parameters.as_ref().ok().and_then(|all| all.iter().next());
    let path = first.map(|(parameter, value)| PathPart { parameter, value });
    match api.control.admit(caller.clone(), operation, path) {
        Ok(admitted) => {
            request.extensions_mut().insert(Asker { admitted, operation: operation.id, shown });
            let response = next.run(request).await;
            on_record(&api, caller, operation, response).await
        }
        Err(problem) => refuse(&api, caller, operation.id, problem).await.into_response(),
    }
}

/// The answer, once the access log has what it has to have of the operation: a refusal that came
/// after the caller was admitted is recorded here; a change or reading that is not on record is a
/// defect, and not answered.
async fn on_record(api: &Api, caller: Caller, operation: &'static Operation, response: Response) -> Response {
    if caller.receipt.was_given() {
        return response;
    }
    if response.status() == StatusCode::FORBIDDEN {
        let problem = response.extensions().get::<Problem>().cloned();
        let problem = problem.unwrap_or_else(|| Problem::new(ErrorCode::Forbidden, "it was refused"));
        return refuse(api, caller, operation.id, problem).await.into_response();
    }
    if operation.on_record.is_some() && response.status().is_success() {
        tracing::error!(operation = operation.id, "what was done is not in the access log");
        return Refusal(Problem::new(ErrorCode::Internal, "what was done is not in the access log"))
            .into_response();
    }
    response
}

/// Records a refusal, and answers with it.
pub(super) async fn refuse(api: &Api, caller: Caller, operation: &'static str, problem: Problem) -> Refusal {
    let recorded = super::routes::blocking(api.clone(), move |control| {
        control.record_refusal(&caller, operation, &problem).map(|()| problem)
    });
    recorded.await.map_or_else(|refusal| refusal, Refusal)
}

/// Records that a browser made a request for a page of somebody else, and refuses it.
async fn refuse_foreign(api: &Api, caller: Caller, problem: Problem) -> Refusal {
    let recorded = super::routes::blocking(api.clone(), move |control| {
        control.record_foreign(&caller, &problem).map(|()| problem)
    });
    recorded.await.map_or_else(|refusal| refusal, Refusal)
}

fn operation_of(request: &Request) -> Option<&'static Operation> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    // Whoever may read it may ask whether it is there.
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    OPERATIONS.iter().find(|operation| operation.path == path && operation.method.as_str() == method)
}

/// The address of a request without a token.
pub(super) struct From(pub IpAddr);

impl<S: Send + Sync> FromRequestParts<S> for From {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let place = parts.extensions.get::<ConnectionPlace>();
        let from = place.map(|place| Self(place.from));
        from.ok_or_else(|| Refusal(Problem::new(ErrorCode::Internal, "a request came from nowhere")))
    }
}
