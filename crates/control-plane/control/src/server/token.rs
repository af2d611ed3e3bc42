//! Identifies callers by bearer tokens (RFC 6750), and admits them to operations. Only the SHA-256
//! of a token is stored.

use std::net::IpAddr;

use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{RequestExt, extract::FromRequestParts};
use strongroom_api::{ErrorCode, OPERATIONS, Operation, Problem};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::Api;
use super::listen::ConnectionPlace;
use super::problem::Refusal;
use crate::bearer;
use crate::client_key::ClientKey;
use crate::engine::access::{Admitted, PathPart, Rights};
use crate::engine::{Caller, Control};
use crate::inventory::Index;
use crate::records::{CredentialUse, Principal};

/// The caller of an admitted operation.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub admitted: Admitted,
    /// The operation's name.
    pub operation: &'static str,
    /// What it has shown, to see whether that still counts.
    shown: Shown,
}

/// What a caller has shown.
#[derive(Clone, Debug)]
enum Shown {
    /// A bearer token, of which this is SHA-256.
    Bearer(String),
    /// A key, in TLS.
    Key(ClientKey),
}

impl Asker {
    /// The rights of the caller now.
    pub fn rights(&self, control: &Control) -> Rights {
        control.rights(self.admitted.caller.principal)
    }

    /// Whether the token still counts, for an answer that goes on.
    pub fn still_counts(&self, control: &Control) -> bool {
        let now_unix_seconds = control.now_unix_ms() / 1000;
        holder(&control.inventory.read(), &self.shown, now_unix_seconds).is_some()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let asker = parts.extensions.get::<Self>().cloned();
        asker.ok_or_else(|| Refusal(Problem::new(ErrorCode::Unauthorized, "nobody asks")))
    }
}

/// Admits requests with a known token to operations that the caller's roles permit.
pub(super) async fn require(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = shown
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let now_unix_seconds = api.control.now_unix_ms() / 1000;
    let place = request.extensions().get::<ConnectionPlace>().cloned();
    // A token that is sent counts, and not the connection's key: who sends one means that.
    let shown = match (token, place.as_ref().and_then(|place| place.key.clone())) {
        (Some((_, token)), _) => Some(Shown::Bearer(bearer::sha256(token.trim()))),
        (None, Some(key)) => Some(Shown::Key(key)),
        (None, None) => None,
    };
    let known = shown
        .and_then(|shown| Some((holder(&api.control.inventory.read(), &shown, now_unix_seconds)?, shown)));
    let Some((holder, shown)) = known else {
        let problem =
            Problem::new(ErrorCode::Unauthorized, "no token that is known here came with the request").next(
                "send `Authorization: Bearer TOKEN`; the first one is in the file control/token of the home",
            );
        return Refusal(problem).into_response();
    };
    if let Some(Err(full)) = place.as_ref().map(|place| place.place.known_as(&holder.name)) {
        let problem = Problem::new(ErrorCode::TooMany, format!("token {}: {full}", holder.name));
        return Refusal(problem.next("close some of them, and try again")).into_response();
    }
    let Some(operation) = operation_of(&request) else {
        // The router refuses the method.
        return next.run(request).await;
    };
    let from = place.map(|place| place.from);
    let (principal, on_behalf) = (holder.principal, Some(operation.id));
    let caller = Caller { principal, from, operation: on_behalf, ..Caller::machine(&holder.name) };
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

fn operation_of(request: &Request) -> Option<&'static Operation> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    let method = request.method().as_str();
    OPERATIONS.iter().find(|operation| operation.path == path && operation.method.as_str() == method)
}

/// The holder of a token.
struct Holder {
    name: String,
    principal: Principal,
}

/// Returns the holder of a token that counts now.
fn holder(index: &Index, shown: &Shown, now_unix_seconds: u64) -> Option<Holder> {
    match shown {
        Shown::Bearer(sha256) => holder_of_bearer(index, sha256, now_unix_seconds),
        Shown::Key(key) => {
            let known = index.credentials.get(key.credential())?;
            let CredentialUse::Token { name, key_sha256: Some(_), .. } = &known.use_ else { return None };
            let holder = || Holder { name: name.to_string(), principal: Principal::Token(known.id) };
            (known.expires_unix_seconds > now_unix_seconds).then(holder)
        }
    }
}

fn holder_of_bearer(index: &Index, sha256: &str, now_unix_seconds: u64) -> Option<Holder> {
    if let Some(name) = first_token(index, sha256) {
        return Some(Holder { name, principal: Principal::Machine });
    }
    if let Some(session) = index.outside_sessions.get(sha256) {
        let current = session.expires_unix_seconds > now_unix_seconds;
        let holder = || Holder { name: session.name.clone(), principal: Principal::Token(session.id) };
        return current.then(holder);
    }
    let known = index.credentials.get(sha256)?;
    if known.expires_unix_seconds <= now_unix_seconds {
        return None;
    }
    match &known.use_ {
        CredentialUse::Token { key_sha256: Some(_), .. } => None,
        CredentialUse::Token { name, key_sha256: None, .. } => {
            Some(Holder { name: name.to_string(), principal: Principal::Token(known.id) })
        }
        CredentialUse::Session => {
            let user = index.users.get(&known.user?.to_string())?;
            Some(Holder { name: user.name.to_string(), principal: Principal::User(user.id) })
        }
    }
}

/// Returns the name of a token that permits everything. Compares with each of them, in constant
/// time.
fn first_token(index: &Index, sha256: &str) -> Option<String> {
    let mut found = 0u32;
    for (number, known) in index.tokens.iter().enumerate() {
        let equal: Choice = known.sha256.as_bytes().ct_eq(sha256.as_bytes());
        let place = u32::try_from(number).unwrap_or(u32::MAX - 1) + 1;
        found.conditional_assign(&place, equal);
    }
    let place = usize::try_from(found).ok()?.checked_sub(1)?;
    index.tokens.iter().nth(place).map(|known| known.name.clone())
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
