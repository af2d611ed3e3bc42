//! Networks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::network::{AddNetworkHost, CreateNetwork, Network};
use strongroom_api::task::Task;
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ListQuery, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish};
use super::super::token::Asker;
use super::{Answer, blocking};
use crate::engine::Control;
use crate::engine::views::page_of;

/// A task that is done.
type Accepted = Answer<(StatusCode, Json<Task>)>;

/// Networks.
#[utoipa::path(get, path = "/v1/networks", operation_id = "network_list", tag = "network", params(ListQuery),
    responses((status = 200, body = Page<Network>), (status = "4XX", body = ErrorBody)))]
pub async fn network_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Network>>> {
    let all = api.control.list_networks_for(&asker.rights(&api.control));
    Ok(Json(page_of("networks", all, &query, |item| item.name.to_string())?))
}

/// A network.
#[utoipa::path(get, path = "/v1/networks/{network}", operation_id = "network_show", tag = "network",
    params(("network" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Network), (status = "4XX", body = ErrorBody)))]
pub async fn network_show(State(api): State<Api>, Named(network): Named<String>) -> Answer<Json<Network>> {
    Ok(Json(api.control.show_network(&network)?))
}

/// Makes a network, which no host has yet.
#[utoipa::path(post, path = "/v1/networks", operation_id = "network_create", tag = "network", request_body = CreateNetwork,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn network_create(State(api): State<Api>, wish: Wish<CreateNetwork>) -> Accepted {
    let task = blocking(api, move |control| control.create_network(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Deletes a network that no VM is connected to.
#[utoipa::path(delete, path = "/v1/networks/{network}", operation_id = "network_delete", tag = "network",
    params(("network" = String, Path, description = "Name or id.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn network_delete(
    State(api): State<Api>,
    Named(network): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.delete_network(&wish.caller, &network)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Says on which bridge a host has a network.
#[utoipa::path(post, path = "/v1/networks/{network}/hosts", operation_id = "network_add_host", tag = "network",
    params(("network" = String, Path, description = "Name or id.")), request_body = AddNetworkHost,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn network_add_host(
    State(api): State<Api>,
    Named(network): Named<String>,
    wish: Wish<AddNetworkHost>,
) -> Accepted {
    let add = move |control: &Control| control.add_network_host(&wish.caller, &network, &wish.body);
    Ok((StatusCode::ACCEPTED, Json(blocking(api, add).await?)))
}

/// Says that a host has a network no more. None of its VMs is connected to it.
#[utoipa::path(delete, path = "/v1/networks/{network}/hosts/{host}", operation_id = "network_remove_host", tag = "network",
    params(("network" = String, Path, description = "Name or id."), ("host" = String, Path, description = "Name or id.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn network_remove_host(
    State(api): State<Api>,
    Named((network, host)): Named<(String, String)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let remove = move |control: &Control| control.remove_network_host(&wish.caller, &network, &host);
    Ok((StatusCode::ACCEPTED, Json(blocking(api, remove).await?)))
}
