//! Problems as answers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use strongroom_api::{ErrorBody, ErrorCode, Problem};

/// A refused operation.
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
        let unauthorized = self.0.code == ErrorCode::Unauthorized;
        let problem = self.0.clone();
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        // For the access log.
        response.extensions_mut().insert(problem);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
