//! The server itself.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use strongroom_api::{ErrorBody, ErrorCode, Problem};

use super::super::problem::Refusal;
use super::super::{Api, document, metrics as numbers};
use super::{Answer, blocking};

/// This document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "server",
    responses((status = 200, description = "The OpenAPI document.", content_type = "application/json", body = Object)))]
pub async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], document::text()).into_response()
}

/// Whether the process answers.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "server",
    responses((status = 200, description = "It does.", content_type = "text/plain", body = String)))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether it can do its work: the inventory can be read and written.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "server",
    responses((status = 200, description = "It can.", content_type = "text/plain", body = String),
        (status = 503, body = ErrorBody)))]
pub async fn readyz(State(api): State<Api>) -> Answer<&'static str> {
    if *api.ending.borrow() {
        return Err(Refusal(Problem::new(ErrorCode::Unavailable, "the control plane ends")));
    }
    blocking(api, |control| {
        let checked = control.inventory.check();
        checked.map_err(|failure| crate::problems::failure(&failure))
    })
    .await?;
    Ok("ready\n")
}

/// Metrics for Prometheus (text format 0.0.4).
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "server",
    responses((status = 200, description = "The numbers.", content_type = "text/plain", body = String),
        (status = "4XX", body = ErrorBody)))]
pub async fn metrics(
    State(api): State<Api>,
) -> (StatusCode, [(axum::http::HeaderName, &'static str); 1], String) {
    let text = numbers::text(&api);
    (StatusCode::OK, [(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}
