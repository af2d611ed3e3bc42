//! Network cards of VMs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::ErrorBody;
use strongroom_api::task::Task;
use strongroom_api::vm::{AddNic, PatchNic, PowerOptions};

use super::super::Api;
use super::super::ask::{Named, Wish};
use super::{Answer, blocking};

/// A task that was accepted.
type Accepted = Answer<(StatusCode, Json<Task>)>;

/// Adds a network card to a VM, after all others. A guest that runs sees it at once.
#[utoipa::path(post, path = "/v1/vms/{vm}/nics", operation_id = "vm_add_nic", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = AddNic,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_add_nic(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<AddNic>) -> Accepted {
    let task = blocking(api, move |control| control.add_nic(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Changes the network of a card, or its link. A guest that runs sees it at once: for another
/// network the card goes and comes back.
#[utoipa::path(patch, path = "/v1/vms/{vm}/nics/{nic}", operation_id = "vm_set_nic", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."),
        ("nic" = String, Path, description = "`nic0` and so on, or its address.")), request_body = PatchNic,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_set_nic(
    State(api): State<Api>,
    Named((vm, nic)): Named<(String, String)>,
    wish: Wish<PatchNic>,
) -> Accepted {
    let task = blocking(api, move |control| control.set_nic(&wish.caller, &vm, &nic, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Removes a network card. The guest of a VM that runs has a minute to release it. The numbers of
/// those behind it fall by one.
#[utoipa::path(delete, path = "/v1/vms/{vm}/nics/{nic}", operation_id = "vm_remove_nic", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."),
        ("nic" = String, Path, description = "`nic0` and so on, or its address.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_remove_nic(
    State(api): State<Api>,
    Named((vm, nic)): Named<(String, String)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.remove_nic(&wish.caller, &vm, &nic)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
