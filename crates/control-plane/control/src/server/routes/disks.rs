//! Disks of VMs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::ErrorBody;
use strongroom_api::task::Task;
use strongroom_api::vm::{AddDisk, EncryptDisk, MoveDisk, PowerOptions, ResizeDisk, SetLimits};

use super::super::Api;
use super::super::ask::{Named, Wish};
use super::{Answer, blocking};

/// A task that was accepted.
type Accepted = Answer<(StatusCode, Json<Task>)>;

/// Adds an empty disk to a VM, under the VM's key. A running guest sees it at once.
#[utoipa::path(post, path = "/v1/vms/{vm}/disks", operation_id = "vm_add_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = AddDisk,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_add_disk(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<AddDisk>) -> Accepted {
    let task = blocking(api, move |control| control.add_disk(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Removes a disk from a VM and deletes its volume. A running guest has a minute to release it.
#[utoipa::path(delete, path = "/v1/vms/{vm}/disks/{disk}", operation_id = "vm_remove_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk1` and so on.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_remove_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.remove_disk(&wish.caller, &vm, &disk)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Grows a disk of a VM. A running guest sees the new size at once.
#[utoipa::path(patch, path = "/v1/vms/{vm}/disks/{disk}", operation_id = "vm_resize_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk0` and so on.")),
    request_body = ResizeDisk,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_resize_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<ResizeDisk>,
) -> Accepted {
    let task =
        blocking(api, move |control| control.resize_disk(&wish.caller, &vm, &disk, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Moves a disk of a VM that runs or is off to another datastore, with its snapshots. Its blocks
/// are copied as they are stored, without being decrypted; then the former volume is deleted.
#[utoipa::path(post, path = "/v1/vms/{vm}/disks/{disk}/move", operation_id = "vm_move_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk0` and so on.")),
    request_body = MoveDisk,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_move_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<MoveDisk>,
) -> Accepted {
    let task = blocking(api, move |control| control.move_disk(&wish.caller, &vm, &disk, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Sets the limits of a disk's requests, which replace those that it has: a limit that is absent
/// ends. The guest of a running VM goes on, and the limits hold within a tenth of a second.
#[utoipa::path(patch, path = "/v1/vms/{vm}/disks/{disk}/limits", operation_id = "vm_limit_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk0` and so on.")),
    request_body = SetLimits,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_limit_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<SetLimits>,
) -> Accepted {
    let task =
        blocking(api, move |control| control.limit_disk(&wish.caller, &vm, Some(&disk), wish.body.limits))
            .await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Sets the limits of the requests of all disks of a VM together, beside those of each disk. They
/// replace those that it has: a limit that is absent ends.
#[utoipa::path(patch, path = "/v1/vms/{vm}/limits", operation_id = "vm_limit", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = SetLimits,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_limit(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<SetLimits>) -> Accepted {
    let task =
        blocking(api, move |control| control.limit_disk(&wish.caller, &vm, None, wish.body.limits)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Encrypts a disk of a VM, off or running, with its snapshots, under the VM's key. A VM without a
/// key, which must be off, gets one, and its own volumes are encrypted, too. A cancelled task
/// decrypts the disk again.
#[utoipa::path(post, path = "/v1/vms/{vm}/disks/{disk}/encrypt", operation_id = "vm_encrypt_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk0` and so on.")),
    request_body = Option<EncryptDisk>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_encrypt_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<EncryptDisk>,
) -> Accepted {
    let task =
        blocking(api, move |control| control.encrypt_disk(&wish.caller, &vm, &disk, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Decrypts a disk of a VM, off or running, with its snapshots. With the last encrypted disk of a
/// VM, which must be off, its own volumes are decrypted, too, and its key is deactivated. A
/// cancelled task encrypts the disk again.
#[utoipa::path(post, path = "/v1/vms/{vm}/disks/{disk}/decrypt", operation_id = "vm_decrypt_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk0` and so on.")),
    request_body = Option<PowerOptions>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_decrypt_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.decrypt_disk(&wish.caller, &vm, &disk)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
