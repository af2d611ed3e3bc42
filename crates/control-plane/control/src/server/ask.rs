//! Extracts an operation's inputs from a request: the caller, the path, the query, the body.
//! Refuses what does not fit.

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::{Body, Bytes};
use axum::extract::path::ErrorKind as PathErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use strongroom_api::guard::{Guarded, Parts as RequestParts};
use strongroom_api::limits::{BODY_MAX_BYTES, IDEMPOTENCY_KEY_MAX_BYTES};
use strongroom_api::{ErrorCode, IDEMPOTENCY_KEY_HEADER, Problem};
use strongroom_types::{hex, parse_id};
use utoipa::IntoParams;

use super::Api;
use super::problem::Refusal;
use super::query;
use super::token::{Asker, refuse};
use crate::engine::{Caller, RequestKey, access::Admitted};
use crate::problems;

/// How much of a body that is too long is read and dropped, in bytes.
const DROPPED_MAX_BYTES: usize = 8 * BODY_MAX_BYTES;

/// A request that changes something: its caller, and its body. A missing body counts as `{}`.
pub(super) struct Wish<T> {
    pub caller: Caller,
    pub body: T,
    pub headers: HeaderMap,
}

/// The query.
pub(super) struct Asked<T>(pub T);

/// A part of the path.
pub(super) struct Named<T>(pub T);

impl<T: DeserializeOwned + Guarded + Send> FromRequest<Api> for Wish<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let Parts { method, uri, headers, extensions, .. } = parts;
        let Asker { admitted: Admitted { caller, path }, operation, .. } = extensions
            .get::<Asker>()
            .cloned()
            .ok_or_else(|| Refusal(Problem::new(ErrorCode::Unauthorized, "nobody asks")))?;
        let body = whole(body).await?;
        query::refuse(&uri)?;
        let request = request_key(&caller.name, &headers, &method, &uri, &body)?;
        let caller = Caller { request, ..caller };
        let body: T = parse(&headers, &body)?;
        let admitted = api.control.admit_parts(caller.clone(), path, &RequestParts::of(&body));
        match admitted {
            Ok(caller) => Ok(Self { caller, body, headers }),
            Err(problem) => Err(refuse(api, caller, operation, problem).await),
        }
    }
}

/// Reads the body of a request without a caller.
pub(super) async fn read_open<T: DeserializeOwned>(request: Request) -> Result<T, Refusal> {
    let (Parts { uri, headers, .. }, body) = request.into_parts();
    let body = whole(body).await?;
    query::refuse(&uri)?;
    Ok(parse(&headers, &body)?)
}

fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, Problem> {
    if !body.is_empty() && !is_json(headers) {
        let message = "the body's Content-Type is not application/json";
        let problem = Problem::new(ErrorCode::UnsupportedMediaType, message);
        return Err(problem.next("send `Content-Type: application/json`"));
    }
    let text: &[u8] = if body.trim_ascii().is_empty() { b"{}" } else { body };
    // serde takes a list for a struct, field after field.
    if !text.trim_ascii_start().starts_with(b"{") {
        let problem = Problem::new(ErrorCode::Malformed, "the body is not a JSON object");
        return Err(problem.next("/openapi.json says what belongs here"));
    }
    serde_json::from_slice(text).map_err(|error| {
        Problem::new(ErrorCode::Malformed, format!("the body is not what belongs here: {error}"))
            .next("/openapi.json says what does")
    })
}

impl<S: Send + Sync, T: DeserializeOwned + IntoParams> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Ok(Self(query::read(&parts.uri)?))
    }
}

/// Refuses a query, for operations without one.
pub(super) async fn without_query(request: Request, next: Next) -> Result<Response, Refusal> {
    query::refuse(request.uri())?;
    Ok(next.run(request).await)
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Refusal(unnamed(&error)))
    }
}

