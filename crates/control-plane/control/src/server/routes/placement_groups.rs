//! Placement groups.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::access::Done;
use strongroom_api::placement::{CreatePlacementGroup, PlacementGroup, SetPlacementGroup};
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ListQuery, ObjectKind, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish};
use super::super::token::Asker;
use super::{Answer, blocking};
use crate::engine::views::page_of;
use crate::problems;

/// Placement groups.
#[utoipa::path(get, path = "/v1/placement-groups", operation_id = "placement_group_list", tag = "host", params(ListQuery),
    responses((status = 200, body = Page<PlacementGroup>), (status = "4XX", body = ErrorBody)))]
pub async fn placement_group_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<PlacementGroup>>> {
    let rights = asker.rights(&api.control);
    let all = if rights.sees_something() { api.control.list_placement_groups(&rights) } else { Vec::new() };
    Ok(Json(page_of("placement groups", all, &query, |item| item.name.to_string())?))
}

/// Makes a placement group.
#[utoipa::path(post, path = "/v1/placement-groups", operation_id = "placement_group_create", tag = "host",
    request_body = CreatePlacementGroup,
    responses((status = 201, body = PlacementGroup), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn placement_group_create(
    State(api): State<Api>,
    wish: Wish<CreatePlacementGroup>,
) -> Answer<(StatusCode, Json<PlacementGroup>)> {
    let made = blocking(api, move |control| control.create_placement_group(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// A placement group.
#[utoipa::path(get, path = "/v1/placement-groups/{group}", operation_id = "placement_group_show", tag = "host",
    params(("group" = String, Path, description = "Name or id.")),
    responses((status = 200, body = PlacementGroup), (status = "4XX", body = ErrorBody)))]
pub async fn placement_group_show(
    State(api): State<Api>,
    asker: Asker,
    Named(group): Named<String>,
) -> Answer<Json<PlacementGroup>> {
    let rights = asker.rights(&api.control);
    if !rights.sees_something() {
        return Err(problems::not_found(ObjectKind::PlacementGroup, &group).into());
    }
    Ok(Json(api.control.show_placement_group(&rights, &group)?))
}

/// Has VMs join and leave a placement group. They stay on their hosts.
#[utoipa::path(patch, path = "/v1/placement-groups/{group}", operation_id = "placement_group_set", tag = "host",
    params(("group" = String, Path, description = "Name or id.")), request_body = Option<SetPlacementGroup>,
    responses((status = 200, body = PlacementGroup), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn placement_group_set(
    State(api): State<Api>,
    Named(group): Named<String>,
    wish: Wish<SetPlacementGroup>,
) -> Answer<Json<PlacementGroup>> {
    blocking(api, move |control| control.set_placement_group(&wish.caller, &group, &wish.body))
        .await
        .map(Json)
}

/// Deletes a placement group. Its VMs stay.
#[utoipa::path(delete, path = "/v1/placement-groups/{group}", operation_id = "placement_group_delete", tag = "host",
    params(("group" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn placement_group_delete(
    State(api): State<Api>,
    Named(group): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.delete_placement_group(&wish.caller, &group))
        .await
        .map(|()| Json(Done {}))
}
