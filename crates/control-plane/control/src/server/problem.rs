//! Problems as answers, and the ids of requests.

use std::fmt;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use strongroom_api::{AnsweredProblem, ErrorBody, ErrorCode, Problem, REQUEST_HEADER};
use strongroom_types::hex;

/// The random bytes of a request's id: enough to find one in a log.
const ID_BYTES: usize = 8;

/// Names a request, for people who look for it in the log. It is no secret, and nothing depends on
/// its being the only one.
#[derive(Clone, Debug)]
pub(super) struct RequestId(String);

impl RequestId {
    /// Another one.
    pub fn fresh() -> Self {
        let mut bytes = [0; ID_BYTES];
        // Without random numbers requests are not told apart, and go on.
        let _ = getrandom::fill(&mut bytes);
        Self(hex::encode(&bytes))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A refused operation. Its answer has a body once [`complete`] knows which request it is of.
#[derive(Debug)]
pub(super) struct Refusal(pub Problem);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.0.code == ErrorCode::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For the access log, and the body.
        response.extensions_mut().insert(self.0);
        response
    }
}

/// Names the request in its answer, and in the log if it was refused.
pub(super) fn complete(mut response: Response, request: &RequestId) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        match problem.code {
            ErrorCode::Internal => tracing::error!(%request, "a request failed: {problem}"),
            code => tracing::debug!(%request, ?code, "a request was refused: {problem}"),
        }
        let body = ErrorBody { error: AnsweredProblem { problem, request: Some(request.to_string()) } };
        *response.body_mut() = Body::from(serde_json::to_vec(&body).unwrap_or_default());
    }
    if let Ok(value) = HeaderValue::try_from(request.to_string()) {
        response.headers_mut().insert(REQUEST_HEADER, value);
    }
    response
}