/// The problem for a path with an invalid part, in our words rather than a parser's.
fn unnamed(error: &PathRejection) -> Problem {
    let message = match error {
        PathRejection::FailedToDeserializePathParams(failed) => match failed.kind() {
            PathErrorKind::DeserializeError { value, .. } => {
                parse_id(value).err().map_or_else(|| error.body_text(), |refused| refused.to_string())
            }
            PathErrorKind::ParseError { value, .. }
            | PathErrorKind::ParseErrorAtIndex { value, .. }
            | PathErrorKind::ParseErrorAtKey { value, .. } => format!("'{value}' is not a number"),
            _ => error.body_text(),
        },
        _ => error.body_text(),
    };
    Problem::new(ErrorCode::Malformed, message).next("/openapi.json says what belongs in the path")
}

/// Receives a request as a whole, before anybody looks at it: an answer that comes before all was
/// sent may never be seen, and ends the connection, which the client would use for its next one.
/// Of a body that is too long, enough is kept to see that.
pub(super) async fn received(request: Request) -> Result<Request, Problem> {
    let (parts, mut body) = request.into_parts();
    let (mut kept, mut read_bytes) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ended_early())?;
        let Ok(data) = frame.into_data() else { continue };
        read_bytes += data.len();
        let room = (BODY_MAX_BYTES + 1).saturating_sub(kept.len());
        kept.extend(data.into_iter().take(room));
        if read_bytes > DROPPED_MAX_BYTES {
            break;
        }
    }
    Ok(Request::from_parts(parts, Body::from(kept)))
}

/// The body of a request that was received.
async fn whole(body: Body) -> Result<Bytes, Problem> {
    let body = body.collect().await.map_err(|_| ended_early())?.to_bytes();
    if body.len() > BODY_MAX_BYTES {
        let problem = Problem::new(ErrorCode::TooLarge, format!("a body has at most {BODY_MAX_BYTES} bytes"));
        return Err(problem.next("send less in one request"));
    }
    Ok(body)
}

fn ended_early() -> Problem {
    Problem::new(ErrorCode::Malformed, "the request's body ended early").next("send it again")
}

/// The version that a caller requires with `If-Match: "7"`.
pub(super) fn version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(axum::http::header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim().trim_matches('"');
    if text == "*" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| problems::invalid("If-Match is not a version that was read here"))
}

fn request_key(
    caller: &str,
    headers: &HeaderMap,
    method: &Method,
    uri: &Uri,
    body: &Bytes,
) -> Result<Option<RequestKey>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
    let key = value.as_bytes();
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_MAX_BYTES || !key.iter().all(u8::is_ascii_graphic) {
        return Err(problems::invalid(format!(
            "an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_MAX_BYTES} printable ASCII characters"
        )));
    }
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    Ok(Some(RequestKey {
        key: digest(&[caller.as_bytes(), key]),
        fingerprint: digest(&[method.as_str().as_bytes(), path.as_bytes(), body]),
    }))
}

/// SHA-256 over parts, each with its length before it, so that different lists cannot collide.
fn digest(parts: &[&[u8]]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    hex::encode(context.finish().as_ref())
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotency_key_is_its_callers_alone() {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY_HEADER, "a-4711".parse().unwrap());
        let uri = Uri::from_static("/v1/vms");
        let of = |caller: &str, body: &'static str| {
            let body = Bytes::from_static(body.as_bytes());
            request_key(caller, &headers, &Method::POST, &uri, &body).unwrap().unwrap()
        };
        let (ada, bob) = (of("ada", "{}"), of("bob", "{}"));
        assert_ne!(ada.key, bob.key);
        assert_eq!((&ada.key, &ada.fingerprint), (&of("ada", "{}").key, &bob.fingerprint));
        assert_ne!(ada.fingerprint, of("ada", "{ }").fingerprint);
        // The boundary between caller and key counts.
        headers.insert(IDEMPOTENCY_KEY_HEADER, "bc".parse().unwrap());
        let one = request_key("a", &headers, &Method::POST, &uri, &Bytes::new()).unwrap().unwrap();
        headers.insert(IDEMPOTENCY_KEY_HEADER, "c".parse().unwrap());
        let other = request_key("ab", &headers, &Method::POST, &uri, &Bytes::new()).unwrap().unwrap();
        assert_ne!(one.key, other.key);
    }
}
