//! Recipients of alarms.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::access::Done;
use strongroom_api::recipient::{CreateRecipient, NewRecipient, Recipient, TestRecipient};
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ListQuery, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish};
use super::{Answer, blocking};
use crate::engine::views::page_of;

/// Recipients of alarms.
#[utoipa::path(get, path = "/v1/recipients", operation_id = "recipient_list", tag = "alarm", params(ListQuery),
    responses((status = 200, body = Page<Recipient>), (status = "4XX", body = ErrorBody)))]
pub async fn recipient_list(
    State(api): State<Api>,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Recipient>>> {
    let all = api.control.list_recipients();
    Ok(Json(page_of("recipients", all, &query, |item| item.name.to_string())?))
}

/// Makes a recipient. It is sent the alarms that are raised or cleared from now on.
#[utoipa::path(post, path = "/v1/recipients", operation_id = "recipient_create", tag = "alarm",
    request_body = CreateRecipient,
    responses((status = 201, body = NewRecipient), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn recipient_create(
    State(api): State<Api>,
    wish: Wish<CreateRecipient>,
) -> Answer<(StatusCode, Json<NewRecipient>)> {
    let made = blocking(api, move |control| control.create_recipient(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// A recipient, and what has become of its messages.
#[utoipa::path(get, path = "/v1/recipients/{recipient}", operation_id = "recipient_show", tag = "alarm",
    params(("recipient" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Recipient), (status = "4XX", body = ErrorBody)))]
pub async fn recipient_show(
    State(api): State<Api>,
    Named(recipient): Named<String>,
) -> Answer<Json<Recipient>> {
    Ok(Json(api.control.show_recipient(&recipient)?))
}

/// Sends a recipient a message without alarms, and answers when it has arrived.
#[utoipa::path(post, path = "/v1/recipients/{recipient}/tests", operation_id = "recipient_test", tag = "alarm",
    params(("recipient" = String, Path, description = "Name or id.")), request_body = Option<TestRecipient>,
    responses((status = 200, body = Recipient), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn recipient_test(
    State(api): State<Api>,
    Named(recipient): Named<String>,
    wish: Wish<TestRecipient>,
) -> Answer<Json<Recipient>> {
    blocking(api, move |control| control.test_recipient(&wish.caller, &recipient)).await.map(Json)
}

/// Deletes a recipient. It is sent nothing any more.
#[utoipa::path(delete, path = "/v1/recipients/{recipient}", operation_id = "recipient_delete", tag = "alarm",
    params(("recipient" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn recipient_delete(
    State(api): State<Api>,
    Named(recipient): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.delete_recipient(&wish.caller, &recipient))
        .await
        .map(|()| Json(Done {}))
}
